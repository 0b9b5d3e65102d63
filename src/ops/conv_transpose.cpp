// Transposed convolution: y[N,K,OH,OW] from x[N,C,H,W] with w[C,K,R,S] (grouped: w[g,C/g,K/g,R,S]) and an optional
// bias. It is the data gradient of the convolution that goes from y's side to x's with the same weights:
//
//     OH = (H - 1) * stride - padding + dilation * (R - 1) + 1 + output_padding
#include <fmt/format.h>

#include "ops/conv_weights.h"
#include "ops/families.h"
#include "ops/layer_inputs.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

std::array<int64_t, 2> output_padding(const Attributes& attributes) {
  return read_pair(attributes, "output_padding", 0, 0);
}

// The window as it slides over y, with x's size as its number of places.
Window window_from_x(const Attributes& attributes, std::array<int64_t, 2> kernel, std::array<int64_t, 2> x) {
  Window window = read_window(attributes, kernel, x);  // checks x; `in` is set below
  const auto extra = output_padding(attributes);
  for (size_t i = 0; i < 2; ++i) {
    WindowAxis& axis = i == 0 ? window.h : window.w;
    axis.out = x[i];
    axis.in = (x[i] - 1) * axis.stride - axis.before - axis.after + axis.extent() + extra[i];
    if (extra[i] >= std::max(axis.stride, axis.dilation)) {
      throw Error(ErrorCode::invalid_input, fmt::format("output_padding {} is not less than stride {} or dilation {}",
                                                        extra[i], axis.stride, axis.dilation));
    }
  }
  if (window.h.in < 1 || window.w.in < 1) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("the padding leaves nothing of the output: {}x{}", window.h.in, window.w.in));
  }
  return window;
}

// The same from y's size. Throws where no x gives such a y.
Window window_from_y(const Attributes& attributes, std::array<int64_t, 2> kernel, std::array<int64_t, 2> y) {
  Window window = read_window(attributes, kernel, y);
  const auto extra = output_padding(attributes);
  for (size_t i = 0; i < 2; ++i) {
    WindowAxis& axis = i == 0 ? window.h : window.w;
    const int64_t room = y[i] - extra[i] + axis.before + axis.after - axis.extent();
    if (room < 0 || room % axis.stride != 0) {
      throw Error(
          ErrorCode::invalid_input,
          fmt::format("no transposed convolution with kernel {}x{} and this stride and padding gives a {}x{} image",
                      kernel[0], kernel[1], y[0], y[1]));
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
  const ConvWeights weights = read_weights(tensor, read_groups(attributes));
  return shape_of(attributes, x[0], weights, window_from_x(attributes, weights.kernel, {x[2], x[3]}));
}

OpType conv_transpose_forward_op() {
  return {
      .name = "ConvTransposeForward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2, 3);
            const ConvWeights weights = read_weights(*in[1], read_groups(attributes));
            expect_channels(*in[0], weights.outer);
            expect_same_dtype(*in[0], *in[1]);
            if (in.size() > 2) expect_bias(*in[2], *in[0], weights.inner);
            const Shape& x = in[0]->shape;
            const Window window = window_from_x(attributes, weights.kernel, {x[2], x[3]});
            return std::vector<TensorSpec>{{{x[0], weights.inner, window.h.in, window.w.in}, in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            const Op& op = graph.op(id);
            const Shape& w = graph.tensor(op.inputs[1]).shape;
            WeightedLayer layer{.backward_data = "ConvTransposeBackwardData",
                                .backward_weights = "ConvTransposeBackwardWeights",
                                .data_attributes = window_attributes(op.attributes),
                                .weights_attributes = window_attributes(op.attributes)};
            layer.weights_attributes.set("kernel", std::vector<int64_t>(w.end() - 2, w.end()));
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
            const ConvWeights weights = read_weights(*in[1], read_groups(attributes));
            expect_channels(*in[0], weights.inner);
            expect_same_dtype(*in[0], *in[1]);
            const Shape& dy = in[0]->shape;
            const Window window = window_from_y(attributes, weights.kernel, {dy[2], dy[3]});
            return std::vector<TensorSpec>{{{dy[0], weights.outer, window.h.out, window.w.out}, in[0]->dtype}};
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
            expect_rank(*in[0], 4);
            expect_rank(*in[1], 4);
            expect_same_dtype(*in[0], *in[1]);
            expect_same_batch(*in[0], *in[1]);
            const Shape &x = in[0]->shape, &dy = in[1]->shape;
            const ConvWeights weights{x[1], dy[1], read_pair(attributes, "kernel", 1)};
            const Window window = window_from_x(attributes, weights.kernel, {x[2], x[3]});
            expect_image(*in[1], window.h.in, window.w.in);
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
