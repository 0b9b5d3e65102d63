// Concat joins tensors along one axis, Slice takes a part of it out again: the gradient of each input of a Concat is a
// Slice of dy, and the gradient of a Slice is dy with zeros around it.
#include <fmt/format.h>

#include <cstring>

#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

size_t axis_of(const Attributes& attributes, const Tensor& tensor) {
  const int64_t axis = attributes.integer("axis");
  if (axis < 0 || axis >= static_cast<int64_t>(tensor.shape.size())) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("axis {} does not exist: '{}' is {}", axis, tensor.name, to_string(tensor.shape)));
  }
  return axis;
}

void expect_whole_bytes(const Tensor& tensor) {
  if (tensor.dtype != DType::bit) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' has elements of one bit; at least a byte is expected", tensor.name));
}

// Copies a box of `count` along the axis from one row-major tensor to another, byte by byte.
void copy_along(const TensorView& from, int64_t from_begin, const TensorView& to, int64_t to_begin, int64_t count,
                size_t axis) {
  int64_t inner = storage_bytes({1}, from.dtype, {}).count, outer = 1;
  for (size_t d = axis + 1; d < from.shape.size(); ++d) inner *= from.shape[d];
  for (size_t d = 0; d < axis; ++d) outer *= from.shape[d];
  const std::byte* source = static_cast<const std::byte*>(from.data) + from_begin * inner;
  std::byte* target = static_cast<std::byte*>(to.data) + to_begin * inner;
  for (int64_t i = 0; i < outer; ++i) {
    std::memcpy(target, source, count * inner);
    source += from.shape[axis] * inner;
    target += to.shape[axis] * inner;
  }
}

OpType concat() {
  return {
      .name = "Concat",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            if (in.empty()) throw Error(ErrorCode::invalid_input, "takes one or more inputs, got none");
            const size_t axis = axis_of(attributes, *in[0]);
            expect_whole_bytes(*in[0]);
            Shape shape = in[0]->shape;
            for (const Tensor* other : in.subspan(1)) {
              expect_same_dtype(*in[0], *other);
              Shape rest = other->shape;
              if (rest.size() == shape.size()) rest[axis] = in[0]->shape[axis];
              if (rest != in[0]->shape) {
                throw Error(ErrorCode::invalid_input,
                            fmt::format("'{}' is {} and '{}' is {}; only axis {} may differ", in[0]->name,
                                        to_string(in[0]->shape), other->name, to_string(other->shape), axis));
              }
              shape[axis] += other->shape[axis];
            }
            return std::vector<TensorSpec>{{shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            const Op op = graph.op(id);
            const int64_t axis = op.attributes.integer("axis");
            std::vector<TensorId> result(op.inputs.size());
            int64_t begin = 0;
            for (size_t i = 0; i < op.inputs.size(); ++i) {
              const int64_t size = graph.tensor(op.inputs[i]).shape[axis];
              if (wanted[i] && dy[0].valid()) {
                const OpId back = add_backward(graph, "Slice", id, fmt::format("backward_{}", i), {dy[0]},
                                               {{"axis", axis}, {"begin", begin}, {"size", size}});
                result[i] = graph.output(back);
              }
              begin += size;
            }
            return result;
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 0); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const size_t axis = op.attributes.integer("axis");
            int64_t begin = 0;
            for (const TensorView& part : in) {
              copy_along(part, 0, out[0], begin, part.shape[axis], axis);
              begin += part.shape[axis];
            }
          },
  };
}

OpType slice() {
  return {
      .name = "Slice",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            const size_t axis = axis_of(attributes, *in[0]);
            expect_whole_bytes(*in[0]);
            const int64_t begin = attributes.integer("begin"), size = attributes.integer("size");
            if (begin < 0 || size <= 0 || size > in[0]->shape[axis] || begin > in[0]->shape[axis] - size) {
              throw Error(ErrorCode::invalid_input,
                          fmt::format("'{}' is {}; axis {} has no elements [{}, {})", in[0]->name,
                                      to_string(in[0]->shape), axis, begin, begin + size));
            }
            Shape shape = in[0]->shape;
            shape[axis] = size;
            return std::vector<TensorSpec>{{shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            if (!wanted[0] || !dy[0].valid()) return std::vector<TensorId>{TensorId{}};
            const Op op = graph.op(id);
            const int64_t axis = op.attributes.integer("axis");
            const int64_t begin = op.attributes.integer("begin"), size = op.attributes.integer("size");
            const Tensor input = graph.tensor(op.inputs[0]);
            const int64_t after = input.shape[axis] - begin - size;
            auto zeros = [&](int64_t count, std::string_view suffix) {
              Shape shape = input.shape;
              shape[axis] = count;
              return graph.output(
                  add_backward(graph, "Constant", id, suffix, {},
                               {{"shape", shape}, {"value", 0.0}, {"dtype", std::string(to_string(input.dtype))}}));
            };
            std::vector<TensorId> parts;
            if (begin > 0) parts.push_back(zeros(begin, "zeros_before"));
            parts.push_back(dy[0]);
            if (after > 0) parts.push_back(zeros(after, "zeros_after"));
            if (parts.size() == 1) return parts;
            return std::vector<TensorId>{
                graph.output(add_backward(graph, "Concat", id, "backward", parts, {{"axis", axis}}))};
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work =
          [](const Graph& graph, const Op& op) {
            return Work{0, 2 * static_cast<double>(bytes_of(graph, op.outputs).count)};
          },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const size_t axis = op.attributes.integer("axis");
            copy_along(in[0], op.attributes.integer("begin"), out[0], 0, out[0].shape[axis], axis);
          },
  };
}

}  // namespace

std::vector<OpType> concat_ops() { return of_kind(LayerKind::concat, {concat(), slice()}); }

}  // namespace plimsoll
