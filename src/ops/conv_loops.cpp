#include "ops/conv_loops.h"

#include <vector>

#include "ops/typed.h"

namespace plimsoll {
namespace {

// Calls body(weight tap index, place in the output, number of places, position in the image of the first) for every run
// of places in a row of the output at which the tap lies inside the image.
template <class Body>
void for_each_tap_row(const Window& window, Body body) {
  const WindowAxis &d = window.d, &h = window.h, &w = window.w;
  for (int64_t tap = 0; tap < window.taps(); ++tap) {
    const int64_t s = tap % w.kernel, r = tap / w.kernel % h.kernel, q = tap / w.kernel / h.kernel;
    const WindowAxis::Range planes = d.places(q), rows = h.places(r), columns = w.places(s);
    if (columns.first >= columns.last) continue;
    for (int64_t od = planes.first; od < planes.last; ++od) {
      for (int64_t oh = rows.first; oh < rows.last; ++oh) {
        body(tap, (od * h.out + oh) * w.out + columns.first, columns.last - columns.first,
             (d.position(od, q) * h.in + h.position(oh, r)) * w.in + w.position(columns.first, s));
      }
    }
  }
}

template <class T>
void forward(const ConvShape& shape, const T* x, const T* w, const T* b, bool relu, T* y) {
  const Window& window = shape.window;
  const int64_t in = window.pixels_in(), out = window.pixels_out(), stride = window.w.stride;
  std::vector<double> sum(out);
  for (int64_t n = 0; n < shape.n; ++n) {
    for (int64_t k = 0; k < shape.k; ++k) {
      std::fill(sum.begin(), sum.end(), b ? static_cast<double>(b[k]) : 0.0);
      const int64_t first_c = k / shape.group_k() * shape.group_c();
      for (int64_t c = 0; c < shape.group_c(); ++c) {
        const T* image = x + (n * shape.c + first_c + c) * in;
        const T* weights = w + (k * shape.group_c() + c) * window.taps();
        for_each_tap_row(window, [&](int64_t tap, int64_t place, int64_t count, int64_t at) {
          const double weight = weights[tap];
          const T* from = image + at;
          double* to = sum.data() + place;
          for (int64_t i = 0; i < count; ++i) to[i] += weight * from[i * stride];
        });
      }
      T* result = y + (n * shape.k + k) * out;
      for (int64_t i = 0; i < out; ++i) {
        const double value = sum[i];
        result[i] = static_cast<T>(relu && !(value > 0) ? 0 : value);
      }
    }
  }
}

template <class T>
void backward_data(const ConvShape& shape, const T* dy, const T* w, const T* b, T* dx) {
  const Window& window = shape.window;
  const int64_t in = window.pixels_in(), out = window.pixels_out(), stride = window.w.stride;
  std::vector<double> sum(in);
  for (int64_t n = 0; n < shape.n; ++n) {
    for (int64_t c = 0; c < shape.c; ++c) {
      std::fill(sum.begin(), sum.end(), b ? static_cast<double>(b[c]) : 0.0);
      const int64_t group = c / shape.group_c(), c_in_group = c % shape.group_c();
      for (int64_t k = group * shape.group_k(); k < (group + 1) * shape.group_k(); ++k) {
        const T* gradient = dy + (n * shape.k + k) * out;
        const T* weights = w + (k * shape.group_c() + c_in_group) * window.taps();
        for_each_tap_row(window, [&](int64_t tap, int64_t place, int64_t count, int64_t at) {
          const double weight = weights[tap];
          const T* from = gradient + place;
          double* to = sum.data() + at;
          for (int64_t i = 0; i < count; ++i) to[i * stride] += weight * from[i];
        });
      }
      T* result = dx + (n * shape.c + c) * in;
      for (int64_t i = 0; i < in; ++i) result[i] = static_cast<T>(sum[i]);
    }
  }
}

template <class T>
void backward_weights(const ConvShape& shape, const T* x, const T* dy, T* dw) {
  const Window& window = shape.window;
  const int64_t in = window.pixels_in(), out = window.pixels_out(), stride = window.w.stride;
  std::vector<double> sum(window.taps());
  for (int64_t k = 0; k < shape.k; ++k) {
    const int64_t first_c = k / shape.group_k() * shape.group_c();
    for (int64_t c = 0; c < shape.group_c(); ++c) {
      std::fill(sum.begin(), sum.end(), 0.0);
      for (int64_t n = 0; n < shape.n; ++n) {
        const T* image = x + (n * shape.c + first_c + c) * in;
        const T* gradient = dy + (n * shape.k + k) * out;
        for_each_tap_row(window, [&](int64_t tap, int64_t place, int64_t count, int64_t at) {
          const T* a = image + at;
          const T* g = gradient + place;
          double dot = 0;
          for (int64_t i = 0; i < count; ++i) dot += static_cast<double>(a[i * stride]) * g[i];
          sum[tap] += dot;
        });
      }
      T* result = dw + (k * shape.group_c() + c) * window.taps();
      for (int64_t i = 0; i < window.taps(); ++i) result[i] = static_cast<T>(sum[i]);
    }
  }
}

template <class T>
const T* optional_elements(const TensorView* view) {
  return view ? elements<T>(*view) : nullptr;
}

}  // namespace

void conv_forward(const ConvShape& shape, const TensorView& x, const TensorView& w, const TensorView* b, bool relu,
                  const TensorView& y) {
  with_floating_type(x, [&](auto zero) {
    using T = decltype(zero);
    forward<T>(shape, elements<T>(x), elements<T>(w), optional_elements<T>(b), relu, elements<T>(y));
  });
}

void conv_backward_data(const ConvShape& shape, const TensorView& dy, const TensorView& w, const TensorView* b,
                        const TensorView& dx) {
  with_floating_type(dy, [&](auto zero) {
    using T = decltype(zero);
    backward_data<T>(shape, elements<T>(dy), elements<T>(w), optional_elements<T>(b), elements<T>(dx));
  });
}

void conv_backward_weights(const ConvShape& shape, const TensorView& x, const TensorView& dy, const TensorView& dw) {
  with_floating_type(x, [&](auto zero) {
    using T = decltype(zero);
    backward_weights<T>(shape, elements<T>(x), elements<T>(dy), elements<T>(dw));
  });
}

void sum_channels(const TensorView& dy, const TensorView& db) {
  with_floating_type(dy, [&](auto zero) {
    using T = decltype(zero);
    const int64_t batch = dy.shape[0], channels = dy.shape[1];
    const int64_t image = element_count(dy.shape) / (batch * channels);
    for (int64_t k = 0; k < channels; ++k) {
      double sum = 0;
      for (int64_t n = 0; n < batch; ++n) {
        const T* g = elements<T>(dy) + (n * channels + k) * image;
        for (int64_t i = 0; i < image; ++i) sum += g[i];
      }
      elements<T>(db)[k] = static_cast<T>(sum);
    }
  });
}

}  // namespace plimsoll
