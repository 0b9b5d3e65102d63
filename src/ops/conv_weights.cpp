#include "ops/conv_weights.h"

#include <fmt/format.h>

#include "ops/reference.h"

namespace plimsoll {

int64_t read_groups(const Attributes& attributes) {
  const int64_t groups = attributes.integer("groups", 1);
  if (groups >= 1) return groups;
  throw Error(ErrorCode::invalid_input, fmt::format("groups is {}; at least 1 is expected", groups));
}

ConvWeights read_weights(const Tensor& w, int64_t groups, size_t dimensions) {
  const Shape& s = w.shape;
  const size_t rank = dimensions + (groups == 1 ? 2 : 3);
  if (s.size() == rank && groups == 1) return {s[0], s[1], image_size(s)};
  if (s.size() == rank && s[0] == groups) return {s[0] * s[1], s[0] * s[2], {s.begin() + 3, s.end()}};
  throw Error(ErrorCode::invalid_input,
              groups == 1
                  ? fmt::format("the weights '{}' are {}; {} dimensions are expected", w.name, to_string(s), rank)
                  : fmt::format("the weights '{}' are {}; with {} groups {} dimensions are expected, {} first", w.name,
                                to_string(s), groups, rank, groups));
}

Shape weights_shape(const ConvWeights& weights, int64_t groups) {
  for (int64_t channels : {weights.outer, weights.inner}) {
    if (channels % groups == 0) continue;
    throw Error(ErrorCode::invalid_input, fmt::format("{} channels do not divide into {} groups", channels, groups));
  }
  if (groups == 1) return image_shape(weights.outer, weights.inner, weights.kernel);
  Shape shape = image_shape(weights.outer / groups, weights.inner / groups, weights.kernel);
  shape.insert(shape.begin(), groups);
  return shape;
}

void expect_image_rank(const Tensor& tensor) {
  if (tensor.shape.size() != 5) expect_rank(tensor, 4);
}

void expect_channels(const Tensor& tensor, int64_t channels) {
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
  const double per_weight = static_cast<double>(element_count(image) / image[1]);
  const Bytes bytes = bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs);
  return {2.0 * static_cast<double>(element_count(graph.tensor(weights).shape)) * per_weight,
          static_cast<double>(bytes.count)};
}

}  // namespace plimsoll
