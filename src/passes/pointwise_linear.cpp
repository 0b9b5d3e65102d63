#include "passes/pointwise_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "ops/expression.h"
#include "ops/pointwise_linear.h"
#include "passes/linear.h"
#include "passes/rebuilder.h"
#include "passes/split.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

struct WideLayer {
  OpId pointwise, linear;
  std::vector<OpId> between;     // dropout and reshapes, in the order of the graph
  OpId dropout;                  // one of them, or none
  std::vector<TensorId> inputs;  // of the expression
  std::vector<OpId> before;      // reshapes of those, which nobody else reads
  bool transposed = false;       // the weights are [inputs, outputs]
};

class WideLayers {
 public:
  WideLayers(const Network& network, const FusionOptions& options, Bytes above)
      : graph_(network.graph),
        sizes_(split_sizes(network, options)),
        above_(above),
        uses_(count_uses(network)),
        reader_(graph_.tensor_count()) {
    for (int32_t i = 0; i < graph_.op_count(); ++i) {
      for (TensorId id : graph_.op({i}).inputs) reader_[id] = {i};
    }
    for (const Objective& objective : network.objectives) ++uses_[objective.loss];
  }

  std::optional<WideLayer> at(OpId id) const {
    const Op& op = graph_.op(id);
    if (op.type->name != "Pointwise" || op.phase != Phase::forward || !is_wide(op)) return {};
    WideLayer found{.pointwise = id, .linear = {}, .between = {}, .dropout = {}, .inputs = op.inputs, .before = {}};
    TensorId rows = op.outputs[0];
    while (true) {
      if (uses_[rows] != 1 || !reader_[rows].valid()) return {};
      const OpId reader = reader_[rows];
      const Op& next = graph_.op(reader);
      if (next.phase != Phase::forward || next.inputs[0] != rows) return {};
      if (is_linear(graph_, next, found.transposed)) {
        found.linear = reader;
        if (!stays_whole(next, found.transposed)) return {};
        take_around_reshapes(found);
        return found;
      }
      const bool drops = next.type->name == "DropoutForward";
      if (drops ? found.dropout.valid() : next.type->name != "Reshape" || !keeps_rows(graph_, next)) return {};
      if (drops) found.dropout = reader;
      found.between.push_back(reader);
      rows = next.outputs[0];
    }
  }

 private:
  // Whether the operands are as wide as the result or one row for all, and the op's gradient reads all of the former but one even
  // where it has the result, which the layer's keeps: the two together then keep no less than the operands.
  bool is_wide(const Op& op) const {
    const Tensor& y = graph_.tensor(op.outputs[0]);
    if (y.bytes() <= above_ || y.shape.size() < 2) return false;
    int64_t wide = 0;
    for (TensorId id : op.inputs) {
      const Tensor& x = graph_.tensor(id);
      if (x.dtype != y.dtype || (x.shape != y.shape && x.shape != Shape{y.shape.back()})) return false;
      wide += x.shape == y.shape ? 1 : 0;
    }
    if (wide == 0 || op.inputs.size() >= static_cast<size_t>(kMostExpressionInputs)) return false;
    Attributes attributes = op.attributes;
    attributes.set("operands", static_cast<int64_t>(op.inputs.size()));
    std::set<TensorId> read;
    for (const std::optional<Expression>& derivative : operand_derivatives(attributes, true)) {
      if (!derivative) continue;
      for (const ExpressionNode& node : derivative->nodes) {
        if (node.kind != ExpressionNode::Kind::input || node.input >= static_cast<int32_t>(op.inputs.size())) continue;
        const TensorId id = op.inputs[static_cast<size_t>(node.input)];
        if (graph_.tensor(id).shape == y.shape) read.insert(id);
      }
    }
    return static_cast<int64_t>(read.size()) + 1 >= wide;
  }

  bool stays_whole(const Op& linear, bool transposed) const {
    const Tensor& w = graph_.tensor(linear.inputs[1]);
    return transposed || row_bounds(w.shape[0], w.bytes(), sizes_).empty();
  }

