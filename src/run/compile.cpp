#include "plimsoll/compile.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "plimsoll/ops.h"
#include "plimsoll/route.h"
#include "plimsoll/simulate.h"
#include "plimsoll/verify.h"
#include "run/configure.h"

namespace plimsoll {
namespace {

struct Attempt {
  Graph graph;
  LayoutResult layouts;
  PlanOrInfeasible result;
  bool feasible() const { return std::holds_alternative<Plan>(result); }
  const Plan& plan() const { return std::get<Plan>(result); }
};

struct LaidOut {
  Graph graph;
  LayoutResult layouts;
};

Attempt make_attempt(LaidOut laid, const Device& device, const CostTable& costs, const CompileOptions& options, bool explain) {
  auto& [graph, layouts] = laid;
  const Route route = make_route(graph);
  DeviceInfo info = device.info();
  if (!options.tiers.empty()) info.tiers = options.tiers;
  PlanOrInfeasible result = find_policy(options.policy)
                                .plan({.graph = graph,
                                       .route = route,
                                       .kernels = layouts.kernels,
                                       .costs = costs,
                                       .device = info,
                                       .budget = options.memory,
                                       .placement = options.placement,
                                       .first_that_fits = options.first_that_fits,
                                       .explain = explain,
                                       .state_homes = options.state_homes,
                                       .options = policy_options(options.policy)});
  if (Plan* plan = std::get_if<Plan>(&result)) plan->predicted = simulate(graph, *plan, costs);
  return {std::move(graph), std::move(layouts), std::move(result)};
}

// A way to choose kernels.
struct Choice {
  std::optional<LayoutFamily> family;
  Bytes limit{INT64_MAX};             // on the workspace of an op
  std::optional<Bytes> total;         // on the sum of workspaces
};

// Ways down the flow for one network: layouts and kernels, then a plan. What the device offers is asked once.
class Flow {
 public:
  Flow(const Network& network, const Device& device, const CostTable& costs, const CompileOptions& options)
      : network_(network), device_(device), costs_(costs), options_(options), menu_(network.graph, device, costs, options.batch_sizes) {}

  // Whether a chosen kernel runs in parts.
  static bool divides(const Attempt& attempt) {
    return std::any_of(attempt.layouts.kernels.begin(), attempt.layouts.kernels.end(),
                       [](const KernelChoice& choice) { return !parts_of(choice.kernel).empty(); });
  }

  Attempt attempt(const Choice& choice, bool divide, bool explain = false) {
    if (choice.total && !options_.exact && options_.kernels.empty()) {
      return make_attempt(divided_total(choice, divide), device_, costs_, options_, explain);
    }
    return make_attempt(laid_out(choice.family, std::min(choice.limit, options_.workspace), divide, options_.workspace), device_, costs_, options_, explain);
  }

  // The same layouts with the fastest kernels for which there is room in the plan that was found; nothing where they are those.
  std::optional<Attempt> refilled(const Attempt& attempt, bool divide) {
    const std::vector<Bytes> room = room_of_ops(attempt.graph, attempt.plan(), options_.memory);
    LaidOut next{attempt.graph, attempt.layouts};
    const int changed = choose_within(next.graph, menu_, next.layouts, divide, [&](OpId op) {
      return std::min(room[static_cast<size_t>(op.index)], options_.workspace);
    });
    if (changed == 0) return std::nullopt;
    return make_attempt(std::move(next), device_, costs_, options_, false);
  }

 private:
  LaidOut laid_out(std::optional<LayoutFamily> family, Bytes limit, bool divide, Bytes asked) {
    LaidOut result{network_.graph, {}};
    LayoutOptions options{.family = family,
                          .pinned = options_.state_layouts,
                          .pinned_kernels = options_.kernels,
                          .workspace_limit = limit,
                          .asked_limit = asked,
                          .batch_sizes = options_.batch_sizes,
                          .exact = options_.exact,
                          .menu = &menu_};
    if (!divide) options.batch_sizes = BatchSizes::undivided;
    result.layouts = choose_layouts(result.graph, device_, costs_, options);
    return result;
  }

