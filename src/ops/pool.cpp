// Pooling, with the shapes and the arithmetic of PyTorch. Max pooling keeps, instead of x and y, a byte a place: which
// element of the window won (r * S + s).
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ops/families.h"
#include "ops/reference.h"
#include "ops/typed.h"
#include "ops/window.h"

namespace plimsoll {
namespace {

// Whether every window has an element in the image, whatever its taps skip.
bool always_meets(const WindowAxis& axis) {
  for (int64_t o = 0; o < axis.out; ++o) {
    bool meets = false;
    for (int64_t k = 0; k < axis.kernel && !meets; ++k) {
      meets = axis.position(o, k) >= 0 && axis.position(o, k) < axis.in;
    }
    if (!meets) return false;
  }
  return true;
}

Window pool_window(const Attributes& attributes, const Shape& image) {
  Window window = read_window(attributes, read_sizes(attributes, "kernel", 2, 1), image);
  const WindowAxis &h = window.h, &w = window.w;
  const bool dilated = h.dilation != 1 || w.dilation != 1;
  if (std::max(h.before, h.after) >= h.extent() || std::max(w.before, w.after) >= w.extent()) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("the padding is not less than the kernel {}x{}: a window would hold nothing else", h.kernel,
                            w.kernel));
  }
  fit(window, attributes.integer("ceil_mode", 0) != 0);
  if (dilated && (!always_meets(h) || !always_meets(w))) {
    throw Error(ErrorCode::invalid_input, fmt::format("a window of {}x{} with dilation {}x{} holds nothing but padding",
                                                      h.kernel, w.kernel, h.dilation, w.dilation));
  }
  return window;
}

Window pool_window_over(const Attributes& attributes, const Shape& x) { return pool_window(attributes, image_size(x)); }

Window average_window(const Attributes& attributes, const Shape& x) {
  const Window window = pool_window_over(attributes, x);
  if (window.h.dilation == 1 && window.w.dilation == 1) return window;
  throw Error(ErrorCode::unsupported, "average pooling takes no dilation");
}

void expect_window_of_bytes(const Window& window) {
  if (window.taps() <= 256) return;
  throw Error(ErrorCode::unsupported, fmt::format("a max-pooling window of {}x{} has more than 256 elements",
                                                  window.h.kernel, window.w.kernel));
}

std::vector<TensorSpec> pooled(const Tensor& x, const Window& window) {
  return {{{x.shape[0], x.shape[1], window.h.out, window.w.out}, x.dtype}};
}

std::vector<TensorSpec> unpooled(const Attributes& attributes, const Tensor& dy) {
  expect_rank(dy, 4);
  const Shape image = read_sizes(attributes, "input_size", 2, 1);
  expect_image(dy, pool_window(attributes, image).out());
  return {{image_shape(dy.shape[0], dy.shape[1], image), dy.dtype}};
}

std::vector<TensorId> pool_gradient(Graph& graph, OpId id, std::string_view type, std::vector<TensorId> inputs,
                                    bool wanted) {
  if (!wanted || !inputs[0].valid()) return {TensorId{}};
  const Shape& x = graph.tensor(graph.op(id).inputs[0]).shape;
  Attributes attributes = graph.op(id).attributes;
  attributes.set("input_size", std::vector<int64_t>{x[2], x[3]});
  return {graph.output(add_backward(graph, type, id, "backward", std::move(inputs), std::move(attributes)))};
}

// One FLOP for each element of each window.
Work pool_work(const Graph& graph, const Op& op, TensorId places) {
  const auto kernel = read_pair(op.attributes, "kernel", 1);
  const Bytes bytes = bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs);
  return {static_cast<double>(element_count(graph.tensor(places).shape)) * static_cast<double>(kernel[0] * kernel[1]),
          static_cast<double>(bytes.count)};
}

