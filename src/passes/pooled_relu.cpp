#include "passes/pooled_relu.h"

#include <optional>
#include <vector>

#include "passes/linear.h"
#include "passes/rebuilder.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

struct PooledRelu {
  OpId pool, relu;  // of the backward pass
  TensorId pooled;
};

std::optional<PooledRelu> pooled_relu(const Graph& graph, const ById<TensorId, int>& uses, OpId id) {
  const Op& relu = graph.op(id);
  if (relu.type->name != "ReluBackward" || uses[relu.inputs[0]] != 1) return {};
  const OpId pool = graph.tensor(relu.inputs[0]).producer;
  if (!pool.valid() || graph.op(pool).type->name != "MaxPoolBackward") return {};
  const OpId forward = graph.tensor(graph.op(pool).inputs[1]).producer;
  if (!forward.valid() || graph.op(forward).type->name != "MaxPoolForward") return {};
  if (graph.op(forward).inputs[0] != relu.inputs[1]) return {};
  return PooledRelu{pool, id, graph.output(forward)};
}

}  // namespace

bool is_behind_relu_gradient(const Graph& graph, const Op& op) {
  if (op.type->name != "MaxPoolBackward") return false;
  const OpId maker = graph.tensor(op.inputs[0]).producer;
  return maker.valid() && graph.op(maker).type->name == "ReluBackward";
}

int pass_relu_gradients_before_pools(Network& training) {
  const ById<TensorId, int> uses = count_uses(training);
  std::vector<PooledRelu> all;
  std::vector<std::vector<OpId>> ops_of;
  for (OpId id{0}; id.index < training.graph.op_count(); ++id.index) {
    const auto found = pooled_relu(training.graph, uses, id);
    if (!found) continue;
    all.push_back(*found);
    ops_of.push_back({found->pool, found->relu});
  }
  replace_ops(training, ops_of, [&](Rebuilder& rebuilder, const Graph& before, size_t i) {
    const Op &pool = before.op(all[i].pool), &relu = before.op(all[i].relu);
    Graph& after = rebuilder.graph();
    const OpId first =
        after.add_op("ReluBackward", rebuilder.free_name(pool.name + "_relu"), pool.layer,
                     {rebuilder.map(pool.inputs[0]), rebuilder.map(all[i].pooled)}, relu.attributes, relu.phase);
    after.op(first).forward = rebuilder.map(pool.forward);
    rebuilder.replace(ops_of[i], pool.type->name, pool.name, pool.layer,
                      {after.output(first), rebuilder.map(pool.inputs[1])}, pool.attributes, relu.outputs, pool.phase);
    after.op(rebuilder.map(all[i].pool)).forward = rebuilder.map(pool.forward);
  });
  return static_cast<int>(all.size());
}

}  // namespace plimsoll
