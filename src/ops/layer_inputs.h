// What layers with weights have in common: an optional bias, a fused activation, and gradients in the order in which
// they let go of memory.
#pragma once

#include "ops/reference.h"

namespace plimsoll {

// "none" or "relu" from the attribute activation; throws Error(invalid_input) on anything else.
bool has_relu(const Attributes& attributes);

// `bias` is [channels] and of the dtype of `x`.
void expect_bias(const Tensor& bias, const Tensor& x, int64_t channels);

// The first dimension of both is the batch.
void expect_same_batch(const Tensor& a, const Tensor& b);

// The ops of a layer y = act(f(x, w) [+ b]) and what its backward ops are called and told.
struct WeightedLayer {
  std::string backward_data, backward_weights;  // op types: (dy, w) -> dx; (x, dy) -> dw [, db]
  Attributes data_attributes, weights_attributes;
};

// Appends, as far as wanted, ReluBackward for a fused ReLU, then the gradient of weights and bias, then that of the
// data: x is not needed any more when the last begins.
std::vector<TensorId> weighted_layer_gradient(Graph& graph, OpId forward, TensorId dy, const std::vector<bool>& wanted,
                                              const WeightedLayer& layer);

}  // namespace plimsoll
