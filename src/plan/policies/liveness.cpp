#include "plan/liveness.h"

#include "plan/assemble.h"
#include "plan/policies/policies.h"

namespace plimsoll {

PlanOrInfeasible plan_liveness(const PolicyInput& input) {
  return assemble(input, "liveness", find_liveness(input.graph, input.route));
}

}  // namespace plimsoll
