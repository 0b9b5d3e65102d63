// The weights of convolutions: [outer, inner / groups, R, S], or with groups [g, outer / g, inner / g, R, S] (the same
// memory). A convolution's outer channels are its outputs, a transposed convolution's are its inputs.
#pragma once

#include <array>

#include "ops/conv_loops.h"

namespace plimsoll {

int64_t read_groups(const Attributes& attributes);

struct ConvWeights {
  int64_t outer = 0, inner = 0;  // channels over all groups
  std::array<int64_t, 2> kernel{};
};
ConvWeights read_weights(const Tensor& w, int64_t groups);
Shape weights_shape(const ConvWeights& weights, int64_t groups);

// `tensor` is an image of `channels` channels, N x channels x H x W.
void expect_channels(const Tensor& tensor, int64_t channels);

// Those of stride, padding, dilation, groups, output_padding that are there.
Attributes window_attributes(const Attributes& attributes);

// 2 * multiply-adds: every weight meets every place of the window in every image.
Work conv_work(const Graph& graph, const Op& op, TensorId weights, TensorId places);

}  // namespace plimsoll
