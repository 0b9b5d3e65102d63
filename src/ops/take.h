// Rows that are taken out of a tensor by index tensors (Embedding, IndexSelect, Index), and elements (Gather): how the
// tensors are divided, and what is said of an index that is out of range.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plimsoll/ops.h"

namespace plimsoll {

// x is outer x limit x inner, y is outer x count x inner: row r of y is row index(r) of x.
struct Take {
  int64_t outer = 1, limit = 1, count = 1, inner = 1;
};
Take embedding_take(const Shape& weight, const Shape& indices);
Take index_select_take(const Shape& x, size_t axis, int64_t count);
// The first `dimensions` of x are indexed by as many tensors, whose joint shape has `count` elements.
Take index_take(const Shape& x, size_t dimensions, int64_t count);

// The shape that the index tensors have together, by numpy's rules of broadcasting. Throws Error(invalid_input).
Shape joint_shape(std::span<const Tensor* const> indices);
// How far apart an index tensor's elements lie along each dimension of the joint shape: 0 where it is broadcast.
std::vector<int64_t> joint_strides(const Shape& indices, const Shape& joint);

// Throws Error(invalid_input): "row 3 of the indices is 70, but dimension 0 has 50 elements".
[[noreturn]] void throw_bad_index(int64_t row, int64_t index, int64_t dimension, int64_t limit);

// The gradient of a table of which `dy` is that of the rows at `indices`. Throws Error(invalid_input) unless these belong
// together, and the attributes' padding index is one of the rows.
void expect_lookups(const Attributes& attributes, const Shape& table, const Tensor& dy, const Tensor& indices);
// Writes it, for reference kernels: each row is the sum of what its lookups give, in their order.
void sum_lookups(const Attributes& attributes, const TensorView& dy, const TensorView& indices,
                 const TensorView& table);

// An element of an index tensor of i32 or i64.
inline int64_t index_at(const void* indices, DType dtype, int64_t i) {
  return dtype == DType::i32 ? static_cast<const int32_t*>(indices)[i] : static_cast<const int64_t*>(indices)[i];
}

}  // namespace plimsoll
