// Shapes that are stretched over each other as in numpy: aligned at the last dimension, a size of 1 fits any.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "plimsoll/ops.h"

namespace plimsoll {

// Nothing where a dimension has two sizes that are not 1.
std::optional<Shape> joint_shape(const Shape& a, const Shape& b);
// By the dimensions of `over`: how far the next element of a row-major tensor of `shape` is, 0 where it is stretched.
std::vector<int64_t> strides_over(const Shape& shape, const Shape& over);

// Calls body(i, offsets): i counts the elements of `over` in row-major order, offsets[k] is where tensor k has its own.
template <class Body>
void for_each_stretched(const Shape& over, const std::vector<std::vector<int64_t>>& strides, const Body& body) {
  std::vector<int64_t> index(over.size(), 0), offsets(strides.size(), 0);
  for (int64_t i = 0, n = element_count(over); i < n; ++i) {
    body(i, offsets);
    for (size_t d = over.size(); d-- > 0;) {
      const bool carry = ++index[d] == over[d];
      for (size_t k = 0; k < strides.size(); ++k) offsets[k] += carry ? -strides[k][d] * (over[d] - 1) : strides[k][d];
      if (!carry) break;
      index[d] = 0;
    }
  }
}

// Appends the backward ops that sum `gradient` down to `shape`, which was stretched over it; none where they are equal.
TensorId sum_to_shape(Graph& graph, OpId forward, TensorId gradient, Shape shape, std::string_view suffix);

}  // namespace plimsoll
