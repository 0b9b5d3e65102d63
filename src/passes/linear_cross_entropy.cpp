#include "passes/linear_cross_entropy.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "passes/linear.h"
#include "passes/rebuilder.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

struct LinearLoss {
  OpId linear, loss;
  std::vector<OpId> between;  // reshapes and slices, in the order of the graph
  bool transposed = false;    // the weights are [width, classes]
};

std::optional<LinearLoss> find_linear_loss(const Graph& graph, const ById<TensorId, int>& uses, OpId id, Bytes above) {
  const Op& loss = graph.op(id);
  if (loss.type->name != "SoftmaxCrossEntropyForward" || loss.phase != Phase::forward) return {};
  if (uses[loss.outputs[1]] > 0) return {};  // the probabilities
  LinearLoss found{.linear = {}, .loss = id, .between = {}};
  TensorId rows = loss.inputs[0];
  while (true) {
    const OpId producer = graph.tensor(rows).producer;
    if (uses[rows] != 1 || !producer.valid()) return {};
    const Op& op = graph.op(producer);
    if (is_linear(graph, op, found.transposed)) {
      found.linear = producer;
      return graph.tensor(rows).bytes() > above ? std::optional(found) : std::nullopt;
    }
    if (!keeps_rows(graph, op)) return {};
    found.between.insert(found.between.begin(), producer);
    rows = op.inputs[0];
  }
}

// Puts what stands between before the layer, for the width of its input, and the one op in the place of the loss.
void fuse(Rebuilder& rebuilder, const Graph& before, const LinearLoss& found) {
  const Op &linear = before.op(found.linear), &loss = before.op(found.loss);
  Graph& graph = rebuilder.graph();
  TensorId x = rebuilder.map(linear.inputs[0]);
  const int64_t width = graph.tensor(x).shape.back();
  const auto reshape = [&](const std::string& name, const std::string& layer, Shape shape) {
    if (graph.tensor(x).shape != shape)
      x = graph.output(graph.add_op("Reshape", name, layer, {x}, {{"shape", std::move(shape)}}));
  };
  for (OpId id : found.between) {
    const Op& op = before.op(id);
    if (op.type->name == "Slice") {
      x = graph.output(graph.add_op(op.type->name, op.name, op.layer, {x}, op.attributes));
      continue;
    }
    Shape shape = before.tensor(op.outputs[0]).shape;
    shape.back() = width;
    reshape(op.name, op.layer, std::move(shape));
  }
  const std::string layer = linear.layer + "+" + loss.layer, name = rebuilder.free_name(layer + "/forward");
  reshape(layer + "/rows", layer, {before.tensor(loss.inputs[1]).shape[0], width});
  std::vector<TensorId> inputs{x, rebuilder.map(linear.inputs[1]), rebuilder.map(loss.inputs[1])};
  if (linear.inputs.size() > 2) inputs.push_back(rebuilder.map(linear.inputs[2]));
  Attributes attributes = loss.attributes;
  if (found.transposed) attributes.set("transposed", int64_t{1});
  rebuilder.replace({found.linear, found.loss}, "LinearCrossEntropyForward", name, layer, std::move(inputs), attributes,
                    {loss.outputs[0], loss.outputs[2]});
}

}  // namespace

int fuse_linear_cross_entropy(Network& network, Bytes above) {
  const ById<TensorId, int> uses = count_uses(network);
  std::vector<LinearLoss> all;
  std::vector<std::vector<OpId>> ops_of;
  for (int32_t i = 0; i < network.graph.op_count(); ++i) {
    if (auto found = find_linear_loss(network.graph, uses, {i}, above)) all.push_back(std::move(*found));
  }
  for (const LinearLoss& found : all) {
    std::vector<OpId>& ops = ops_of.emplace_back(found.between);
    ops.push_back(found.linear);
    ops.push_back(found.loss);
  }
  replace_ops(network, ops_of,
              [&](Rebuilder& rebuilder, const Graph& before, size_t i) { fuse(rebuilder, before, all[i]); });
  return static_cast<int>(all.size());
}

namespace {

// Puts the ops that `tensor` comes from before everything that is not there yet. Returns false, and does nothing, where
// one of them comes from `op`.
class Ancestors {
 public:
  explicit Ancestors(const Graph& graph) : graph_(graph), seen_(graph.op_count(), false) {}
  bool reach(TensorId tensor, OpId op) {
    const OpId producer = graph_.tensor(tensor).producer;
    if (!producer.valid() || seen_[producer]) return true;
    if (producer == op) return false;
    seen_[producer] = true;
    for (TensorId input : graph_.op(producer).inputs) {
      if (!reach(input, op)) return false;
    }
    order_.push_back(producer);
    return true;
  }
  const std::vector<OpId>& order() const { return order_; }

 private:
  const Graph& graph_;
  ById<OpId, bool> seen_;
  std::vector<OpId> order_;
};

struct Pair {
  OpId forward, backward;
  std::vector<OpId> first;  // what the gradient of the loss comes from
};

std::optional<Pair> find_pair(const Graph& graph, OpId id) {
  const Op& back = graph.op(id);
  if (back.type->name != "LinearCrossEntropyBackward" || !back.forward.valid()) return {};
  const Op& forward = graph.op(back.forward);
  std::vector<TensorId> inputs = back.inputs;  // those of another gathering are not the same
  inputs.erase(inputs.begin() + 3);
  if (forward.type->name != "LinearCrossEntropyForward" || forward.inputs != inputs) return {};
  Ancestors ancestors(graph);
  if (!ancestors.reach(back.inputs[3], back.forward)) return {};
  return Pair{back.forward, id, ancestors.order()};
}

}  // namespace

int fuse_linear_cross_entropy_training(Network& training) {
  std::vector<Pair> pairs;
  for (int32_t i = 0; i < training.graph.op_count(); ++i) {
    if (auto pair = find_pair(training.graph, {i})) pairs.push_back(std::move(*pair));
  }
  if (pairs.empty()) return 0;
  ById<OpId, const Pair*> at(training.graph.op_count(), nullptr);
  ById<OpId, bool> done(at.size(), false);
  for (const Pair& pair : pairs) {
    at[pair.forward] = &pair;
    done[pair.backward] = true;
  }
  const Graph before = std::move(training.graph);
  Rebuilder rebuilder(before);
  const auto copy = [&](OpId id) {
    if (!done[id]) rebuilder.copy(id);
    done[id] = true;
  };
  for (int32_t i = 0; i < before.op_count(); ++i) {
    const Pair* pair = at[OpId{i}];
    if (pair == nullptr) {
      copy({i});
      continue;
    }
    for (OpId id : pair->first) copy(id);
    const Op &forward = before.op(pair->forward), &back = before.op(pair->backward);
    std::vector<TensorId> outputs = forward.outputs;
    outputs.insert(outputs.end(), back.outputs.begin(), back.outputs.end());
    rebuilder.replace({pair->forward, pair->backward}, "LinearCrossEntropyTraining", back.name, back.layer,
                      rebuilder.map(back.inputs), back.attributes, outputs, Phase::backward);
  }
  rebuilder.finish(training);
  return static_cast<int>(pairs.size());
}

}  // namespace plimsoll
