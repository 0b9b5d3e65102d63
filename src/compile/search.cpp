#include "compile/search.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <set>

#include "base/parallel.h"
#include "compile/attempt.h"
#include "compile/choices.h"
#include "compile/least_memory.h"
#include "kernels/workspace_limits.h"
#include "plan/assemble.h"
#include "plan/overlap.h"
#include "plan/route.h"
#include "plimsoll/device.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr double kShort = 1.002;             // times what all ops take once
constexpr std::array kSpreads = {1.0, 0.5};  // parts of the rest of a step, over which updates are spread
constexpr int32_t kFewOpsForParts = 300;  // in whose plans parts of a batch are looked at unasked, where rows are not
constexpr double kEffortAtFirst = 0.1;    // of a search for the fastest order, before any other
// For the runs of a plan that waits long: the longer the plan, the less of it is looked at.
constexpr int64_t kLongRunEffort = 12'000'000, kMostLongRunEffort = 40'000'000, kLongRunEffortOfAll = 8'000'000'000;

// Whether no order of the same steps could be much faster.
bool waits_little(const Attempt& a) {
  return a.feasible() && a.plan().predicted.step_time_ms <= kShort * a.plan().predicted.lower_bound_ms;
}

// The fastest kernels, if with them nothing has to leave the arena or run twice, and no other choice can be faster. Else
// the other choices as well: what gives the fastest step of those that fit. Then steps of the best get faster kernels
// again. Else infeasible, with the least memory that any of them needs.
Attempt search(const Network& network, Flow& flow, const CompileOptions& options, bool divide) {
  const bool one_only = options.exact || !options.kernels.empty();
  Choice chosen{.family = options.family, .limit = {INT64_MAX}, .divide = divide};
  const bool many = network.graph.op_count() > kManyOps;
  if (flow.lay_out(chosen) == nullptr) return flow.over_limit(divide);
  const bool any_will_do = many || options.first_that_fits;
  std::vector<Choice> choices;
  if (!one_only && !any_will_do) {
    choices = choices_of(flow, chosen, options, many);
    chosen = choices.front();
    if (choices.size() > 1) flow.announce(choices);
  }
  Attempt best = flow.attempt(chosen, one_only);
  const bool nothing_is_faster =
      is_free_of_charge(best) && std::all_of(choices.begin(), choices.end(), [&](const Choice& c) {
        const double ms = best.ms();
        return flow.likely_ms(c, chosen, ms) * kRounding >= ms;
      });
  if (!nothing_is_faster && !one_only && !(any_will_do && best.feasible())) {
    if (choices.empty()) choices = choices_of(flow, chosen, options, many);
    std::erase_if(choices, [&](const Choice& other) { return other == chosen; });
    choices.insert(choices.begin(), chosen);
    if (is_free_of_charge(best) && options.in_flight) {  // what sends less may be at the end
      const double ms = best.ms();
      std::ranges::stable_sort(choices.begin() + 1, choices.end(), {},
                               [&](const Choice& choice) { return flow.likely_ms(choice, chosen, ms); });
    }
    chosen = choices[try_choices(best, choices, flow, options, divide)];
    if (best.feasible() && !many && !options.workspace_total) {
      upgrade(best, flow, divide, options.policy);
      if (find_policy(options.policy).name == "auto" && options.state_homes.empty() && !options.first_that_fits)
        upgrade_others(best, flow, choices);
    }
  }
  if (!best.feasible()) {
    if (!one_only) best = flow.attempt(chosen, true);
    if (!one_only) std::get<Infeasible>(best.result).proven = false;  // not over all choices of kernels
  }
  return best;
}

// Kernels with less workspace, where the plan takes much longer than the fastest kernels would.
void search_smaller(Attempt& best, Flow& flow, const Device& device, const CompileOptions& options, bool divide) {
  if (options.workspace_total || options.exact || !options.kernels.empty() || options.first_that_fits) return;
  if (find_policy(options.policy).name != "auto" || !options.state_homes.empty() || device.info().link.ranks > 1)
    return;
  try_smaller(best, {.family = options.family, .divide = divide}, flow, options.policy);
}

