// Pooling, local response normalisation, and convolutions in their plainest form, for what cuDNN does not take.
// Gradients are gathered by the element that receives them, so that no two threads add to one place.
#pragma once

#include "device/cuda/bodies/common.h"

namespace plimsoll::cuda {

struct Slide {  // as WindowAxis of ops/window.h
  Divisor in = 0, out = 0, kernel = 1, stride = 1;
  int64_t dilation = 1, before = 0, after = 0;
};
PLIMSOLL_BODY int64_t tap(const Slide& s, int64_t o, int64_t k) { return o * s.stride - s.before + k * s.dilation; }
// The place o at which tap k lies on element i, or -1.
PLIMSOLL_BODY int64_t place_of(const Slide& s, int64_t i, int64_t k) {
  const int64_t room = i + s.before - k * s.dilation;
  if (room < 0) return -1;
  const Division d = divide(static_cast<int64_t>(static_cast<uint32_t>(room)), s.stride);  // no side has 2^32 places
  return d.remainder == 0 && d.quotient < s.out ? d.quotient : -1;
}

PLIMSOLL_BODY bool is_channels_last(const Image& image) { return image.to_c == 1 && image.pixels > 1; }

// The taps of the window at place o that lie inside: [first, last).
struct Taps {
  int64_t first, last;
};
PLIMSOLL_BODY Taps taps_inside(const Slide& s, int64_t o) {
  const int64_t begin = tap(s, o, 0), end = s.in - begin;
  if (s.dilation == 1) return {larger(-begin, 0), smaller(s.kernel, end)};
  const int64_t above = s.dilation - 1;
  return {larger(-begin + above, 0) / s.dilation, smaller(s.kernel, (end + above) / s.dilation)};
}
// The places whose windows may reach element i: [first, last); all of them without dilation.
PLIMSOLL_BODY Taps places_around(const Slide& s, int64_t i) {
  const int64_t from = i + s.before, reach = from - (s.kernel - 1) * s.dilation;
  const int64_t first =
      reach <= 0 ? 0 : divide(static_cast<int64_t>(static_cast<uint32_t>(reach + s.stride - 1)), s.stride).quotient;
  return {first, smaller(divide(static_cast<int64_t>(static_cast<uint32_t>(from)), s.stride).quotient + 1, s.out)};
}
// The tap by which the window at place o lies on element i, or -1.
PLIMSOLL_BODY int64_t tap_on(const Slide& s, int64_t o, int64_t i) {
  const int64_t apart = i + s.before - o * s.stride;
  if (s.dilation == 1) return apart;
  return apart % s.dilation == 0 ? apart / s.dilation : -1;
}

PLIMSOLL_BODY int64_t inside(const Slide& s, int64_t o) {
  return smaller(tap(s, o, s.kernel), s.in) - larger(tap(s, o, 0), 0);
}
PLIMSOLL_BODY int64_t padded(const Slide& s, int64_t o) {
  return smaller(tap(s, o, s.kernel), s.in + s.after) - tap(s, o, 0);
}
PLIMSOLL_BODY float area(const Slide& h, const Slide& w, int64_t oh, int64_t ow, bool count_padding) {
  return static_cast<float>(count_padding ? padded(h, oh) * padded(w, ow) : inside(h, oh) * inside(w, ow));
}

struct AveragePool {
  using Kind = EachElement;
  float* y;
  const float* x;
  Image small, large;
  Slide h, w;
  bool count_padding;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Spot s = spot(small, i);
    const int64_t top = tap(h, s.h, 0), left = larger(tap(w, s.w, 0), 0);
    const int64_t right = smaller(tap(w, s.w, 0) + w.kernel, w.in);
    float sum = 0;
    for (int64_t ih = larger(top, 0); ih < smaller(top + h.kernel, h.in); ++ih) {
      const float* from = x + at(large, s.n, s.c, ih, left);
      for (int64_t iw = left; iw < right; ++iw, from += large.to_w) sum += *from;
    }
    y[i] = sum / area(h, w, s.h, s.w, count_padding);
  }
};

