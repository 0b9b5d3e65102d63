#include "plimsoll/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "plan/live.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

// Bytes alive now, where stays at one offset lie in the same bytes.
class LiveBytes {
 public:
  void begin(const Stay& stay) { change(stay, true); }
  void end(const Stay& stay) { change(stay, false); }
  Bytes sum() const { return sum_; }

 private:
  void change(const Stay& stay, bool begins) {
    std::vector<int64_t>& here = places_[stay.offset.count];
    sum_ -= largest(here);
    if (begins) {
      here.push_back(stay.bytes.count);
    } else {
      here.erase(std::find(here.begin(), here.end(), stay.bytes.count));
    }
    sum_ += largest(here);
    if (here.empty()) places_.erase(stay.offset.count);
  }
  static Bytes largest(const std::vector<int64_t>& sizes) {
    return {sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end())};
  }

  std::unordered_map<int64_t, std::vector<int64_t>> places_;
  Bytes sum_;
};

// Calls visit(step, bytes alive at it) for every step.
template <class Visit>
void sweep(const Plan& plan, Visit visit) {
  std::vector<const Stay*> by_first, by_last;
  for (const Stay& stay : plan.stays) by_first.push_back(&stay);
  by_last = by_first;
  std::sort(by_first.begin(), by_first.end(), [](const Stay* a, const Stay* b) { return a->first < b->first; });
  std::sort(by_last.begin(), by_last.end(), [](const Stay* a, const Stay* b) { return a->last < b->last; });
  LiveBytes live;
  size_t ended = 0, begun = 0;
  for (StepIndex step = 0; step < static_cast<StepIndex>(plan.steps.size()); ++step) {
    while (ended < by_last.size() && by_last[ended]->last < step) live.end(*by_last[ended++]);
    while (begun < by_first.size() && by_first[begun]->first == step) live.begin(*by_first[begun++]);
    visit(step, live.sum());
  }
}

}  // namespace

Peak live_peak(const Plan& plan) {
  Peak peak;
  sweep(plan, [&](StepIndex step, Bytes live) {
    if (live > peak.bytes) peak = {live, step};
  });
  return peak;
}

std::vector<Bytes> live_bytes(const Plan& plan) {
  std::vector<Bytes> result(plan.steps.size());
  sweep(plan, [&](StepIndex step, Bytes live) { result[static_cast<size_t>(step)] = live; });
  return result;
}

Bytes least_bytes(const Graph& graph, bool states_may_leave) {
  std::vector<TensorId> seen_as;  // what a view shows
  for (int32_t i = 0; i < graph.tensor_count(); ++i) {
    const OpId producer = graph.tensor({i}).producer;
    const bool view = producer.valid() && graph.op(producer).type->is_view;
    seen_as.push_back(view ? seen_as[static_cast<size_t>(graph.op(producer).inputs[0].index)] : TensorId{i});
  }
  auto bytes = [&](TensorId id) { return storage_bytes(graph.tensor(id).shape, graph.tensor(id).dtype, {}); };
  std::set<int32_t> states, resident;  // as found, and as left, in the same bytes
  Bytes kept, most;
  if (!states_may_leave) {
    for (const State& state : graph.states) {
      if (states.insert(state.before.index).second) kept += bytes(state.before);
      resident.insert({state.before.index, state.after.index});
    }
  }
  for (const Op& op : graph.ops()) {
    if (op.type->is_view) continue;
    const std::vector<InPlace> pairs = op.type->in_place ? op.type->in_place(graph, op) : std::vector<InPlace>{};
    std::set<int32_t> counted;
    Bytes sum = kept;
    auto count = [&](TensorId id) {
      const int32_t seen = seen_as[static_cast<size_t>(id.index)].index;
      if (resident.count(seen) == 0 && counted.insert(seen).second) sum += bytes(id);
    };
    for (TensorId id : op.inputs) count(id);
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      const bool over = std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& p) { return static_cast<size_t>(p.output) == o; });
      if (!over) count(op.outputs[o]);
    }
    most = std::max(most, sum);
  }
  return most;
}

std::vector<const Stay*> live_at(const Plan& plan, StepIndex step) {
  std::vector<const Stay*> result;
  for (const Stay& stay : plan.stays) {
    if (stay.first <= step && step <= stay.last) result.push_back(&stay);
  }
  std::stable_sort(result.begin(), result.end(), [](const Stay* a, const Stay* b) { return a->bytes > b->bytes; });
  return result;
}

std::string raise_memory_to(Bytes enough) {
  const double mib = static_cast<double>((enough.count * 10 + (1 << 20) - 1) >> 20) / 10;
  return "raise --memory to " + (enough < 1_MiB ? fmt::format("{} bytes", enough.count) : fmt::format("{:.1f}MiB", mib));
}

std::string to_text(const Infeasible& infeasible) {
  constexpr size_t kShown = 12;
  const std::string what = infeasible.flag.empty() ? fmt::format("no plan by policy '{}' fits", infeasible.policy)
                                                   : fmt::format("no choice of kernels keeps {}", infeasible.flag);
  std::string text = fmt::format("{} {}: {} {} ({} bytes) are needed{}\n", what, to_string(infeasible.budget),
                                 infeasible.proven ? "at least" : "as far as was found,", to_string(infeasible.minimum),
                                 infeasible.minimum.count, infeasible.flag.empty() ? "" : ", by these ops:");
  if (!infeasible.op.empty() && infeasible.flag.empty()) {
    text += fmt::format("the peak is at step {}, '{}'", infeasible.step, infeasible.op);
    if (!infeasible.layer.empty()) text += fmt::format(" of layer '{}'", infeasible.layer);
    text += ", where these are live:\n";
  }
  Bytes rest;
  for (size_t i = 0; i < infeasible.needs.size(); ++i) {
    const Infeasible::Need& need = infeasible.needs[i];
    if (i >= kShown) {
      rest += need.bytes;
    } else {
      text += fmt::format("  {:>10}  {:<15}  {}\n", to_string(need.bytes),
                          need.workspace ? "workspace" : to_string(need.role), need.tensor);
    }
  }
  if (infeasible.needs.size() > kShown) {
    text += fmt::format("  {:>10}  {} more\n", to_string(rest), infeasible.needs.size() - kShown);
  }
  return text + infeasible.suggestion + "\n";
}

}  // namespace plimsoll
