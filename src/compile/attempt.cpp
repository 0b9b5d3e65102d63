#include "compile/attempt.h"

#include <utility>

#include "plan/room.h"
#include "plan/route.h"
#include "plan/simulate.h"

namespace plimsoll {
namespace {

constexpr double kMostRunsOfAStep = 3;  // in plans worth having

}  // namespace

Attempt make_attempt(LaidOut laid, const Device& device, const CostTable& costs, const CompileOptions& options,
                     const Wanted& wanted) {
  auto& [graph, layouts] = laid;
  const Route route = make_route(graph);
  DeviceInfo info = device.info();
  if (!options.tiers.empty()) info.tiers = options.tiers;
  PlanOrInfeasible result = find_policy(wanted.policy)
                                .plan({.graph = graph,
                                       .route = route,
                                       .kernels = layouts.kernels,
                                       .costs = costs,
                                       .device = info,
                                       .budget = options.memory,
                                       .placement = options.placement,
                                       .faster_than_ms = wanted.faster_than_ms,
                                       .first_that_fits = options.first_that_fits,
                                       .least_memory = wanted.least_memory,
                                       .explain = wanted.explain,
                                       .state_homes = options.state_homes,
                                       .options = policy_options(wanted.policy)});
  if (Plan* plan = std::get_if<Plan>(&result)) predict(graph, *plan, costs);
  return {std::move(graph), std::move(layouts), std::move(result)};
}

bool is_better(const Attempt& a, const Attempt& than) {
  // Where no plan fits: the one without kernels within the limits on workspace is further away.
  auto rank = [](const Attempt& x) { return std::pair(!x.has_kernels(), std::get<Infeasible>(x.result).minimum); };
  if (a.feasible() != than.feasible()) return a.feasible();
  return a.feasible() ? a.plan().predicted.step_time_ms < than.plan().predicted.step_time_ms : rank(a) < rank(than);
}

Attempt Flow::attempt(const Choice& choice, bool explain, double faster_than_ms) {
  if (const LaidOut* laid = lay_out(choice))
    return make_attempt(*laid, device_, costs_, options_, {options_.policy, explain, faster_than_ms});
  return {{}, {}, Infeasible{.flag = "--workspace"}};
}
Attempt Flow::over_limit(bool divide) {
  const std::lock_guard lock(mutex_);
  return {{}, {}, selection_.over_limit(divide)};
}

const LaidOut* Flow::lay_out(const Choice& choice) {
  const std::lock_guard lock(mutex_);
  auto [place, fresh] = laid_out_.try_emplace({choice.family, choice.limit, choice.divide});
  if (fresh) place->second = selection_.choose(choice);
  return place->second ? &*place->second : nullptr;
}

std::optional<Attempt> Flow::upgraded(const Attempt& attempt, bool divide, const std::string& policy) {
  const std::vector<Bytes> room = room_of_ops(attempt.graph, attempt.plan(), options_.memory);
  std::optional<LaidOut> next =
      upgrade({attempt.graph, attempt.layouts}, divide, [&](OpId op) { return room[op.index]; });
  if (!next) return std::nullopt;
  return make_attempt(std::move(*next), device_, costs_, options_, {policy});
}

Attempt Flow::attempt_by(const std::string& policy, const Choice& choice, double ms) {
  const LaidOut* laid = lay_out(choice);
  if (laid == nullptr) return {{}, {}, Infeasible{.flag = "--workspace"}};
  const std::optional<LaidOut> fastest = upgrade(*laid, choice.divide, [](OpId) { return Bytes{INT64_MAX}; });
  const double gain = fastest ? laid->layouts.estimated_ms - fastest->layouts.estimated_ms : 0;
  return make_attempt(*laid, device_, costs_, options_, {policy, false, ms + kMostRunsOfAStep * gain});
}

std::optional<LaidOut> Flow::upgrade(const LaidOut& laid, bool divide, const std::function<Bytes(OpId)>& room) {
  const std::lock_guard lock(mutex_);
  return selection_.upgrade(laid, divide, room);
}

}  // namespace plimsoll