struct AveragePoolBackward {
  using Kind = EachElement;
  float* dx;
  const float* dy;
  Image small, large;
  Slide h, w;
  bool count_padding;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Spot s = spot(large, i);
    const Taps rows = places_around(h, s.h), columns = places_around(w, s.w);
    float sum = 0;
    for (int64_t oh = rows.first; oh < rows.last; ++oh) {
      for (int64_t ow = columns.first; ow < columns.last; ++ow)
        sum += dy[at(small, s.n, s.c, oh, ow)] / area(h, w, oh, ow, count_padding);
    }
    dx[i] = sum;
  }
};

// s[c] = k + alpha / size * the sum of squares of the channels around c.
PLIMSOLL_BODY float lrn_scale(const float* x, const Image& image, int64_t first, int64_t c, int64_t size, float k,
                              float alpha_by_size) {
  float squares = 0;
  for (int64_t j = larger(0, c - size / 2); j <= smaller(image.c - 1, c + (size - 1) / 2); ++j) {
    const float v = x[first + j * image.to_c];
    squares += v * v;
  }
  return k + alpha_by_size * squares;
}
struct Lrn {
  using Kind = EachElement;
  float* y;
  const float* x;
  Image image;
  int64_t size;
  float alpha_by_size, beta, k;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Spot s = spot(image, i);
    y[i] = x[i] * powf(lrn_scale(x, image, i - s.c * image.to_c, s.c, size, k, alpha_by_size), -beta);
  }
};
struct LrnBackward {
  using Kind = EachElement;
  float* dx;
  const float* x;
  const float* dy;
  Image image;
  int64_t size;
  float alpha_by_size, beta, k;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Spot s = spot(image, i);
    const int64_t first = i - s.c * image.to_c;
    float sum = 0, own = 1;
    for (int64_t c = larger(0, s.c - (size - 1) / 2); c <= smaller(image.c - 1, s.c + size / 2); ++c) {
      const float scale = lrn_scale(x, image, first, c, size, k, alpha_by_size);
      const float power = powf(scale, -beta);
      const int64_t there = first + c * image.to_c;
      sum += dy[there] * x[there] * (power / scale);
      if (c == s.c) own = power;
    }
    dx[i] = dy[i] * own - 2 * alpha_by_size * beta * x[i] * sum;
  }
};