  // One total among all ops. The layouts suit the fastest kernels, or those that an equal share gives every op.
  LaidOut divided_total(const Choice& choice, bool divide) {
    const auto weighty = std::count_if(network_.graph.ops().begin(), network_.graph.ops().end(), [](const Op& op) {
      const LayerKind kind = layer_kind(op);
      return kind == LayerKind::convolution || kind == LayerKind::fully_connected;
    });
    const Bytes share{choice.total->count / std::max<int64_t>(weighty, 1)};
    std::optional<LaidOut> best;
    const Bytes each = std::min(choice.limit, options_.workspace);
    for (Bytes limit : {each, std::min(each, share), 0_B}) {
      LaidOut laid = laid_out(choice.family, limit, divide, limit == each ? options_.workspace : limit);
      if (!divide_total(laid.graph, menu_, laid.layouts, divide, *choice.total, each) && limit.count > 0) continue;
      if (!best || laid.layouts.estimated_ms < best->layouts.estimated_ms) best = std::move(laid);
    }
    return std::move(*best);
  }

  const Network& network_;
  const Device& device_;
  const CostTable& costs_;
  const CompileOptions& options_;
  KernelMenu menu_;
};

// The papers' layers have one kernel each and no layouts.
Attempt attempt_layers(const Network& network, const Device& device, const CostTable& costs, const CompileOptions& options) {
  Graph graph = lower_to_layers(network, *options.layer_model);
  LayoutResult layouts{.family = LayoutFamily::plain, .kernels = layer_kernels(graph)};
  return make_attempt({std::move(graph), std::move(layouts)}, device, costs, options, true);
}

constexpr size_t kLimitsTried = 4;         // workspace limits between the largest and none
constexpr int kRefills = 2;               // of the plan's free bytes with faster kernels
constexpr int32_t kManyOps = 5000;         // for such a graph, the first plan that fits is taken: each takes seconds

bool is_better(const Attempt& a, const Attempt& than) {
  auto minimum = [](const Attempt& x) { return std::get<Infeasible>(x.result).minimum; };
  if (a.feasible() != than.feasible()) return a.feasible();
  return a.feasible() ? a.plan().predicted.step_time_ms < than.plan().predicted.step_time_ms : minimum(a) < minimum(than);
}

// The fastest kernels, if with them nothing has to leave the arena or run twice. Else kernels under smaller and smaller workspace
// limits as well, and every layout family without workspace: what gives the fastest step of those that fit. Which are tried does
// not depend on the budget. Then steps of the best get faster kernels again where the plan has left them room. Else infeasible,
// with the least memory that any of them needs.
Attempt search(const Network& network, Flow& flow, const CompileOptions& options, bool divide) {
  const bool pinned = options.exact || !options.kernels.empty();
  Choice chosen{options.family, {options.least_memory && !pinned ? 0 : INT64_MAX}, options.workspace_total};
  const bool many = network.graph.op_count() > kManyOps;
  const bool one_only = pinned || (options.least_memory && (options.family || many));
  Attempt best = flow.attempt(chosen, divide, one_only);
  auto free_of_charge = [](const Attempt& a) {
    return a.feasible() && a.plan().moves.empty() && a.plan().predicted.recompute_steps == 0;
  };
  auto consider = [&](Choice choice) {
    Attempt other = flow.attempt(choice, divide);
    if (!is_better(other, best)) return;
    best = std::move(other);
    chosen = choice;
  };
  if (!free_of_charge(best) && !one_only && !((many || options.first_that_fits) && best.feasible())) {
    if (!options.least_memory) {
      std::set<Bytes> sizes;
      for (const KernelChoice& choice : best.layouts.kernels) {
        if (choice.workspace.count > 0) sizes.insert(choice.workspace);
      }
      const std::vector<Bytes> limits(sizes.begin(), sizes.end());  // the last is as good as unlimited, which was tried
      const size_t between = limits.empty() || many ? 0 : std::min(kLimitsTried, limits.size() - 1);
      for (size_t i = between; i > 0; --i) consider({options.family, limits[(limits.size() - 1) * i / (between + 1)], options.workspace_total});
      consider({options.family, 0_B, {}});
    }
    if (!options.family) {
      const LayoutFamily first = best.layouts.family;
      for (LayoutFamily family : {LayoutFamily::blocked, LayoutFamily::channels_last, LayoutFamily::plain}) {
        if (family != first) consider({family, 0_B, {}});
      }
    }
    for (int round = 0; round < kRefills && best.feasible() && !many && !options.workspace_total; ++round) {
      std::optional<Attempt> fuller = flow.refilled(best, divide);
      if (!fuller || !is_better(*fuller, best)) break;
      best = std::move(*fuller);
    }
  }
  if (!best.feasible()) {
    if (!one_only) best = flow.attempt(chosen, divide, true);
    if (!pinned) std::get<Infeasible>(best.result).proven = false;  // not over all choices of kernels
  }
  return best;
}

// With kernels that run in parts and without: what is predicted faster.
Attempt search(const Network& network, const Device& device, const CostTable& costs, const CompileOptions& options) {
  Flow flow(network, device, costs, options);
  Attempt best = search(network, flow, options, true);
  if (options.exact || !options.kernels.empty() || !Flow::divides(best)) return best;
  Attempt whole = search(network, flow, options, false);
  return is_better(whole, best) ? std::move(whole) : std::move(best);
}

// Checks and completes a plan, whoever made it.
void finish(const Graph& graph, Plan& plan, const CostTable& costs) {
  require_valid(graph, plan);
  plan.predicted = simulate(graph, plan, costs);
}

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What every tensor in memory of its own needs.
Bytes baseline_peak(const Graph& graph, const std::vector<KernelChoice>& kernels, const CostTable& costs, const Device& device) {
  const Route route = make_route(graph);
  const PlanOrInfeasible result = find_policy("baseline").plan(
      {.graph = graph, .route = route, .kernels = kernels, .costs = costs, .device = device.info()});
  return std::get<Plan>(result).arena;
}

}  // namespace

std::variant<Program, Infeasible> compile_training(const Network& network, const Device& device, const CostTable& costs,
                                                   const CompileOptions& options) {
  const double start = now_ms();
  std::vector<PassReport> passes;
  Network training;
  if (!options.layer_model) {
    training = network;
    passes = run_fusion_passes(training, options.fusion);
    training = make_training_network(training, options.optimizer);
  }
  const bool tiers = !options.tiers.empty() || !device.info().tiers.empty();
  const Bytes lower_bound = least_bytes((options.layer_model ? network : training).graph, tiers);
  Attempt found = options.layer_model ? attempt_layers(network, device, costs, options) : search(training, device, costs, options);
  if (!found.feasible()) {
    Infeasible infeasible = std::get<Infeasible>(std::move(found.result));
    infeasible.policy = options.policy;
    infeasible.lower_bound = lower_bound;
    return infeasible;
  }

  Program program;
  program.network = std::move(training);
  program.network.graph = std::move(found.graph);
  program.kernels = std::move(found.layouts.kernels);
  program.family = found.layouts.family;
  program.plan = std::get<Plan>(std::move(found.result));
  program.passes = std::move(passes);
  finish(program.network.graph, program.plan, costs);
  program.plan.plan_time_ms = now_ms() - start;
  program.lower_bound = lower_bound;
  program.baseline_peak = baseline_peak(program.network.graph, program.kernels, costs, device);
  return program;
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

std::variant<Program, Infeasible> compile_evaluation(const Network& network, const Program& training, const Device& device,
                                                     const CostTable& costs, const CompileOptions& options) {
  const double start = now_ms();
  Network evaluation = network;
  std::vector<PassReport> passes = run_fusion_passes(evaluation, options.fusion);
  Graph& graph = evaluation.graph;
  for (const Objective& objective : evaluation.objectives) graph.outputs.push_back(objective.loss);
  if (evaluation.correct.valid()) graph.outputs.push_back(evaluation.correct);

  // The same states in the same order, so that the placement gives them the same offsets.
  const Graph& trained = training.network.graph;
  std::vector<State> states;
  CompileOptions pinned = options;
  pinned.policy = training.plan.homes.empty() ? "liveness" : "auto";
  pinned.memory = training.plan.arena;
  pinned.tiers.clear();
  for (const TierUse& use : training.plan.tiers) {  // what the training has taken of each
    pinned.tiers.push_back(use.tier);
    pinned.tiers.back().capacity = use.used;
  }
  pinned.family = training.family;
  pinned.kernels.clear();
  pinned.workspace_total.reset();
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
  Program program;
  program.network = std::move(evaluation);
  program.network.graph = std::move(found.graph);
  program.kernels = std::move(found.layouts.kernels);
  program.family = found.layouts.family;
  program.plan = std::get<Plan>(std::move(found.result));
  program.passes = std::move(passes);
  finish(program.network.graph, program.plan, costs);
  program.plan.plan_time_ms = now_ms() - start;

  for (size_t i = 0; i < trained.states.size(); ++i) {
    if (place_of(training.plan, trained.states[i].before) != place_of(program.plan, program.network.graph.states[i].before)) {
      throw Error(ErrorCode::internal, fmt::format("state '{}' lies elsewhere in the evaluation than in the training",
                                                   trained.tensor(trained.states[i].before).name));
    }
  }
  return program;
}

}  // namespace plimsoll
