#include "passes/linear.h"

#include "plimsoll/ops.h"

namespace plimsoll {

ById<TensorId, int> count_uses(const Network& network) {
  const Graph& graph = network.graph;
  ById<TensorId, int> uses(graph.tensor_count(), 0);
  for (const Op& op : graph.ops()) {
    for (TensorId id : op.inputs) ++uses[id];
  }
  for (TensorId id : graph.outputs) ++uses[id];
  for (const State& state : graph.states) ++uses[state.after];
  return uses;
}

bool is_linear(const Graph& graph, const Op& op, bool& transposed) {
  if (op.phase != Phase::forward) return false;
  transposed = false;
  if (op.type->name == "FullyConnectedForward") return op.attributes.text("activation", "none") == "none";
  if (op.type->name != "MatMul" || graph.tensor(op.inputs[1]).shape.size() != 2) return false;
  transposed = op.attributes.integer("transpose_b", 0) == 0;
  return op.attributes.integer("transpose_a", 0) == 0 && !op.attributes.has("batch");
}

bool keeps_rows(const Graph& graph, const Op& op) {
  const Shape &from = graph.tensor(op.inputs[0]).shape, &to = graph.tensor(op.outputs[0]).shape;
  if (from.empty() || to.empty() || from.back() != to.back()) return false;
  if (op.type->name == "Reshape") return true;
  return op.type->name == "Slice" && op.attributes.integer("axis") + 1 != static_cast<int64_t>(from.size());
}

}  // namespace plimsoll
