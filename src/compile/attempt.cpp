#include "compile/attempt.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "plan/assemble.h"
#include "plan/bounds.h"
#include "plan/fastest_order.h"
#include "plan/overlap.h"
#include "plan/remat/time_bound.h"
#include "plan/reorder.h"
#include "plan/room.h"
#include "plan/route.h"
#include "plan/simulate.h"
#include "plan/value_timeline.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr double kMostRunsOfAStep = 3;                // in plans worth having
constexpr int64_t kReorderEffort = 20'000'000;        // exchanges of neighbours
constexpr int64_t kRandomReorderEffort = 15'000'000;  // the same, of graphs of costs
constexpr int64_t kMostStatesOfLeast = 300'000;
constexpr double kMostStatesOfOrders = 300'000;  // of a search for the fastest
constexpr double kSaidToBeLeast = 0.9;           // of what a sketch takes with faster kernels
constexpr double kAbout = 0.95;                  // of what a step likely takes that sends less

}  // namespace

Bytes bytes_sent(const Graph& graph) {
  Bytes sum;
  for (const Op& op : graph.ops()) {
    if (!op.type->is_collective) continue;
    for (const TensorId id : op.outputs) sum += graph.tensor(id).bytes();
  }
  return sum;
}

namespace {

// What messages may take less beside compute, in few buckets, than one after the other between steps, as policies count them.
double hidden_ms(const Graph& graph, const Device& device, const CompileOptions& options) {
  const LinkInfo& link = device.info().link;
  if (!options.in_flight || link.ranks < 2) return 0;
  double ms = 0;
  for (OpId op{0}; op.index < graph.op_count(); ++op.index) {
    if (graph.op(op).type->is_collective) ms += collective_ms(link, graph, {&op, 1});
  }
  return ms;
}

double alone_more_ms(const ValueTimeline& timeline) { return timeline.alone_ms - timeline.compute_ms; }

PolicyInput input_for(const Graph& graph, const Route& route, const std::vector<KernelChoice>& kernels,
                      const Device& device, const CostTable& costs, const CompileOptions& options,
                      const Wanted& wanted) {
  PolicyInput input{.graph = graph,
                    .route = route,
                    .kernels = kernels,
                    .costs = costs,
                    .device = device.info(),
                    .budget = options.memory,
                    .placement = options.placement,
                    .run_effort = static_cast<int64_t>(static_cast<double>(options.run_effort) * options.search_effort),
                    .search_least = options.as_listed,
                    .first_that_fits = options.first_that_fits,
                    .least_memory = wanted.least_memory,
                    .less_than = wanted.less_than,
                    .only_to_fit = wanted.only_to_fit,
                    .unplaced = wanted.unplaced,
                    .explain = wanted.explain,
                    .state_homes = options.state_homes,
                    .options = policy_options(wanted.policy),
                    .timeline = wanted.timeline,
                    .start = wanted.start,
                    .descents = wanted.descents};
  if (!options.tiers.empty()) input.device.tiers = options.tiers;
  if (!input.timeline) input.timeline = std::make_shared<const ValueTimeline>(make_timeline(input));
  input.enough_ms = wanted.enough_ms;
  input.faster_than_ms = wanted.faster_than_ms + hidden_ms(graph, device, options) - alone_more_ms(*input.timeline);
  return input;
}

Route route_of(const Graph& graph, const CompileOptions& options) {
  if (options.as_listed) return listed_route(graph);
  const Bytes in_flight = options.in_flight.value_or(0_B);
  Route route = make_route(graph);
  if (options.gather_updates) route = gather_updates(graph, route);
  return advance_gathers(graph, delay_updates(graph, std::move(route), in_flight), in_flight);
}

bool may_reorder(const std::string& policy) {
  if (find_policy(policy).name != "auto") return false;
  const std::map<std::string, std::string> chosen = policy_options(policy);
  const auto order = chosen.find("order");
  return order == chosen.end() || order->second == "any";
}

Route route_of(const ValueTimeline& timeline) {
  Route route;
  for (const TimelineStep& step : timeline.steps) route.order.push_back(step.op);
  return route;
}

}  // namespace

