// Fully connected layer: y[N,K] = x[N,C] * transpose(w[K,C]) + b[K], with a fused ReLU.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "ops/conv_loops.h"
#include "ops/families.h"
#include "ops/layer_inputs.h"
#include "ops/reference.h"
#include "ops/typed.h"

namespace plimsoll {
namespace {

// `tensor` is [N, features].
void expect_features(const Tensor& tensor, int64_t features) {
  expect_rank(tensor, 2);
  if (tensor.shape[1] == features) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' has {} features; the weights take {}", tensor.name, tensor.shape[1], features));
}

// 2 * multiply-adds: every weight meets every row of the batch.
Work matrix_work(const Graph& graph, const Op& op, TensorId weights, TensorId rows) {
  const Bytes bytes = bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs);
  return {2.0 * static_cast<double>(element_count(graph.tensor(weights).shape)) *
              static_cast<double>(graph.tensor(rows).shape[0]),
          static_cast<double>(bytes.count)};
}

// y[i][j] = b[j] + the dot product of row i of x and row j of w, summed in double.
template <class T>
void multiply_rows(int64_t n, int64_t c, int64_t k, const T* x, const T* w, const T* b, bool relu, T* y) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      double sum = b ? static_cast<double>(b[j]) : 0.0;
      for (int64_t l = 0; l < c; ++l) sum += static_cast<double>(x[i * c + l]) * w[j * c + l];
      y[i * k + j] = static_cast<T>(relu && !(sum > 0) ? 0 : sum);
    }
  }
}

// Row i of the result is the sum over l of factor(i, l) times row l of `rows`, summed in double.
template <class T, class Factor>
void combine_rows(int64_t count, int64_t length, int64_t columns, Factor factor, const T* rows, T* result) {
  std::vector<double> sum(columns);
  for (int64_t i = 0; i < count; ++i) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int64_t l = 0; l < length; ++l) {
      const double f = factor(i, l);
      for (int64_t j = 0; j < columns; ++j) sum[j] += f * rows[l * columns + j];
    }
    for (int64_t j = 0; j < columns; ++j) result[i * columns + j] = static_cast<T>(sum[j]);
  }
}

OpType fully_connected_forward_op() {
  return {
      .name = "FullyConnectedForward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2, 3);
            has_relu(attributes);
            expect_rank(*in[1], 2);
            expect_features(*in[0], in[1]->shape[1]);
            expect_same_dtype(*in[0], *in[1]);
            if (in.size() > 2) expect_bias(*in[2], *in[0], in[1]->shape[0]);
            return std::vector<TensorSpec>{{{in[0]->shape[0], in[1]->shape[0]}, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            const WeightedLayer layer{.backward_data = "FullyConnectedBackwardData",
                                      .backward_weights = "FullyConnectedBackwardWeights"};
            return weighted_layer_gradient(graph, id, dy[0], wanted, layer);
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return matrix_work(graph, op, op.inputs[1], op.inputs[0]); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            with_floating_type(in[0], [&](auto zero) {
              using T = decltype(zero);
              const int64_t n = in[0].shape[0], c = in[0].shape[1], k = in[1].shape[0];
              const T* b = in.size() > 2 ? elements<T>(in[2]) : nullptr;
              multiply_rows<T>(n, c, k, elements<T>(in[0]), elements<T>(in[1]), b, has_relu(op.attributes),
                               elements<T>(out[0]));
            });
          },
  };
}

OpType fully_connected_backward_data_op() {
  return {
      .name = "FullyConnectedBackwardData",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_rank(*in[1], 2);
            expect_features(*in[0], in[1]->shape[0]);
            expect_same_dtype(*in[0], *in[1]);
            return std::vector<TensorSpec>{{{in[0]->shape[0], in[1]->shape[1]}, in[0]->dtype}};
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return matrix_work(graph, op, op.inputs[1], op.inputs[0]); },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            with_floating_type(in[0], [&](auto zero) {
              using T = decltype(zero);
              const int64_t n = in[0].shape[0], c = in[1].shape[1], k = in[1].shape[0];
              const T* dy = elements<T>(in[0]);
              combine_rows(
                  n, k, c, [&](int64_t i, int64_t l) { return dy[i * k + l]; }, elements<T>(in[1]),
                  elements<T>(out[0]));
            });
          },
  };
}

OpType fully_connected_backward_weights_op() {
  return {
      .name = "FullyConnectedBackwardWeights",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_rank(*in[0], 2);
            expect_rank(*in[1], 2);
            expect_same_batch(*in[0], *in[1]);
            expect_same_dtype(*in[0], *in[1]);
            std::vector<TensorSpec> gradients = {{{in[1]->shape[1], in[0]->shape[1]}, in[0]->dtype}};
            if (attributes.integer("bias", 0) != 0) gradients.push_back({{in[1]->shape[1]}, in[0]->dtype});
            return gradients;
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return matrix_work(graph, op, op.outputs[0], op.inputs[0]); },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            with_floating_type(in[0], [&](auto zero) {
              using T = decltype(zero);
              const int64_t n = in[0].shape[0], c = in[0].shape[1], k = in[1].shape[1];
              const T* dy = elements<T>(in[1]);
              combine_rows(
                  k, n, c, [&](int64_t i, int64_t l) { return dy[l * k + i]; }, elements<T>(in[0]),
                  elements<T>(out[0]));
            });
            if (out.size() > 1) sum_channels(in[1], out[1]);
          },
  };
}

}  // namespace

std::vector<OpType> fully_connected_ops() {
  return of_kind(LayerKind::fully_connected, {in_parts(fully_connected_forward_op(), {{0}, {0}}),
                                              in_parts(fully_connected_backward_data_op(), {{0}, {0}}),
                                              in_parts(fully_connected_backward_weights_op(), {{0, 1}, {}})});
}

}  // namespace plimsoll
