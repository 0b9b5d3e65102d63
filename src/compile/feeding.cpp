#include "compile/feeding.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/clock.h"

namespace plimsoll {
namespace {

constexpr double kWorthAPlan = 1e-3;  // of the time from step to step, what a second buffer saves

// The parts of a batch that lie in the arena; none where the loop that feeds the step does not know all of them.
std::vector<FedInput> inputs_of_batch(const Network& network, const Plan& plan, bool knows_every) {
  const Graph& graph = network.graph;
  std::vector<FedInput> inputs;
  for (const TensorId id : graph.inputs) {
    const Tensor& tensor = graph.tensor(id);
    if (tensor.role != Role::input) continue;
    if (!knows_every && id != network.data && id != network.labels) return {};
    const bool elsewhere = std::ranges::any_of(plan.homes, [&](const Home& home) { return home.tensor == id; });
    if (!elsewhere) inputs.push_back({.tensor = id, .offset = {}, .bytes = align_up(tensor.bytes(), kStayAlignment)});
  }
  return inputs;
}

// Whether a part of it lies in a tier between steps. Then there is no second buffer: the host writes to the tier before the
// step.
bool is_elsewhere(const Network& network, const Plan& plan) {
  return std::ranges::any_of(plan.homes,
                             [&](const Home& home) { return network.graph.tensor(home.tensor).role == Role::input; });
}

// Whether the host itself copies in the midst of a step (QueuedDriver: to any tier but its own memory and other GPUs). It
// then asks for the next batch's upload too late for that to run beside the step.
bool keeps_host_waiting(const Plan& plan) {
  return std::ranges::any_of(plan.moves, [&](const Move& move) {
    const std::string& tier = plan.tiers[static_cast<size_t>(move.tier)].tier.name;
    return tier != "host" && tier != "peer";
  });
}

Bytes total(const std::vector<FedInput>& inputs) {
  Bytes sum;
  for (const FedInput& input : inputs) sum += input.bytes;
  return sum;
}

// Second buffers lie above all else.
void take_feeding(Program& program, Feeding feeding, Bytes budget, const Stopwatch& watch) {
  Plan plan = *program.plan;
  plan.plan_time_ms = watch.ms();
  if (feeding.second_buffer) {
    for (FedInput& input : feeding.inputs) {
      input.offset = align_up(plan.arena, kStayAlignment);
      plan.arena = input.offset + input.bytes;
    }
  }
  plan.feeding = std::move(feeding);
  plan.budget = budget;
  program.plan = check_plan(program.network.graph, std::move(plan));
}

bool has_room(const Plan& plan, Bytes bytes, Bytes budget) {
  return align_up(plan.arena, kStayAlignment) + bytes <= budget;
}

}  // namespace

std::variant<Program, Infeasible> compile_fed(
    const CompileOptions& options,
    const std::function<std::variant<Program, Infeasible>(const CompileOptions&)>& compile) {
  const Stopwatch watch;
  auto result = compile(options);
  Program* const first = std::get_if<Program>(&result);
  if (first == nullptr || !options.feeding) return result;
  Feeding feeding = *options.feeding;
  feeding.inputs = inputs_of_batch(first->network, *first->plan, options.feeds_every_input);
  if (feeding.inputs.empty()) return result;
  const Bytes bytes = total(feeding.inputs);
  const bool wanted = std::exchange(feeding.second_buffer, false);
  take_feeding(*first, feeding, options.memory, watch);
  if (!wanted) return result;
  feeding.second_buffer = true;
  const Prediction& predicted = first->plan->predicted;
  if (!is_elsewhere(first->network, *first->plan) && !keeps_host_waiting(*first->plan) &&
      has_room(*first->plan, bytes, options.memory)) {
    Program both = *first;
    take_feeding(both, feeding, options.memory, watch);
    if (both.plan->predicted.wall_time_ms < predicted.wall_time_ms) *first = std::move(both);
    return result;
  }
  const bool is_worth_it = predicted.feed_ms > kWorthAPlan * predicted.wall_time_ms;
  if (!is_worth_it || options.first_that_fits || options.memory <= bytes) return result;

  CompileOptions beside = options;
  beside.memory -= bytes;
  beside.name_minimum = false;
  beside.name_least = false;
  auto other = compile(beside);
  Program* const second = std::get_if<Program>(&other);
  if (second == nullptr) return result;
  feeding.inputs = inputs_of_batch(second->network, *second->plan, options.feeds_every_input);
  if (feeding.inputs.empty() || is_elsewhere(second->network, *second->plan) || keeps_host_waiting(*second->plan))
    return result;
  take_feeding(*second, feeding, options.memory, watch);
  if (second->plan->predicted.wall_time_ms >= predicted.wall_time_ms) return result;
  second->minimum = first->minimum;
  return other;
}

}  // namespace plimsoll
