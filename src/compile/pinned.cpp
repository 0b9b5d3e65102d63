// Programs in the memory of a training: its states stay where they are.
#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "compile/least_memory.h"
#include "compile/search.h"
#include "passes/passes.h"
#include "plimsoll/compile.h"
#include "plimsoll/device.h"

namespace plimsoll {
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
  Attempt found = search(network, device, costs, pinned, false);
  if (!found.feasible()) {  // as for the training itself, what fits may be found by a search for the least memory alone
    Least least = find_least(network, device, costs, pinned, pinned.memory);
    if (!least.attempt || least.attempt->plan().arena > pinned.memory) return std::move(least.why);
    found = *std::move(least.attempt);
  }
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

// As a training was fused, so that its weights lie as they are wanted.
FusionOptions fusion_of(const Program& training, const Device& device, const FusionOptions& fusion) {
  FusionOptions options = fusion_on(device, fusion);
  if (std::ranges::none_of(training.network.graph.ops(), runs_wide_layers_by_rows))
    options.off.emplace_back(kPointwiseLinearPass);
  return options;
}

}  // namespace

std::variant<Program, Infeasible> compile_evaluation(const Network& network, const Program& training,
                                                     const Device& device, const CostTable& costs,
                                                     const CompileOptions& options, Bytes arena) {
  const Stopwatch watch;
  Network evaluation = network;
  std::vector<PassReport> passes =
      run_fusion_passes(evaluation, fusion_for(options.optimizer, fusion_of(training, device, options.fusion)));
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

}  // namespace plimsoll
