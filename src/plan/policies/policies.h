// The policies: a file each, listed in registry.cpp.
#pragma once

#include "plimsoll/policy.h"

namespace plimsoll {

PlanOrInfeasible plan_baseline(const PolicyInput& input);  // baseline.cpp
PlanOrInfeasible plan_liveness(const PolicyInput& input);  // liveness.cpp
PlanOrInfeasible plan_auto(const PolicyInput& input);      // auto.cpp

}  // namespace plimsoll