std::string identity(const LaidOut& laid) {
  std::string text = fmt::format("{:016x}", fingerprint(laid.graph));
  for (const KernelChoice& kernel : laid.layouts.kernels) text += " " + kernel.kernel;
  return text;
}

Attempt make_attempt(LaidOut laid, const Device& device, const CostTable& costs, const CompileOptions& options,
                     const Wanted& wanted) {
  auto& [graph, layouts] = laid;
  const Route route = wanted.timeline ? route_of(*wanted.timeline) : route_of(graph, options);
  const PolicyInput input = input_for(graph, route, layouts.kernels, device, costs, options, wanted);
  PlanOrInfeasible result = find_policy(wanted.policy).plan(input);
  if (Plan* plan = std::get_if<Plan>(&result)) {
    predict(input, *plan);
    if (options.in_flight) *plan = overlap_messages(graph, *plan);
  }
  return {std::move(graph), std::move(layouts), std::move(result), alone_more_ms(*input.timeline)};
}

namespace {

// The attempt by the same kernels, with the steps in the order that `find` gives; it may add to what is wanted.
template <class Find>
std::optional<Attempt> in_another_order(const Attempt& attempt, const Device& device, const CostTable& costs,
                                        const CompileOptions& options, Wanted wanted, const Find& find) {
  if (!may_reorder(wanted.policy) || attempt.graph.op_count() == 0) return std::nullopt;
  const std::vector<KernelChoice>& kernels = attempt.layouts.kernels;
  const Route given = route_of(attempt.graph, options);
  wanted.timeline = {};
  const PolicyInput input = input_for(attempt.graph, given, kernels, device, costs, options, wanted);
  const std::optional<Route> route = find(*input.timeline, wanted);
  if (!route) return std::nullopt;
  wanted.timeline = input_for(attempt.graph, *route, kernels, device, costs, options, wanted).timeline;
  return make_attempt({attempt.graph, attempt.layouts}, device, costs, options, wanted);
}

}  // namespace

std::optional<Attempt> reordered(const Attempt& attempt, Bytes budget, const Device& device, const CostTable& costs,
                                 const CompileOptions& options, Wanted wanted) {
  const auto effort = [&](int64_t usual) {
    return static_cast<int64_t>(static_cast<double>(usual) * options.search_effort);
  };
  const int64_t random = options.as_listed && !wanted.least_memory ? effort(kRandomReorderEffort) : 0;
  return in_another_order(attempt, device, costs, options, std::move(wanted),
                          [&](const ValueTimeline& timeline, Wanted&) {
                            return reorder_for(attempt.graph, timeline, budget.count, effort(kReorderEffort), random);
                          });
}

std::optional<Attempt> in_fastest_order(const Attempt& attempt, Bytes budget, const Device& device,
                                        const CostTable& costs, const CompileOptions& options, Wanted wanted,
                                        double effort, double* bound_ms) {
  if (!options.tiers.empty() || !device.info().tiers.empty()) return std::nullopt;
  const auto find = [&](const ValueTimeline& timeline, Wanted& by_it) -> std::optional<Route> {
    const auto states = static_cast<int64_t>(kMostStatesOfOrders * options.search_effort * effort);
    std::optional<FastestOrder> found = fastest_order(attempt.graph, timeline, budget.count, states);
    if (found && found->is_bound) {
      by_it.enough_ms = found->least_ms * kRounding;
      if (bound_ms != nullptr) *bound_ms = found->least_ms;
    }
    if (!found || found->least_ms * kRounding >= by_it.faster_than_ms) return std::nullopt;
    return std::move(found->route);
  };
  return in_another_order(attempt, device, costs, options, std::move(wanted), find);
}

std::optional<Attempt> postponed(const Attempt& attempt, const Device& device, const CostTable& costs,
                                 const CompileOptions& options, Wanted wanted, double share) {
  return in_another_order(
      attempt, device, costs, options, std::move(wanted),
      [&](const ValueTimeline& timeline, Wanted&) { return postpone_updates(attempt.graph, timeline, share); });
}

