// The weights of convolutions: [outer, inner / groups, R, S], or with groups [g, outer / g, inner / g, R, S] (the same
// memory); those over images with depth have [.., D, R, S]. A convolution's outer channels are its outputs, a transposed
// convolution's are its inputs.
#pragma once

#include "ops/conv_loops.h"

namespace plimsoll {

int64_t read_groups(const Attributes& attributes);

struct ConvWeights {
  int64_t outer = 0, inner = 0;  // channels over all groups
  Shape kernel;                  // [R, S] or [D, R, S]
};
// Of images with `dimensions` sizes behind batch and channels.
ConvWeights read_weights(const Tensor& w, int64_t groups, size_t dimensions);
Shape weights_shape(const ConvWeights& weights, int64_t groups);

// `tensor` is images, N x C x H x W or N x C x D x H x W; the second form tells C.
void expect_image_rank(const Tensor& tensor);
void expect_channels(const Tensor& tensor, int64_t channels);

// Those of stride, padding, dilation, groups, output_padding that are there.
Attributes window_attributes(const Attributes& attributes);

// 2 * multiply-adds: every weight meets every place of the window in every image.
Work conv_work(const Graph& graph, const Op& op, TensorId weights, TensorId places);

}  // namespace plimsoll
