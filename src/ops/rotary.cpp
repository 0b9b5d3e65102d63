// Rotary: rotary positions (J. Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021). Element i of a
// row's first half and element i of its second are a pair, which is turned by an angle.
//
//   x, cosine, sine -> y      y1 = x1 cos1 - x2 sin1,  y2 = x2 cos2 + x1 sin2
//   inverse                   y1 = x1 cos1 + x2 sin2,  y2 = x2 cos2 - x1 sin1      the gradient
//
// Cosine and sine are of one shape. They are stretched over x's dimensions but the last, as in numpy, and have a number for each
// pair or one for each element that is turned. The attribute width says how many these are, where they are not the whole row: the others stay.
#include "ops/rotary.h"

#include <fmt/format.h>

#include "ops/broadcast.h"
#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {

RotaryRows rotary_rows(const Attributes& attributes, const Shape& x, const Shape& table) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("rotary positions by {} of {}: {}", to_string(table), to_string(x), why));
  };
  if (x.empty() || table.empty()) refuse("one or more dimensions are expected");
  RotaryRows rows{.leading = {x.begin(), x.end() - 1}, .length = x.back()};
  const int64_t width = attributes.integer("width", rows.length);
  if (width < 2 || width > rows.length || width % 2 != 0)
    refuse(fmt::format("a width of {} is not an even part of a row", width));
  rows.half = width / 2;
  rows.table = table.back();
  if (rows.table != rows.half && rows.table != width)
    refuse(fmt::format("rows of {} or {} cosines are expected", rows.half, width));
  const Shape by(table.begin(), table.end() - 1);
  if (joint_shape(rows.leading, by) != rows.leading) refuse("the cosines cannot be stretched over the rows");
  rows.table_strides = strides_over(by, rows.leading);
  for (int64_t& stride : rows.table_strides) stride *= rows.table;
  return rows;
}

namespace {

std::vector<TensorSpec> infer_rotary(const Attributes& attributes, std::span<const Tensor* const> in) {
  expect_inputs(in, 3);
  expect_same_shape(*in[1], *in[2]);
  expect_same_dtype(*in[0], *in[1]);
  expect_same_dtype(*in[0], *in[2]);
  rotary_rows(attributes, in[0]->shape, in[1]->shape);
  attributes.integer("inverse", 0);
  return {{in[0]->shape, in[0]->dtype}};
}

std::vector<TensorId> rotary_gradient(Graph& graph, OpId id, std::span<const TensorId> dy,
                                      const std::vector<bool>& wanted) {
  const Op op = graph.op(id);
  std::vector<TensorId> result(3);
  if (!dy[0].valid()) return result;
  if (wanted[1] || wanted[2]) {
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}' (Rotary) gives its angles no gradient, which '{}' and '{}' would need", op.name,
                            graph.tensor(op.inputs[1]).name, graph.tensor(op.inputs[2]).name));
  }
  if (!wanted[0]) return result;
  Attributes attributes = op.attributes;
  attributes.set("inverse", int64_t{op.attributes.integer("inverse", 0) == 0});
  result[0] =
      graph.output(add_backward(graph, "Rotary", id, "backward", {dy[0], op.inputs[1], op.inputs[2]}, attributes));
  return result;
}

void run_rotary(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const RotaryRows rows = rotary_rows(op.attributes, in[0].shape, in[1].shape);
  const bool inverse = op.attributes.integer("inverse", 0) != 0;
  for_each_stretched(rows.leading, {rows.table_strides}, [&](int64_t row, const std::vector<int64_t>& at) {
    const int64_t first = row * rows.length;
    for (int64_t i = 0; i < rows.half; ++i) {
      const double a = load(in[0], first + i), b = load(in[0], first + rows.half + i);
      const int64_t t = at[0] + i, u = t + rows.second();
      const double to_first = inverse ? load(in[2], u) : -load(in[2], t);
      const double to_second = inverse ? -load(in[2], t) : load(in[2], u);
      store(out[0], first + i, a * load(in[1], t) + b * to_first);
      store(out[0], first + rows.half + i, b * load(in[1], u) + a * to_second);
    }
    for (int64_t i = 2 * rows.half; i < rows.length; ++i) store(out[0], first + i, load(in[0], first + i));
  });
}

OpType rotary() {
  return {
      .name = "Rotary",
      .infer = infer_rotary,
      .gradient = rotary_gradient,
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0}};  // a pair is read before it is written
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 3); },
      .reference = run_rotary,
  };
}

}  // namespace

std::vector<OpType> rotary_ops() { return of_kind(LayerKind::activation, {rotary()}); }

}  // namespace plimsoll