  // The operands as their ops make them, where these are of one shape: what is written over a view would not be seen to
  // be.
  void take_around_reshapes(WideLayer& found) const {
    std::vector<TensorId> inputs;
    std::vector<OpId> before;
    for (TensorId id : found.inputs) {
      if (graph_.tensor(id).shape.size() < 2) {
        inputs.push_back(id);
        continue;
      }
      bool ours = true;
      for (OpId from = graph_.tensor(id).producer; from.valid(); from = graph_.tensor(id).producer) {
        const Op& op = graph_.op(from);
        if (op.type->name != "Reshape" || op.phase != Phase::forward || !keeps_rows(graph_, op)) break;
        if (graph_.tensor(op.inputs[0]).shape.size() < 2) break;
        ours = ours && uses_[id] == 1;
        if (ours) before.push_back(from);
        id = op.inputs[0];
      }
      inputs.push_back(id);
    }
    Shape shape;
    for (TensorId id : inputs) {
      const Shape& one = graph_.tensor(id).shape;
      if (one.size() < 2) continue;
      if (!shape.empty() && shape != one) return;
      shape = one;
    }
    found.inputs = std::move(inputs);
    found.before = std::move(before);
  }

  const Graph& graph_;
  FusionOptions sizes_;
  Bytes above_;
  ById<TensorId, int> uses_;
  ById<TensorId, OpId> reader_;
};

// The one op in the place of the layer.
void fuse(Rebuilder& rebuilder, const Graph& before, const WideLayer& found) {
  const Op &pointwise = before.op(found.pointwise), &linear = before.op(found.linear);
  Attributes attributes = pointwise.attributes;
  attributes.set("operands", static_cast<int64_t>(found.inputs.size()));
  if (found.transposed) attributes.set("transposed", int64_t{1});
  std::vector<TensorId> inputs = rebuilder.map(found.inputs);
  inputs.push_back(rebuilder.map(linear.inputs[1]));
  if (found.dropout.valid()) {
    const Op& dropout = before.op(found.dropout);
    attributes.set("p", dropout.attributes.real("p"));
    attributes.set("salt", dropout.attributes.integer("salt", 0));
    inputs.push_back(rebuilder.map(dropout.inputs[1]));
    inputs.push_back(rebuilder.map(dropout.inputs[2]));
  }
  if (linear.inputs.size() > 2) inputs.push_back(rebuilder.map(linear.inputs[2]));
  const std::string layer = pointwise.layer + "+" + linear.layer, name = rebuilder.free_name(layer + "/forward");
  std::vector<OpId> replaced{found.pointwise, found.linear};
  const Shape& wanted = before.tensor(linear.outputs[0]).shape;
  Shape made =
      before
          .tensor(*std::ranges::find_if(found.inputs, [&](TensorId id) { return before.tensor(id).shape.size() >= 2; }))
          .shape;
  made.back() = wanted.back();
  if (made == wanted) {
    rebuilder.replace(replaced, "PointwiseLinearForward", name, layer, std::move(inputs), attributes, linear.outputs);
    return;
  }
  Graph& graph = rebuilder.graph();
  const OpId op = graph.add_op("PointwiseLinearForward", name, layer, std::move(inputs), attributes);
  rebuilder.replace(replaced, "Reshape", rebuilder.free_name(layer + "/rows"), layer, {graph.output(op)},
                    {{"shape", wanted}}, linear.outputs);
}

}  // namespace

int fuse_pointwise_linear(Network& network, const FusionOptions& options, Bytes above) {
  const WideLayers layers(network, options, above);
  std::vector<WideLayer> all;
  for (int32_t i = 0; i < network.graph.op_count(); ++i) {
    if (auto found = layers.at({i})) all.push_back(std::move(*found));
  }
  std::vector<std::vector<OpId>> ops_of;
  for (const WideLayer& found : all) {
    std::vector<OpId>& ops = ops_of.emplace_back(found.before);
    ops.push_back(found.pointwise);
    ops.insert(ops.end(), found.between.begin(), found.between.end());
    ops.push_back(found.linear);
  }
  replace_ops(network, ops_of,
              [&](Rebuilder& rebuilder, const Graph& before, size_t i) { fuse(rebuilder, before, all[i]); });
  return static_cast<int>(all.size());
}

}  // namespace plimsoll
