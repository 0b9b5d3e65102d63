#include "plimsoll/simulate.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr int kCompute = 0, kCopyOut = 1, kCopyIn = 2;

class Simulation {
 public:
  Simulation(const Graph& graph, const Plan& plan, const CostTable& costs) : graph_(graph), plan_(plan), costs_(costs) {
    const size_t steps = plan.steps.size();
    starting_after_.resize(steps + 1);
    complete_before_.assign(steps + 1, 0);
    for (size_t i = 0; i < plan.moves.size(); ++i) {
      starting_after_[static_cast<size_t>(plan.moves[i].after + 1)].push_back(static_cast<int32_t>(i));
    }
  }

  Prediction run() {
    const Peak peak = live_peak(plan_);
    result_.peak = peak.bytes;
    result_.peak_step = peak.step;
    start_moves(0, 0);
    double now = 0, compute = 0, estimated = 0;
    for (size_t s = 0; s < plan_.steps.size(); ++s) {
      const Cost cost = step_cost(plan_.steps[s]);
      const double start = std::max(now, complete_before_[s]);
      now = start + cost.time_ms;
      compute += cost.time_ms;
      if (cost.source == Cost::Source::estimated) estimated += cost.time_ms;
      result_.recompute_steps += plan_.steps[s].recompute ? 1 : 0;
      result_.timeline.push_back({kCompute, static_cast<int32_t>(s), start, now});
      start_moves(s + 1, now);
    }
    result_.step_time_ms = std::max(now, complete_before_[plan_.steps.size()]);
    result_.estimated_share = compute > 0 ? estimated / compute : 0;
    return std::move(result_);
  }

 private:
  Cost step_cost(const Step& step) const {
    if (step.kernel.empty()) return {};  // a view moves nothing
    return costs_.predict(graph_, graph_.op(step.op), step.kernel, step.threads);
  }

  // Each direction has an engine of its own, which takes copies in the order in which they may start.
  void start_moves(size_t slot, double now) {
    for (int32_t i : starting_after_[slot]) {
      const Move& move = plan_.moves[static_cast<size_t>(i)];
      const bool out = move.direction == Move::Direction::out;
      const Bytes bytes = graph_.tensor(move.tensor).bytes();
      double& free_at = out ? out_free_ : in_free_;
      const double start = std::max(now, free_at);
      free_at = start + static_cast<double>(bytes.count) / (costs_.rates().memory_gb_per_s * 1e6);
      (out ? result_.offload : result_.prefetch) += bytes;
      result_.timeline.push_back({out ? kCopyOut : kCopyIn, i, start, free_at});
      double& complete = complete_before_[static_cast<size_t>(move.before)];
      complete = std::max(complete, free_at);
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const CostTable& costs_;
  std::vector<std::vector<int32_t>> starting_after_;  // by step + 1: moves
  std::vector<double> complete_before_;               // by step: when the last move that it waits for is complete
  double out_free_ = 0, in_free_ = 0;
  Prediction result_;
};

}  // namespace

Prediction simulate(const Graph& graph, const Plan& plan, const CostTable& costs) {
  return Simulation(graph, plan, costs).run();
}

}  // namespace plimsoll