Attempt again(const Attempt& attempt, const Device& device, const CostTable& costs, const CompileOptions& options) {
  const Route route = route_of(attempt.plan());
  Wanted wanted{
      .policy = options.policy, .faster_than_ms = attempt.ms(), .only_to_fit = true, .start = &attempt.plan()};
  wanted.timeline = input_for(attempt.graph, route, attempt.layouts.kernels, device, costs, options, wanted).timeline;
  return make_attempt({attempt.graph, attempt.layouts}, device, costs, options, wanted);
}

void place_again(Attempt& attempt, const Device& device, const CostTable& costs, const CompileOptions& options) {
  if (!attempt.feasible()) return;
  Plan& plan = std::get<Plan>(attempt.result);
  const Route route = route_of(plan);
  const PolicyInput input =
      input_for(attempt.graph, route, attempt.layouts.kernels, device, costs, options, {options.policy});
  place_again(input, plan);
  if (plan.collectives.empty()) return;
  plan.collectives.clear();  // other bytes are waited for
  predict(input, plan);
  plan = overlap_messages(attempt.graph, plan);
}

Bytes least_live_of(const LaidOut& laid, const Device& device, const CostTable& costs, const CompileOptions& options) {
  const Route route = route_of(laid.graph, options);
  const PolicyInput input =
      input_for(laid.graph, route, laid.layouts.kernels, device, costs, options, {options.policy});
  const bool tiers = !input.device.tiers.empty();
  return {may_reorder(options.policy) ? least_live_in_any_order(laid.graph, *input.timeline, tiers)
                                      : least_live(*input.timeline, tiers)};
}

std::optional<Bytes> least_live_exactly(const LaidOut& laid, const Device& device, const CostTable& costs,
                                        const CompileOptions& options) {
  const Route route = route_of(laid.graph, options);
  const PolicyInput input =
      input_for(laid.graph, route, laid.layouts.kernels, device, costs, options, {options.policy});
  if (!input.device.tiers.empty() || !may_reorder(options.policy)) return std::nullopt;
  const std::optional<int64_t> least = least_live_exactly(laid.graph, *input.timeline, kMostStatesOfLeast);
  return least ? std::optional(Bytes{*least}) : std::nullopt;
}

Bytes peak_of_all(const LaidOut& laid, const Device& device, const CostTable& costs, const CompileOptions& options) {
  const Route route = route_of(laid.graph, options);
  const PolicyInput input =
      input_for(laid.graph, route, laid.layouts.kernels, device, costs, options, {options.policy});
  return {peak_of_all(laid.graph, *input.timeline)};
}

double bound_of(const Attempt& attempt, const Device& device, const CostTable& costs, const CompileOptions& options,
                int64_t effort) {
  const Plan& plan = attempt.plan();
  if (plan.link.ranks > 1 || plan.cores.inter_op > 1) return plan.predicted.lower_bound_ms;  // steps run beside others
  const Route route = route_of(plan);
  const PolicyInput input =
      input_for(attempt.graph, route, attempt.layouts.kernels, device, costs, options, {options.policy});
  const std::vector<TierInfo>& tiers = input.device.tiers;
  const double by_moment = least_ms(*input.timeline, tiers, options.memory.count);
  const double ms = bound_time(*input.timeline, tiers, options.memory.count, effort, plan.predicted.step_time_ms);
  return std::min(std::max(ms, by_moment), plan.predicted.step_time_ms);
}

void predict_by(Attempt& attempt, const CostTable& costs) {
  Plan& plan = std::get<Plan>(attempt.result);
  predict(attempt.graph, plan, costs);
  attempt.alone_more_ms = 0;
  if (costs.in_step_entries().empty()) return;
  const std::vector<KernelChoice>& kernels = attempt.layouts.kernels;
  for (OpId op{0}; op.index < attempt.graph.op_count(); ++op.index) {
    const std::string& kernel = kernels[op.index].kernel;
    if (kernel.empty()) continue;
    attempt.alone_more_ms += costs.compared(attempt.graph, attempt.graph.op(op), kernel).time_ms -
                             costs.predict(attempt.graph, attempt.graph.op(op), kernel).time_ms;
  }
}

bool is_better(const Attempt& a, const Attempt& than) {
  // Where no plan fits: the one without kernels within the limits on workspace is further away.
  auto rank = [](const Attempt& x) { return std::pair(!x.has_kernels(), std::get<Infeasible>(x.result).minimum); };
  if (a.feasible() != than.feasible()) return a.feasible();
  return a.feasible() ? a.ms() < than.ms() : rank(a) < rank(than);
}

