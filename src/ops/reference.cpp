#include "ops/reference.h"

#include <fmt/format.h>

#include <algorithm>

namespace plimsoll {

void expect_inputs(std::span<const Tensor* const> inputs, size_t least, size_t most) {
  if (most == 0) most = least;
  if (inputs.size() >= least && inputs.size() <= most) return;
  const std::string wanted = least == most ? fmt::format("{}", least) : fmt::format("{} to {}", least, most);
  throw Error(ErrorCode::invalid_input, fmt::format("takes {} inputs, got {}", wanted, inputs.size()));
}

void expect_counter(const Tensor& tensor) {
  if (tensor.dtype == DType::i64 && element_count(tensor.shape) == 1) return;
  throw Error(ErrorCode::invalid_input, fmt::format("'{}' is {} {}; an i64 scalar is expected", tensor.name,
                                                    to_string(tensor.dtype), to_string(tensor.shape)));
}

void expect_seed(const Tensor& tensor) {
  if (tensor.dtype == DType::i64 && tensor.shape == Shape{2}) return;
  expect_counter(tensor);
}

void expect_same_shape(const Tensor& a, const Tensor& b) {
  if (a.shape == b.shape) return;
  throw Error(ErrorCode::invalid_input, fmt::format("'{}' is {} but '{}' is {}; they must be equal", a.name,
                                                    to_string(a.shape), b.name, to_string(b.shape)));
}

void expect_same_dtype(const Tensor& a, const Tensor& b) {
  if (a.dtype == b.dtype) return;
  throw Error(ErrorCode::invalid_input, fmt::format("'{}' is {} but '{}' is {}; they must be equal", a.name,
                                                    to_string(a.dtype), b.name, to_string(b.dtype)));
}

void expect_rank(const Tensor& tensor, size_t rank) {
  if (tensor.shape.size() == rank) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {}; {} dimensions are expected", tensor.name, to_string(tensor.shape), rank));
}

DType floating_dtype(const Attributes& attributes) {
  const std::string name = attributes.text("dtype", "f32");
  if (name == "f32") return DType::f32;
  if (name == "f64") return DType::f64;
  throw Error(ErrorCode::invalid_input, fmt::format("dtype is '{}'; 'f32' or 'f64' is expected", name));
}

std::vector<OpType> of_kind(LayerKind kind, std::vector<OpType> types) {
  for (OpType& type : types) type.kind = kind;
  return types;
}

OpType in_parts(OpType type, BatchDivision division) {
  type.division = std::move(division);
  return type;
}

int64_t divisible_batch(const Graph& graph, const Op& op) {
  const BatchDivision& division = op.type->division;
  if (!division.possible()) return 0;
  const Shape& shape = graph.tensor(op.inputs[division.inputs[0]]).shape;
  if (shape.empty()) return 0;
  // By its attributes an op may have no batch: a layer norm over all dimensions.
  const auto has_rows = [&](const std::vector<TensorId>& tensors, const std::vector<int>& divided) {
    return std::all_of(divided.begin(), divided.end(), [&](int i) {
      const Shape& other = graph.tensor(tensors[static_cast<size_t>(i)]).shape;
      return !other.empty() && other[0] == shape[0];
    });
  };
  return has_rows(op.inputs, division.inputs) && has_rows(op.outputs, division.outputs) ? shape[0] : 0;
}

Bytes bytes_of(const Graph& graph, std::span<const TensorId> tensors) {
  Bytes sum;
  for (TensorId id : tensors) sum += graph.tensor(id).bytes();
  return sum;
}

Work elementwise_work(const Graph& graph, const Op& op, double flops_per_element) {
  const Bytes bytes = bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs);
  return {flops_per_element * static_cast<double>(element_count(graph.tensor(op.outputs[0]).shape)),
          static_cast<double>(bytes.count)};
}

OpId add_backward(Graph& graph, std::string_view type, OpId forward, std::string_view suffix,
                  std::vector<TensorId> inputs, Attributes attributes) {
  std::string stem = graph.op(forward).name;
  if (const std::string_view end = "/forward"; stem.size() > end.size() && stem.ends_with(end)) {
    stem.resize(stem.size() - end.size());
  }
  std::string name = fmt::format("{}/{}", stem, suffix);
  for (int i = 2; graph.find_op(name).valid(); ++i) name = fmt::format("{}/{}.{}", stem, suffix, i);
  const OpId id =
      graph.add_op(type, name, graph.op(forward).layer, std::move(inputs), std::move(attributes), Phase::backward);
  graph.op(id).forward = forward;
  return id;
}

}  // namespace plimsoll
