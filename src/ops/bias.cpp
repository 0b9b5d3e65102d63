// Bias: a number per channel (dimension 1) on top of x. Its own gradient is dy summed over everything else; that of x
// is dy.
#include <fmt/format.h>

#include "ops/conv_loops.h"
#include "ops/families.h"
#include "ops/layer_inputs.h"
#include "ops/reference.h"
#include "ops/typed.h"

namespace plimsoll {
namespace {

void expect_channels(const Tensor& tensor) {
  if (tensor.shape.size() >= 2) return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("'{}' is {}; a batch with channels is expected", tensor.name, to_string(tensor.shape)));
}

OpType bias_forward() {
  return {
      .name = "BiasForward",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_channels(*in[0]);
            expect_bias(*in[1], *in[0], in[0]->shape[1]);
            return std::vector<TensorSpec>{{in[0]->shape, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            std::vector<TensorId> gradients(2);
            if (!dy[0].valid()) return gradients;
            if (wanted[0]) gradients[0] = dy[0];
            if (wanted[1])
              gradients[1] = graph.output(add_backward(graph, "BiasBackward", id, "backward_bias", {dy[0]}));
            return gradients;
          },
      .in_place =
          [](const Graph&, const Op&) {
            return std::vector<InPlace>{{0, 0}};
          },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 1); },
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            with_floating_type(in[0], [&](auto zero) {
              using T = decltype(zero);
              const int64_t channels = in[0].shape[1];
              const int64_t images = in[0].shape[0] * channels, image = element_count(in[0].shape) / images;
              for (int64_t i = 0; i < images; ++i) {
                const T *x = elements<T>(in[0]) + i * image, b = elements<T>(in[1])[i % channels];
                T* y = elements<T>(out[0]) + i * image;
                for (int64_t j = 0; j < image; ++j) y[j] = x[j] + b;
              }
            });
          },
  };
}

OpType bias_backward() {
  return {
      .name = "BiasBackward",
      .infer =
          [](const Attributes&, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            expect_channels(*in[0]);
            return std::vector<TensorSpec>{{{in[0]->shape[1]}, in[0]->dtype}};
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work =
          [](const Graph& graph, const Op& op) {
            Work work = elementwise_work(graph, op, 0);
            work.flops = static_cast<double>(element_count(graph.tensor(op.inputs[0]).shape));
            return work;
          },
      .reference = [](const Op&, std::span<const TensorView> in,
                      std::span<const TensorView> out) { sum_channels(in[0], out[0]); },
  };
}

}  // namespace

std::vector<OpType> bias_ops() { return of_kind(LayerKind::other, {bias_forward(), bias_backward()}); }

}  // namespace plimsoll
