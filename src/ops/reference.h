// What op families share: checks of shapes, access to elements of either floating dtype, backward ops' bookkeeping.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/ops.h"

namespace plimsoll {

// Throw Error(invalid_input) that says what was expected.
void expect_inputs(std::span<const Tensor* const> inputs, size_t least, size_t most = 0);  // most 0: exactly `least`
void expect_same_shape(const Tensor& a, const Tensor& b);
void expect_same_dtype(const Tensor& a, const Tensor& b);
void expect_rank(const Tensor& tensor, size_t rank);
// What ops that draw are told: i64 scalars; a seed may be two numbers (base/random.h).
void expect_counter(const Tensor& tensor);
void expect_seed(const Tensor& tensor);

// The attribute "dtype" of ops that make a tensor from nothing: "f32" (when absent) or "f64".
DType floating_dtype(const Attributes& attributes);

// One element of a view as a double, whatever its dtype (not bit).
inline double load(const TensorView& view, int64_t i) {
  switch (view.dtype) {
    case DType::f32: return static_cast<const float*>(view.data)[i];
    case DType::f64: return static_cast<const double*>(view.data)[i];
    case DType::i32: return static_cast<const int32_t*>(view.data)[i];
    case DType::i64: return static_cast<double>(static_cast<const int64_t*>(view.data)[i]);
    case DType::u8: return static_cast<const uint8_t*>(view.data)[i];
    case DType::bit: return (static_cast<const uint8_t*>(view.data)[i / 8] >> (i % 8)) & 1;
  }
  return 0;
}
inline void store(const TensorView& view, int64_t i, double value) {
  switch (view.dtype) {
    case DType::f32: static_cast<float*>(view.data)[i] = static_cast<float>(value); break;
    case DType::f64: static_cast<double*>(view.data)[i] = value; break;
    case DType::i32: static_cast<int32_t*>(view.data)[i] = static_cast<int32_t>(value); break;
    case DType::i64: static_cast<int64_t*>(view.data)[i] = static_cast<int64_t>(value); break;
    case DType::u8: static_cast<uint8_t*>(view.data)[i] = static_cast<uint8_t>(value); break;
    case DType::bit: {
      uint8_t& byte = static_cast<uint8_t*>(view.data)[i / 8];
      const uint8_t mask = static_cast<uint8_t>(1u << (i % 8));
      byte = static_cast<uint8_t>(value != 0 ? byte | mask : byte & ~mask);
      break;
    }
  }
}
template <class Body>
void for_each_element(const TensorView& view, Body body) {
  for (int64_t i = 0, n = element_count(view.shape); i < n; ++i) body(i);
}

// The same types, marked as ops of one kind of layer.
std::vector<OpType> of_kind(LayerKind kind, std::vector<OpType> types);
// The same type, which runs in parts along the batch.
OpType in_parts(OpType type, BatchDivision division);

// FLOPs per element of the first output; bytes of all inputs and outputs.
Work elementwise_work(const Graph& graph, const Op& op, double flops_per_element);
Bytes bytes_of(const Graph& graph, std::span<const TensorId> tensors);

// Adds a backward op beside its forward op: named "<forward op>/<suffix>" (numbered when taken), same layer, with its
// `forward` field set.
OpId add_backward(Graph& graph, std::string_view type, OpId forward, std::string_view suffix,
                  std::vector<TensorId> inputs, Attributes attributes = {});

}  // namespace plimsoll
