#include "plimsoll/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/by_id.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

// The arena as segments by where they begin, each up to the next one, with the number of stays on it.
class Coverage {
 public:
  void add(const Stay& stay) { change(stay, 1); }
  void remove(const Stay& stay) { change(stay, -1); }
  Bytes covered() const { return {covered_}; }

 private:
  using Segments = std::map<int64_t, int>;

  void change(const Stay& stay, int by) {
    if (stay.bytes.count <= 0) return;
    const auto first = split(stay.offset.count), end = split(stay.offset.count + stay.bytes.count);
    for (auto segment = first; segment != end; ++segment) {
      const bool before = segment->second > 0;
      segment->second += by;
      const bool after = segment->second > 0;
      if (before != after) covered_ += (after ? 1 : -1) * (std::next(segment)->first - segment->first);
    }
    join(end);
    join(first);
  }
  Segments::iterator split(int64_t at) {
    const auto next = segments_.upper_bound(at), here = std::prev(next);
    return here->first == at ? here : segments_.emplace_hint(next, at, here->second);
  }
  void join(Segments::iterator segment) {
    if (segment != segments_.begin() && std::prev(segment)->second == segment->second) segments_.erase(segment);
  }

  Segments segments_{{0, 0}};
  int64_t covered_ = 0;
};

}  // namespace

Bytes second_buffer_bytes(const Plan& plan) {
  Bytes sum;
  for (const FedInput& input : plan.feeding.inputs) sum += plan.feeding.second_buffer ? input.bytes : 0_B;
  return sum;
}

std::vector<Bytes> live_bytes(const Plan& plan) {
  ById<StepIndex, std::vector<const Stay*>> begin(plan.steps.size()), end(plan.steps.size());
  if (!plan.steps.empty()) {
    for (const Stay& stay : plan.stays) {
      begin[stay.first].push_back(&stay);
      end[stay.last].push_back(&stay);
    }
  }
  Coverage arena;
  const Bytes always = second_buffer_bytes(plan);
  ById<StepIndex, Bytes> live(plan.steps.size());
  for (StepIndex step = 0; step < static_cast<StepIndex>(plan.steps.size()); ++step) {
    for (const Stay* stay : begin[step]) arena.add(*stay);
    live[step] = arena.covered() + always;
    for (const Stay* stay : end[step]) arena.remove(*stay);
  }
  return live;
}

Peak live_peak(const Plan& plan) {
  const std::vector<Bytes> live = live_bytes(plan);
  const auto most = std::max_element(live.begin(), live.end());
  if (most == live.end()) return {};
  return {*most, static_cast<StepIndex>(most - live.begin())};
}

Bytes least_bytes(const Graph& graph, bool states_may_leave) {
  // What a view shows. Its input may stand behind it in the list, where a reorder was put between them.
  auto seen_as = [&](TensorId id) {
    for (OpId by = graph.tensor(id).producer; by.valid() && graph.op(by).type->is_view;
         by = graph.tensor(id).producer) {
      id = graph.op(by).inputs[0];
    }
    return id;
  };
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
      const int32_t seen = seen_as(id).index;
      if (resident.count(seen) == 0 && counted.insert(seen).second) sum += bytes(id);
    };
    for (TensorId id : op.inputs) count(id);
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      const bool over =
          std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& p) { return std::cmp_equal(p.output, o); });
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

std::vector<HeldBytes> held_at(const Plan& plan, StepIndex step) {
  Coverage arena;
  std::vector<HeldBytes> result;
  for (const Stay* stay : live_at(plan, step)) {
    const Bytes before = arena.covered();
    arena.add(*stay);
    result.push_back({stay, arena.covered() - before});
  }
  return result;
}

std::string raise_memory_to(Bytes enough) {
  const double mib = static_cast<double>((enough.count * 10 + (1 << 20) - 1) >> 20) / 10;
  return "raise --memory to " +
         (enough < 1_MiB ? fmt::format("{} bytes", enough.count) : fmt::format("{:.1f}MiB", mib));
}

void leave_out_batch(std::string& suggestion) {
  constexpr std::string_view kAdvice = ", or lower --batch";
  if (const size_t at = suggestion.find(kAdvice); at != std::string::npos) suggestion.erase(at, kAdvice.size());
}

std::string to_text(const Infeasible& infeasible) {
  constexpr size_t kShown = 12;
  const std::string what = infeasible.flag.empty() ? fmt::format("no plan by policy '{}' fits", infeasible.policy)
                                                   : fmt::format("no choice of kernels keeps {}", infeasible.flag);
  const std::string least_needed = to_string(infeasible.minimum);
  std::string than_none, budget = to_string(infeasible.budget);
  if (budget == least_needed)  // rounding hides the difference
    budget = fmt::format("{} bytes", infeasible.budget.count);
  if (infeasible.proven && infeasible.budget < infeasible.lower_bound)
    than_none = fmt::format(", as none needs less than {}", to_string(infeasible.lower_bound));
  const bool least = infeasible.proven && (than_none.empty() || infeasible.minimum <= infeasible.lower_bound);
  std::string text = fmt::format("{} {}{}: {} {} ({} bytes) are needed{}\n", what, budget, than_none,
                                 least ? "at least" : "as far as was found,", least_needed, infeasible.minimum.count,
                                 infeasible.flag.empty() ? "" : ", by these ops:");
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
