// The policies: a file each, listed in registry.cpp.
#pragma once

#include "plan/make_plan.h"
#include "plan/policy.h"
#include "plimsoll/ops.h"

namespace plimsoll {

PlanOrInfeasible plan_baseline(const PolicyInput& input);      // baseline.cpp
PlanOrInfeasible plan_liveness(const PolicyInput& input);      // liveness.cpp
PlanOrInfeasible plan_superneurons(const PolicyInput& input);  // superneurons.cpp
PlanOrInfeasible plan_vdnn(const PolicyInput& input);          // vdnn.cpp
PlanOrInfeasible plan_dymem(const PolicyInput& input);         // dymem.cpp
PlanOrInfeasible plan_caffe(const PolicyInput& input);         // frameworks.cpp
PlanOrInfeasible plan_torch(const PolicyInput& input);
PlanOrInfeasible plan_mxnet(const PolicyInput& input);
PlanOrInfeasible plan_tensorflow(const PolicyInput& input);
PlanOrInfeasible plan_chen_sqrt(const PolicyInput& input);  // chen.cpp
PlanOrInfeasible plan_chen_greedy(const PolicyInput& input);
PlanOrInfeasible plan_dtr(const PolicyInput& input);  // dtr.cpp
PlanOrInfeasible plan_dtr_eq(const PolicyInput& input);
PlanOrInfeasible plan_auto(const PolicyInput& input);  // auto.cpp

// What a policy was asked for by "name:option=value,...", or `otherwise`. Throws Error(invalid_input) on a value that
// is not one of `known`.
std::string option(const PolicyInput& input, const std::string& name,
                   std::vector<std::string> known);  // the first is the default

// What policies that decide about forward values have in common.
struct ForwardValue {
  int32_t value;
  LayerKind kind;       // of the op that writes it
  int32_t turning_gap;  // after its last use in the forward pass
  bool has_backward_uses;
};
std::vector<ForwardValue> forward_values(const PolicyInput& input, const ValueTimeline& timeline);

// Schedule -> plan or the reason why not: larger than the budget, or than a tier. `finish` may still move copies; the
// schedule's live bytes must be up to date after it.
PlanOrInfeasible finish_plan(const PolicyInput& input, const ValueTimeline& timeline, const Decisions& decisions,
                             const Schedule& schedule, std::string_view policy);
// The same, with the schedule's copies spread over the room that the budget leaves: over all of it, over less of it
// where the offsets then need more than the budget, or not at all. `earliest` as in spread_copies.
PlanOrInfeasible finish_spread(const PolicyInput& input, const ValueTimeline& timeline, const Decisions& decisions,
                               const Schedule& schedule, std::string_view policy,
                               const std::vector<int32_t>* earliest = nullptr);
// The fastest of several answers by simulation; of those that do not fit, the one that needs least.
// Of two that do not fit. What a tier is too small for does not fit whatever the budget.
bool needs_less(const Infeasible& a, const Infeasible& b);

void keep_better(const PolicyInput& input, PlanOrInfeasible& best, PlanOrInfeasible other);

}  // namespace plimsoll
