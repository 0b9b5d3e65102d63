#include "plimsoll/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <tuple>

#include "base/clock.h"
#include "base/parallel.h"
#include "kernels/selection.h"
#include "kernels/workspace_limits.h"
#include "passes/passes.h"
#include "plan/assemble.h"
#include "plan/policy.h"
#include "plan/room.h"
#include "plan/route.h"
#include "plan/simulate.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

struct Attempt {
  Graph graph;
  LayoutResult layouts;
  PlanOrInfeasible result;
  bool feasible() const { return std::holds_alternative<Plan>(result); }
  bool has_kernels() const {
    return feasible() || std::get<Infeasible>(result).flag.empty();
  }  // within the limits on workspace
  const Plan& plan() const { return std::get<Plan>(result); }
};

// By whom a plan is wanted, and of what use it is.
struct Wanted {
  std::string policy;
  bool explain = false;
  double faster_than_ms = kAnyTime;
  bool least_memory = false;
};

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

// Ways down the flow for one network: layouts and kernels, then a plan. Several threads may go them at once.
class Flow {
 public:
  Flow(const Network& network, const Device& device, const CostTable& costs, const CompileOptions& options)
      : device_(device), costs_(costs), options_(options), selection_(network, device, costs, options) {}

  // Of use only where its step takes less than `faster_than_ms`.
  Attempt attempt(const Choice& choice, bool explain = false, double faster_than_ms = kAnyTime) {
    if (const LaidOut* laid = lay_out(choice))
      return make_attempt(*laid, device_, costs_, options_, {options_.policy, explain, faster_than_ms});
    return {{}, {}, Infeasible{.flag = "--workspace"}};
  }
  Attempt over_limit(bool divide) {
    const std::lock_guard lock(mutex_);
    return {{}, {}, selection_.over_limit(divide)};
  }

  // The layouts of a choice; null where none are within the limits on workspace.
  const LaidOut* lay_out(const Choice& choice) {
    const std::lock_guard lock(mutex_);
    auto [place, fresh] = laid_out_.try_emplace({choice.family, choice.limit, choice.divide});
    if (fresh) place->second = selection_.choose(choice);
    return place->second ? &*place->second : nullptr;
  }

  // The same layouts with the fastest kernels for which there is room in the plan that was found; nothing where they
  // are those.
  std::optional<Attempt> upgraded(const Attempt& attempt, bool divide, const std::string& policy) {
    const std::vector<Bytes> room = room_of_ops(attempt.graph, attempt.plan(), options_.memory);
    std::optional<LaidOut> next =
        upgrade({attempt.graph, attempt.layouts}, divide, [&](OpId op) { return room[op.index]; });
    if (!next) return std::nullopt;
    return make_attempt(std::move(*next), device_, costs_, options_, {policy});
  }

  // What another policy makes of the choice, if faster kernels in its plan's free bytes could bring it below `ms`: at
  // best each step runs by the fastest kernel, those that run again too.
  Attempt attempt_by(const std::string& policy, const Choice& choice, double ms) {
    const LaidOut* laid = lay_out(choice);
    if (laid == nullptr) return {{}, {}, Infeasible{.flag = "--workspace"}};
    const std::optional<LaidOut> fastest = upgrade(*laid, choice.divide, [](OpId) { return Bytes{INT64_MAX}; });
    const double gain = fastest ? laid->layouts.estimated_ms - fastest->layouts.estimated_ms : 0;
    return make_attempt(*laid, device_, costs_, options_, {policy, false, ms + kMostRunsOfAStep * gain});
  }

 private:
  std::optional<LaidOut> upgrade(const LaidOut& laid, bool divide, const std::function<Bytes(OpId)>& room) {
    const std::lock_guard lock(mutex_);
    return selection_.upgrade(laid, divide, room);
  }

  const Device& device_;
  const CostTable& costs_;
  const CompileOptions& options_;
  std::mutex mutex_;  // of what follows
  KernelSelection selection_;
  std::map<std::tuple<std::optional<LayoutFamily>, Bytes, bool>, std::optional<LaidOut>> laid_out_;  // by choice
  static constexpr double kMostRunsOfAStep = 3;  // in plans worth having
};

