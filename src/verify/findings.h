// What the parts of the verifier have in common: the list of violations, and words for what lies where.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/by_id.h"
#include "plimsoll/verify.h"

namespace plimsoll {

class Findings {
 public:
  Findings(const Graph& graph, const Plan& plan, size_t limit) : graph_(graph), plan_(plan), limit_(limit) {}

  void report(Violation::Rule rule, StepIndex step, std::string message) {
    if (!full()) found_.push_back({rule, step, std::move(message)});
  }
  bool full() const { return found_.size() >= limit_; }
  bool none() const { return found_.empty(); }
  std::vector<Violation> in_order() {
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Violation& a, const Violation& b) { return a.step < b.step; });
    return std::move(found_);
  }

  std::string what(const Stay& s) const {
    const std::string name = s.is_workspace() ? fmt::format("the workspace of step {}", s.first)
                                              : fmt::format("'{}'", graph_.tensor(s.tensor).name);
    return fmt::format("{} at [{}, {}) in steps {}..{}", name, s.offset.count, s.offset.count + s.bytes.count, s.first,
                       s.last);
  }
  std::string what(const Move& m) const {
    return fmt::format("the copy of '{}' {} tier {} after step {} and before step {}", graph_.tensor(m.tensor).name,
                       m.direction == Move::Direction::out ? "to" : "from", m.tier, m.after, m.before);
  }
  std::string where(StepIndex step) const {
    return fmt::format("step {} ('{}')", step, graph_.op(plan_.steps[step].op).name);
  }

 private:
  const Graph& graph_;
  const Plan& plan_;
  size_t limit_;
  std::vector<Violation> found_;
};

// For every tensor the one whose bytes it is: what it views, itself when it is no view. Two tensors with the same one
// have the same value.
ById<TensorId, int32_t> find_same_bytes(const Graph& graph);

// When a copy may run, such that one is complete when another starts if end_of(one) < start_of(other). Between two
// steps start the copies out, then those are complete that must be, then start the copies in, then those are complete.
inline int64_t start_of(const Move& m) {
  return 4 * (static_cast<int64_t>(m.after) + 1) + (m.direction == Move::Direction::out ? 0 : 2);
}
inline int64_t end_of(const Move& m) {
  return 4 * static_cast<int64_t>(m.before) + (m.direction == Move::Direction::out ? 1 : 3);
}

// What can be seen without walking the plan. False: the plan names what does not exist and cannot be walked.
bool check_fields(const Graph& graph, const Plan& plan, Findings& findings);
// What a safe plan claims: its bound, and what it predicts.
void check_claims(const Graph& graph, const Plan& plan, Findings& findings);
// What lies in the outside tiers over time.
void check_slots(const Graph& graph, const Plan& plan, const ById<TensorId, int32_t>& same_bytes, Findings& findings);

}  // namespace plimsoll
