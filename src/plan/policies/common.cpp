#include <fmt/format.h>

#include <algorithm>

#include "base/names.h"
#include "plan/assemble.h"
#include "plan/policies/policies.h"
#include "plan/simulate.h"
#include "plan/tier_flag.h"
#include "plimsoll/ops.h"

namespace plimsoll {
std::string option(const PolicyInput& input, const std::string& name, std::vector<std::string> known) {
  const auto found = input.options.find(name);
  if (found == input.options.end()) return known.front();
  if (std::find(known.begin(), known.end(), found->second) == known.end()) {
    throw Error(ErrorCode::invalid_input,
                unknown_name(fmt::format("value of policy option {}", name), found->second, known));
  }
  return found->second;
}

std::vector<ForwardValue> forward_values(const PolicyInput& input, const ValueTimeline& timeline) {
  std::vector<ForwardValue> list;
  for (int32_t v = 0; v < static_cast<int32_t>(timeline.values.size()); ++v) {
    const TimelineValue& value = timeline.values[v];
    if (value.producer < 0 || value.state >= 0 || value.bytes == 0) continue;
    const Op& op = input.graph.op(timeline.steps[value.producer].op);
    if (op.phase != Phase::forward) continue;
    int32_t forward = 0;
    while (forward < static_cast<int32_t>(value.uses.size()) &&
           input.graph.op(timeline.steps[value.uses[forward]].op).phase == Phase::forward) {
      ++forward;
    }
    list.push_back({v, layer_kind(op), value.first_gap + forward, forward < static_cast<int32_t>(value.uses.size())});
  }
  return list;
}

PlanOrInfeasible finish_plan(const PolicyInput& input, const ValueTimeline& timeline, const Decisions& decisions,
                             const Schedule& schedule, std::string_view policy) {
  if (schedule.given_up) {
    return Infeasible{.policy = std::string(policy),
                      .budget = input.budget,
                      .minimum = {INT64_MAX},
                      .suggestion =
                          "this policy would compute more than a hundred times what the step has; choose "
                          "another --policy"};
  }
  if (schedule.unrecoverable >= 0) {
    const std::string& name = input.graph.tensor(timeline.values[schedule.unrecoverable].tensor).name;
    return Infeasible{
        .policy = std::string(policy),
        .budget = input.budget,
        .minimum = {INT64_MAX},
        .suggestion = fmt::format("this policy lets '{}' go and cannot bring it back; choose another --policy", name)};
  }
  const int64_t peak = schedule.live.empty() ? 0 : *std::max_element(schedule.live.begin(), schedule.live.end());
  if ((peak > input.budget.count && !input.explain) ||
      (peak <= input.budget.count &&
       time_of(timeline, input.device.tiers, schedule).total_ms >= input.faster_than_ms)) {
    return Infeasible{.policy = std::string(policy), .budget = input.budget, .minimum = {peak}};
  }
  Plan plan = make_plan(input, timeline, decisions, schedule, policy);
  if (plan.arena > input.budget) return explain_infeasible(input, plan, false);
  for (const TierUse& use : plan.tiers) {
    if (use.used <= use.tier.capacity) continue;
    if (!input.explain)
      return Infeasible{
          .policy = std::string(policy), .budget = input.budget, .minimum = plan.arena, .tier = use.tier.name};
    Infeasible infeasible = explain_infeasible(input, plan, false);
    infeasible.minimum = plan.arena;
    infeasible.tier = use.tier.name;
    infeasible.suggestion = fmt::format("tier '{}' needs {}, it has {}: give it more ({})", use.tier.name,
                                        to_string(use.used), to_string(use.tier.capacity), tier_flag(use.tier.name));
    return infeasible;
  }
  return plan;
}

PlanOrInfeasible finish_spread(const PolicyInput& input, const ValueTimeline& timeline, const Decisions& decisions,
                               const Schedule& schedule, std::string_view policy,
                               const std::vector<int32_t>* earliest) {
  const bool fits = schedule.unrecoverable < 0 && schedule.peak <= input.budget.count;
  if (fits && !schedule.moves.empty()) {
    for (const int percent : {100, 99, 97, 94, 90, 85, 75}) {
      const int64_t limit = percent == 100 ? input.budget.count : input.budget.count / 100 * percent;
      if (limit < schedule.peak) break;
      Schedule spread = schedule;
      spread_copies(timeline, input.device.tiers, limit, spread, earliest);
      PlanOrInfeasible plan = finish_plan(input, timeline, decisions, spread, policy);
      if (std::holds_alternative<Plan>(plan)) return plan;
    }
  }
  return finish_plan(input, timeline, decisions, schedule, policy);
}

bool needs_less(const Infeasible& a, const Infeasible& b) {
  return a.tier.empty() != b.tier.empty() ? a.tier.empty() : a.minimum < b.minimum;
}

void keep_better(const PolicyInput& input, PlanOrInfeasible& best, PlanOrInfeasible other) {
  Plan* a = std::get_if<Plan>(&other);
  Plan* b = std::get_if<Plan>(&best);
  if (a != nullptr) predict(input, *a);
  if (b != nullptr && b->predicted.timeline.empty()) predict(input, *b);
  bool better;
  if (a != nullptr && b != nullptr) {
    better = a->predicted.step_time_ms != b->predicted.step_time_ms
                 ? a->predicted.step_time_ms < b->predicted.step_time_ms
             : input.only_to_fit ? a->predicted.peak < b->predicted.peak
                                 : a->arena < b->arena;
  } else if (a != nullptr || b != nullptr) {
    better = a != nullptr;
  } else {
    better = needs_less(std::get<Infeasible>(other), std::get<Infeasible>(best));
  }
  if (better) best = std::move(other);
}

}  // namespace plimsoll