// The part of the window at place o that lies inside the image, as [first, last) of the image.
struct Extent {
  int64_t first, last;
  int64_t size() const { return last - first; }
};
Extent inside(const WindowAxis& axis, int64_t o) {
  return {std::max<int64_t>(axis.position(o, 0), 0), std::min(axis.position(o, axis.kernel), axis.in)};
}
// The same with the padding, by which averages are divided when it counts: what ceil_mode adds beyond it never does.
int64_t padded_size(const WindowAxis& axis, int64_t o) {
  return std::min(axis.position(o, axis.kernel), axis.in + axis.after) - axis.position(o, 0);
}

// Calls body(place index, oh, ow, the image's index) for every place of every image.
template <class Body>
void for_each_place(const Shape& places, Body body) {
  int64_t i = 0;
  for (int64_t image = 0; image < places[0] * places[1]; ++image) {
    for (int64_t oh = 0; oh < places[2]; ++oh) {
      for (int64_t ow = 0; ow < places[3]; ++ow) body(i++, oh, ow, image);
    }
  }
}

template <class T>
void max_forward(const Window& window, const TensorView& x, const TensorView& y, const TensorView& index) {
  for_each_place(y.shape, [&](int64_t i, int64_t oh, int64_t ow, int64_t image) {
    const T* from = elements<T>(x) + image * window.h.in * window.w.in;
    int64_t winner = -1;
    T best{};
    for (int64_t tap = 0; tap < window.taps(); ++tap) {
      const int64_t ih = window.h.position(oh, tap / window.w.kernel);
      const int64_t iw = window.w.position(ow, tap % window.w.kernel);
      if (ih < 0 || ih >= window.h.in || iw < 0 || iw >= window.w.in) continue;
      const T value = from[ih * window.w.in + iw];
      if (winner >= 0 && !(value > best) && !(std::isnan(value) && !std::isnan(best))) continue;
      best = value, winner = tap;
    }
    elements<T>(y)[i] = best;
    elements<uint8_t>(index)[i] = static_cast<uint8_t>(winner);
  });
}

template <class T>
void max_backward(const Window& window, const TensorView& dy, const TensorView& index, const TensorView& dx) {
  std::fill_n(elements<T>(dx), element_count(dx.shape), T{0});
  for_each_place(dy.shape, [&](int64_t i, int64_t oh, int64_t ow, int64_t image) {
    const int64_t tap = elements<uint8_t>(index)[i];
    const int64_t ih = window.h.position(oh, tap / window.w.kernel), iw = window.w.position(ow, tap % window.w.kernel);
    elements<T>(dx)[(image * window.h.in + ih) * window.w.in + iw] += elements<T>(dy)[i];
  });
}

double divisor(const Window& window, int64_t oh, int64_t ow, bool count_padding) {
  const int64_t area = count_padding ? padded_size(window.h, oh) * padded_size(window.w, ow)
                                     : inside(window.h, oh).size() * inside(window.w, ow).size();
  return static_cast<double>(area);
}

template <class T>
void average_forward(const Window& window, bool count_padding, const TensorView& x, const TensorView& y) {
  for_each_place(y.shape, [&](int64_t i, int64_t oh, int64_t ow, int64_t image) {
    const T* from = elements<T>(x) + image * window.h.in * window.w.in;
    const Extent rows = inside(window.h, oh), columns = inside(window.w, ow);
    double sum = 0;
    for (int64_t ih = rows.first; ih < rows.last; ++ih) {
      for (int64_t iw = columns.first; iw < columns.last; ++iw) sum += from[ih * window.w.in + iw];
    }
    elements<T>(y)[i] = static_cast<T>(sum / divisor(window, oh, ow, count_padding));
  });
}