// On a simulated device no part of a batch has to be measured: parts are choices without being asked for.
bool may_divide_unasked(const Attempt& best, const Device& device, const CompileOptions& options) {
  if (!device.info().simulated || options.batch_sizes || options.exact || !options.kernels.empty()) return false;
  return find_policy(options.policy).name == "auto" && best.feasible();
}

// Kernels undivided, or in parts of fewer sizes, are choices as well: what is predicted fastest.
Attempt search_sizes(const Network& network, const Device& device, const CostTable& costs,
                     const CompileOptions& options) {
  Flow flow(network, device, costs, options);
  Attempt best = search(network, flow, options, true);
  auto consider = [&](Attempt other) {
    if (is_better(other, best)) best = std::move(other);
  };
  if (may_divide_unasked(best, device, options)) {
    CompileOptions divided = options;
    divided.batch_sizes = BatchSizes::power_of_two;
    Flow flow_of_parts(network, device, costs, divided);
    search_smaller(best, flow_of_parts, device, divided, true);
    const bool no_rows = options.workspace_total || !options.state_homes.empty() || device.info().link.ranks > 1;
    if (no_rows && best.graph.op_count() <= kFewOpsForParts) consider(search(network, flow_of_parts, divided, true));
    return best;
  }
  search_smaller(best, flow, device, options, true);
  const bool asked = options.batch_sizes && *options.batch_sizes != BatchSizes::undivided;
  if (options.exact || !options.kernels.empty() || (!flow.has_divided() && !asked)) return best;
  const auto consider_by = [&](Flow& other, const CompileOptions& sizes, bool divide) {
    Attempt found = search(network, other, sizes, divide);
    search_smaller(found, other, device, sizes, divide);
    consider(std::move(found));
  };
  if (options.batch_sizes == BatchSizes::all) {
    CompileOptions fewer = options;
    fewer.batch_sizes = BatchSizes::power_of_two;
    Flow flow_of_fewer(network, device, costs, fewer);
    consider_by(flow_of_fewer, fewer, true);
  }
  consider_by(flow, options, false);
  return best;
}

Bytes total_workspace(const Attempt& attempt) {
  Bytes sum;
  for (OpId op{0}; op.index < attempt.graph.op_count(); ++op.index) {
    if (counts_in_total(attempt.graph.op(op))) sum += attempt.layouts.kernels[op.index].workspace;
  }
  return sum;
}

// So is an equal share of a total for each op, where the sum fits.
Attempt search_shares(const Network& network, const Device& device, const CostTable& costs,
                      const CompileOptions& options) {
  Attempt best = search_sizes(network, device, costs, options);
  if (!options.workspace_total || options.exact || !options.kernels.empty() || !best.has_kernels()) return best;
  CompileOptions shared = options;
  shared.workspace = std::min(options.workspace, share_of_total(network.graph, *options.workspace_total));
  shared.workspace_total.reset();
  Attempt other = search_sizes(network, device, costs, shared);
  if (other.has_kernels() && total_workspace(other) <= *options.workspace_total && is_better(other, best))
    best = std::move(other);
  return best;
}

// Less memory makes no plan faster. That of all the memory that there may be is found soon: it keeps everything.
bool may_be_faster_than(const Attempt& best, const Network& network, const Device& device, const CostTable& costs,
                        const CompileOptions& options) {
  if (!best.feasible() || options.memory.count == INT64_MAX) return true;
  CompileOptions roomy = options;
  roomy.memory = {INT64_MAX};
  const Attempt other = search_shares(network, device, costs, roomy);
  return !other.feasible() || other.ms() < best.ms();
}

