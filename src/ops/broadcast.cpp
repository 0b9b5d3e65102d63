#include "ops/broadcast.h"

#include <algorithm>

#include "ops/reference.h"

namespace plimsoll {

std::optional<Shape> joint_shape(const Shape& a, const Shape& b) {
  const Shape &longer = a.size() >= b.size() ? a : b, &shorter = a.size() >= b.size() ? b : a;
  Shape joint = longer;
  const size_t skip = longer.size() - shorter.size();
  for (size_t d = 0; d < shorter.size(); ++d) {
    int64_t& size = joint[skip + d];
    if (size == 1) size = shorter[d];
    if (shorter[d] != 1 && shorter[d] != size) return std::nullopt;
  }
  return joint;
}

std::vector<int64_t> strides_over(const Shape& shape, const Shape& over) {
  std::vector<int64_t> strides(over.size(), 0);
  int64_t step = 1;
  for (size_t d = shape.size(), o = over.size(); d-- > 0;) {
    --o;
    if (shape[d] != 1) strides[o] = step;
    step *= shape[d];
  }
  return strides;
}

TensorId sum_to_shape(Graph& graph, OpId forward, TensorId gradient, Shape shape, std::string_view suffix) {
  const Shape from = graph.tensor(gradient).shape;
  if (from == shape) return gradient;
  const size_t leading = from.size() - shape.size();
  std::vector<int64_t> dims;
  bool only_leading = true;
  for (size_t d = 0; d < from.size(); ++d) {
    const bool stretched = d < leading || shape[d - leading] != from[d];
    if (stretched) dims.push_back(static_cast<int64_t>(d));
    if (stretched && d >= leading) only_leading = false;
    if (!stretched && d >= leading && dims.size() < leading) only_leading = false;
  }
  TensorId sum = gradient;
  if (element_count(from) != element_count(shape)) {
    sum = graph.output(
        add_backward(graph, "Reduce", forward, suffix, {gradient},
                     {{"function", std::string("sum")}, {"dims", dims}, {"keep_dims", int64_t{only_leading ? 0 : 1}}}));
  }
  if (graph.tensor(sum).shape == shape) return sum;
  return graph.output(
      add_backward(graph, "Reshape", forward, std::string(suffix) + "_shape", {sum}, {{"shape", shape}}));
}

}  // namespace plimsoll
