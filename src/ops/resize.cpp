// Images of another size: by interpolation, with the coordinates of PyTorch (resize.h), or by pooling over windows that
// adapt to the size wanted. Adaptive max pooling keeps where in its image each element was found.
#include "ops/resize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/families.h"
#include "ops/reference.h"
#include "ops/typed.h"
#include "ops/window.h"

namespace plimsoll {
namespace {

// The convolution kernels of bicubic interpolation, within one element of the tap and within two.
template <class T>
T cubic_near(T x) {
  constexpr T a = T(-0.75);
  return ((a + 2) * x - (a + 3)) * x * x + 1;
}
template <class T>
T cubic_far(T x) {
  constexpr T a = T(-0.75);
  return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}

ResizeMode resize_mode(const Attributes& attributes) {
  const std::string mode = attributes.text("mode");
  if (mode == "nearest") return ResizeMode::nearest;
  if (mode == "bilinear") return ResizeMode::bilinear;
  if (mode == "bicubic") return ResizeMode::bicubic;
  throw Error(ErrorCode::invalid_input,
              fmt::format("mode is '{}'; 'nearest', 'bilinear' or 'bicubic' is expected", mode));
}

std::array<int64_t, 2> image_of(const Shape& shape) { return {shape[2], shape[3]}; }

Shape sized(const Tensor& tensor, std::array<int64_t, 2> size) {
  return {tensor.shape[0], tensor.shape[1], size[0], size[1]};
}

// Of a backward op: dy has the size wanted, dx the one that x had.
std::vector<TensorSpec> backward_specs(const Attributes& attributes, const Tensor& dy) {
  expect_rank(dy, 4);
  const auto size = read_pair(attributes, "size", 1), input = read_pair(attributes, "input_size", 1);
  expect_image(dy, {size[0], size[1]});
  return {{sized(dy, input), dy.dtype}};
}

std::vector<TensorId> image_gradient(Graph& graph, OpId id, std::string_view type, std::vector<TensorId> inputs,
                                     bool wanted) {
  if (!wanted || !inputs[0].valid()) return {TensorId{}};
  const Shape& x = graph.tensor(graph.op(id).inputs[0]).shape;
  Attributes attributes = graph.op(id).attributes;
  attributes.set("input_size", std::vector<int64_t>{x[2], x[3]});
  return {graph.output(add_backward(graph, type, id, "backward", std::move(inputs), std::move(attributes)))};
}

Work resize_work(const Graph& graph, const Op& op) {
  const double taps = taps_of(resize_mode(op.attributes));
  const double elements = static_cast<double>(
      std::max(element_count(graph.tensor(op.inputs[0]).shape), element_count(graph.tensor(op.outputs[0]).shape)));
  return {taps == 1 ? 0 : 4 * taps * elements,
          static_cast<double>((bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs)).count)};
}

Work adaptive_work(const Graph& graph, const Op& op) {
  return {static_cast<double>(std::max(element_count(graph.tensor(op.inputs[0]).shape),
                                       element_count(graph.tensor(op.outputs[0]).shape))),
          static_cast<double>((bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs)).count)};
}

// Calls body(image number, oh, ow, index of the element) for every element of an image tensor.
template <class Body>
void for_each_pixel(const Shape& shape, Body body) {
  int64_t i = 0;
  for (int64_t image = 0; image < shape[0] * shape[1]; ++image) {
    for (int64_t h = 0; h < shape[2]; ++h) {
      for (int64_t w = 0; w < shape[3]; ++w) body(image, h, w, i++);
    }
  }
}

// Calls body(element of y, element of x, weight) for every tap.
template <class T, class Body>
void for_each_tap(const Attributes& attributes, const Shape& x, const Shape& y, Body body) {
  const Resize resize = read_resize(attributes, image_of(x));
  const auto rows = resize_taps<T>(resize, resize.h), columns = resize_taps<T>(resize, resize.w);
  const int taps = taps_of(resize.mode);
  for_each_pixel(y, [&](int64_t image, int64_t h, int64_t w, int64_t i) {
    for (int r = 0; r < taps; ++r) {
      for (int c = 0; c < taps; ++c) {
        body(i, (image * x[2] + rows[h].at[r]) * x[3] + columns[w].at[c], rows[h].weight[r] * columns[w].weight[c]);
      }
    }
  });
}

