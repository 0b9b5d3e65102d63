#include "ops/conv_weights.h"

#include <fmt/format.h>

#include "ops/reference.h"

namespace plimsoll {

int64_t read_groups(const Attributes& attributes) {
  const int64_t groups = attributes.integer("groups", 1);
  if (groups >= 1) return groups;
  throw Error(ErrorCode::invalid_input, fmt::format("groups is {}; at least 1 is expected", groups));
}

ConvWeights read_weights(const Tensor& w, int64_t groups) {
  const Shape& s = w.shape;
  if (groups == 1) {
    if (s.size() == 4) return {s[0], s[1], {s[2], s[3]}};
    throw Error(ErrorCode::invalid_input,
                fmt::format("the weights '{}' are {}; 4 dimensions are expected", w.name, to_string(s)));
  }
  if (s.size() == 5 && s[0] == groups) return {s[0] * s[1], s[0] * s[2], {s[3], s[4]}};
  throw Error(ErrorCode::invalid_input,
              fmt::format("the weights '{}' are {}; with {} groups 5 dimensions are expected, {} first", w.name,
                          to_string(s), groups, groups));
}

Shape weights_shape(const ConvWeights& weights, int64_t groups) {
  for (int64_t channels : {weights.outer, weights.inner}) {
    if (channels % groups == 0) continue;
    throw Error(ErrorCode::invalid_input, fmt::format("{} channels do not divide into {} groups", channels, groups));
  }
  const auto [r, s] = weights.kernel;
  if (groups == 1) return {weights.outer, weights.inner, r, s};
  return {groups, weights.outer / groups, weights.inner / groups, r, s};
}

void expect_channels(const Tensor& tensor, int64_t channels) {
  expect_rank(tensor, 4);
  if (tensor.shape[1] == channels) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' has {} channels; the weights take {}", tensor.name, tensor.shape[1], channels));
}

Attributes window_attributes(const Attributes& attributes) {
  Attributes result;
  for (const char* name : {"stride", "padding", "dilation", "groups", "output_padding"}) {
    if (const auto it = attributes.items().find(name); it != attributes.items().end()) result.set(name, it->second);
  }
  return result;
}

Work conv_work(const Graph& graph, const Op& op, TensorId weights, TensorId places) {
  const Shape& image = graph.tensor(places).shape;
  const double per_weight = static_cast<double>(image[0] * image[2] * image[3]);
  const Bytes bytes = bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs);
  return {2.0 * static_cast<double>(element_count(graph.tensor(weights).shape)) * per_weight,
          static_cast<double>(bytes.count)};
}

}  // namespace plimsoll
