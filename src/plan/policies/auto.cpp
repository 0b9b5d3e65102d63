#include <chrono>
#include <optional>

#include "plan/policies/policies.h"

namespace plimsoll {
namespace {

// A feasible plan before none; then the faster, then the smaller. Of answers that do not fit, the one that needs least.
bool better(const PlanOrInfeasible& a, const PlanOrInfeasible& b) {
  const Plan* plan_a = std::get_if<Plan>(&a);
  const Plan* plan_b = std::get_if<Plan>(&b);
  if (plan_a != nullptr && plan_b != nullptr) {
    if (plan_a->predicted.step_time_ms != plan_b->predicted.step_time_ms) {
      return plan_a->predicted.step_time_ms < plan_b->predicted.step_time_ms;
    }
    return plan_a->arena < plan_b->arena;
  }
  if (plan_a != nullptr || plan_b != nullptr) return plan_a != nullptr;
  return std::get<Infeasible>(a).minimum < std::get<Infeasible>(b).minimum;
}

}  // namespace

PlanOrInfeasible plan_auto(const PolicyInput& input) {
  const auto started = std::chrono::steady_clock::now();
  std::optional<PlanOrInfeasible> best;
  for (const Policy& policy : policies()) {
    if (policy.plan == plan_auto) continue;
    PlanOrInfeasible answer = policy.plan(input);
    if (!best || better(answer, *best)) best = std::move(answer);
  }
  if (Plan* plan = std::get_if<Plan>(&*best)) {
    plan->plan_time_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
  }
  return std::move(*best);
}

}  // namespace plimsoll
