#include "tests/cuda/fake_kernels.h"

#include <algorithm>
#include <vector>

#include "device/cuda/bodies/bodies.h"
#include "tests/cuda/on_the_host.h"

namespace plimsoll::testing::fake {

namespace {

template <class Body>
struct SizeOf {
  static size_t launch() { return sizeof(Body); }
};

// The indices of an image's rows that the taps of a window lie on; those outside are -1.
std::vector<int64_t> taps(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t dilation, int64_t before) {
  std::vector<int64_t> at;
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t k = 0; k < kernel; ++k) {
      const int64_t i = o * stride - before + k * dilation;
      at.push_back(i >= 0 && i < in ? i : -1);
    }
  }
  return at;
}

}  // namespace

size_t size_of_body(int body) {
  static constexpr auto kSizes = cuda::Bodies::table<SizeOf>();
  return kSizes[static_cast<size_t>(body)]();
}

void launch(int body, const void* parameters, int64_t count) {
  static constexpr auto kLaunchers = cuda::Bodies::table<HostLauncher>();
  kLaunchers[static_cast<size_t>(body)](parameters, count);
}

void convolve(const cuda::Convolution& c, const float* a, const float* b, const float* bias, bool relu, float* out) {
  using Pass = cuda::Convolution::Pass;
  const bool last = c.channels_last;
  const int64_t group_c = c.c / c.groups, group_k = c.k / c.groups;
  const int64_t in_plane = c.d * c.h * c.w, out_plane = c.od * c.oh * c.ow, window = c.q * c.r * c.s;
  const int64_t x_by_c = last ? 1 : in_plane, x_by_place = last ? c.c : 1;
  const int64_t y_by_k = last ? 1 : out_plane, y_by_place = last ? c.k : 1;
  const int64_t w_by_c = last ? 1 : window, w_by_tap = last ? group_c : 1;
  const float* const x = c.pass == Pass::backward_data ? nullptr : a;
  const float* const y = c.pass == Pass::forward ? nullptr : c.pass == Pass::backward_data ? a : b;
  const float* const w = c.pass == Pass::backward_weights ? nullptr : b;
  const int64_t elements = c.pass == Pass::forward         ? c.y_elements()
                           : c.pass == Pass::backward_data ? c.x_elements()
                                                           : c.w_elements();
  std::vector<double> sums(static_cast<size_t>(elements));
  double* const sum = sums.data();
  const auto planes = taps(c.d, c.od, c.q, c.stride_d, c.dilation_d, c.front);
  const auto rows = taps(c.h, c.oh, c.r, c.stride_h, c.dilation_h, c.top);
  const auto columns = taps(c.w, c.ow, c.s, c.stride_w, c.dilation_w, c.left);
  // All channels at one place of y and one tap.
  const auto add = [&](int64_t n, int64_t place, int64_t from, int64_t tap) {
    for (int64_t k = 0; k < c.k; ++k) {
      const int64_t at_y = n * c.k * out_plane + place * y_by_place + k * y_by_k;
      const int64_t first = n * c.c * in_plane + from * x_by_place + k / group_k * group_c * x_by_c;
      const int64_t at_w = k * group_c * window + tap * w_by_tap;
      switch (c.pass) {
        case Pass::forward:
          for (int64_t i = 0; i < group_c; ++i)
            sum[at_y] += static_cast<double>(x[first + i * x_by_c]) * w[at_w + i * w_by_c];
          break;
        case Pass::backward_data:
          for (int64_t i = 0; i < group_c; ++i)
            sum[first + i * x_by_c] += static_cast<double>(y[at_y]) * w[at_w + i * w_by_c];
          break;
        case Pass::backward_weights:
          for (int64_t i = 0; i < group_c; ++i)
            sum[at_w + i * w_by_c] += static_cast<double>(y[at_y]) * x[first + i * x_by_c];
          break;
      }
    }
  };
  for (int64_t n = 0; n < c.n; ++n) {
    for (int64_t place = 0; place < out_plane; ++place) {
      const int64_t ow = place % c.ow, oh = place / c.ow % c.oh, od = place / c.ow / c.oh;
      for (int64_t tap = 0; tap < window; ++tap) {
        const int64_t iw = columns[static_cast<size_t>(ow * c.s + tap % c.s)];
        const int64_t ih = rows[static_cast<size_t>(oh * c.r + tap / c.s % c.r)];
        const int64_t id = planes[static_cast<size_t>(od * c.q + tap / c.s / c.r)];
        if (iw >= 0 && ih >= 0 && id >= 0) add(n, place, (id * c.h + ih) * c.w + iw, tap);
      }
    }
  }
  for (int64_t i = 0; i < elements; ++i) {
    double value = sum[i];
    if (bias != nullptr) value += bias[last ? i % c.k : i / out_plane % c.k];
    out[i] = relu && !(value > 0) ? 0 : static_cast<float>(value);
  }
}

void multiply(const cuda::Product& p, int64_t most_terms, const float* a, const float* b, const float* bias,
              float* out) {
  for (int64_t i = 0; i < p.batch; ++i) {
    const float *a_i = a + i * p.to_a, *b_i = b + i * p.to_b;
    float* const y_i = out + i * p.to_out;
    if (p.m * p.n * p.k > most_terms) {
      for (int64_t m = 0; m < p.m; ++m) std::fill_n(y_i + m * p.row_out(), p.n, 0.0F);
      continue;
    }
    for (int64_t m = 0; m < p.m; ++m) {
      for (int64_t n = 0; n < p.n; ++n) {
        double sum = (bias != nullptr ? bias[n] : 0.0F) + (p.adds ? y_i[m * p.row_out() + n] : 0.0F);
        for (int64_t k = 0; k < p.k; ++k) {
          sum += static_cast<double>(a_i[p.transpose_a ? k * p.row_a() + m : m * p.row_a() + k]) *
                 b_i[p.transpose_b ? n * p.row_b() + k : k * p.row_b() + n];
        }
        y_i[m * p.row_out() + n] = p.relu && !(sum > 0) ? 0 : static_cast<float>(sum);
      }
    }
  }
}

}  // namespace plimsoll::testing::fake
