// How the frameworks of SuperNeurons' tables keep tensors, on the same graph and the same kernels.
#include <algorithm>
#include <cmath>

#include "plan/assemble.h"
#include "plan/liveness.h"
#include "plan/policies/policies.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

PlanOrInfeasible run(const PolicyInput& input, const ValueTimeline& timeline, const Decisions& decisions,
                     std::string_view name) {
  Schedule schedule;
  Scheduler(timeline).run(decisions, schedule);
  return finish_plan(input, timeline, decisions, schedule, name);
}

// Forward values between checkpoints are computed again. A checkpoint is every sqrt(n)-th place where only one value is
// alive (Chen et al. 2016), with no such place every sqrt(n)-th value.
Decisions sublinear(const PolicyInput& input, const ValueTimeline& timeline) {
  Decisions decisions = keep_everything(timeline);
  const std::vector<ForwardValue> forward = forward_values(input, timeline);
  double total = 0;
  for (const ForwardValue& f : forward) total += static_cast<double>(timeline.values[f.value].bytes);
  const double segment = total / std::max(1.0, std::sqrt(static_cast<double>(forward.size())));
  double since = 0;
  for (const ForwardValue& f : forward) {
    const TimelineValue& value = timeline.values[f.value];
    since += static_cast<double>(value.bytes);
    const bool read_later_forward = f.turning_gap > value.first_gap + 1;  // a fork: rebuilding it would cross a block
    if (since >= segment && !read_later_forward) {
      since = 0;
      continue;
    }
    if (value.recomputable) decisions.gaps[f.turning_gap] = kDrop;
  }
  return decisions;
}

bool is_cheap(LayerKind kind) {
  return kind != LayerKind::convolution && kind != LayerKind::fully_connected && kind != LayerKind::softmax &&
         kind != LayerKind::concat && kind != LayerKind::dropout;
}

}  // namespace

PlanOrInfeasible plan_caffe(const PolicyInput& input) {
  return assemble(input, "caffe", find_liveness(input.graph, input.route, {.in_place = false}),
                  {.keep_everything = true});
}

PlanOrInfeasible plan_torch(const PolicyInput& input) {
  const ValueTimeline timeline = make_timeline(input);
  Schedule schedule;
  Scheduler scheduler(timeline);
  const Decisions decisions = keep_everything(timeline);
  scheduler.run(decisions, schedule);
  if (schedule.unrecoverable < 0) {
    const int32_t end = static_cast<int32_t>(schedule.steps.size()) - 1;
    std::vector<bool> is_forward(timeline.values.size(), false);
    for (const ForwardValue& f : forward_values(input, timeline)) is_forward[f.value] = true;
    for (Residence& r : schedule.residences) {
      if (is_forward[r.value] && !r.overwritten) r.last = end;
    }
    scheduler.count_live(schedule);
  }
  return finish_plan(input, timeline, decisions, schedule, "torch");
}

PlanOrInfeasible plan_mxnet(const PolicyInput& input) {
  const ValueTimeline timeline = make_timeline(input);
  const std::string recompute = option(input, "recompute", {"sublinear", "mirror", "none"});
  PlanOrInfeasible best = run(input, timeline, keep_everything(timeline), "mxnet");
  if (recompute == "none" || std::holds_alternative<Plan>(best)) return best;
  Decisions mirror = keep_everything(timeline);
  for (const ForwardValue& f : forward_values(input, timeline)) {
    if (is_cheap(f.kind) && timeline.values[f.value].recomputable) mirror.gaps[f.turning_gap] = kDrop;
  }
  keep_better(input, best, run(input, timeline, mirror, "mxnet"));
  if (recompute == "sublinear") keep_better(input, best, run(input, timeline, sublinear(input, timeline), "mxnet"));
  return best;
}

PlanOrInfeasible plan_tensorflow(const PolicyInput& input) {
  const ValueTimeline timeline = make_timeline(input);
  PlanOrInfeasible best = run(input, timeline, keep_everything(timeline), "tensorflow");
  if (std::holds_alternative<Plan>(best) || input.device.tiers.empty()) return best;
  // Swapped: what waits longest from the forward pass to the backward pass goes, as much as must.
  Decisions decisions = keep_everything(timeline);
  std::vector<ForwardValue> forward = forward_values(input, timeline);
  std::erase_if(forward, [](const ForwardValue& f) { return !f.has_backward_uses; });
  std::stable_sort(forward.begin(), forward.end(), [&](const ForwardValue& a, const ForwardValue& b) {
    return timeline.values[a.value].producer < timeline.values[b.value].producer;
  });
  size_t low = 0, high = forward.size();
  auto swapped = [&](size_t count) {
    Decisions d = decisions;
    for (size_t i = 0; i < count; ++i) d.gaps[forward[i].turning_gap] = kOffload;
    return run(input, timeline, d, "tensorflow");
  };
  best = swapped(high);
  if (!std::holds_alternative<Plan>(best)) return best;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    PlanOrInfeasible answer = swapped(middle);
    if (std::holds_alternative<Plan>(answer)) {
      best = std::move(answer);
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return best;
}

}  // namespace plimsoll