OpType resize_forward() {
  return {
      .name = "ResizeForward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            expect_rank(*in[0], 4);
            const Resize resize = read_resize(attributes, image_of(in[0]->shape));
            return std::vector<TensorSpec>{{sized(*in[0], {resize.h.out, resize.w.out}), in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            return image_gradient(graph, id, "ResizeBackward", {dy[0]}, wanted[0]);
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = resize_work,
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            with_floating_type(in[0], [&](auto zero) {
              using T = decltype(zero);
              std::fill_n(elements<T>(out[0]), element_count(out[0].shape), T{0});
              for_each_tap<T>(op.attributes, in[0].shape, out[0].shape, [&](int64_t y, int64_t x, T weight) {
                elements<T>(out[0])[y] += weight * elements<T>(in[0])[x];
              });
            });
          },
  };
}

OpType resize_backward() {
  return {
      .name = "ResizeBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            const auto specs = backward_specs(attributes, *in[0]);
            read_resize(attributes, image_of(specs[0].shape));
            return specs;
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = resize_work,
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            with_floating_type(in[0], [&](auto zero) {
              using T = decltype(zero);
              std::fill_n(elements<T>(out[0]), element_count(out[0].shape), T{0});
              for_each_tap<T>(op.attributes, out[0].shape, in[0].shape, [&](int64_t y, int64_t x, T weight) {
                elements<T>(out[0])[x] += weight * elements<T>(in[0])[y];
              });
            });
          },
  };
}

// Calls body(element of y, first element of x's image, rows, columns) for every window.
template <class Body>
void for_each_window(const Shape& x, const Shape& y, Body body) {
  for_each_pixel(y, [&](int64_t image, int64_t h, int64_t w, int64_t i) {
    body(i, image * x[2] * x[3], adaptive_window(x[2], y[2], h), adaptive_window(x[3], y[3], w));
  });
}
double elements_in(const AdaptiveWindow& rows, const AdaptiveWindow& columns) {
  return static_cast<double>((rows.last - rows.first) * (columns.last - columns.first));
}

OpType adaptive_average_forward() {
  return {
      .name = "AdaptiveAvgPoolForward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            expect_rank(*in[0], 4);
            return std::vector<TensorSpec>{{sized(*in[0], read_pair(attributes, "size", 1)), in[0]->dtype}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            return image_gradient(graph, id, "AdaptiveAvgPoolBackward", {dy[0]}, wanted[0]);
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = adaptive_work,
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            for_each_window(in[0].shape, out[0].shape, [&](int64_t i, int64_t image, auto rows, auto columns) {
              double sum = 0;
              for (int64_t h = rows.first; h < rows.last; ++h) {
                for (int64_t w = columns.first; w < columns.last; ++w)
                  sum += load(in[0], image + h * in[0].shape[3] + w);
              }
              store(out[0], i, sum / elements_in(rows, columns));
            });
          },
  };
}

OpType adaptive_average_backward() {
  return {
      .name = "AdaptiveAvgPoolBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            return backward_specs(attributes, *in[0]);
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = adaptive_work,
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            with_floating_type(in[0], [&](auto zero) {
              using T = decltype(zero);
              std::fill_n(elements<T>(out[0]), element_count(out[0].shape), T{0});
              for_each_window(out[0].shape, in[0].shape, [&](int64_t i, int64_t image, auto rows, auto columns) {
                const T share = static_cast<T>(elements<T>(in[0])[i] / elements_in(rows, columns));
                for (int64_t h = rows.first; h < rows.last; ++h) {
                  for (int64_t w = columns.first; w < columns.last; ++w)
                    elements<T>(out[0])[image + h * out[0].shape[3] + w] += share;
                }
              });
            });
          },
  };
}

void expect_places_fit(const Shape& x) {
  if (x[2] * x[3] <= INT32_MAX) return;
  throw Error(ErrorCode::unsupported, fmt::format("an image of {}x{} has more than 2^31 places", x[2], x[3]));
}

OpType adaptive_max_forward() {
  return {
      .name = "AdaptiveMaxPoolForward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            expect_rank(*in[0], 4);
            expect_places_fit(in[0]->shape);
            const Shape shape = sized(*in[0], read_pair(attributes, "size", 1));
            return std::vector<TensorSpec>{{shape, in[0]->dtype}, {shape, DType::i32}};
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            return image_gradient(graph, id, "AdaptiveMaxPoolBackward", {dy[0], graph.output(id, 1)}, wanted[0]);
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = adaptive_work,
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            for_each_window(in[0].shape, out[0].shape, [&](int64_t i, int64_t image, auto rows, auto columns) {
              int64_t best = rows.first * in[0].shape[3] + columns.first;
              for (int64_t h = rows.first; h < rows.last; ++h) {
                for (int64_t w = columns.first; w < columns.last; ++w) {
                  const int64_t at = h * in[0].shape[3] + w;
                  const double value = load(in[0], image + at);
                  if (value > load(in[0], image + best) || std::isnan(value)) best = at;
                }
              }
              store(out[0], i, load(in[0], image + best));
              store(out[1], i, static_cast<double>(best));
            });
          },
  };
}

