#include "plimsoll/compile.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/parallel.h"
#include "compile/attempt.h"
#include "compile/division.h"
#include "compile/feeding.h"
#include "compile/search.h"
#include "passes/passes.h"
#include "plimsoll/device.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

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

bool has_wide_layers(Network network, const Device& device, const CompileOptions& options) {
  run_fusion_passes(network, fusion_on(device, options.fusion));
  return std::ranges::any_of(network.graph.ops(), runs_wide_layers_by_rows);
}

std::variant<Program, Infeasible> compile_unfed(const Network& network, const Device& device, const CostTable& costs,
                                                const CompileOptions& options) {
  CompileOptions undivided = options;
  undivided.fusion.off.emplace_back(kPointwiseLinearPass);
  undivided.name_minimum = options.name_minimum && !options.kernels.empty();
  // Where nothing has to leave the arena, both ways are tried: side by side.
  std::variant<Program, Infeasible> by_rows, whole;
  const bool both = options.memory.count == INT64_MAX && options.kernels.empty() && !options.exact &&
                    options.optimizer.ranks < 2 && network.graph.op_count() <= kManyOps &&
                    has_wide_layers(network, device, options);
  for_each_in_parallel(both ? 2 : 1, [&](size_t i) {
    (i == 0 ? by_rows : whole) = compile_step(network, device, costs, i == 0 ? options : undivided);
  });
  auto* const program = std::get_if<Program>(&by_rows);
  if (program == nullptr || !may_be_undivided(*program, options)) return by_rows;
  if (!both) whole = compile_step(network, device, costs, undivided);
  if (!options.kernels.empty()) return whole;
  auto* const other = std::get_if<Program>(&whole);
  if (other == nullptr || other->compared_ms >= program->compared_ms) return by_rows;
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
  const TensorId row = graph.add_source("row", {2}, DType::f32, Role::input);
  const OpId rotary = graph.add_op("Rotary", "rotary", "rotary", {row, row, row});
  for (const auto& [op, pass] : {std::pair{loss, kLinearLossPass},
                                 {layer, kPointwiseLinearPass},
                                 {update, kSparseEmbeddingPass},
                                 {rotary, kRotaryPass}}) {
    try {
      device.kernels(graph, graph.op(op), LayoutFamily::plain);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      options.off.emplace_back(pass);
    }
  }
  return options;
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
