// CumulativeSum: each element plus those before it along an axis, or plus those behind it. Each is the gradient of the
// other.
#include "ops/axis_rows.h"
#include "ops/families.h"
#include "ops/move.h"
#include "ops/reference.h"
#include "ops/typed.h"

namespace plimsoll {
namespace {

bool is_fraction(DType dtype) { return dtype == DType::f32 || dtype == DType::f64; }

template <class Sum, class Load, class Store>
void add_up_rows(const AxisRows& rows, bool reverse, const Load& load_at, const Store& store_at) {
  for (int64_t row = 0; row < rows.rows(); ++row) {
    Sum sum = 0;
    for (int64_t i = 0; i < rows.length; ++i) {
      const int64_t at = rows.first(row) + (reverse ? rows.length - 1 - i : i) * rows.inner;
      sum += load_at(at);
      store_at(at, sum);
    }
  }
}

// Whole numbers have more digits than a double, and wrap around.
uint64_t whole_number_at(const TensorView& view, int64_t i) {
  if (view.dtype == DType::i64) return static_cast<uint64_t>(static_cast<const int64_t*>(view.data)[i]);
  return static_cast<uint64_t>(static_cast<int64_t>(load(view, i)));
}

OpType cumulative_sum() {
  return {
      .name = "CumulativeSum",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            axis_of(attributes, *in[0]);
            element_width(*in[0]);
            attributes.integer("reverse", 0);
            return std::vector<TensorSpec>{{in[0]->shape, is_fraction(in[0]->dtype) ? in[0]->dtype : DType::i64}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            if (!wanted[0] || !dy[0].valid()) return std::vector<TensorId>{TensorId{}};
            const Attributes& forward = graph.op(id).attributes;
            const int64_t reverse = forward.integer("reverse", 0) == 0;
            return std::vector<TensorId>{
                graph.output(add_backward(graph, "CumulativeSum", id, "backward", {dy[0]},
                                          {{"axis", forward.integer("axis")}, {"reverse", reverse}}))};
          },
      .in_place =
          [](const Graph& graph, const Op& op) {
            std::vector<InPlace> pairs;
            if (graph.tensor(op.inputs[0]).dtype == graph.tensor(op.outputs[0]).dtype) pairs.push_back({0, 0});
            return pairs;
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 1); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const AxisRows rows = axis_rows(in[0].shape, static_cast<size_t>(op.attributes.integer("axis")));
            const bool reverse = op.attributes.integer("reverse", 0) != 0;
            if (is_fraction(in[0].dtype)) {
              add_up_rows<double>(
                  rows, reverse, [&](int64_t i) { return load(in[0], i); },
                  [&](int64_t i, double sum) { store(out[0], i, sum); });
            } else {
              add_up_rows<uint64_t>(
                  rows, reverse, [&](int64_t i) { return whole_number_at(in[0], i); },
                  [&](int64_t i, uint64_t sum) { elements<int64_t>(out[0])[i] = static_cast<int64_t>(sum); });
            }
          },
  };
}

}  // namespace

std::vector<OpType> cumulative_sum_ops() { return of_kind(LayerKind::activation, {cumulative_sum()}); }

}  // namespace plimsoll
