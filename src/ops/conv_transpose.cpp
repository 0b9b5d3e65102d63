// Transposed convolution: y[N,K,OH,OW] from x[N,C,H,W] with w[C,K,R,S] (grouped: w[g,C/g,K/g,R,S]) and an optional
// bias. It is the data gradient of the convolution that goes from y's side to x's with the same weights:
//
// (with depth likewise)
//
//     OH = (H - 1) * stride - padding + dilation * (R - 1) + 1 + output_padding
#include <fmt/format.h>

#include "ops/conv_weights.h"
#include "ops/families.h"
#include "ops/layer_inputs.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

// The window as it slides over y, with x's size as its number of places.
Window window_from_x(const Attributes& attributes, const Shape& kernel, const Shape& x) {
  Window window = read_window(attributes, kernel, x);  // checks x; `in` is set below
  const Shape extra = read_sizes(attributes, "output_padding", x.size(), 0, 0);
  const std::vector<WindowAxis*> axes = window.axes();
  for (size_t i = 0; i < x.size(); ++i) {
    WindowAxis& axis = *axes[i];
    axis.out = x[i];
    axis.in = (x[i] - 1) * axis.stride - axis.before - axis.after + axis.extent() + extra[i];
    if (extra[i] >= std::max(axis.stride, axis.dilation)) {
      throw Error(ErrorCode::invalid_input, fmt::format("output_padding {} is not less than stride {} or dilation {}",
                                                        extra[i], axis.stride, axis.dilation));
    }
  }
  for (const WindowAxis* axis : axes) {
    if (axis->in >= 1) continue;
    throw Error(ErrorCode::invalid_input,
                fmt::format("the padding leaves nothing of the output: {}", to_string(window.in())));
  }
  return window;
}

// The same from y's size. Throws where no x gives such a y.
Window window_from_y(const Attributes& attributes, const Shape& kernel, const Shape& y) {
  Window window = read_window(attributes, kernel, y);
  const Shape extra = read_sizes(attributes, "output_padding", y.size(), 0, 0);
  const std::vector<WindowAxis*> axes = window.axes();
  for (size_t i = 0; i < y.size(); ++i) {
    WindowAxis& axis = *axes[i];
    const int64_t room = y[i] - extra[i] + axis.before + axis.after - axis.extent();
    if (room < 0 || room % axis.stride != 0) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("no transposed convolution with kernel {} and this stride and padding gives a {} image",
                              to_string(kernel), to_string(y)));
    }
    axis.out = room / axis.stride + 1;
  }
  return window;
}

ConvShape shape_of(const Attributes& attributes, int64_t n, const ConvWeights& weights, const Window& window) {
  return {.n = n, .c = weights.inner, .k = weights.outer, .groups = read_groups(attributes), .window = window};
}

// In the kernels, where everything has been checked: from the shapes of x and w.
ConvShape shape_of(const Attributes& attributes, const Shape& x, const Shape& w) {
  Tensor tensor;
  tensor.shape = w;
  const ConvWeights weights = read_weights(tensor, read_groups(attributes), x.size() - 2);
  return shape_of(attributes, x[0], weights, window_from_x(attributes, weights.kernel, image_size(x)));
}

OpType conv_transpose_forward_op() {
  return {
      .name = "ConvTransposeForward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2, 3);
            expect_image_rank(*in[0]);
            const ConvWeights weights = read_weights(*in[1], read_groups(attributes), in[0]->shape.size() - 2);
            expect_channels(*in[0], weights.outer);
            expect_same_dtype(*in[0], *in[1]);
            if (in.size() > 2) expect_bias(*in[2], *in[0], weights.inner);
            const Shape& x = in[0]->shape;
            const Window window = window_from_x(attributes, weights.kernel, image_size(x));
            return std::vector<TensorSpec>{{image_shape(x[0], weights.inner, window.in()), in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            const Op& op = graph.op(id);
            const Shape &x = graph.tensor(op.inputs[0]).shape, &w = graph.tensor(op.inputs[1]).shape;
            WeightedLayer layer{.backward_data = "ConvTransposeBackwardData",
                                .backward_weights = "ConvTransposeBackwardWeights",
                                .data_attributes = window_attributes(op.attributes),
                                .weights_attributes = window_attributes(op.attributes)};
            layer.weights_attributes.set("kernel", Shape(w.end() - std::ssize(x) + 2, w.end()));
            return weighted_layer_gradient(graph, id, dy[0], wanted, layer);
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return conv_work(graph, op, op.inputs[1], op.inputs[0]); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const ConvShape shape = shape_of(op.attributes, in[0].shape, in[1].shape);
            conv_backward_data(shape, in[0], in[1], in.size() > 2 ? &in[2] : nullptr, out[0]);
          },
  };
}

OpType conv_transpose_backward_data_op() {
  return {
      .name = "ConvTransposeBackwardData",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_image_rank(*in[0]);
            const ConvWeights weights = read_weights(*in[1], read_groups(attributes), in[0]->shape.size() - 2);
            expect_channels(*in[0], weights.inner);
            expect_same_dtype(*in[0], *in[1]);
            const Shape& dy = in[0]->shape;
            const Window window = window_from_y(attributes, weights.kernel, image_size(dy));
            return std::vector<TensorSpec>{{image_shape(dy[0], weights.outer, window.out()), in[0]->dtype}};
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return conv_work(graph, op, op.inputs[1], op.outputs[0]); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            conv_forward(shape_of(op.attributes, out[0].shape, in[1].shape), in[0], in[1], nullptr, false, out[0]);
          },
  };
}

OpType conv_transpose_backward_weights_op() {
  return {
      .name = "ConvTransposeBackwardWeights",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_image_rank(*in[0]);
            expect_rank(*in[1], in[0]->shape.size());
            expect_same_dtype(*in[0], *in[1]);
            expect_same_batch(*in[0], *in[1]);
            const Shape &x = in[0]->shape, &dy = in[1]->shape;
            const ConvWeights weights{x[1], dy[1], read_sizes(attributes, "kernel", x.size() - 2, 1)};
            const Window window = window_from_x(attributes, weights.kernel, image_size(x));
            expect_image(*in[1], window.in());
            std::vector<TensorSpec> gradients = {{weights_shape(weights, read_groups(attributes)), in[0]->dtype}};
            if (attributes.integer("bias", 0) != 0) gradients.push_back({{dy[1]}, in[0]->dtype});
            return gradients;
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return conv_work(graph, op, op.outputs[0], op.inputs[0]); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            conv_backward_weights(shape_of(op.attributes, in[0].shape, out[0].shape), in[1], in[0], out[0]);
            if (out.size() > 1) sum_channels(in[1], out[1]);
          },
  };
}

}  // namespace

std::vector<OpType> conv_transpose_ops() {
  return of_kind(LayerKind::convolution, {in_parts(conv_transpose_forward_op(), {{0}, {0}}),
                                          in_parts(conv_transpose_backward_data_op(), {{0}, {0}}),
                                          in_parts(conv_transpose_backward_weights_op(), {{0, 1}, {}})});
}

}  // namespace plimsoll
