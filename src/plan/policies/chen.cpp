// Sublinear memory (Chen et al. 2016): results of steps between checkpoints are let go, and computed again where they are
// used once more. On a graph that is no chain: a step's result waits for its next use as long as that is in the same segment,
// else it goes. What is rebuilt on the way to another stays for its own use.
#include <algorithm>
#include <cmath>
#include <optional>

#include "plan/policies/policies.h"

namespace plimsoll {
namespace {

constexpr int kTries = 16;  // of bytes between checkpoints

// `segment_of`: by step; `is_checkpoint`: by step.
Decisions between(const ValueTimeline& timeline, const std::vector<int32_t>& segment_of,
                  const std::vector<bool>& is_checkpoint) {
  Decisions decisions = keep_everything(timeline);
  for (const TimelineValue& value : timeline.values) {
    if (!value.recomputable || is_checkpoint[value.producer]) continue;
    for (int32_t g = 0; g < static_cast<int32_t>(value.uses.size()); ++g) {
      const int32_t from = g == 0 ? value.producer : value.uses[g - 1];
      if (segment_of[from] != segment_of[value.uses[g]]) decisions.gaps[value.first_gap + g] = kDrop;
    }
  }
  return decisions;
}

Decisions every(const ValueTimeline& timeline, int32_t length) {
  std::vector<int32_t> segment_of;
  std::vector<bool> is_checkpoint;
  for (int32_t s = 0; s < static_cast<int32_t>(timeline.steps.size()); ++s) {
    segment_of.push_back(s / length);
    is_checkpoint.push_back(s % length == length - 1);
  }
  return between(timeline, segment_of, is_checkpoint);
}

Decisions by_bytes(const ValueTimeline& timeline, double most) {
  std::vector<int32_t> segment_of;
  std::vector<bool> is_checkpoint;
  double bytes = 0;
  int32_t segment = 0;
  for (const TimelineStep& step : timeline.steps) {
    for (int32_t v : step.outputs) bytes += static_cast<double>(timeline.values[v].bytes);
    segment_of.push_back(segment);
    is_checkpoint.push_back(bytes > most);
    if (bytes <= most) continue;
    bytes = 0;
    ++segment;
  }
  return between(timeline, segment_of, is_checkpoint);
}

PlanOrInfeasible plan_with(const PolicyInput& input, const ValueTimeline& timeline, const Decisions& decisions,
                           std::string_view policy) {
  Schedule schedule;
  Scheduler(timeline).run(decisions, schedule);
  return finish_plan(input, timeline, decisions, schedule, policy);
}

}  // namespace

PlanOrInfeasible plan_chen_sqrt(const PolicyInput& input) {
  const ValueTimeline timeline = make_timeline(input);
  PlanOrInfeasible kept = plan_with(input, timeline, keep_everything(timeline), "chen-sqrt");
  if (std::holds_alternative<Plan>(kept)) return kept;
  const auto length = static_cast<int32_t>(std::ceil(std::sqrt(static_cast<double>(timeline.steps.size()))));
  keep_better(input, kept, plan_with(input, timeline, every(timeline, std::max(length, 1)), "chen-sqrt"));
  return kept;
}

PlanOrInfeasible plan_chen_greedy(const PolicyInput& input) {
  const ValueTimeline timeline = make_timeline(input);
  PlanOrInfeasible best = plan_with(input, timeline, keep_everything(timeline), "chen-greedy");
  if (std::holds_alternative<Plan>(best)) return best;
  double all = 0;
  for (const TimelineValue& value : timeline.values) all += static_cast<double>(value.bytes);
  // The schedule that is fastest of those within the budget, or that needs least: only that is placed.
  Scheduler scheduler(timeline);
  Schedule schedule;
  std::optional<Decisions> chosen;
  bool fits = false;
  double ms = 0;
  int64_t peak = 0;
  for (int i = 0; i < kTries; ++i) {
    const Decisions decisions = by_bytes(timeline, all / std::exp2(0.5 * (i + 1)));
    scheduler.run(decisions, schedule);
    if (schedule.unrecoverable >= 0) continue;
    const bool fit = schedule.peak <= input.budget.count;
    if (chosen && (fit != fits ? fits : fit ? schedule.compute_ms >= ms : schedule.peak >= peak)) continue;
    chosen = decisions;
    fits = fit;
    ms = schedule.compute_ms;
    peak = schedule.peak;
  }
  if (chosen) keep_better(input, best, plan_with(input, timeline, *chosen, "chen-greedy"));
  return best;
}

}  // namespace plimsoll
