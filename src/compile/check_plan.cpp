#include <fmt/format.h>

#include "plan/simulate.h"
#include "plimsoll/compile.h"
#include "plimsoll/error.h"
#include "plimsoll/verify.h"

namespace plimsoll {

const Plan& CheckedPlan::none() {
  static const Plan plan;
  return plan;
}

CheckedPlan check_plan(const Graph& graph, Plan plan) {
  require_valid(graph, plan);  // only such a plan can be simulated
  plan.predicted = simulate(graph, plan);
  if (const auto violations = verify(graph, plan, 1); !violations.empty()) {
    throw Error(ErrorCode::internal, fmt::format("what the plan for '{}' by policy {} claims does not hold: {}",
                                                 graph.name, plan.policy, violations[0].message));
  }
  return CheckedPlan(std::move(plan));
}

}  // namespace plimsoll