template <class T>
void average_backward(const Window& window, bool count_padding, const TensorView& dy, const TensorView& dx) {
  std::fill_n(elements<T>(dx), element_count(dx.shape), T{0});
  for_each_place(dy.shape, [&](int64_t i, int64_t oh, int64_t ow, int64_t image) {
    T* to = elements<T>(dx) + image * window.h.in * window.w.in;
    const T share = static_cast<T>(elements<T>(dy)[i] / divisor(window, oh, ow, count_padding));
    const Extent rows = inside(window.h, oh), columns = inside(window.w, ow);
    for (int64_t ih = rows.first; ih < rows.last; ++ih) {
      for (int64_t iw = columns.first; iw < columns.last; ++iw) to[ih * window.w.in + iw] += share;
    }
  });
}

bool counts_padding(const Attributes& attributes) { return attributes.integer("count_include_pad", 1) != 0; }

OpType max_pool_forward() {
  return {
      .name = "MaxPoolForward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            expect_rank(*in[0], 4);
            const Window window = pool_window_over(attributes, in[0]->shape);
            expect_window_of_bytes(window);
            std::vector<TensorSpec> specs = pooled(*in[0], window);
            specs.push_back({specs[0].shape, DType::u8});
            return specs;
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            return pool_gradient(graph, id, "MaxPoolBackward", {dy[0], graph.output(id, 1)}, wanted[0]);
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return pool_work(graph, op, op.outputs[0]); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const Window window = pool_window_over(op.attributes, in[0].shape);
            with_floating_type(in[0], [&](auto zero) { max_forward<decltype(zero)>(window, in[0], out[0], out[1]); });
          },
  };
}

OpType max_pool_backward() {
  return {
      .name = "MaxPoolBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 2);
            expect_same_shape(*in[0], *in[1]);
            if (in[1]->dtype != DType::u8) {
              throw Error(ErrorCode::invalid_input,
                          fmt::format("the index '{}' is {}; u8 is expected", in[1]->name, to_string(in[1]->dtype)));
            }
            return unpooled(attributes, *in[0]);
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return elementwise_work(graph, op, 1); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const Window window = pool_window_over(op.attributes, out[0].shape);
            with_floating_type(in[0], [&](auto zero) { max_backward<decltype(zero)>(window, in[0], in[1], out[0]); });
          },
  };
}

OpType average_pool_forward() {
  return {
      .name = "AvgPoolForward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            expect_rank(*in[0], 4);
            return pooled(*in[0], average_window(attributes, in[0]->shape));
          },
      .gradient =
          [](Graph& graph, OpId id, std::span<const TensorId> dy, const std::vector<bool>& wanted) {
            return pool_gradient(graph, id, "AvgPoolBackward", {dy[0]}, wanted[0]);
          },
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return pool_work(graph, op, op.outputs[0]); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const Window window = average_window(op.attributes, in[0].shape);
            const bool count = counts_padding(op.attributes);
            with_floating_type(in[0],
                               [&](auto zero) { average_forward<decltype(zero)>(window, count, in[0], out[0]); });
          },
  };
}

OpType average_pool_backward() {
  return {
      .name = "AvgPoolBackward",
      .infer =
          [](const Attributes& attributes, std::span<const Tensor* const> in) {
            expect_inputs(in, 1);
            const std::vector<TensorSpec> specs = unpooled(attributes, *in[0]);
            average_window(attributes, specs[0].shape);
            return specs;
          },
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return pool_work(graph, op, op.inputs[0]); },
      .reference =
          [](const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
            const Window window = average_window(op.attributes, out[0].shape);
            const bool count = counts_padding(op.attributes);
            with_floating_type(in[0],
                               [&](auto zero) { average_backward<decltype(zero)>(window, count, in[0], out[0]); });
          },
  };
}

}  // namespace

std::vector<OpType> pool_ops() {
  return of_kind(LayerKind::pool,
                 {in_parts(max_pool_forward(), {{0}, {0, 1}}), in_parts(max_pool_backward(), {{0, 1}, {0}}),
                  in_parts(average_pool_forward(), {{0}, {0}}), in_parts(average_pool_backward(), {{0}, {0}})});
}

}  // namespace plimsoll