constexpr size_t kLimitsTried = 4;      // workspace limits between the largest and none
constexpr double kRounding = 1 + 1e-9;  // of times that are equal
constexpr int kUpgrades = 2;            // of the plan's free bytes with faster kernels
constexpr int32_t kManyOps = 5000;      // for such a graph, the first plan that fits is taken: each takes seconds

bool is_better(const Attempt& a, const Attempt& than) {
  // Where no plan fits: the one without kernels within the limits on workspace is further away.
  auto rank = [](const Attempt& x) { return std::pair(!x.has_kernels(), std::get<Infeasible>(x.result).minimum); };
  if (a.feasible() != than.feasible()) return a.feasible();
  return a.feasible() ? a.plan().predicted.step_time_ms < than.plan().predicted.step_time_ms : rank(a) < rank(than);
}

bool divides(const Attempt& attempt) {
  return std::any_of(attempt.layouts.kernels.begin(), attempt.layouts.kernels.end(),
                     [](const KernelChoice& choice) { return !parts_of(choice.kernel).empty(); });
}

bool is_free_of_charge(const Attempt& a) {
  return a.feasible() && a.plan().moves.empty() && a.plan().predicted.recompute_steps == 0;
}

// Ways to choose kernels beside the first, which gave `layouts`: under smaller and smaller workspace limits, and every
// layout family without workspace. They do not depend on the budget, nor on what comes of them.
std::vector<Choice> other_choices(Flow& flow, const Choice& first, const LayoutResult& layouts,
                                  const CompileOptions& options, bool many) {
  std::vector<Choice> choices;
  std::set<Bytes> sizes;
  for (const KernelChoice& choice : layouts.kernels) {
    if (choice.workspace.count > 0) sizes.insert(choice.workspace);
  }
  const std::vector<Bytes> limits(sizes.begin(), sizes.end());  // the last is as good as unlimited, which was tried
  const size_t between = limits.empty() || many ? 0 : std::min(kLimitsTried, limits.size() - 1);
  for (size_t i = between; i > 0; --i)
    choices.push_back({first.family, limits[(limits.size() - 1) * i / (between + 1)], first.divide});
  choices.push_back({first.family, 0_B, first.divide});
  if (options.family) return choices;
  const LaidOut* smallest = flow.lay_out({first.family, 0_B, first.divide});
  for (LayoutFamily family : {LayoutFamily::blocked, LayoutFamily::channels_last, LayoutFamily::plain}) {
    if (smallest == nullptr || family != smallest->layouts.family) choices.push_back({family, 0_B, first.divide});
  }
  return choices;
}

// Steps get faster kernels where the plan has left them room.
void upgrade(Attempt& best, Flow& flow, bool divide, const std::string& policy) {
  for (int round = 0; round < kUpgrades && best.feasible(); ++round) {
    std::optional<Attempt> fuller = flow.upgraded(best, divide, policy);
    if (!fuller || !is_better(*fuller, best)) return;
    best = std::move(*fuller);
  }
}

// With the same kernels auto is as fast as any other policy. But another's plan leaves room at other steps, for other
// kernels: what comes of each is judged beside `best`.
void upgrade_others(Attempt& best, Flow& flow, const std::vector<Choice>& choices) {
  std::vector<std::string> others;
  for (const Policy& policy : policies()) {
    if (policy.name != "auto" && policy.name != "baseline" && policy.name != "caffe")
      others.emplace_back(policy.name);  // those two are liveness, and more
  }
  const double ms = best.plan().predicted.step_time_ms;
  std::vector<std::optional<Attempt>> found(others.size());
  for_each_in_parallel(others.size(), [&](size_t i) {
    std::optional<Attempt>& theirs = found[i];
    for (const Choice& choice : choices) {
      Attempt other = flow.attempt_by(others[i], choice, ms);
      if (other.feasible() && (!theirs || is_better(other, *theirs))) theirs = std::move(other);
    }
    if (theirs) upgrade(*theirs, flow, choices.front().divide, others[i]);
  });
  for (std::optional<Attempt>& theirs : found) {
    if (theirs && is_better(*theirs, best)) best = *std::move(theirs);
  }
}

