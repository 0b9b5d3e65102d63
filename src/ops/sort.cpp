// Sort and TopK: the elements of each row along an axis by size, and the places they come from. What is equal keeps its
// order, and what is not a number is larger than all that are. The gradient goes back to the places (GatherBackward).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "ops/axis_rows.h"
#include "ops/families.h"
#include "ops/move.h"
#include "ops/reference.h"
#include "ops/typed.h"

namespace plimsoll {
namespace {

template <class Body>
void with_sorted_type(const TensorView& view, Body body) {
  switch (view.dtype) {
    case DType::f32: body(float{}); return;
    case DType::f64: body(double{}); return;
    case DType::i32: body(int32_t{}); return;
    case DType::i64: body(int64_t{}); return;
    case DType::u8: body(uint8_t{}); return;
    case DType::bit: break;
  }
  throw Error(ErrorCode::internal, "elements of one bit are not sorted");
}

template <class T>
bool is_smaller(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return !std::isnan(a);
  }
  return a < b;
}

// The first of y's elements along the axis: all of x's, but for TopK.
void sort_plainly(const Op& op, bool largest_first, const TensorView& x, const TensorView& y,
                  const TensorView& indices) {
  const size_t axis = static_cast<size_t>(op.attributes.integer("axis"));
  const AxisRows from = axis_rows(x.shape, axis), to = axis_rows(y.shape, axis);
  std::vector<int64_t> places(static_cast<size_t>(from.length));
  with_sorted_type(x, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t row = 0; row < from.rows(); ++row) {
      const T* const elements_of_row = elements<T>(x) + from.first(row);
      const auto at = [&](int64_t place) { return elements_of_row[place * from.inner]; };
      std::iota(places.begin(), places.end(), 0);
      std::stable_sort(places.begin(), places.end(), [&](int64_t a, int64_t b) {
        return largest_first ? is_smaller(at(b), at(a)) : is_smaller(at(a), at(b));
      });
      for (int64_t i = 0; i < to.length; ++i) {
        const int64_t place = places[static_cast<size_t>(i)], target = to.first(row) + i * to.inner;
        elements<T>(y)[target] = at(place);
        elements<int64_t>(indices)[target] = place;
      }
    }
  });
}

OpType sorting(std::string name) {
  return {
      .name = std::move(name),
      .infer = {},
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            if (!wanted[0] || !dy[0].valid()) return std::vector<TensorId>{TensorId{}};
            const Op op = graph.op(id);
            return std::vector<TensorId>{graph.output(
                add_backward(graph, "GatherBackward", id, "backward", {dy[0], op.outputs[1]},
                             {{"axis", op.attributes.integer("axis")}, {"shape", graph.tensor(op.inputs[0]).shape}}))};
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work =
          [](const Graph& graph, const Op& op) {
            const Shape& x = graph.tensor(op.inputs[0]).shape;
            const int64_t length = x[static_cast<size_t>(op.attributes.integer("axis"))];
            Work work = elementwise_work(graph, op, 0);
            work.flops = static_cast<double>(element_count(x)) * std::log2(static_cast<double>(length) + 1);
            return work;
          },
      .reference = {},
  };
}

OpType sort() {
  OpType type = sorting("Sort");
  type.infer = [](const Attributes& attributes, std::span<const Tensor* const> in) {
    expect_inputs(in, 1);
    axis_of(attributes, *in[0]);
    element_width(*in[0]);
    attributes.integer("descending", 0);
    return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}, {in[0]->shape, DType::i64}};
  };
  type.reference = [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
    sort_plainly(op, op.attributes.integer("descending", 0) != 0, in[0], out[0], out[1]);
  };
  return type;
}

OpType top_k() {
  OpType type = sorting("TopK");
  type.infer = [](const Attributes& attributes, std::span<const Tensor* const> in) {
    expect_inputs(in, 1);
    const size_t axis = axis_of(attributes, *in[0]);
    element_width(*in[0]);
    attributes.integer("largest", 1);
    const int64_t k = attributes.integer("k");
    Shape shape = in[0]->shape;
    if (k < 1 || k > shape[axis]) {
      throw Error(ErrorCode::invalid_input, fmt::format("k is {}; 1 to {} is expected, which axis {} of '{}' has", k,
                                                        shape[axis], axis, in[0]->name));
    }
    shape[axis] = k;
    return std::vector<TensorSpec>{{shape, in[0]->dtype}, {shape, DType::i64}};
  };
  type.reference = [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
    sort_plainly(op, op.attributes.integer("largest", 1) != 0, in[0], out[0], out[1]);
  };
  return type;
}

}  // namespace

std::vector<OpType> sort_ops() { return of_kind(LayerKind::pool, {sort(), top_k()}); }

}  // namespace plimsoll
