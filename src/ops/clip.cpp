// Clipping of gradients by the norm of all of them together, as PyTorch's clip_grad_norm_:
//
//   gradient ──> GradientNorm ──> norm ─┐
//   ...                                 ├──> ClipScale ──> scale = min(1, max_norm / (total + 1e-6)), total
//   gradient ──> GradientNorm ──> norm ─┘
//   gradient, scale ──> ScaleGradient ──> what the update reads, in the gradient's bytes
//
// Of gradients that are summed over several batches (accumulate.cpp), with the attribute "scaled": the last input of
// ClipScale is the scale of the sums, and what comes out is by what the update multiplies them. Where it is below 0
// there is no update yet: it stays, and the norm is 0.
//
// A norm does not depend on how the gradient is cut into pieces (Shard, graph.h): where it is, sums of squares of blocks of
// kShardUnit elements are gathered, and added in their order.
//
//   piece ──> SquareSums ──> AllGather ──> NormOfSums ──> norm
#include <fmt/format.h>

#include <cmath>

#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

void expect_scalar_like(const Tensor& tensor, DType dtype) {
  if (tensor.shape.empty() && tensor.dtype == dtype) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {} of {}; a scalar of {} is expected", tensor.name, to_string(tensor.shape),
                          to_string(tensor.dtype), to_string(dtype)));
}

OpType gradient_norm() {
  return {
      .name = "GradientNorm",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            return std::vector<TensorSpec>{{{}, in[0]->dtype, Role::gradient}};
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work =
          [](const Graph& graph, const Op& op) {
            return Work{2 * static_cast<double>(element_count(graph.tensor(op.inputs[0]).shape)),
                        static_cast<double>(bytes_of(graph, op.inputs).count)};
          },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            double sum = 0;
            for_each_element(in[0], [&](int64_t i) { sum += load(in[0], i) * load(in[0], i); });
            store(out[0], 0, std::sqrt(sum));
          },
  };
}

OpType square_sums() {
  return {
      .name = "SquareSums",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            const Shape& shape = in[0]->shape;
            if (shape.size() != 1 || shape[0] % kShardUnit != 0) {
              throw Error(ErrorCode::invalid_input, fmt::format("'{}' is {}, not one or more blocks of {} elements",
                                                                in[0]->name, to_string(shape), kShardUnit));
            }
            return std::vector<TensorSpec>{{{shape[0] / kShardUnit}, DType::f64, Role::gradient}};
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work =
          [](const Graph& graph, const Op& op) {
            return Work{2 * static_cast<double>(element_count(graph.tensor(op.inputs[0]).shape)),
                        static_cast<double>(bytes_of(graph, op.inputs).count)};
          },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            for_each_element(out[0], [&](int64_t block) {
              double sum = 0;
              for (int64_t i = block * kShardUnit; i < (block + 1) * kShardUnit; ++i)
                sum += load(in[0], i) * load(in[0], i);
              store(out[0], block, sum);
            });
          },
  };
}

OpType norm_of_sums() {
  return {
      .name = "NormOfSums",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            if (in[0]->dtype != DType::f64)
              throw Error(ErrorCode::invalid_input,
                          fmt::format("'{}' is {}; sums of squares are f64", in[0]->name, to_string(in[0]->dtype)));
            return std::vector<TensorSpec>{{{}, DType::f32, Role::gradient}};
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 1); },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            double sum = 0;
            for_each_element(in[0], [&](int64_t i) { sum += load(in[0], i); });
            store(out[0], 0, std::sqrt(sum));
          },
  };
}

OpType clip_scale() {
  return {
      .name = "ClipScale",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            if (in.empty()) throw Error(ErrorCode::invalid_input, "there is no norm to clip by");
            if (!(attributes.real("max_norm") > 0))
              throw Error(ErrorCode::invalid_input,
                          fmt::format("max_norm is {}; it is above 0", attributes.real("max_norm")));
            for (const Tensor* norm : in) expect_scalar_like(*norm, in[0]->dtype);
            if (attributes.integer("scaled", 0) != 0 && in.size() < 2)
              throw Error(ErrorCode::invalid_input, "there is a scale, but no norm to clip by");
            return std::vector<TensorSpec>{{{}, in[0]->dtype, Role::gradient}, {{}, in[0]->dtype, Role::output}};
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 4); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const bool scaled = op.attributes.integer("scaled", 0) != 0;
            const double scale = scaled ? load(in.back(), 0) : 1;
            if (scale < 0) {
              store(out[0], 0, scale);
              store(out[1], 0, 0);
              return;
            }
            double sum = 0;
            for (const TensorView& norm : in.first(in.size() - (scaled ? 1 : 0))) sum += load(norm, 0) * load(norm, 0);
            const double total = scale * std::sqrt(sum), factor = op.attributes.real("max_norm") / (total + 1e-6);
            store(out[0], 0, scale * (factor >= 1 ? 1 : factor));  // what is no number stays none
            store(out[1], 0, total);
          },
  };
}

OpType scale_gradient() {
  return {
      .name = "ScaleGradient",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_scalar_like(*in[1], in[0]->dtype);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype, Role::gradient}};
          },
      .gradient = {},
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0}};
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 1); },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            const double scale = load(in[1], 0);
            for_each_element(out[0], [&](int64_t i) { store(out[0], i, scale * load(in[0], i)); });
          },
  };
}

}  // namespace

std::vector<OpType> clip_ops() {
  return of_kind(LayerKind::other, {gradient_norm(), square_sums(), norm_of_sums(), clip_scale(), scale_gradient()});
}

}  // namespace plimsoll
