#include "plan/assemble.h"
#include "plan/policies/policies.h"

namespace plimsoll {

PlanOrInfeasible plan_baseline(const PolicyInput& input) {
  return assemble(input, "baseline", find_liveness(input.graph, input.route, {.in_place = false}),
                  {.keep_everything = true});
}

}  // namespace plimsoll
