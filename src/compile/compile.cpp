#include "plimsoll/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "base/clock.h"
#include "base/parallel.h"
#include "compile/attempt.h"
#include "compile/feeding.h"
#include "compile/least_memory.h"
#include "kernels/workspace_limits.h"
#include "passes/passes.h"
#include "plan/assemble.h"
#include "plan/overlap.h"
#include "plan/route.h"
#include "plimsoll/device.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr size_t kLimitsTried = 4;      // workspace limits between the largest and none
constexpr size_t kTriedAtOnce = 2;      // choices of kernels; where none is better, those after them are hardly ever
constexpr double kRounding = 1 + 1e-9;  // of times that are equal
constexpr int kUpgrades = 2;            // of the plan's free bytes with faster kernels

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

// The ways to choose kernels, each once, that by which they take the least time together first: mostly the one without a
// limit, but what is chosen op by op is not always the best of all.
std::vector<Choice> choices_of(Flow& flow, const Choice& first, const CompileOptions& options, bool many) {
  const LaidOut& unlimited = *flow.lay_out(first);
  std::vector<Choice> choices{first};
  std::set<std::string> seen{identity(unlimited)};
  for (const Choice& other : other_choices(flow, first, unlimited.layouts, options, many)) {
    const LaidOut* laid = flow.lay_out(other);
    if (laid != nullptr && seen.insert(identity(*laid)).second) choices.push_back(other);
  }
  const auto ms = [&](const Choice& choice) { return flow.lay_out(choice)->layouts.estimated_ms; };
  const auto fastest = std::min_element(choices.begin(), choices.end(),
                                        [&](const Choice& a, const Choice& b) { return ms(a) * kRounding < ms(b); });
  std::rotate(choices.begin(), fastest, fastest + 1);
  return choices;
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
        return flow.least_ms(c) * kRounding >= best.plan().predicted.step_time_ms;
      });
  if (!nothing_is_faster && !one_only && !(any_will_do && best.feasible())) {
    if (choices.empty()) choices = choices_of(flow, chosen, options, many);
    std::erase_if(choices, [&](const Choice& other) { return other == chosen; });
    choices.insert(choices.begin(), chosen);
    std::mutex best_mutex;
    size_t best_index = 0;  // of equal ones the first: the same whoever is done first
    for (size_t end = 1; end < choices.size() && (!best.feasible() || end <= best_index + kTriedAtOnce);) {
      const size_t begin = end;
      end = std::min(choices.size(), begin + kTriedAtOnce);
      for_each_in_parallel(end - begin, [&](size_t i) {
        const size_t index = begin + i;
        double ms = kAnyTime;
        if (const std::lock_guard lock(best_mutex); best.feasible())
          ms = best.plan().predicted.step_time_ms * kRounding;
        Attempt other = flow.attempt(choices[index], false, ms);
        const std::lock_guard lock(best_mutex);
        if (!(is_better(other, best) || (index < best_index && !is_better(best, other)))) return;
        best = std::move(other);
        best_index = index;
      });
    }
    chosen = choices[best_index];
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

// Kernels undivided, or in parts of fewer sizes, are choices as well: what is predicted fastest.
Attempt search_sizes(const Network& network, const Device& device, const CostTable& costs,
                     const CompileOptions& options) {
  Flow flow(network, device, costs, options);
  Attempt best = search(network, flow, options, true);
  const bool asked = options.batch_sizes && *options.batch_sizes != BatchSizes::undivided;
  if (options.exact || !options.kernels.empty() || (!flow.has_divided() && !asked)) return best;
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

// Of several ranks: how long updates may wait for the gradients of others. As long as they like, where nothing has to leave
// the arena or run twice for it.
Attempt search_in_flight(const Network& network, const Device& device, const CostTable& costs,
                         const CompileOptions& options) {
  if (device.info().link.ranks < 2 || options.in_flight) return search_shares(network, device, costs, options);
  // A parameter that comes back after its update is waited for, too: then later is not always better.
  const bool gathers =
      std::ranges::any_of(network.graph.ops(), [](const Op& op) { return op.type->name == "AllGatherParameter"; });
  const std::vector<Bytes> choices =
      gathers ? std::vector<Bytes>{{INT64_MAX}, 32_MiB, 4_MiB, 0_B} : std::vector<Bytes>{{INT64_MAX}, 32_MiB, 0_B};
  CompileOptions within = options;
  Attempt best;
  for (const Bytes in_flight : choices) {
    within.in_flight = in_flight;
    Attempt found = search_shares(network, device, costs, within);
    if (best.graph.op_count() == 0 || is_better(found, best)) best = std::move(found);
    if (is_free_of_charge(best) && !gathers) break;
  }
  return best;
}

// What leaves the arena, runs again or does not fit may not have to in another order of the steps.
void reorder(Attempt& best, const Device& device, const CostTable& costs, const CompileOptions& options) {
  if (is_free_of_charge(best) || device.info().link.ranks > 1) return;
  Wanted wanted{.policy = options.policy, .only_to_fit = true};
  if (best.feasible()) wanted.faster_than_ms = best.plan().predicted.step_time_ms;
  std::optional<Attempt> other = reordered(best, options.memory, device, costs, options, wanted);
  if (other && is_better(*other, best)) best = *std::move(other);
}

// All of these; the plan that is taken is placed with more effort than those that it was chosen among.
Attempt search(const Network& network, const Device& device, const CostTable& costs, const CompileOptions& options) {
  Attempt best = search_in_flight(network, device, costs, options);
  reorder(best, device, costs, options);
  place_again(best, device, costs, options);
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

constexpr double kBoundEffort = 30e6;
constexpr int64_t kRunEffort = 100'000'000, kRunEffortOfOp = 150'000;

// What is found by the costs, within what is known of the least memory.
Attempt choose(const std::function<Least(Bytes enough)>& find, const std::function<Attempt()>& find_fastest,
               const CompileOptions& options, bool many, Bytes lower_bound, std::optional<Bytes>& minimum) {
  if (options.memory.count == INT64_MAX && !options.name_minimum) return find_fastest();
  if ((options.first_that_fits || !options.name_least) && options.memory < lower_bound)  // what would do was not asked
    return {{}, {}, Infeasible{.budget = options.memory, .minimum = lower_bound}};
  // Side by side where there are cores: most budgets that are above the bound have a plan. With many ops it is not tried:
  // where there is none, that is what takes longest.
  Least least;
  Attempt fastest;
  std::atomic<bool> too_much = false;
  const bool may_fit = options.memory >= lower_bound && !options.first_that_fits;
  for_each_in_parallel(may_fit && !many ? 2 : 1, [&](size_t i) {
    if (i == 0) {
      least = find(options.name_minimum ? Bytes{1} : options.memory);
      too_much = !least.attempt || least.attempt->plan().arena > options.memory;
    } else if (!too_much) {
      fastest = find_fastest();
    }
  });
  if (!least.attempt) return {{}, {}, std::move(least.why)};
  const Bytes arena = least.attempt->plan().arena;
  if (options.name_minimum) minimum = arena;
  if (too_much && options.as_listed && may_fit) {  // by a search for this very budget there may be one yet
    fastest = find_fastest();
    if (fastest.feasible()) return fastest;
  }
  if (too_much) return {{}, {}, std::move(least.why)};
  if (options.first_that_fits) return *std::move(least.attempt);
  if (many) fastest = find_fastest();
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
    infeasible.proven = infeasible.proven || (infeasible.tier.empty() && options.memory < lower_bound);
    return infeasible;
  }

  const double bound_ms =
      bound_of(found, device, costs, options, static_cast<int64_t>(kBoundEffort * options.search_effort));
  const Bytes baseline = baseline_peak(found.graph, found.layouts.kernels, costs, device);
  Program program = program_of(std::move(training), std::move(found), options, watch);
  program.lower_bound = lower_bound;
  program.bound_ms = bound_ms;
  program.baseline_peak = baseline;
  return program;
}

// Of a graph of costs, the least memory that is known to be enough, where it was asked for: also that of the plan itself. (A
// network's is found without its times, so that it is the same on every machine.)
std::optional<Bytes> least_known(const std::optional<Bytes>& minimum, const Program& program,
                                 const CompileOptions& options) {
  return minimum && options.as_listed ? std::min(*minimum, program.plan->arena) : minimum;
}

// No plan has a smaller arena: each op has room there, and all states that the tiers have no room for.
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

// The program of a network whose graph is all that is run; `lower_bound`: its least_arena.
std::variant<Program, Infeasible> compile_rewritten(Network network, Bytes lower_bound, const Device& device,
                                                    const CostTable& costs, const CompileOptions& options,
                                                    const Stopwatch& watch) {
  std::optional<Bytes> minimum;
  Attempt found = choose([&](Bytes enough) { return find_least(network, device, costs, options, enough); },
                         [&] { return search(network, device, costs, options); }, options,
                         network.graph.op_count() > kManyOps, lower_bound, minimum);
  if (found.feasible() && found.plan().collectives.empty()) found.result = overlap_messages(found.graph, found.plan());
  auto result = take(std::move(found), std::move(network), lower_bound, device, costs, options, watch);
  if (auto* program = std::get_if<Program>(&result)) program->minimum = least_known(minimum, *program, options);
  return result;
}

// A parameter that is gathered lies row-major, as its pieces do.
void pin_gathered(const Graph& graph, CompileOptions& options) {
  for (const Op& op : graph.ops()) {
    if (op.type->name == "AllGatherParameter") options.state_layouts[graph.tensor(op.inputs[0]).name] = {};
  }
}

// With options.exact, by the kernels of the step that divides nothing: a parameter that lies row-major would suit others,
// which round otherwise.
void keep_kernels_of_whole(const Network& network, const Device& device, const CostTable& costs,
                           CompileOptions& options) {
  if (!options.exact || options.optimizer.sharding.stage == 0 || !options.kernels.empty()) return;
  CompileOptions undivided = options;
  undivided.optimizer.sharding = {};
  const Network training = make_training_step(network, undivided.optimizer, fusion_on(device, undivided.fusion));
  Flow flow(training, device, costs, undivided);
  const LaidOut* const laid = flow.lay_out({.family = options.family, .limit = {INT64_MAX}, .divide = true});
  if (laid == nullptr) return;  // nor are there any for the divided one
  options.family = laid->layouts.family;
  for (const Op& op : training.graph.ops())
    options.kernels[op.name] = laid->layouts.kernels[laid->graph.find_op(op.name).index].kernel;
}

// A network whose states are divided as options.optimizer says, and what is known of its plans before one is made.
struct Divided {
  Network training;
  std::vector<PassReport> passes;
  CompileOptions options;
  Bytes lower_bound;
  double link_ms = 0;  // no step takes less: one message after the other
};

// What its collectives take where all of one type go as one.
double link_ms(const Graph& graph, const LinkInfo& link) {
  std::map<const OpType*, std::vector<OpId>> collectives;
  for (OpId op{0}; op.index < graph.op_count(); ++op.index) {
    if (graph.op(op).type->is_collective) collectives[graph.op(op).type].push_back(op);
  }
  double ms = 0;
  for (const auto& [type, ops] : collectives) ms += collective_ms(link, graph, ops);
  return ms;
}

Divided divide_as_asked(const Network& network, const Device& device, const CostTable& costs, CompileOptions options) {
  options.optimizer.sharding.whole_sums = options.exact;
  Divided divided;
  divided.training = make_training_step(network, options.optimizer, fusion_on(device, options.fusion), &divided.passes);
  keep_kernels_of_whole(network, device, costs, options);
  pin_gathered(divided.training.graph, options);
  divided.lower_bound = least_arena(divided.training.graph, device, options);
  divided.link_ms = link_ms(divided.training.graph, device.info().link);
  divided.options = std::move(options);
  return divided;
}

std::variant<Program, Infeasible> compile_divided(Divided divided, const Device& device, const CostTable& costs,
                                                  const Stopwatch& watch) {
  auto result =
      compile_rewritten(std::move(divided.training), divided.lower_bound, device, costs, divided.options, watch);
  if (auto* program = std::get_if<Program>(&result)) {
    program->passes = std::move(divided.passes);
    program->sharding = divided.options.optimizer.sharding;
  }
  return result;
}

// Ways to divide what belongs to parameters, the least divided first: in each stage the largest parameters, of which so
// many have that share of all bytes, and then all of them.
std::vector<Sharding> ways_to_divide(const Network& network, const OptimizerOptions& optimizer) {
  std::vector<Bytes> sizes;
  Bytes all;
  for (const State& state : network.graph.states) {
    const Tensor& t = network.graph.tensor(state.before);
    if (t.role != Role::parameter || !is_divided(t.shape, {.stage = 1}, optimizer.ranks)) continue;
    sizes.push_back(t.bytes());
    all += t.bytes();
  }
  std::ranges::sort(sizes, std::greater());
  std::vector<Bytes> least;
  for (const int64_t share : {2, 1}) {
    Bytes sum;
    for (const Bytes size : sizes) {
      sum += size;
      if (sum.count < all.count / share) continue;
      if (least.empty() || size < least.back()) least.push_back(size);
      break;
    }
  }
  std::vector<Sharding> ways;
  for (int stage = 1; stage <= kMostShardingStage; ++stage) {
    if (stage == 2 && optimizer.accumulate < 2) continue;  // nothing that stage 1 does not divide
    for (const Bytes bytes : least) ways.push_back({.stage = stage, .least = bytes});
  }
  return ways;
}

// Ways to divide states, compiled as far as they may be of use: the fastest of those that fit, or, where none does, the
// one that needs least.
class Division {
 public:
  Division(const Device& device, const CostTable& costs, const CompileOptions& options)
      : device_(device), costs_(costs), options_(options) {}

  void add(Divided way) {
    lower_bound_ = ways_ == 0 ? way.lower_bound : std::min(lower_bound_, way.lower_bound);
    (way.lower_bound > options_.memory ? unfit_ : fit_).emplace_back(ways_++, std::move(way));
  }

  // Of what was added, those that may be fastest or need least.
  void compile() {
    // The fewest messages first: those that take longer than a step that was found are not planned.
    std::ranges::stable_sort(fit_, {}, [](const auto& way) { return way.second.link_ms; });
    for (auto& [number, way] : fit_) {
      const auto* const best = best_ ? std::get_if<Program>(&*best_) : nullptr;
      if (best != nullptr && (keeps_everything() || way.link_ms > best->plan->predicted.step_time_ms)) {
        unfit_.emplace_back(number, std::move(way));
      } else {
        take(number, compile_divided(std::move(way), device_, costs_, watch_));
      }
    }
    fit_.clear();
    if (best_ && best_->index() == 0 && !options_.name_minimum) return unfit_.clear();
    std::ranges::stable_sort(unfit_, {}, [](const auto& way) { return way.second.lower_bound; });
    for (auto& [number, way] : unfit_) {
      if (minimum_ && way.lower_bound >= *minimum_) break;  // nor do those after it need less
      way.options.memory = {};                              // which is too little: the answer is what would do
      auto found = compile_divided(std::move(way), device_, costs_, watch_);
      std::get<Infeasible>(found).budget = options_.memory;
      take(number, std::move(found));
    }
    unfit_.clear();
  }

  bool keeps_everything() const {
    const auto* const program = best_ ? std::get_if<Program>(&*best_) : nullptr;
    return program != nullptr && program->plan->moves.empty() && program->plan->predicted.recompute_steps == 0;
  }

  std::variant<Program, Infeasible> result() && {
    if (auto* program = std::get_if<Program>(&*best_)) {
      if (options_.name_minimum) program->minimum = minimum_;
      program->lower_bound = lower_bound_;
    } else {
      std::get<Infeasible>(*best_).lower_bound = lower_bound_;
    }
    return *std::move(best_);
  }

 private:
  void take(int number, std::variant<Program, Infeasible> found) {
    const auto* const program = std::get_if<Program>(&found);
    const std::optional<Bytes> its = program != nullptr ? program->minimum : std::get<Infeasible>(found).minimum;
    if (its && (!minimum_ || *its < *minimum_)) minimum_ = its;
    if (best_ && !is_better(found, number)) return;
    best_ = std::move(found);
    number_ = number;
  }
  // Of equal ones the first.
  bool is_better(const std::variant<Program, Infeasible>& found, int number) const {
    if (found.index() != best_->index()) return found.index() == 0;
    const auto worth = [](const std::variant<Program, Infeasible>& of, int at) {
      const auto* const program = std::get_if<Program>(&of);
      return std::tuple(program != nullptr ? program->plan->predicted.step_time_ms : 0,
                        program != nullptr ? Bytes{} : std::get<Infeasible>(of).minimum, at);
    };
    return worth(found, number) < worth(*best_, number_);
  }

  const Device& device_;
  const CostTable& costs_;
  const CompileOptions& options_;
  const Stopwatch watch_;
  int ways_ = 0;
  std::vector<std::pair<int, Divided>> fit_, unfit_;  // and which of all they are; unfit_: only their least is asked
  std::optional<std::variant<Program, Infeasible>> best_;
  int number_ = 0;
  std::optional<Bytes> minimum_;
  Bytes lower_bound_;
};

std::variant<Program, Infeasible> compile_step(const Network& network, const Device& device, const CostTable& costs,
                                               const CompileOptions& options) {
  const int ranks = options.optimizer.ranks;
  CompileOptions divided = options;
  if (options.zero && options.optimizer.sharding.stage == 0 && ranks > 1)
    divided.optimizer.sharding.stage = *options.zero;
  if (ranks < 2 || options.zero || options.optimizer.sharding.stage > 0) {
    const Stopwatch watch;
    return compile_divided(divide_as_asked(network, device, costs, divided), device, costs, watch);
  }
  Division division(device, costs, options);
  Divided whole = divide_as_asked(network, device, costs, options);
  const bool may_fit = whole.lower_bound <= options.memory;
  division.add(std::move(whole));
  if (may_fit) division.compile();
  if (!division.keeps_everything() || options.name_minimum) {
    for (const Sharding& way : ways_to_divide(network, options.optimizer)) {
      divided.optimizer.sharding = way;
      division.add(divide_as_asked(network, device, costs, divided));
    }
    division.compile();
  }
  return std::move(division).result();
}

bool runs_wide_layers_by_rows(const Op& op) { return op.type->name.starts_with("PointwiseLinear"); }

// As a training was fused, so that its weights lie as they are wanted.
FusionOptions fusion_of(const Program& training, const Device& device, const FusionOptions& fusion) {
  FusionOptions options = fusion_on(device, fusion);
  if (std::ranges::none_of(training.network.graph.ops(), runs_wide_layers_by_rows))
    options.off.emplace_back(kPointwiseLinearPass);
  return options;
}

// The step with its wide layers undivided: what is pinned may be such a one. It is faster, if anything, only where there is
// room for all: else it would have more to compute again. With `exact`, results must not follow the budget.
bool may_be_undivided(const Program& by_rows, const CompileOptions& options) {
  const auto& ops = by_rows.network.graph.ops();
  if (std::ranges::none_of(ops, runs_wide_layers_by_rows)) return false;
  if (!options.kernels.empty()) {
    return std::ranges::any_of(
        ops, [&](const Op& op) { return runs_wide_layers_by_rows(op) && !options.kernels.contains(op.name); });
  }
  const Plan& plan = *by_rows.plan;
  return !options.exact && options.optimizer.ranks < 2 && !options.first_that_fits && plan.moves.empty() &&
         plan.predicted.recompute_steps == 0 && by_rows.network.graph.op_count() <= kManyOps;
}

std::variant<Program, Infeasible> compile_unfed(const Network& network, const Device& device, const CostTable& costs,
                                                const CompileOptions& options) {
  auto by_rows = compile_step(network, device, costs, options);
  auto* const program = std::get_if<Program>(&by_rows);
  if (program == nullptr || !may_be_undivided(*program, options)) return by_rows;
  CompileOptions undivided = options;
  undivided.fusion.off.emplace_back(kPointwiseLinearPass);
  if (!options.kernels.empty()) return compile_step(network, device, costs, undivided);
  undivided.name_minimum = false;
  auto whole = compile_step(network, device, costs, undivided);
  auto* const other = std::get_if<Program>(&whole);
  if (other == nullptr || other->plan->predicted.step_time_ms >= program->plan->predicted.step_time_ms) return by_rows;
  other->minimum = program->minimum;
  other->lower_bound = program->lower_bound;
  return whole;
}

// Where a device is asked for one launch after another, small updates stand together, to be one. Some gradients live longer
// for it: so it is done only where nothing has to leave the arena or run twice.
std::variant<Program, Infeasible> compile_gathered(const Network& network, const Device& device, const CostTable& costs,
                                                   const CompileOptions& options) {
  auto result = compile_unfed(network, device, costs, options);
  auto* const program = std::get_if<Program>(&result);
  const auto is_free = [](const Program& p) {
    return p.plan->moves.empty() && p.plan->homes.empty() && p.plan->predicted.recompute_steps == 0;
  };
  if (program == nullptr || !device.info().asynchronous || options.optimizer.ranks > 1 || options.first_that_fits ||
      program->network.graph.op_count() > kManyOps || !is_free(*program))
    return result;
  CompileOptions gathered = options;
  gathered.gather_updates = true;
  gathered.name_minimum = gathered.name_least = false;
  auto other = compile_unfed(network, device, costs, gathered);
  auto* const found = std::get_if<Program>(&other);
  if (found == nullptr || !is_free(*found) ||
      found->plan->predicted.step_time_ms > program->plan->predicted.step_time_ms * kRounding)
    return result;
  found->minimum = program->minimum;
  return other;
}

}  // namespace

std::variant<Program, Infeasible> compile_training(const Network& network, const Device& device, const CostTable& costs,
                                                   const CompileOptions& options) {
  return compile_fed(options,
                     [&](const CompileOptions& asked) { return compile_gathered(network, device, costs, asked); });
}

namespace {

// The order in which ops are listed was chosen by nobody for its memory: another is looked at first.
Attempt search_orders(const LaidOut& laid, const Device& device, const CostTable& costs,
                      const CompileOptions& options) {
  Wanted wanted{options.policy, true};
  std::optional<Attempt> other =
      reordered({laid.graph, laid.layouts, Infeasible{}}, options.memory, device, costs, options, wanted);
  if (other && is_free_of_charge(*other)) return *std::move(other);
  if (other && other->feasible()) wanted.faster_than_ms = other->plan().predicted.step_time_ms;
  Attempt listed = make_attempt(laid, device, costs, options, wanted);
  return other && !is_better(listed, *other) ? *std::move(other) : std::move(listed);
}

}  // namespace

std::variant<Program, Infeasible> compile_graph(Graph graph, std::vector<KernelChoice> kernels, const Device& device,
                                                const CostTable& costs, const CompileOptions& asked) {
  CompileOptions options = asked;
  if (asked.as_listed && !asked.first_that_fits)  // one plan is looked for, not many, as for a network's kernels
    options.run_effort = std::max(asked.run_effort, kRunEffort + kRunEffortOfOp * graph.op_count());
  const Stopwatch watch;
  LayoutResult layouts{.family = LayoutFamily::plain, .kernels = std::move(kernels)};
  const LaidOut laid{std::move(graph), std::move(layouts)};
  Bytes lower_bound = least_arena(laid.graph, device, options);
  if (options.as_listed) lower_bound = std::max(lower_bound, least_live_of(laid, device, costs, options));
  std::optional<Bytes> minimum;
  Attempt found = choose([&](Bytes enough) { return find_least(laid, device, costs, options, enough); },
                         [&] { return search_orders(laid, device, costs, options); }, options,
                         laid.graph.op_count() > kManyOps, lower_bound, minimum);
  auto result = take(std::move(found), {}, lower_bound, device, costs, options, watch);
  if (auto* program = std::get_if<Program>(&result)) program->minimum = least_known(minimum, *program, options);
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

// Gives a graph the states of `training`, in their order, so that the placement gives them the same offsets. Returns the
// options that keep them where they are, in an arena of `memory`.
CompileOptions pin_states(Graph& graph, const Program& training, const CompileOptions& options, Bytes memory) {
  CompileOptions pinned = options;
  pinned.memory = memory;
  pinned.tiers.clear();
  for (const TierUse& use : training.plan->tiers) {  // what the training has taken of each
    pinned.tiers.push_back(use.tier);
    pinned.tiers.back().capacity = use.used;
  }
  pinned.family = training.family;
  const Graph& trained = training.network.graph;
  std::vector<State> states;
  for (const State& state : trained.states) {
    const Tensor& tensor = trained.tensor(state.before);
    TensorId id = graph.find_tensor(tensor.name);
    if (!id.valid()) {
      id = graph.add_source(tensor.name, tensor.shape, tensor.dtype, tensor.role, tensor.init);
      graph.tensor(id).block = tensor.block;
      graph.tensor(id).shard = tensor.shard;
    }
    const auto own = std::ranges::find(graph.states, id, &State::before);
    states.push_back({id, own != graph.states.end() ? own->after : id});
    pinned.state_homes.push_back(home_of(training.plan, state.before));
    pinned.state_layouts[tensor.name] = tensor.layout;
  }
  for (const State& state : graph.states) {
    if (std::ranges::find(states, state.before, &State::before) != states.end()) continue;
    throw Error(ErrorCode::invalid_input,
                fmt::format("'{}' is no state of the training '{}'", graph.tensor(state.before).name, trained.name));
  }
  graph.states = states;
  return pinned;
}

std::variant<Program, Infeasible> compile_pinned(Network network, const Program& training, const Device& device,
                                                 const CostTable& costs, const CompileOptions& pinned,
                                                 const Stopwatch& watch) {
  Attempt found = search(network, device, costs, pinned);
  if (!found.feasible()) return std::get<Infeasible>(std::move(found.result));
  Program program = program_of(std::move(network), std::move(found), pinned, watch);
  const Graph& trained = training.network.graph;
  for (size_t i = 0; i < trained.states.size(); ++i) {
    if (place_of(training.plan, trained.states[i].before) !=
        place_of(program.plan, program.network.graph.states[i].before)) {
      throw Error(ErrorCode::internal, fmt::format("state '{}' lies elsewhere than in the training",
                                                   trained.tensor(trained.states[i].before).name));
    }
  }
  return program;
}

}  // namespace

FusionOptions fusion_on(const Device& device, FusionOptions options) {
  Graph graph;
  const TensorId x = graph.add_source("x", {1, 1}, DType::f32, Role::input);
  const TensorId labels = graph.add_source("labels", {1}, DType::i64, Role::input);
  const OpId loss = graph.add_op("LinearCrossEntropyForward", "loss", "loss", {x, x, labels});
  const OpId layer = graph.add_op("PointwiseLinearForward", "layer", "layer", {x, x},
                                  {{"expression", std::string("x0")}, {"operands", int64_t{1}}});
  const TensorId id = graph.add_source("id", {}, DType::i64, Role::input);
  const TensorId dy = graph.add_source("dy", {1}, DType::f32, Role::input);
  const TensorId rate = graph.add_source("rate", {}, DType::f32, Role::hyperparameter);
  const OpId update = graph.add_op("EmbeddingSgdUpdate", "update", "update", {x, dy, rate, id}, {}, Phase::update);
  for (const auto& [op, pass] :
       {std::pair{loss, kLinearLossPass}, {layer, kPointwiseLinearPass}, {update, kSparseEmbeddingPass}}) {
    try {
      device.kernels(graph, graph.op(op), LayoutFamily::plain);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      options.off.emplace_back(pass);
    }
  }
  return options;
}

std::variant<Program, Infeasible> compile_evaluation(const Network& network, const Program& training,
                                                     const Device& device, const CostTable& costs,
                                                     const CompileOptions& options, Bytes arena) {
  const Stopwatch watch;
  Network evaluation = network;
  std::vector<PassReport> passes = run_fusion_passes(evaluation, fusion_of(training, device, options.fusion));
  divide_parameters(evaluation, training.sharding, options.optimizer.ranks);
  Graph& graph = evaluation.graph;
  for (const Objective& objective : evaluation.objectives) graph.outputs.push_back(objective.loss);
  if (evaluation.correct.valid()) graph.outputs.push_back(evaluation.correct);
  graph.states.clear();  // nothing changes
  CompileOptions pinned = pin_states(graph, training, options, std::max(training.plan->arena, arena));
  pinned.kernels.clear();
  pinned.policy = training.plan->homes.empty() ? "liveness" : "auto";
  auto result = compile_pinned(std::move(evaluation), training, device, costs, pinned, watch);
  if (auto* program = std::get_if<Program>(&result)) program->passes = std::move(passes);
  return result;
}

std::variant<Program, Infeasible> compile_shape(const Network& network, const Program& training, const Device& device,
                                                const CostTable& costs, const CompileOptions& options) {
  const Stopwatch watch;
  OptimizerOptions optimizer = options.optimizer;
  optimizer.sharding = training.sharding;
  std::vector<PassReport> passes;
  Network shaped = make_training_step(network, optimizer, fusion_of(training, device, options.fusion), &passes);
  CompileOptions pinned = pin_states(shaped.graph, training, options, options.memory);
  pinned.policy = "auto";  // of the policies it alone heeds where states lie
  pinned.name_minimum = false;
  auto result = compile_pinned(std::move(shaped), training, device, costs, pinned, watch);
  if (auto* program = std::get_if<Program>(&result)) program->passes = std::move(passes);
  return result;
}

std::variant<Program, Infeasible> compile_inference(const Network& network, const Device& device,
                                                    const CostTable& costs, const CompileOptions& options) {
  const Stopwatch watch;
  Network inference = network;
  FusionOptions fusion = options.fusion;
  fusion.off.emplace_back(kLinearLossPass);  // the logits are what is asked for
  std::vector<PassReport> passes = run_fusion_passes(inference, fusion_on(device, fusion));
  const TensorId logits = logits_of(inference);
  if (!logits.valid()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("'{}' does not classify, so it has no answers to give", network.graph.name));
  }
  inference.graph.tensor(logits).role = Role::output;
  std::vector<TensorId>& outputs = inference.graph.outputs;
  for (TensorId id : {inference.objectives[0].loss, inference.correct, logits}) {
    if (id.valid() && std::find(outputs.begin(), outputs.end(), id) == outputs.end()) outputs.push_back(id);
  }
  const Bytes lower_bound = least_arena(inference.graph, device, options);
  auto result = compile_rewritten(std::move(inference), lower_bound, device, costs, options, watch);
  if (auto* program = std::get_if<Program>(&result)) program->passes = std::move(passes);
  return result;
}

}  // namespace plimsoll
