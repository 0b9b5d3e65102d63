#include "passes/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/by_id.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr int64_t kRows = 16;            // a block has a multiple of these: kernels work on as many at once
constexpr int64_t kBlocksOfLargest = 4;  // what Adam reads and writes of a block: weights, gradient, two moments

// The states that may be split at all: read by one op and wanted for nothing else.
ById<TensorId, bool> splittable_states(const Network& network) {
  const Graph& graph = network.graph;
  ById<TensorId, int> uses(graph.tensor_count(), 0);
  for (const Op& op : graph.ops()) {
    for (TensorId id : op.inputs) ++uses[id];
  }
  for (TensorId id : graph.outputs) ++uses[id];
  ById<TensorId, bool> result(uses.size(), false);
  for (const State& state : graph.states) {
    const Tensor& t = graph.tensor(state.before);
    result[state.before] = uses[state.before] == 1 && state.after == state.before && t.role == Role::parameter &&
                           t.layout.is_plain() && !t.block.is_block();
  }
  return result;
}

// The parameters of a layer that may be split, the weights first; none where it may not.
std::span<const TensorId> splittable_parameters(const Op& op, const ById<TensorId, bool>& splittable) {
  if (op.type->name != "FullyConnectedForward" || op.phase != Phase::forward) return {};
  const auto states = std::span(op.inputs).subspan(1);
  return std::ranges::all_of(states, [&](TensorId s) { return splittable[s]; }) ? states : std::span<const TensorId>{};
}

// Adds the blocks' ops and the Concat in the place of op `id`.
void add_blocks(Rebuilder& rebuilder, const Graph& before, OpId id, const RowBounds& bounds) {
  const Op& op = before.op(id);
  const std::string_view end = op.name.ends_with("/forward") ? "/forward" : "";
  const std::string stem = op.name.substr(0, op.name.size() - end.size());
  std::vector<TensorId> results;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const std::string rows = fmt::format("[{}:{}]", bounds[i], bounds[i + 1]);
    std::vector<TensorId> inputs{rebuilder.map(op.inputs[0])};
    for (size_t k = 1; k < op.inputs.size(); ++k) inputs.push_back(rebuilder.parts(op.inputs[k])[i]);
    const OpId block =
        rebuilder.graph().add_op(op.type->name, fmt::format("{}{}{}", stem, rows, end), op.layer, std::move(inputs),
                                 op.attributes, op.phase, {before.tensor(op.outputs[0]).name + rows});
    results.push_back(rebuilder.graph().output(block));
  }
  rebuilder.replace({id}, "Concat", stem + "/join", op.layer, std::move(results), {{"axis", int64_t{1}}}, op.outputs,
                    op.phase);
}

}  // namespace

RowBounds row_bounds(int64_t rows, Bytes bytes, const FusionOptions& options) {
  const int64_t groups = rows / kRows + (rows % kRows > 0 ? 1 : 0);
  if (bytes <= options.split_above || groups < 2) return {};
  const int64_t most = std::max<int64_t>(options.block_bytes.count, 1);
  const int64_t least = std::clamp<int64_t>(bytes.count / most + (bytes.count % most > 0 ? 1 : 0), 2, groups);
  int64_t count = least;
  if (rows % kRows == 0) {
    for (int64_t n = least; n <= std::min(2 * least, groups); ++n) {
      if (groups % n != 0) continue;
      count = n;
      break;
    }
  }
  RowBounds bounds;
  for (int64_t i = 0; i < count; ++i) bounds.push_back(groups * i / count * kRows);
  bounds.push_back(rows);
  return bounds;
}

FusionOptions split_sizes(const Network& network, FusionOptions options) {
  const Graph& graph = network.graph;
  const ById<TensorId, bool> splittable = splittable_states(network);
  ById<TensorId, bool> may_be_split(graph.tensor_count(), false);
  for (const Op& op : graph.ops()) {
    for (TensorId id : splittable_parameters(op, splittable)) may_be_split[id] = true;
  }
  Bytes whole;
  for (const State& state : graph.states) {
    const Tensor& t = graph.tensor(state.before);
    if (t.role == Role::parameter && !may_be_split[state.before]) whole = std::max(whole, t.bytes());
  }
  options.split_above = std::max(options.split_above, {whole.count / kBlocksOfLargest});
  options.block_bytes = std::max(options.block_bytes, {whole.count / kBlocksOfLargest});
  return options;
}

int split_fully_connected(Network& network, const FusionOptions& options) {
  const FusionOptions sizes = split_sizes(network, options);
  std::map<TensorId, RowBounds> split;
  std::map<OpId, RowBounds> layers;
  const ById<TensorId, bool> splittable = splittable_states(network);
  for (int32_t i = 0; i < network.graph.op_count(); ++i) {
    const auto states = splittable_parameters(network.graph.op({i}), splittable);
    if (states.empty()) continue;
    const Tensor& weights = network.graph.tensor(states[0]);
    const RowBounds bounds = row_bounds(weights.shape[0], weights.bytes(), sizes);
    if (bounds.empty()) continue;
    layers[{i}] = bounds;
    for (TensorId state : states) split[state] = bounds;
  }
  if (layers.empty()) return 0;
  const Graph before = std::move(network.graph);
  Rebuilder rebuilder(before, split);
  for (int32_t i = 0; i < before.op_count(); ++i) {
    if (const auto bounds = layers.find({i}); bounds != layers.end()) {
      add_blocks(rebuilder, before, {i}, bounds->second);
    } else {
      rebuilder.copy({i});
    }
  }
  rebuilder.finish(network);
  return static_cast<int>(layers.size());
}

}  // namespace plimsoll