// Of several ranks: how long updates may wait for the gradients of others. As long as they like, where nothing has to leave
// the arena or run twice for it.
Attempt search_in_flight(const Network& network, const Device& device, const CostTable& costs,
                         const CompileOptions& options) {
  if (device.info().link.ranks < 2 || options.in_flight) return search_shares(network, device, costs, options);
  // A parameter that comes back after its update is waited for, too: then later is not always better.
  const bool gathers =
      std::ranges::any_of(network.graph.ops(), [](const Op& op) { return op.type->name == "AllGatherParameter"; });
  std::vector<Bytes> choices = {{INT64_MAX}, 32_MiB};
  if (gathers) choices.push_back(4_MiB);
  const Bytes sent = bytes_sent(network.graph);  // of a small network those are all of it
  if (const Bytes few{sent.count / 4}; few < choices.back() && few > 0_B) choices.push_back(few);
  choices.push_back(0_B);
  std::erase_if(choices, [&](Bytes bytes) { return bytes.count < INT64_MAX && bytes >= sent * 2; });  // as the first
  CompileOptions within = options;
  Attempt best;
  for (const Bytes in_flight : choices) {
    within.in_flight = in_flight;
    if (best.graph.op_count() > 0 && !may_be_faster_than(best, network, device, costs, within)) continue;
    Attempt found = search_shares(network, device, costs, within);
    if (best.graph.op_count() == 0 || is_better(found, best)) best = std::move(found);
    if (is_free_of_charge(best) && !gathers) break;
  }
  return best;
}

constexpr double kBoundEffort = 60e6, kBoundEffortBesideCompute = 200e6, kBoundEffortOfCosts = 1e9;

double bound_ms_of(const Attempt& found, const Device& device, const CostTable& costs, const CompileOptions& options) {
  const std::vector<TierInfo>& tiers = options.tiers.empty() ? device.info().tiers : options.tiers;
  const double effort = options.as_listed                                       ? kBoundEffortOfCosts
                        : std::ranges::any_of(tiers, &TierInfo::beside_compute) ? kBoundEffortBesideCompute
                                                                                : kBoundEffort;
  return bound_of(found, device, costs, options, static_cast<int64_t>(effort * options.search_effort));
}

// What leaves the arena, runs again or does not fit may not have to in another order of the steps. Meanwhile the bound of the
// order as it is, with `bound`.
void reorder(Attempt& best, const Device& device, const CostTable& costs, const CompileOptions& options, bool bound) {
  if (is_free_of_charge(best) || device.info().link.ranks > 1) return;
  Wanted wanted{.policy = options.policy, .only_to_fit = true};
  if (best.feasible()) wanted.faster_than_ms = best.ms();
  std::optional<Attempt> lower;
  std::array<std::optional<Attempt>, kSpreads.size()> later;
  std::vector<std::function<void()>> works;
  works.emplace_back([&] { lower = reordered(best, options.memory, device, costs, options, wanted); });
  const std::vector<TierInfo>& tiers = options.tiers.empty() ? device.info().tiers : options.tiers;
  if (best.graph.op_count() <= kFewOps && std::ranges::any_of(tiers, &TierInfo::beside_compute) &&
      !waits_little(best)) {
    for (size_t i = 0; i < (waits_long(best) ? kSpreads.size() : 1); ++i)
      works.emplace_back([&, i] { later[i] = postponed(best, device, costs, options, wanted, kSpreads[i]); });
  }
  if (bound && best.feasible()) works.emplace_back([&] { best.bound_ms = bound_ms_of(best, device, costs, options); });
  for_each_in_parallel(works.size(), [&](size_t i) { works[i](); });
  const auto consider = [&](std::optional<Attempt>& other) {
    if (other && is_better(*other, best)) best = *std::move(other);
  };
  consider(lower);
  std::ranges::for_each(later, consider);
}

