#include "ops/layer_inputs.h"

#include <fmt/format.h>

namespace plimsoll {

bool has_relu(const Attributes& attributes) {
  const std::string activation = attributes.text("activation", "none");
  if (activation == "relu") return true;
  if (activation == "none") return false;
  throw Error(ErrorCode::invalid_input, fmt::format("activation is '{}'; 'none' or 'relu' is expected", activation));
}

void expect_bias(const Tensor& bias, const Tensor& x, int64_t channels) {
  expect_same_dtype(x, bias);
  if (bias.shape == Shape{channels}) return;
  throw Error(ErrorCode::invalid_input, fmt::format("the bias '{}' is {}; {} numbers, one a channel, are expected",
                                                    bias.name, to_string(bias.shape), channels));
}

void expect_same_batch(const Tensor& a, const Tensor& b) {
  if (a.shape.at(0) == b.shape.at(0)) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' has a batch of {}, '{}' one of {}", a.name, a.shape[0], b.name, b.shape[0]));
}

std::vector<TensorId> weighted_layer_gradient(Graph& graph, OpId forward, TensorId dy, const std::vector<bool>& wanted,
                                              const WeightedLayer& layer) {
  const Op op = graph.op(forward);  // a copy: the op list grows below
  std::vector<TensorId> gradients(op.inputs.size());
  const bool with_bias = wanted.size() > 2 && wanted[2];
  if (!dy.valid() || !(wanted[0] || wanted[1] || with_bias)) return gradients;
  if (has_relu(op.attributes)) {
    dy = graph.output(add_backward(graph, "ReluBackward", forward, "backward_relu", {dy, op.outputs[0]}));
  }
  if (wanted[1]) {
    Attributes attributes = layer.weights_attributes;
    attributes.set("bias", int64_t{with_bias});
    const OpId back =
        add_backward(graph, layer.backward_weights, forward, "backward_weights", {op.inputs[0], dy}, attributes);
    gradients[1] = graph.output(back);
    if (with_bias) gradients[2] = graph.output(back, 1);
  } else if (with_bias) {
    gradients[2] = graph.output(add_backward(graph, "BiasBackward", forward, "backward_bias", {dy}));
  }
  if (wanted[0]) {
    gradients[0] = graph.output(
        add_backward(graph, layer.backward_data, forward, "backward_data", {dy, op.inputs[1]}, layer.data_attributes));
  }
  return gradients;
}

}  // namespace plimsoll
