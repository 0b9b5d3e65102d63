#include "plan/simulate.h"

#include "plan/engines.h"
#include "plimsoll/ops.h"

namespace plimsoll {
double copy_ms(const TierInfo& tier, Move::Direction direction, Bytes bytes) {
  const double gb_per_s = direction == Move::Direction::out ? tier.out_gb_per_s : tier.in_gb_per_s;
  return tier.latency_us / 1e3 + (gb_per_s > 0 ? static_cast<double>(bytes.count) / (gb_per_s * 1e6) : 0);
}

void take_times(const Graph& graph, Plan& plan, const CostTable& costs) {
  for (Step& step : plan.steps) {
    Cost cost;  // a view moves nothing
    if (!step.kernel.empty()) cost = costs.predict(graph, graph.op(step.op), step.kernel, step.threads);
    step.time_ms = cost.time_ms;
    step.estimated = cost.source == Cost::Source::estimated;
  }
}

Prediction simulate(const Graph& graph, Plan plan, const CostTable& costs) {
  take_times(graph, plan, costs);
  return simulate(graph, plan);
}

Prediction simulate(const Graph& graph, const Plan& plan) {
  Prediction result;
  const Peak peak = live_peak(plan);
  result.peak = peak.bytes;
  result.peak_step = peak.step;
  std::vector<double> step_ms;
  double compute = 0, estimated = 0;
  for (const Step& step : plan.steps) {
    step_ms.push_back(step.time_ms);
    compute += step.time_ms;
    if (step.estimated) estimated += step.time_ms;
    if (!step.recompute || graph.op(step.op).type->is_view) continue;
    ++result.recompute_steps;
    result.recompute_ms += step.time_ms;
  }
  std::vector<EngineMove> moves;
  for (const Move& move : plan.moves) {
    const Bytes bytes = graph.tensor(move.tensor).bytes();
    const bool out = move.direction == Move::Direction::out;
    (out ? result.offload : result.prefetch) += bytes;
    moves.push_back({out, move.tier, bytes.count, move.after, move.before});
  }
  std::vector<TierInfo> tiers;
  for (const TierUse& use : plan.tiers) tiers.push_back(use.tier);
  const EngineTimes times = run_engines(step_ms, moves, tiers, &result.timeline);
  result.step_time_ms = times.total_ms;
  result.stall_ms = times.stall_ms;
  result.copy_ms = times.copy_ms;
  result.estimated_share = compute > 0 ? estimated / compute : 0;
  result.lower_bound_ms = compute - result.recompute_ms;
  return result;
}

}  // namespace plimsoll