// The runs of the plan that is taken are searched for with more effort, where they take much time.
void search_longer(Attempt& best, const Device& device, const CostTable& costs, const CompileOptions& options) {
  const bool by_runs = best.feasible() && best.plan().moves.empty() && best.plan().predicted.recompute_steps > 0;
  if (!by_runs || !waits_long(best) || best.graph.op_count() > kFewOps || options.first_that_fits ||
      find_policy(options.policy).name != "auto" || best.plan().link.ranks > 1)
    return;
  CompileOptions longer = options;
  const int64_t effort = std::max(kLongRunEffort, kLongRunEffortOfAll / std::ssize(best.plan().steps));
  longer.run_effort = std::max(options.run_effort, std::min(effort, kMostLongRunEffort));
  Attempt other = again(best, device, costs, longer);
  if (!is_better(other, best)) return;
  other.bound_ms = best.bound_ms;
  best = std::move(other);
}

// What every tensor in memory of its own needs.
Bytes baseline_peak(const Graph& graph, const std::vector<KernelChoice>& kernels, const CostTable& costs,
                    const Device& device) {
  const Route route = make_route(graph);
  const PlanOrInfeasible result =
      find_policy("baseline")
          .plan({.graph = graph, .route = route, .kernels = kernels, .costs = costs, .device = device.info()});
  return std::get<Plan>(result).arena;
}

// Of a graph of costs. Few ops have few ways to run again; but the least memory is looked for with small parts of the effort.
int64_t effort_for(int64_t ops, bool least) {
  constexpr int64_t kRunEffort = 100'000'000, kOfOp = 150'000, kLeast = 10'000'000, kOfWays = 2'000, kOfLeast = 20'000;
  const int64_t few = std::min<int64_t>(ops, 1000);
  return std::min(kRunEffort + kOfOp * ops, kLeast + (least ? kOfLeast : kOfWays) * few * few * few);
}

// What is found by the costs, within what is known of the least memory. `find_less`: asked last, before the budget is refused.
Attempt choose(const std::function<Least(Bytes enough)>& find, const std::function<Least(Least known)>& find_less,
               const std::function<Attempt(Bytes memory)>& find_fastest, const CompileOptions& options, bool many,
               Bytes lower_bound, std::optional<Bytes>& minimum) {
  constexpr int64_t kNear = 8;  // the part of the least by which less is near it
  if (options.memory.count == INT64_MAX && !options.name_minimum) return find_fastest(options.memory);
  if ((options.first_that_fits || !options.name_least) && options.memory < lower_bound)  // what would do was not asked
    return {{}, {}, Infeasible{.budget = options.memory, .minimum = lower_bound}};
  // Side by side where there are cores: most budgets that are above the bound have a plan. With many ops it is not tried:
  // where there is none, that is what takes longest.
  Least least;
  Attempt fastest;
  std::atomic<bool> too_much = false;
  bool tried = false;
  const bool may_fit = options.memory >= lower_bound && !options.first_that_fits;
  for_each_in_parallel(may_fit && !many ? 2 : 1, [&](size_t i) {
    if (i == 0) {
      least = find(options.name_minimum ? Bytes{1} : options.memory);
      too_much = !least.attempt || least.attempt->plan().arena > options.memory;
    } else if (!too_much) {
      fastest = find_fastest(options.memory);
      tried = true;
    }
  });
  if (!least.attempt) return {{}, {}, std::move(least.why)};
  const Bytes arena = least.attempt->plan().arena;
  if (options.name_minimum) minimum = arena;
  const bool is_near = options.name_least && options.memory.count >= arena.count - arena.count / kNear;
  if (too_much && may_fit && (options.as_listed || is_near)) {  // by a search for this very budget there may be one yet
    if (!tried) fastest = find_fastest(options.memory);
    if (fastest.feasible()) return fastest;
    // And who has the least may be given a plan that needs less: by kernels that these costs know as faster.
    if (!options.as_listed) fastest = find_fastest(arena);
    if (fastest.feasible() && fastest.plan().arena <= options.memory) {
      std::get<Plan>(fastest.result).budget = options.memory;
      return fastest;
    }
  }
  if (too_much && find_less) {
    least = find_less(std::move(least));
    if (least.attempt->plan().arena <= options.memory) return *std::move(least.attempt);
  }
  if (too_much) return {{}, {}, std::move(least.why)};
  if (options.first_that_fits) return *std::move(least.attempt);
  if (many) fastest = find_fastest(options.memory);
  return is_better(*least.attempt, fastest) ? *std::move(least.attempt) : std::move(fastest);
}

