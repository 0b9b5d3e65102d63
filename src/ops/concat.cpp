// Concat joins tensors along one axis, Slice takes a part of it out again, every step-th element or all. The gradient of
// each input of a Concat is a Slice of dy. SliceBackward puts dy between zeros.
#include <fmt/format.h>

#include <cstring>

#include "ops/families.h"
#include "ops/move.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

// Copies `count` positions of the axis, in steps, from one row-major tensor to another, byte by byte.
void copy_along(const TensorView& from, int64_t from_begin, int64_t from_step, const TensorView& to, int64_t to_begin,
                int64_t to_step, int64_t count, size_t axis) {
  int64_t inner = storage_bytes({1}, from.dtype, {}).count, outer = 1;
  for (size_t d = axis + 1; d < from.shape.size(); ++d) inner *= from.shape[d];
  for (size_t d = 0; d < axis; ++d) outer *= from.shape[d];
  const std::byte* source = static_cast<const std::byte*>(from.data) + from_begin * inner;
  std::byte* target = static_cast<std::byte*>(to.data) + to_begin * inner;
  for (int64_t i = 0; i < outer; ++i) {
    for (int64_t k = 0; k < count; ++k)
      std::memcpy(target + k * to_step * inner, source + k * from_step * inner, inner);
    source += from.shape[axis] * inner;
    target += to.shape[axis] * inner;
  }
}

int64_t step_of(const Attributes& attributes) {
  const int64_t step = attributes.integer("step", 1);
  if (step >= 1) return step;
  throw Error(ErrorCode::invalid_input, fmt::format("step is {}; 1 or more is expected", step));
}

// Throws unless positions begin, begin + step, ... of `size` elements lie on an axis of `length`.
void expect_on_axis(const Tensor& tensor, size_t axis, int64_t length, int64_t begin, int64_t size, int64_t step) {
  const bool fits = begin >= 0 && size >= 1 && begin < length && (size - 1) <= (length - 1 - begin) / step;
  if (fits) return;
  const std::string part = step == 1 ? fmt::format("[{}, {})", begin, begin + size)
                                     : fmt::format("{} elements from {} in steps of {}", size, begin, step);
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {}; axis {} has no elements {}", tensor.name, to_string(tensor.shape), axis, part));
}

OpType concat() {
  return {
      .name = "Concat",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            if (in.empty()) throw Error(ErrorCode::invalid_input, "takes one or more inputs, got none");
            const size_t axis = axis_of(attributes, *in[0]);
            element_width(*in[0]);
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
              copy_along(part, 0, 1, out[0], begin, 1, part.shape[axis], axis);
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
            element_width(*in[0]);
            const int64_t size = attributes.integer("size");
            expect_on_axis(*in[0], axis, in[0]->shape[axis], attributes.integer("begin"), size, step_of(attributes));
            Shape shape = in[0]->shape;
            shape[axis] = size;
            return std::vector<TensorSpec>{{shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            if (!wanted[0] || !dy[0].valid()) return std::vector<TensorId>{TensorId{}};
            const Op op = graph.op(id);
            const Shape& x = graph.tensor(op.inputs[0]).shape;
            const int64_t axis = op.attributes.integer("axis"), size = op.attributes.integer("size");
            if (size == x[axis]) return std::vector<TensorId>{dy[0]};
            Attributes attributes = {{"axis", axis}, {"begin", op.attributes.integer("begin")}, {"length", x[axis]}};
            if (step_of(op.attributes) != 1) attributes.set("step", step_of(op.attributes));
            return std::vector<TensorId>{
                graph.output(add_backward(graph, "SliceBackward", id, "backward", {dy[0]}, attributes))};
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work =
          [](const Graph& graph, const Op& op) {
            return Work{0, 2 * static_cast<double>(bytes_of(graph, op.outputs).count)};
          },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const size_t axis = op.attributes.integer("axis");
            copy_along(in[0], op.attributes.integer("begin"), step_of(op.attributes), out[0], 0, 1, out[0].shape[axis],
                       axis);
          },
  };
}

OpType slice_backward() {
  return {
      .name = "SliceBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            const size_t axis = axis_of(attributes, *in[0]);
            element_width(*in[0]);
            Shape shape = in[0]->shape;
            shape[axis] = attributes.integer("length");
            expect_on_axis(*in[0], axis, shape[axis], attributes.integer("begin"), in[0]->shape[axis],
                           step_of(attributes));
            return std::vector<TensorSpec>{{shape, in[0]->dtype}};
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 0); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const size_t axis = op.attributes.integer("axis");
            std::memset(out[0].data, 0, storage_bytes(out[0].shape, out[0].dtype, {}).count);
            copy_along(in[0], 0, 1, out[0], op.attributes.integer("begin"), step_of(op.attributes), in[0].shape[axis],
                       axis);
          },
  };
}

}  // namespace

std::vector<OpType> concat_ops() { return of_kind(LayerKind::concat, {concat(), slice(), slice_backward()}); }

}  // namespace plimsoll
