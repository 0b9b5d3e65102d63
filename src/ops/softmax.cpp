// Softmax over any one axis, or its logarithm; the gradient from y alone, so that x need not be kept.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/axis_rows.h"
#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

AxisRows along_axis(const Attributes& attributes, const Shape& shape, std::string_view name) {
  const int64_t axis = attributes.integer("axis"), rank = static_cast<int64_t>(shape.size());
  if (axis < 0 || axis >= rank) {
    throw Error(ErrorCode::invalid_input, fmt::format("axis is {}, but '{}' is {}; its dimensions are 0 to {}", axis,
                                                      name, to_string(shape), rank - 1));
  }
  return axis_rows(shape, static_cast<size_t>(axis));
}

bool is_log(const Attributes& attributes) { return attributes.integer("log", 0) != 0; }

void run_softmax(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const AxisRows rows = along_axis(op.attributes, in[0].shape, "x");
  for (int64_t r = 0; r < rows.rows(); ++r) {
    const auto at = [&](int64_t i) { return rows.first(r) + i * rows.inner; };
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t i = 0; i < rows.length; ++i) top = std::max(top, load(in[0], at(i)));
    for (int64_t i = 0; i < rows.length; ++i) sum += std::exp(load(in[0], at(i)) - top);
    for (int64_t i = 0; i < rows.length; ++i) {
      const double log = load(in[0], at(i)) - top - std::log(sum);
      store(out[0], at(i), is_log(op.attributes) ? log : std::exp(log));
    }
  }
}

// dx = y * (dy - sum of y * dy), or dy - exp(y) * sum of dy.
void run_softmax_backward(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const AxisRows rows = along_axis(op.attributes, in[0].shape, "y");
  const bool log = is_log(op.attributes);
  for (int64_t r = 0; r < rows.rows(); ++r) {
    const auto at = [&](int64_t i) { return rows.first(r) + i * rows.inner; };
    double sum = 0;
    for (int64_t i = 0; i < rows.length; ++i) sum += load(in[1], at(i)) * (log ? 1 : load(in[0], at(i)));
    for (int64_t i = 0; i < rows.length; ++i) {
      const double y = load(in[0], at(i)), dy = load(in[1], at(i));
      store(out[0], at(i), log ? dy - std::exp(y) * sum : y * (dy - sum));
    }
  }
}

}  // namespace

std::vector<OpType> softmax_ops() {
  OpType forward{
      .name = "SoftmaxForward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            along_axis(attributes, in[0]->shape, in[0]->name);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            if (!wanted[0] || !dy[0].valid()) return std::vector<TensorId>{TensorId{}};
            const Op op = graph.op(id);
            return std::vector<TensorId>{graph.output(
                add_backward(graph, "SoftmaxBackward", id, "backward", {op.outputs[0], dy[0]}, op.attributes))};
          },
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0}};
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 20); },
      .reference = run_softmax,
  };
  OpType backward{
      .name = "SoftmaxBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_same_shape(*in[0], *in[1]);
            expect_same_dtype(*in[0], *in[1]);
            along_axis(attributes, in[0]->shape, in[0]->name);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 1}, {0, 0}};
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 5); },
      .reference = run_softmax_backward,
  };
  return of_kind(LayerKind::activation, {std::move(forward), std::move(backward)});
}

}  // namespace plimsoll