// The program of what was found for a network, or why there is none. `lower_bound`: that of the graph. `watch`: since
// planning began.
std::variant<Program, Infeasible> take(Attempt found, Network training, Bytes lower_bound, const Device& device,
                                       const CostTable& costs, const CompileOptions& options, const Stopwatch& watch) {
  if (!found.feasible()) {
    Infeasible infeasible = std::get<Infeasible>(std::move(found.result));
    infeasible.policy = options.policy;
    infeasible.lower_bound = lower_bound;
    infeasible.proven = infeasible.proven || (infeasible.tier.empty() && options.memory < lower_bound);
    return infeasible;
  }

  const double bound_ms = found.bound_ms ? *found.bound_ms : bound_ms_of(found, device, costs, options);
  const Bytes baseline = baseline_peak(found.graph, found.layouts.kernels, costs, device);
  Program program = program_of(std::move(training), std::move(found), options, watch);
  program.lower_bound = lower_bound;
  program.bound_ms = bound_ms;
  program.baseline_peak = baseline;
  return program;
}

// The least memory that is known to be enough, where it was asked for: also that of the plan itself. (What is found for a network
// without its times, so that it is the same on every machine, may be more.)
std::optional<Bytes> least_known(const std::optional<Bytes>& minimum, const Program& program) {
  return minimum ? std::min(*minimum, program.plan->arena) : minimum;
}

CompileOptions within(CompileOptions options, Bytes memory) {
  options.memory = memory;
  return options;
}

Attempt with_bound(Attempt attempt, double ms) {
  attempt.bound_ms = std::min(ms, attempt.plan().predicted.step_time_ms);
  return attempt;
}

// The order in which ops are listed was chosen by nobody for its memory: another is looked at first.
Attempt search_orders(const LaidOut& laid, const Device& device, const CostTable& costs,
                      const CompileOptions& options) {
  Wanted wanted{options.policy, true};
  const Attempt given{laid.graph, laid.layouts, Infeasible{}};
  double bound_ms = 0;  // of all orders, where it is known
  const auto in_fastest = [&](double effort) {
    return in_fastest_order(given, options.memory, device, costs, options, wanted, effort, &bound_ms);
  };
  std::optional<Attempt> fastest;
  if (peak_of_all(laid, device, costs, options) > options.memory) fastest = in_fastest(kEffortAtFirst);
  if (fastest && fastest->feasible()) wanted.faster_than_ms = fastest->ms();
  wanted.enough_ms = bound_ms * kRounding;
  if (wanted.faster_than_ms <= wanted.enough_ms) return with_bound(*std::move(fastest), bound_ms);
  std::optional<Attempt> other = reordered(given, options.memory, device, costs, options, wanted);
  if (other && is_free_of_charge(*other)) return *std::move(other);
  if (other && other->feasible()) wanted.faster_than_ms = other->ms();
  Attempt best = make_attempt(laid, device, costs, options, wanted);
  if (!fastest && bound_ms == 0 && !is_free_of_charge(best)) {
    if (best.feasible()) wanted.faster_than_ms = std::min(wanted.faster_than_ms, best.ms());
    fastest = in_fastest(1);
  }
  for (std::optional<Attempt>* found : {&other, &fastest}) {
    if (*found && !is_better(best, **found)) best = std::move(**found);
  }
  if (!best.feasible() || bound_ms == 0) return best;
  if (best.plan().predicted.step_time_ms > bound_ms * kRounding)
    bound_ms = std::max(bound_ms, bound_ms_of(best, device, costs, options));
  return with_bound(std::move(best), bound_ms);
}

}  // namespace

Attempt search(const Network& network, const Device& device, const CostTable& costs, const CompileOptions& options,
               bool bound) {
  Attempt best = search_in_flight(network, device, costs, options);
  reorder(best, device, costs, options, bound);
  place_again(best, device, costs, options);
  return best;
}