Attempt Flow::attempt(const Choice& choice, bool explain, double faster_than_ms) {
  if (const LaidOut* laid = lay_out(choice))
    return make(*laid, {.policy = options_.policy,
                        .explain = explain,
                        .faster_than_ms = faster_than_ms,
                        .timeline = timeline_of(choice, *laid),
                        .descents = descents_for(laid->graph, choice.divide)});
  return {{}, {}, Infeasible{.flag = "--workspace"}};
}
Attempt Flow::make(LaidOut laid, Wanted wanted) {
  wanted.only_to_fit = true;
  return make_attempt(std::move(laid), device_, costs_, options_, wanted);
}
Attempt Flow::over_limit(bool divide) {
  const std::lock_guard lock(mutex_);
  return {{}, {}, selection_.over_limit(divide)};
}

void Flow::announce(const std::vector<Choice>& choices) {
  for (const Choice& choice : choices) {
    const LaidOut* laid = lay_out(choice);
    if (laid == nullptr) continue;
    std::vector<Choice>& of = descents_[{fingerprint(laid->graph), choice.divide}].of;
    if (of.size() == 2) of.pop_back();
    of.push_back(choice);
  }
}

std::function<std::shared_ptr<const Descents>()> Flow::descents_for(const Graph& graph, bool divide) {
  const auto place = descents_.find({fingerprint(graph), divide});
  if (place == descents_.end()) return {};
  return [this, shared = &place->second] { return find(*shared); };
}

std::shared_ptr<const Descents> Flow::find(SharedDescents& shared) {
  const std::lock_guard lock(shared.mutex);
  if (shared.found) return shared.found;
  std::vector<Route> routes;
  routes.reserve(shared.of.size());
  std::vector<PolicyInput> inputs;
  for (const Choice& choice : shared.of) {
    const LaidOut& laid = *lay_out(choice);
    routes.push_back(route_of(laid.graph, options_));
    const Wanted wanted{.policy = "auto", .timeline = timeline_of(choice, laid)};
    inputs.push_back(input_for(laid.graph, routes.back(), laid.layouts.kernels, device_, costs_, options_, wanted));
  }
  return shared.found = find_descents(inputs);
}

const LaidOut* Flow::lay_out(const Choice& choice) {
  const std::lock_guard lock(mutex_);
  auto [place, fresh] = laid_out_.try_emplace(key_of(choice));
  if (fresh) place->second = selection_.choose(choice);
  return place->second ? &*place->second : nullptr;
}

bool Flow::copies_beside_compute() const {
  const std::vector<TierInfo>& tiers = options_.tiers.empty() ? device_.info().tiers : options_.tiers;
  return std::ranges::any_of(tiers, &TierInfo::beside_compute);
}

std::vector<double> Flow::prices(const Choice& choice) {
  const LaidOut* laid = lay_out(choice);
  const std::lock_guard lock(mutex_);
  return laid == nullptr ? std::vector<double>() : selection_.prices(*laid, choice);
}

std::vector<Bytes> Flow::workspaces(const Choice& choice) {
  const LaidOut* laid = lay_out(choice);
  const std::lock_guard lock(mutex_);
  return laid == nullptr ? std::vector<Bytes>() : selection_.workspaces(*laid, choice);
}

bool Flow::has_divided() {
  const std::lock_guard lock(mutex_);
  const auto divides = [](const KernelChoice& choice) { return !parts_of(choice.kernel).empty(); };
  return std::ranges::any_of(laid_out_, [&](const auto& entry) {
    return entry.second && std::ranges::any_of(entry.second->layouts.kernels, divides);
  });
}

std::optional<Attempt> Flow::upgraded(const Attempt& attempt, bool divide, const std::string& policy) {
  const std::vector<Bytes> room = room_of_ops(attempt.graph, attempt.plan(), options_.memory);
  std::optional<LaidOut> next =
      upgrade({attempt.graph, attempt.layouts}, divide, [&](OpId op) { return room[op.index]; });
  if (!next) return std::nullopt;
  auto descents = descents_for(next->graph, divide);
  return make(std::move(*next), {.policy = policy, .faster_than_ms = attempt.ms(), .descents = descents});
}