// The fastest kernels, if with them nothing has to leave the arena or run twice. Else the other choices as well: what
// gives the fastest step of those that fit. Then steps of the best get faster kernels again. Else infeasible, with the
// least memory that any of them needs.
Attempt search(const Network& network, Flow& flow, const CompileOptions& options, bool divide) {
  const bool one_only = options.exact || !options.kernels.empty();
  Choice chosen{.family = options.family, .limit = {INT64_MAX}, .divide = divide};
  const bool many = network.graph.op_count() > kManyOps;
  Attempt best = flow.attempt(chosen, one_only);
  if (!best.has_kernels()) return flow.over_limit(divide);
  if (!is_free_of_charge(best) && !one_only && !((many || options.first_that_fits) && best.feasible())) {
    std::vector<Choice> choices{chosen};
    const std::vector<Choice> others = other_choices(flow, chosen, best.layouts, options, many);
    choices.insert(choices.end(), others.begin(), others.end());
    std::mutex best_mutex;
    size_t best_index = 0;  // of equal ones the first: the same whoever is done first
    for_each_in_parallel(others.size(), [&](size_t i) {
      double ms = kAnyTime;
      if (const std::lock_guard lock(best_mutex); best.feasible()) ms = best.plan().predicted.step_time_ms * kRounding;
      Attempt other = flow.attempt(others[i], false, ms);
      const std::lock_guard lock(best_mutex);
      if (!(is_better(other, best) || (i + 1 < best_index && !is_better(best, other)))) return;
      best = std::move(other);
      best_index = i + 1;
    });
    chosen = choices[best_index];
    if (best.feasible() && !many && !options.workspace_total) {
      upgrade(best, flow, divide, options.policy);
      if (options.policy == "auto" && options.state_homes.empty() && !options.first_that_fits)
        upgrade_others(best, flow, choices);
    }
  }
  if (!best.feasible()) {
    if (!one_only) best = flow.attempt(chosen, true);
    if (!one_only) std::get<Infeasible>(best.result).proven = false;  // not over all choices of kernels
  }
  return best;
}

