#include "plan/simulate.h"

#include "plan/engines.h"
#include "plan/simulate_cores.h"
#include "plan/together.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

std::vector<EngineMove> moves_of(const Graph& graph, const Plan& plan) {
  std::vector<EngineMove> moves;
  for (const Move& move : plan.moves) {
    const bool out = move.direction == Move::Direction::out;
    moves.push_back({out, move.tier, graph.tensor(move.tensor).bytes().count, move.after, move.before});
  }
  return moves;
}

EngineTimes run_one_by_one(const Graph& graph, const Plan& plan, std::vector<EngineSpan>& timeline) {
  std::vector<double> step_ms;
  for (const Step& step : plan.steps) step_ms.push_back(step.time_ms);
  std::vector<TierInfo> tiers;
  for (const TierUse& use : plan.tiers) tiers.push_back(use.tier);
  std::vector<EngineCollective> collectives;
  for (const Collective& c : plan.collectives) collectives.push_back({c.steps.back(), c.before, c.time_ms});
  return run_engines(step_ms, moves_of(graph, plan), tiers, &timeline, collectives, plan.link.compute_share);
}

// What compute waits for between two steps: within the arena each byte is read and written.
double take_batch_ms(const Plan& plan) {
  const double bytes = 2 * static_cast<double>(second_buffer_bytes(plan).count);
  return plan.feeding.arena_gb_per_s > 0 ? bytes / (plan.feeding.arena_gb_per_s * 1e6) : 0;
}

}  // namespace

double copy_ms(const TierInfo& tier, Move::Direction direction, Bytes bytes) {
  const double gb_per_s = direction == Move::Direction::out ? tier.out_gb_per_s : tier.in_gb_per_s;
  return tier.latency_us / 1e3 + (gb_per_s > 0 ? static_cast<double>(bytes.count) / (gb_per_s * 1e6) : 0);
}

double feed_ms(const Graph& graph, const Feeding& feeding) {
  double ms = 0;
  for (const FedInput& input : feeding.inputs) {
    ms += feeding.latency_us / 1e3;
    if (feeding.gb_per_s > 0)
      ms += static_cast<double>(graph.tensor(input.tensor).bytes().count) / (feeding.gb_per_s * 1e6);
  }
  return ms;
}

Cost step_cost(const Graph& graph, const Step& step, bool together, const CostTable& costs) {
  if (step.kernel.empty()) return {.source = Cost::Source::measured};  // a view moves nothing
  const Op& op = graph.op(step.op);
  if (step.threads != 0 && step.affinity == Affinity::spread) {
    const auto cost = costs.find_in_step({op_signature(graph, op), step.kernel, step.threads, true});
    if (cost) return *cost;
  }
  if (together) {
    const auto cost = costs.find_in_step({op_signature(graph, op), kernel_together(step.kernel), step.threads});
    if (cost) return *cost;
  }
  return costs.predict(graph, op, step.kernel, step.threads);
}

void take_times(const Graph& graph, Plan& plan, const CostTable& costs) {
  const std::vector<bool> together = steps_together(graph, plan);
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    Step& step = plan.steps[s];
    const Cost cost = step_cost(graph, step, together[s], costs);
    step.time_ms = cost.time_ms;
    step.estimated = cost.source == Cost::Source::estimated && !graph.op(step.op).type->is_collective;
  }
  take_times_of_collectives(graph, plan);
}

void take_times_of_collectives(const Graph& graph, Plan& plan) {
  for (Collective& collective : plan.collectives) {
    std::vector<OpId> ops;
    for (const StepIndex s : collective.steps) {
      plan.steps[s].time_ms = 0;
      ops.push_back(plan.steps[s].op);
    }
    collective.time_ms = collective_ms(plan.link, graph, ops);
  }
}

Prediction simulate(const Graph& graph, const Plan& plan) {
  Prediction result;
  const Peak peak = live_peak(plan);
  result.peak = peak.bytes;
  result.peak_step = peak.step;
  double compute = 0, estimated = 0;
  for (const Step& step : plan.steps) {
    compute += step.time_ms;
    if (step.estimated) estimated += step.time_ms;
    if (!step.recompute || graph.op(step.op).type->is_view) continue;
    ++result.recompute_steps;
    result.recompute_ms += step.time_ms;
  }
  for (const Move& move : plan.moves) {
    (move.direction == Move::Direction::out ? result.offload : result.prefetch) += graph.tensor(move.tensor).bytes();
  }
  const bool at_once = plan.cores.inter_op > 1;
  const EngineTimes times =
      at_once ? run_on_cores(graph, plan, result.timeline) : run_one_by_one(graph, plan, result.timeline);
  result.step_time_ms = times.total_ms;
  result.stall_ms = times.stall_ms;
  result.copy_ms = times.copy_ms;
  result.communication_ms = times.communication_ms;
  result.communication_stall_ms = times.communication_stall_ms;
  for (const Step& step : plan.steps) {  // those that run by themselves; the others have no time
    if (!graph.op(step.op).type->is_collective) continue;
    result.communication_ms += step.time_ms;
    result.communication_stall_ms += step.time_ms;
  }
  result.feed_ms = feed_ms(graph, plan.feeding);
  if (!plan.feeding.inputs.empty()) {
    result.wall_time_ms = plan.feeding.second_buffer
                              ? std::max(result.step_time_ms + take_batch_ms(plan), result.feed_ms)
                              : result.step_time_ms + result.feed_ms;
  }
  result.estimated_share = compute > 0 ? estimated / compute : 0;
  result.lower_bound_ms = at_once ? least_ms_on_cores(graph, plan) : compute - result.recompute_ms;
  return result;
}

Prediction simulate(const Graph& graph, Plan plan, const CostTable& costs) {
  take_times(graph, plan, costs);
  return simulate(graph, plan);
}

void predict(const Graph& graph, Plan& plan, const CostTable& costs) {
  take_times(graph, plan, costs);
  plan.predicted = simulate(graph, plan);
}

}  // namespace plimsoll
