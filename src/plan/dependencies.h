// What in a plan waits for what, found from its steps, stays and moves alone: for whoever runs steps side by side, and
// for who predicts such a run.
//
//   step 0   a = f(x)           writes [0, 64)
//   step 1   b = g(a)           reads  [0, 64), writes [64, 128)      waits for 0: it reads what 0 wrote
//   step 2   c = h(x)           writes [0, 64)                        waits for 1: it takes the bytes that 1 still
//   reads move 0   b goes out         reads  [64, 128)                      waits for 1; runs beside 2
//
// One rule covers data, places taken over, views, workspaces, recomputations, copies and slots: of two that touch a
// byte of the arena or of a tier, and not both only read it, the one that is earlier in the plan's order is done before
// the other starts. In this order the verifier has judged the plan; an execution that keeps the rule reads and writes
// the same values at every byte, whatever else runs at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

// Bytes that are overwritten with rubbish once step `after` and all before it are done with them (memory checks).
struct Erasure {
  StepIndex after = 0;
  Bytes offset, bytes;
};

// Nodes are the plan's steps by their number, then its moves, then erasures: node steps + i is move i.
class Dependencies {
 public:
  int32_t count() const { return static_cast<int32_t>(first_before_.size()) - 1; }
  size_t edges() const { return before_.size(); }
  // Who must be done before the node starts: the direct ones, without those that another of them waits for anyway
  // (where these are not far apart).
  std::span<const int32_t> before(int32_t node) const { return part(first_before_, before_, node); }
  std::span<const int32_t> after(int32_t node) const { return part(first_after_, after_, node); }
  // The stays that a step or a move reads or writes.
  std::span<const int32_t> stays(int32_t node) const { return part(first_stay_, stays_, node); }
  // All nodes in an order in which one may run after another: the plan's own.
  std::span<const int32_t> order() const { return order_; }

 private:
  friend Dependencies find_dependencies(const Graph&, const Plan&, std::span<const Erasure>);
  static std::span<const int32_t> part(const std::vector<int32_t>& first, const std::vector<int32_t>& all,
                                       int32_t node) {
    return std::span(all).subspan(first[node], first[node + 1] - first[node]);
  }
  std::vector<int32_t> first_before_{0}, before_, first_after_{0}, after_, first_stay_, stays_, order_;
};

// The plan must be valid (verify.h).
Dependencies find_dependencies(const Graph& graph, const Plan& plan, std::span<const Erasure> erasures = {});

}  // namespace plimsoll
