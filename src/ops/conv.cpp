// Convolution of images: x[N,C,H,W] with w[K,C,R,S] (grouped: w[g,K/g,C/g,R,S]), an optional bias and a fused ReLU. Images
// may have a depth: x[N,C,D,H,W] with w[K,C,Q,R,S].
#include <fmt/format.h>

#include "ops/conv_weights.h"
#include "ops/families.h"
#include "ops/layer_inputs.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

// From the shapes of the image side and of the weights; `out` is fitted.
ConvShape conv_shape(const Attributes& attributes, int64_t n, const Shape& image, const ConvWeights& weights) {
  ConvShape shape{.n = n,
                  .c = weights.inner,
                  .k = weights.outer,
                  .groups = read_groups(attributes),
                  .window = read_window(attributes, weights.kernel, image)};
  fit(shape.window);
  return shape;
}

// Shapes in the kernels, where everything has been checked.
ConvShape conv_shape(const Attributes& attributes, const Shape& x, const Shape& w) {
  Tensor weights;
  weights.shape = w;
  return conv_shape(attributes, x[0], image_size(x), read_weights(weights, read_groups(attributes), x.size() - 2));
}

OpType conv_forward_op() {
  return {
      .name = "ConvForward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2, 3);
            has_relu(attributes);
            expect_image_rank(*in[0]);
            const ConvWeights weights = read_weights(*in[1], read_groups(attributes), in[0]->shape.size() - 2);
            expect_channels(*in[0], weights.inner);
            expect_same_dtype(*in[0], *in[1]);
            if (in.size() > 2) expect_bias(*in[2], *in[0], weights.outer);
            const Shape& x = in[0]->shape;
            const ConvShape shape = conv_shape(attributes, x[0], image_size(x), weights);
            return std::vector<TensorSpec>{{image_shape(x[0], shape.k, shape.window.out()), in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            const Op& op = graph.op(id);
            const Shape &x = graph.tensor(op.inputs[0]).shape, &w = graph.tensor(op.inputs[1]).shape;
            WeightedLayer layer{.backward_data = "ConvBackwardData",
                                .backward_weights = "ConvBackwardWeights",
                                .data_attributes = window_attributes(op.attributes),
                                .weights_attributes = window_attributes(op.attributes)};
            layer.data_attributes.set("input_size", image_size(x));
            layer.weights_attributes.set("kernel", Shape(w.end() - std::ssize(x) + 2, w.end()));
            return weighted_layer_gradient(graph, id, dy[0], wanted, layer);
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return conv_work(graph, op, op.inputs[1], op.outputs[0]); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const ConvShape shape = conv_shape(op.attributes, in[0].shape, in[1].shape);
            conv_forward(shape, in[0], in[1], in.size() > 2 ? &in[2] : nullptr, has_relu(op.attributes), out[0]);
          },
  };
}

OpType conv_backward_data_op() {
  return {
      .name = "ConvBackwardData",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_image_rank(*in[0]);
            const ConvWeights weights = read_weights(*in[1], read_groups(attributes), in[0]->shape.size() - 2);
            expect_channels(*in[0], weights.outer);
            expect_same_dtype(*in[0], *in[1]);
            const Shape image = read_sizes(attributes, "input_size", in[0]->shape.size() - 2, 1);
            const ConvShape shape = conv_shape(attributes, in[0]->shape[0], image, weights);
            expect_image(*in[0], shape.window.out());
            return std::vector<TensorSpec>{{image_shape(shape.n, shape.c, image), in[0]->dtype}};
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return conv_work(graph, op, op.inputs[1], op.inputs[0]); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const ConvShape shape = conv_shape(op.attributes, out[0].shape, in[1].shape);
            conv_backward_data(shape, in[0], in[1], nullptr, out[0]);
          },
  };
}

OpType conv_backward_weights_op() {
  return {
      .name = "ConvBackwardWeights",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_image_rank(*in[0]);
            expect_rank(*in[1], in[0]->shape.size());
            expect_same_dtype(*in[0], *in[1]);
            const Shape &x = in[0]->shape, &dy = in[1]->shape;
            const int64_t groups = read_groups(attributes);
            const ConvWeights weights{dy[1], x[1], read_sizes(attributes, "kernel", x.size() - 2, 1)};
            const ConvShape shape = conv_shape(attributes, x[0], image_size(x), weights);
            expect_image(*in[1], shape.window.out());
            expect_same_batch(*in[0], *in[1]);
            std::vector<TensorSpec> gradients = {{weights_shape(weights, groups), in[0]->dtype}};
            if (attributes.integer("bias", 0) != 0) gradients.push_back({{dy[1]}, in[0]->dtype});
            return gradients;
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return conv_work(graph, op, op.outputs[0], op.inputs[1]); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            conv_backward_weights(conv_shape(op.attributes, in[0].shape, out[0].shape), in[0], in[1], out[0]);
            if (out.size() > 1) sum_channels(in[1], out[1]);
          },
  };
}

}  // namespace

std::vector<OpType> conv_ops() {
  return of_kind(LayerKind::convolution,
                 {in_parts(conv_forward_op(), {{0}, {0}}), in_parts(conv_backward_data_op(), {{0}, {0}}),
                  in_parts(conv_backward_weights_op(), {{0, 1}, {}})});
}

}  // namespace plimsoll