// A convolution's three passes, an output a thread (weights: a block). w lies [k][c / groups][q][r][s] by these distances.
// Of images with depth, an Image's rows are those of all its planes; without, depth has one place and one tap.
struct DirectShape {
  Image x, y;
  int64_t groups;
  Divisor group_c, group_k;
  Slide d{1, 1};  // one place
  Slide h, w;
  int64_t to_k, to_c, to_q = 0, to_r, to_s;  // between weights
};
// Where tap (q, r) of a window at row `place` of the small image lies among the rows of the large one, or -1.
PLIMSOLL_BODY int64_t row_of_taps(const DirectShape& shape, int64_t place, int64_t q, int64_t r) {
  const Division o = divide(place, shape.h.out);
  const int64_t id = tap(shape.d, o.quotient, q), ih = tap(shape.h, o.remainder, r);
  return id < 0 || id >= shape.d.in || ih < 0 || ih >= shape.h.in ? -1 : id * shape.h.in + ih;
}
// The row of the small image at which tap (q, r) lies on `row` of the large one, or -1.
PLIMSOLL_BODY int64_t row_of_places(const DirectShape& shape, int64_t row, int64_t q, int64_t r) {
  const Division i = divide(row, shape.h.in);
  const int64_t od = place_of(shape.d, i.quotient, q), oh = place_of(shape.h, i.remainder, r);
  return od < 0 || oh < 0 ? -1 : od * shape.h.out + oh;
}
struct DirectForward {
  using Kind = EachElement;
  float* y;
  const float* x;
  const float* weights;
  const float* bias;  // or null
  DirectShape d;
  bool relu;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Spot s = spot(d.y, i);
    const int64_t first_c = divide(s.c, d.group_k).quotient * d.group_c;
    double sum = 0;
    for (int64_t c = 0; c < d.group_c; ++c) {
      for (int64_t t = 0; t < d.d.kernel * d.h.kernel; ++t) {
        const Division qr = divide(t, d.h.kernel);
        const int64_t row = row_of_taps(d, s.h, qr.quotient, qr.remainder);
        if (row < 0) continue;
        const int64_t from = s.c * d.to_k + c * d.to_c + qr.quotient * d.to_q + qr.remainder * d.to_r;
        for (int64_t k = 0; k < d.w.kernel; ++k) {
          const int64_t iw = tap(d.w, s.w, k);
          if (iw < 0 || iw >= d.w.in) continue;
          sum += static_cast<double>(x[at(d.x, s.n, first_c + c, row, iw)]) * weights[from + k * d.to_s];
        }
      }
    }
    if (bias != nullptr) sum += bias[s.c];
    y[i] = relu && !(sum > 0) ? 0 : static_cast<float>(sum);
  }
};
struct DirectBackwardData {
  using Kind = EachElement;
  float* dx;
  const float* dy;
  const float* weights;
  const float* bias;  // of a transposed convolution's forward pass
  DirectShape d;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Spot s = spot(d.x, i);
    const Division g = divide(s.c, d.group_c);
    double sum = 0;
    for (int64_t t = 0; t < d.d.kernel * d.h.kernel; ++t) {
      const Division qr = divide(t, d.h.kernel);
      const int64_t row = row_of_places(d, s.h, qr.quotient, qr.remainder);
      if (row < 0) continue;
      for (int64_t e = 0; e < d.w.kernel; ++e) {
        const int64_t ow = place_of(d.w, s.w, e);
        if (ow < 0) continue;
        const int64_t from = g.remainder * d.to_c + qr.quotient * d.to_q + qr.remainder * d.to_r + e * d.to_s;
        for (int64_t k = g.quotient * d.group_k; k < (g.quotient + 1) * d.group_k; ++k) {
          sum += static_cast<double>(dy[at(d.y, s.n, k, row, ow)]) * weights[from + k * d.to_k];
        }
      }
    }
    if (bias != nullptr) sum += bias[s.c];
    dx[i] = static_cast<float>(sum);
  }
};
struct DirectBackwardWeights {
  using Kind = EachBlock;
  using Value = Sum;
  float* dw;
  const float* x;
  const float* dy;
  DirectShape d;
  struct Weight {
    int64_t k, c, q, r, s;
  };
  PLIMSOLL_BODY Weight weight(int64_t block) const {
    const Division s = divide(block, d.w.kernel), r = divide(s.quotient, d.h.kernel),
                   q = divide(r.quotient, d.d.kernel);
    const Division c = divide(q.quotient, d.group_c);
    return {c.quotient, c.remainder, q.remainder, r.remainder, s.remainder};
  }
  PLIMSOLL_BODY Sum partial(int64_t block, int thread) const {
    const Weight own = weight(block);
    const int64_t c = divide(own.k, d.group_k).quotient * d.group_c + own.c;
    Sum sum;
    for (int64_t e = thread; e < d.y.n * d.y.h * d.y.w; e += kBlock) {
      const Division column = divide(e, d.y.w), row = divide(column.quotient, d.y.h);
      const int64_t from = row_of_taps(d, row.remainder, own.q, own.r), iw = tap(d.w, column.remainder, own.s);
      if (from < 0 || iw < 0 || iw >= d.w.in) continue;
      sum.a += static_cast<double>(x[at(d.x, row.quotient, c, from, iw)]) *
               dy[at(d.y, row.quotient, own.k, row.remainder, column.remainder)];
    }
    return sum;
  }
  PLIMSOLL_BODY void finish(int64_t block, const Sum& sum) const {
    const Weight own = weight(block);
    dw[own.k * d.to_k + own.c * d.to_c + own.q * d.to_q + own.r * d.to_r + own.s * d.to_s] = static_cast<float>(sum.a);
  }
};

}  // namespace plimsoll::cuda
