// Fully connected layer: y[N,K] = x[N,C] * transpose(w[K,C]) + b[K], with a fused ReLU.
#include <fmt/format.h>

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

// c[i][j] = b[j] + sum over l of a[i * a_row + l * a_step] * w[j * w_row + l * w_step], summed in double.
template <class T>
struct Strided {
  const T* data;
  int64_t row, step;
};
template <class T>
void multiply(int64_t rows, int64_t columns, int64_t length, Strided<T> a, Strided<T> w, const T* b, bool relu, T* c) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      double sum = b ? static_cast<double>(b[j]) : 0.0;
      const T *p = a.data + i * a.row, *q = w.data + j * w.row;
      for (int64_t l = 0; l < length; ++l) sum += static_cast<double>(p[l * a.step]) * q[l * w.step];
      c[i * columns + j] = static_cast<T>(relu && !(sum > 0) ? 0 : sum);
    }
  }
}

OpType forward_op() {
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
              multiply<T>(n, k, c, {elements<T>(in[0]), c, 1}, {elements<T>(in[1]), c, 1}, b, has_relu(op.attributes),
                          elements<T>(out[0]));
            });
          },
  };
}

OpType backward_data_op() {
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
              multiply<T>(n, c, k, {elements<T>(in[0]), k, 1}, {elements<T>(in[1]), 1, c}, nullptr, false,
                          elements<T>(out[0]));
            });
          },
  };
}

OpType backward_weights_op() {
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
              multiply<T>(k, c, n, {elements<T>(in[1]), 1, k}, {elements<T>(in[0]), 1, c}, nullptr, false,
                          elements<T>(out[0]));
            });
            if (out.size() > 1) sum_channels(in[1], out[1]);
          },
  };
}

}  // namespace

std::vector<OpType> fully_connected_ops() { return {forward_op(), backward_data_op(), backward_weights_op()}; }

}  // namespace plimsoll