OpType adaptive_max_backward() {
  return {
      .name = "AdaptiveMaxPoolBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_same_shape(*in[0], *in[1]);
            if (in[1]->dtype != DType::i32) {
              throw Error(ErrorCode::invalid_input,
                          fmt::format("the index '{}' is {}; i32 is expected", in[1]->name, to_string(in[1]->dtype)));
            }
            return backward_specs(attributes, *in[0]);
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = adaptive_work,
      .reference =
          [](const Op&, std::span<const TensorView> in, std::span<const TensorView> out) {
            with_floating_type(in[0], [&](auto zero) {
              using T = decltype(zero);
              std::fill_n(elements<T>(out[0]), element_count(out[0].shape), T{0});
              const int64_t pixels = out[0].shape[2] * out[0].shape[3];
              for_each_pixel(in[0].shape, [&](int64_t image, int64_t, int64_t, int64_t i) {
                elements<T>(out[0])[image * pixels + elements<int32_t>(in[1])[i]] += elements<T>(in[0])[i];
              });
            });
          },
  };
}

}  // namespace

Resize read_resize(const Attributes& attributes, std::array<int64_t, 2> in) {
  const auto size = read_pair(attributes, "size", 1);
  const std::vector<double> factors = attributes.reals("scale", {0, 0});
  Resize resize{.mode = resize_mode(attributes),
                .align_corners = attributes.integer("align_corners", 0) != 0,
                .h = {in[0], size[0], factors.empty() ? 0 : factors[0]},
                .w = {in[1], size[1], factors.size() < 2 ? 0 : factors[1]}};
  if (factors.size() != 2 || !(resize.h.factor >= 0) || !(resize.w.factor >= 0) || !std::isfinite(resize.h.factor) ||
      !std::isfinite(resize.w.factor)) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("scale is [{}]; two numbers above 0 are expected", fmt::join(factors, ", ")));
  }
  if (resize.align_corners && resize.mode == ResizeMode::nearest) {
    throw Error(ErrorCode::invalid_input, "align_corners is for 'bilinear' and 'bicubic', mode is 'nearest'");
  }
  return resize;
}

template <class T>
T resize_scale(const Resize& resize, const ResizeAxis& axis) {
  if (resize.align_corners) return axis.out > 1 ? static_cast<T>(axis.in - 1) / static_cast<T>(axis.out - 1) : T{0};
  if (axis.factor > 0) return static_cast<T>(1.0 / axis.factor);
  return static_cast<T>(axis.in) / static_cast<T>(axis.out);
}

template <class T>
std::vector<ResizeTaps<T>> resize_taps(const Resize& resize, const ResizeAxis& axis) {
  const T scale = resize_scale<T>(resize, axis), half = T(0.5);
  std::vector<ResizeTaps<T>> taps(axis.out);
  for (int64_t o = 0; o < axis.out; ++o) {
    ResizeTaps<T>& to = taps[o];
    if (resize.mode == ResizeMode::nearest) {
      const float at = std::floor(static_cast<float>(static_cast<T>(o) * scale));  // a float even where T is double
      to.at[0] = std::min(static_cast<int64_t>(at), axis.in - 1);
      to.weight[0] = 1;
      continue;
    }
    const T place = static_cast<T>(o);
    T at = resize.align_corners ? scale * place : scale * (place + half) - half;
    if (resize.mode == ResizeMode::bilinear) at = std::max(at, T{0});
    const int64_t first = std::min(static_cast<int64_t>(std::floor(at)), axis.in - 1);
    const T rest = std::clamp(at - static_cast<T>(first), T{0}, T{1});
    if (resize.mode == ResizeMode::bilinear) {
      to.at = {first, std::min(first + 1, axis.in - 1)};
      to.weight = {1 - rest, rest};
    } else {
      for (int64_t k = 0; k < 4; ++k) to.at[k] = std::clamp<int64_t>(first - 1 + k, 0, axis.in - 1);
      to.weight = {cubic_far(rest + 1), cubic_near(rest), cubic_near(1 - rest), cubic_far(2 - rest)};
    }
  }
  return taps;
}

template std::vector<ResizeTaps<float>> resize_taps<float>(const Resize&, const ResizeAxis&);
template std::vector<ResizeTaps<double>> resize_taps<double>(const Resize&, const ResizeAxis&);
template float resize_scale<float>(const Resize&, const ResizeAxis&);
template double resize_scale<double>(const Resize&, const ResizeAxis&);

std::vector<OpType> resize_ops() {
  return of_kind(LayerKind::pool,
                 {in_parts(resize_forward(), {{0}, {0}}), in_parts(resize_backward(), {{0}, {0}}),
                  in_parts(adaptive_average_forward(), {{0}, {0}}), in_parts(adaptive_average_backward(), {{0}, {0}}),
                  in_parts(adaptive_max_forward(), {{0}, {0, 1}}), in_parts(adaptive_max_backward(), {{0, 1}, {0}})});
}

}  // namespace plimsoll