// Kernels undivided, or in parts of fewer sizes, are choices as well: what is predicted fastest.
Attempt search_sizes(const Network& network, const Device& device, const CostTable& costs,
                     const CompileOptions& options) {
  Flow flow(network, device, costs, options);
  Attempt best = search(network, flow, options, true);
  const bool asked = options.batch_sizes && *options.batch_sizes != BatchSizes::undivided;
  if (options.exact || !options.kernels.empty() || (!divides(best) && !asked)) return best;
  auto consider = [&](Attempt other) {
    if (is_better(other, best)) best = std::move(other);
  };
  if (options.batch_sizes == BatchSizes::all) {
    CompileOptions fewer = options;
    fewer.batch_sizes = BatchSizes::power_of_two;
    Flow flow_of_fewer(network, device, costs, fewer);
    consider(search(network, flow_of_fewer, fewer, true));
  }
  consider(search(network, flow, options, false));
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
Attempt search(const Network& network, const Device& device, const CostTable& costs, const CompileOptions& options) {
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

// What every tensor in memory of its own needs.
Bytes baseline_peak(const Graph& graph, const std::vector<KernelChoice>& kernels, const CostTable& costs,
                    const Device& device) {
  const Route route = make_route(graph);
  const PlanOrInfeasible result =
      find_policy("baseline")
          .plan({.graph = graph, .route = route, .kernels = kernels, .costs = costs, .device = device.info()});
  return std::get<Plan>(result).arena;
}

// The least memory: found by costs that no clock has told, so that it is the same on every run.
struct Least {
  std::optional<Attempt> attempt;  // its plan needs no more; nothing: there is none, whatever the memory
  Infeasible why;                  // for who has less
};

MachineRates stated_rates(const Device& device) {
  return device.info().simulated ? probe_rates(device) : MachineRates{};
}

// The tiers in an order, and with rates, that were not measured; of each, where it stands in `tiers`.
std::pair<std::vector<TierInfo>, std::vector<size_t>> stated_tiers(const std::vector<TierInfo>& tiers, bool simulated) {
  std::vector<size_t> places(tiers.size());
  std::iota(places.begin(), places.end(), size_t{0});
  if (simulated) return {tiers, places};
  std::stable_sort(places.begin(), places.end(), [&](size_t a, size_t b) { return tiers[a].name < tiers[b].name; });
  std::vector<TierInfo> stated;
  for (size_t place : places) {
    TierInfo tier = tiers[place];
    tier.out_gb_per_s = tier.in_gb_per_s = tier.name == "disk" ? 1 : 10;
    tier.latency_us = tier.name == "disk" ? 100 : 10;
    tier.compute_share = tier.beside_compute() ? 0 : 1;
    stated.push_back(std::move(tier));
  }
  return {std::move(stated), std::move(places)};
}

void put_tiers(Plan& plan, const std::vector<TierInfo>& tiers, const std::vector<size_t>& places) {
  if (plan.tiers.empty()) return;
  std::vector<TierUse> uses(tiers.size());
  for (size_t t = 0; t < places.size(); ++t) uses[places[t]] = {tiers[places[t]], plan.tiers[t].used};
  plan.tiers = std::move(uses);
  for (Move& move : plan.moves) move.tier = static_cast<int>(places[static_cast<size_t>(move.tier)]);
  for (Home& home : plan.homes) home.tier = static_cast<int>(places[static_cast<size_t>(home.tier)]);
}

// Of what there is for one choice of kernels.
class LeastSearch {
 public:
  LeastSearch(const Device& device, const CostTable& costs, const CompileOptions& options)
      : device_(device), asked_(options), costs_(costs.unmeasured(stated_rates(device))), options_(options) {
    const std::vector<TierInfo>& tiers = options.tiers.empty() ? device.info().tiers : options.tiers;
    std::tie(options_.tiers, places_) = stated_tiers(tiers, device.info().simulated);
    tiers_ = tiers;
  }
  const CostTable& costs() const { return costs_; }
  const CompileOptions& options() const { return options_; }

  void consider(const LaidOut& laid, Bytes enough) {
    if (!is_fresh(laid)) return;
    auto_ = find_policy(options_.policy).name == "auto";
    if (auto_) {
      take(attempt(laid, enough));
      return;
    }
    // Another policy is asked with what it says that it needs, and then for less.
    bool found = false;
    Bytes memory{1};
    for (int i = 0; i < kAnswers; ++i) {
      Attempt answer = attempt(laid, memory);
      if (answer.feasible()) {
        memory = answer.plan().arena - Bytes{1};
        found = true;
      } else {
        const Infeasible& why = std::get<Infeasible>(answer.result);
        if (found || why.minimum.count == INT64_MAX || memory.count == INT64_MAX) i = kAnswers;
        memory = why.tier.empty() && why.minimum > memory ? why.minimum : Bytes{INT64_MAX};
      }
      take(std::move(answer));
      if (fits(enough)) return;
    }
  }
  bool fits(Bytes memory) const { return best_ && best_->plan().arena <= memory; }

  Least result(const Device& device, const CostTable& costs) {
    Least least{.attempt = std::move(best_), .why = std::move(why_)};
    if (!least.attempt) return least;
    Plan& plan = std::get<Plan>(least.attempt->result);
    if (auto_) least.why = explain(*least.attempt, device);
    if (least.why.suggestion.starts_with(raise_memory_to(least.why.minimum)))
      least.why.suggestion.replace(0, raise_memory_to(least.why.minimum).size(), raise_memory_to(plan.arena));
    least.why.minimum = plan.arena;
    least.why.budget = asked_.memory;
    put_tiers(plan, tiers_, places_);
    plan.budget = asked_.memory;
    predict(least.attempt->graph, plan, costs);
    return least;
  }

 private:
  static constexpr int kAnswers = 6;

  // Layouts of several families may be the same.
  bool is_fresh(const LaidOut& laid) {
    std::string key = fmt::format("{:016x}", fingerprint(laid.graph));
    for (const KernelChoice& kernel : laid.layouts.kernels) key += " " + kernel.kernel;
    return seen_.insert(std::move(key)).second;
  }
  Attempt attempt(const LaidOut& laid, Bytes memory) {
    options_.memory = memory;
    return make_attempt(laid, device_, costs_, options_,
                        {.policy = options_.policy, .explain = true, .least_memory = true});
  }
  void take(Attempt answer) {
    if (answer.feasible()) {
      if (!best_ || answer.plan().arena < best_->plan().arena) best_ = std::move(answer);
      return;
    }
    // Where memory was enough, a tier was not: that is what to say.
    Infeasible& why = std::get<Infeasible>(answer.result);
    const bool says_more = why_.policy.empty() || why.tier.empty() < why_.tier.empty();
    const bool needs_less = why.tier.empty() == why_.tier.empty() && why.minimum < why_.minimum;
    if (says_more || needs_less) why_ = std::move(why);
  }
  Infeasible explain(const Attempt& attempt, const Device& device) const {
    const Route route = make_route(attempt.graph);
    const PolicyInput input{.graph = attempt.graph,
                            .route = route,
                            .kernels = attempt.layouts.kernels,
                            .costs = costs_,
                            .device = device.info()};
    Infeasible why = explain_infeasible(input, attempt.plan(), false);
    const std::vector<TierUse>& uses = attempt.plan().tiers;
    const bool full = std::any_of(uses.begin(), uses.end(),
                                  [](const TierUse& use) { return use.used.count > use.tier.capacity.count / 10 * 9; });
    if (full) {
      why.suggestion += uses.size() > 1               ? ", or give the tiers more (--host-memory, --spill)"
                        : uses[0].tier.name == "disk" ? ", or give the disk more (--spill DIR:SIZE)"
                                                      : ", or give more --host-memory";
    }
    return why;
  }

  const Device& device_;
  const CompileOptions& asked_;
  const CostTable costs_;
  CompileOptions options_;
  std::vector<TierInfo> tiers_;
  std::vector<size_t> places_;
  std::set<std::string> seen_;
  std::optional<Attempt> best_;
  Infeasible why_;
  bool auto_ = false;
};

// Over all choices of kernels with the least workspace; no further than to what is enough.
Least find_least(const Network& network, const Device& device, const CostTable& costs, const CompileOptions& options,
                 Bytes enough) {
  LeastSearch search(device, costs, options);
  Flow flow(network, device, search.costs(), search.options());
  const bool pinned = options.exact || !options.kernels.empty();
  std::vector<Choice> choices{{.family = options.family, .limit = {pinned ? INT64_MAX : 0}}};
  if (!pinned && !options.family && network.graph.op_count() <= kManyOps) {
    for (LayoutFamily family : {LayoutFamily::blocked, LayoutFamily::channels_last, LayoutFamily::plain})
      choices.push_back({.family = family, .limit = {0}});
  }
  bool any = false;
  for (const Choice& choice : choices) {
    const LaidOut* laid = flow.lay_out(choice);
    if (laid == nullptr) continue;
    any = true;
    search.consider(*laid, enough);
    if (search.fits(enough)) break;
  }
  if (!any) return {.attempt = {}, .why = std::get<Infeasible>(flow.over_limit(true).result)};
  return search.result(device, costs);
}

// What is found by the costs, within what is known of the least memory.
Attempt choose(const std::function<Least(Bytes enough)>& find_least, const std::function<Attempt()>& find_fastest,
               const CompileOptions& options, Bytes lower_bound, std::optional<Bytes>& minimum) {
  if (options.memory.count == INT64_MAX && !options.name_minimum) return find_fastest();
  if (options.first_that_fits && options.memory < lower_bound)  // what would do was not asked
    return {{}, {}, Infeasible{.budget = options.memory, .minimum = lower_bound}};
  Least least = find_least(options.name_minimum ? Bytes{1} : options.memory);
  if (!least.attempt) return {{}, {}, std::move(least.why)};
  const Bytes arena = least.attempt->plan().arena;
  if (options.name_minimum) minimum = arena;
  if (arena > options.memory) return {{}, {}, std::move(least.why)};
  if (options.first_that_fits) return *std::move(least.attempt);
  Attempt fastest = find_fastest();
  return is_better(*least.attempt, fastest) ? *std::move(least.attempt) : std::move(fastest);
}

// The attempt that was taken; its plan is checked, whoever made it.
Program program_of(Network network, Attempt found, const CompileOptions& options, const Stopwatch& watch) {
  Program program;
  program.network = std::move(network);
  program.network.graph = std::move(found.graph);
  program.kernels = std::move(found.layouts.kernels);
  program.family = found.layouts.family;
  program.policy = options.policy;
  Plan plan = std::get<Plan>(std::move(found.result));
  plan.plan_time_ms = watch.ms();
  program.plan = check_plan(program.network.graph, std::move(plan));
  return program;
}

// The program of what was found for a network, or why there is none. `lower_bound`: that of the graph. `watch`: since
// planning began.
std::variant<Program, Infeasible> take(Attempt found, Network training, Bytes lower_bound, const Device& device,
                                       const CostTable& costs, const CompileOptions& options, const Stopwatch& watch) {
  if (!found.feasible()) {
    Infeasible infeasible = std::get<Infeasible>(std::move(found.result));
    infeasible.policy = options.policy;
    infeasible.lower_bound = lower_bound;
    return infeasible;
  }

  const Bytes baseline = baseline_peak(found.graph, found.layouts.kernels, costs, device);
  Program program = program_of(std::move(training), std::move(found), options, watch);
  program.lower_bound = lower_bound;
  program.baseline_peak = baseline;
  return program;
}

bool has_tiers(const Device& device, const CompileOptions& options) {
  return !options.tiers.empty() || !device.info().tiers.empty();
}

}  // namespace

std::variant<Program, Infeasible> compile_training(const Network& network, const Device& device, const CostTable& costs,
                                                   const CompileOptions& options) {
  const Stopwatch watch;
  Network training = network;
  std::vector<PassReport> passes = run_fusion_passes(training, options.fusion);
  training = make_training_network(training, options.optimizer);
  const Bytes lower_bound = least_bytes(training.graph, has_tiers(device, options));
  std::optional<Bytes> minimum;
  Attempt found = choose([&](Bytes enough) { return find_least(training, device, costs, options, enough); },
                         [&] { return search(training, device, costs, options); }, options, lower_bound, minimum);
  auto result = take(std::move(found), std::move(training), lower_bound, device, costs, options, watch);
  if (auto* program = std::get_if<Program>(&result)) {
    program->passes = std::move(passes);
    program->minimum = minimum;
  }
  return result;
}

std::variant<Program, Infeasible> compile_graph(Graph graph, std::vector<KernelChoice> kernels, const Device& device,
                                                const CostTable& costs, const CompileOptions& options) {
  const Stopwatch watch;
  const Bytes lower_bound = least_bytes(graph, has_tiers(device, options));
  LayoutResult layouts{.family = LayoutFamily::plain, .kernels = std::move(kernels)};
  const LaidOut laid{std::move(graph), std::move(layouts)};
  std::optional<Bytes> minimum;
  const auto find_least = [&](Bytes enough) {
    LeastSearch least(device, costs, options);
    least.consider(laid, enough);
    return least.result(device, costs);
  };
  Attempt found = choose(
      find_least,
      [&] {
        return make_attempt(laid, device, costs, options, {options.policy, true});
      },
      options, lower_bound, minimum);
  auto result = take(std::move(found), {}, lower_bound, device, costs, options, watch);
  if (auto* program = std::get_if<Program>(&result)) program->minimum = minimum;
  return result;
}

namespace {

// The tier where a state lies between steps; -1: the arena.
int8_t home_of(const Plan& plan, TensorId state) {
  for (const Home& home : plan.homes) {
    if (home.tensor == state) return static_cast<int8_t>(home.tier);
  }
  return -1;
}

// Where a state lies between steps: its tier and slot, or its offset in the arena.
std::pair<int, Bytes> place_of(const Plan& plan, TensorId state) {
  for (const Home& home : plan.homes) {
    if (home.tensor == state) return {home.tier, home.slot};
  }
  for (const Stay& stay : plan.stays) {
    if (stay.tensor == state && stay.first == 0) return {-1, stay.offset};
  }
  return {-1, {-1}};
}

}  // namespace

std::variant<Program, Infeasible> compile_evaluation(const Network& network, const Program& training,
                                                     const Device& device, const CostTable& costs,
                                                     const CompileOptions& options) {
  const Stopwatch watch;
  Network evaluation = network;
  std::vector<PassReport> passes = run_fusion_passes(evaluation, options.fusion);
  Graph& graph = evaluation.graph;
  for (const Objective& objective : evaluation.objectives) graph.outputs.push_back(objective.loss);
  if (evaluation.correct.valid()) graph.outputs.push_back(evaluation.correct);

  // The same states in the same order, so that the placement gives them the same offsets.
  const Graph& trained = training.network.graph;
  std::vector<State> states;
  CompileOptions pinned = options;
  pinned.policy = training.plan->homes.empty() ? "liveness" : "auto";
  pinned.memory = training.plan->arena;
  pinned.tiers.clear();
  for (const TierUse& use : training.plan->tiers) {  // what the training has taken of each
    pinned.tiers.push_back(use.tier);
    pinned.tiers.back().capacity = use.used;
  }
  pinned.family = training.family;
  pinned.kernels.clear();
  for (const State& state : trained.states) {
    const Tensor& tensor = trained.tensor(state.before);
    TensorId id = graph.find_tensor(tensor.name);
    if (!id.valid()) {
      id = graph.add_source(tensor.name, tensor.shape, tensor.dtype, tensor.role, tensor.init);
      graph.tensor(id).block = tensor.block;
    }
    states.push_back({id, id});
    pinned.state_homes.push_back(home_of(training.plan, state.before));
    pinned.state_layouts[tensor.name] = tensor.layout;
  }
  graph.states = states;

  Attempt found = search(evaluation, device, costs, pinned);
  if (!found.feasible()) return std::get<Infeasible>(std::move(found.result));
  Program program = program_of(std::move(evaluation), std::move(found), options, watch);
  program.passes = std::move(passes);
  for (size_t i = 0; i < trained.states.size(); ++i) {
    if (place_of(training.plan, trained.states[i].before) !=
        place_of(program.plan, program.network.graph.states[i].before)) {
      throw Error(ErrorCode::internal, fmt::format("state '{}' lies elsewhere in the evaluation than in the training",
                                                   trained.tensor(trained.states[i].before).name));
    }
  }
  return program;
}

std::variant<Program, Infeasible> compile_inference(const Network& network, const Device& device,
                                                    const CostTable& costs, const CompileOptions& options) {
  const Stopwatch watch;
  Network inference = network;
  std::vector<PassReport> passes = run_fusion_passes(inference, options.fusion);
  const TensorId logits = logits_of(inference);
  if (!logits.valid()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("'{}' does not classify, so it has no answers to give", network.graph.name));
  }
  inference.graph.tensor(logits).role = Role::output;
  std::vector<TensorId>& outputs = inference.graph.outputs;
  for (TensorId id : {inference.objectives[0].loss, inference.correct, logits}) {
    if (std::find(outputs.begin(), outputs.end(), id) == outputs.end()) outputs.push_back(id);
  }
  const Bytes lower_bound = least_bytes(inference.graph, has_tiers(device, options));
  Attempt found = search(inference, device, costs, options);
  auto result = take(std::move(found), std::move(inference), lower_bound, device, costs, options, watch);
  if (auto* program = std::get_if<Program>(&result)) program->passes = std::move(passes);
  return result;
}

}  // namespace plimsoll
