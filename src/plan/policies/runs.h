// auto's plans by a search over the runs of steps (plan/remat), where states and inputs lie in the arena and nothing is
// copied.
#pragma once

#include <optional>

#include "plan/policy.h"

namespace plimsoll {

// The fastest within the budget that is found; with much of PolicyInput::run_effort many offsets are tried. `known`: a plan
// that nothing is copied in, from whose runs the search starts as well; nullptr: there is none. `sequence`: gets the steps of the
// timeline as the search would have them run, whatever their offsets need.
PlanOrInfeasible plan_by_runs(const PolicyInput& input, const Plan* known = nullptr,
                              std::vector<int32_t>* sequence = nullptr);

// The plan that needs the least arena of those that are found by halving, whatever the budget: nothing where none is
// below `below`.
std::optional<Plan> least_by_runs(const PolicyInput& input, Bytes below);

}  // namespace plimsoll