Program program_of(Network network, Attempt found, const CompileOptions& options, const Stopwatch& watch) {
  Program program;
  program.network = std::move(network);
  program.network.graph = std::move(found.graph);
  program.kernels = std::move(found.layouts.kernels);
  program.family = found.layouts.family;
  program.policy = options.policy;
  program.compared_ms = found.ms();
  Plan plan = std::get<Plan>(std::move(found.result));
  plan.plan_time_ms = watch.ms();
  program.plan = check_plan(program.network.graph, std::move(plan));
  return program;
}

Bytes least_arena(const Graph& graph, const Device& device, const CompileOptions& options) {
  const std::vector<TierInfo>& tiers = options.tiers.empty() ? device.info().tiers : options.tiers;
  Bytes states;
  std::set<TensorId> counted;
  for (const State& state : graph.states) {
    const Tensor& t = graph.tensor(state.before);
    if (counted.insert(state.before).second) states += storage_bytes(t.shape, t.dtype, {});
  }
  for (const TierInfo& tier : tiers) states = states - std::min(states, tier.capacity);
  return std::max(states, least_bytes(graph, !tiers.empty()));
}

std::variant<Program, Infeasible> compile_rewritten(Network network, Bytes lower_bound, const Device& device,
                                                    const CostTable& costs, const CompileOptions& options,
                                                    const Stopwatch& watch) {
  std::optional<Bytes> minimum;
  Attempt found = choose([&](Bytes enough) { return find_least(network, device, costs, options, enough); }, {},
                         [&](Bytes memory) { return search(network, device, costs, within(options, memory), true); },
                         options, network.graph.op_count() > kManyOps, lower_bound, minimum);
  search_longer(found, device, costs, options);
  if (found.feasible() && found.plan().collectives.empty()) found.result = overlap_messages(found.graph, found.plan());
  auto result = take(std::move(found), std::move(network), lower_bound, device, costs, options, watch);
  if (auto* program = std::get_if<Program>(&result)) program->minimum = least_known(minimum, *program);
  return result;
}

std::variant<Program, Infeasible> compile_graph(Graph graph, std::vector<KernelChoice> kernels, const Device& device,
                                                const CostTable& costs, const CompileOptions& asked) {
  CompileOptions options = asked;
  if (asked.as_listed && !asked.first_that_fits)  // one plan is looked for, not many, as for a network's kernels
    options.run_effort = std::max(asked.run_effort, effort_for(graph.op_count(), false));
  CompileOptions of_least = options;
  if (asked.as_listed && !asked.first_that_fits)
    of_least.run_effort = std::max(asked.run_effort, effort_for(graph.op_count(), true));
  const Stopwatch watch;
  LayoutResult layouts{.family = LayoutFamily::plain, .kernels = std::move(kernels)};
  const LaidOut laid{std::move(graph), std::move(layouts)};
  Bytes lower_bound = least_arena(laid.graph, device, options);
  if (options.as_listed) lower_bound = std::max(lower_bound, least_live_of(laid, device, costs, options));
  std::optional<Bytes> minimum;
  std::function<Least(Least)> less;
  if (options.as_listed && !options.first_that_fits) {
    less = [&](Least known) {
      lower_bound = std::max(lower_bound, least_live_exactly(laid, device, costs, options).value_or(0_B));
      return find_less(std::move(known), laid, device, costs, of_least, lower_bound, options.memory);
    };
  }
  Attempt found = choose([&](Bytes enough) { return find_least(laid, device, costs, of_least, enough); }, less,
                         [&](Bytes memory) { return search_orders(laid, device, costs, within(options, memory)); },
                         options, laid.graph.op_count() > kManyOps, lower_bound, minimum);
  auto result = take(std::move(found), {}, lower_bound, device, costs, options, watch);
  if (auto* program = std::get_if<Program>(&result)) program->minimum = least_known(minimum, *program);
  return result;
}

}  // namespace plimsoll