Attempt Flow::attempt_by(const std::string& policy, const Choice& choice, double ms) {
  const LaidOut* laid = lay_out(choice);
  if (laid == nullptr) return {{}, {}, Infeasible{.flag = "--workspace"}};
  const double gain = gain_of_fastest(choice, *laid);
  Wanted wanted{
      .policy = policy, .faster_than_ms = ms + kMostRunsOfAStep * gain, .timeline = timeline_of(choice, *laid)};
  if (gain > 0) {  // else what is not faster now never is
    wanted.unplaced = true;
    Attempt sketch = make(*laid, wanted);
    if (!sketch.feasible()) return sketch;
    if (least_ms_when_upgraded(sketch, choice.divide) >= ms)
      return {{}, {}, Infeasible{.policy = policy, .budget = options_.memory, .minimum = {INT64_MAX}}};
    wanted.unplaced = false;
  }
  return make(*laid, wanted);
}

// Of its steps and copies as they are, by the fastest kernels that there is room for. What then is planned anew may be a
// little faster.
double Flow::least_ms_when_upgraded(const Attempt& attempt, bool divide) {
  const std::vector<Bytes> room = room_of_ops(attempt.graph, attempt.plan(), options_.memory);
  const auto next = upgrade({attempt.graph, attempt.layouts}, divide, [&](OpId op) { return room[op.index]; });
  if (!next) return attempt.ms();
  Plan plan = attempt.plan();
  for (Step& step : plan.steps) {
    const std::string& kernel = next->layouts.kernels[step.op.index].kernel;
    if (kernel == step.kernel) continue;
    step.time_ms += costs_.compared(next->graph, next->graph.op(step.op), kernel).time_ms -
                    costs_.compared(attempt.graph, attempt.graph.op(step.op), step.kernel).time_ms;
  }
  return kSaidToBeLeast * simulate(attempt.graph, plan).step_time_ms + attempt.alone_more_ms;
}

double Flow::least_ms(const Choice& choice) {
  const LaidOut* laid = lay_out(choice);
  if (laid == nullptr) return kAnyTime;
  return laid->layouts.estimated_ms - gain_of_fastest(choice, *laid) - hidden_ms(laid->graph, device_, options_);
}

double Flow::likely_ms(const Choice& choice, const Choice& known, double known_ms) {
  const LaidOut *const its = lay_out(choice), *const others = lay_out(known);
  if (its == nullptr || others == nullptr) return kAnyTime;
  const double least = least_ms(choice);
  const Bytes sent = bytes_sent(its->graph), known_sent = bytes_sent(others->graph);
  if (known_sent == 0_B) return least;
  const double waited = known_ms - (others->layouts.estimated_ms - hidden_ms(others->graph, device_, options_));
  if (sent >= known_sent) return least + waited;
  return kAbout * (least + waited * static_cast<double>(sent.count) / static_cast<double>(known_sent.count));
}

double Flow::gain_of_fastest(const Choice& choice, const LaidOut& laid) {
  const std::lock_guard lock(mutex_);
  auto [place, fresh] = gains_.try_emplace(key_of(choice), 0);
  if (!fresh) return place->second;
  const auto fastest = selection_.upgrade(laid, choice.divide, [](OpId) { return Bytes{INT64_MAX}; });
  if (fastest) place->second = laid.layouts.estimated_ms - fastest->layouts.estimated_ms;
  return place->second;
}

std::shared_ptr<const ValueTimeline> Flow::timeline_of(const Choice& choice, const LaidOut& laid) {
  const std::lock_guard lock(mutex_);
  auto [place, fresh] = timelines_.try_emplace(key_of(choice));
  if (fresh) {
    const Route route = route_of(laid.graph, options_);
    place->second = input_for(laid.graph, route, laid.layouts.kernels, device_, costs_, options_, {"auto"}).timeline;
  }
  return place->second;
}

std::optional<LaidOut> Flow::upgrade(const LaidOut& laid, bool divide, const std::function<Bytes(OpId)>& room) {
  const std::lock_guard lock(mutex_);
  return selection_.upgrade(laid, divide, room);
}

}  // namespace plimsoll
