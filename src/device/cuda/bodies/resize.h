// Padding, images of another size, adaptive pooling. Gradients are gathered by the element that receives them.
#pragma once

#include "device/cuda/bodies/move.h"
#include "device/cuda/bodies/window.h"

namespace plimsoll::cuda {

enum class PadWith : int32_t { constant, reflect, replicate };

struct PadShape {  // row-major; dimensions that are not padded may be joined
  PadWith mode;
  int32_t rank;
  Divisor in[kMostDimensions];
  int64_t begin[kMostDimensions];
  Divisor out[kMostDimensions];
};
// The position of x that lies at o of the result, or -1.
PLIMSOLL_BODY int64_t pad_source(const PadShape& s, int d, int64_t o) {
  const int64_t i = o - s.begin[d], in = s.in[d];
  if (i >= 0 && i < in) return i;
  if (s.mode == PadWith::constant) return -1;
  if (s.mode == PadWith::replicate) return i < 0 ? 0 : in - 1;
  return i < 0 ? -i : 2 * (in - 1) - i;
}
template <class T>
struct PadElements {
  using Kind = EachElement;
  T* y;
  const T* x;
  T value;
  PadShape shape;
  PLIMSOLL_BODY void run(int64_t i) const {
    int64_t rest = i, at = 0, distance = 1;
    for (int d = shape.rank - 1; d >= 0; --d) {
      const Division here = divide(rest, shape.out[d]);
      const int64_t source = pad_source(shape, d, here.remainder);
      rest = here.quotient;
      at = source < 0 || at < 0 ? -1 : at + source * distance;
      distance *= shape.in[d];
    }
    y[i] = at < 0 ? value : x[at];
  }
};
struct PadBackward {
  using Kind = EachElement;
  float* dx;
  const float* dy;
  PadShape shape;
  // The positions made of position i are `first` to `last` where x is repeated, else up to three.
  PLIMSOLL_BODY int64_t candidates(int d, int64_t i) const {
    if (shape.mode == PadWith::reflect) return 3;
    const int64_t in = shape.in[d];
    return (i == 0 ? larger(shape.begin[d], 0) : 0) + 1 +
           (i == in - 1 ? larger(shape.out[d] - shape.begin[d] - in, 0) : 0);
  }
  PLIMSOLL_BODY int64_t candidate(int d, int64_t i, int64_t k) const {  // -1: none
    const int64_t in = shape.in[d], begin = shape.begin[d];
    int64_t o = begin + i;
    if (shape.mode == PadWith::reflect) {
      if (k == 1) o = i == 0 ? -1 : begin - i;
      if (k == 2) o = i == in - 1 ? -1 : begin + 2 * (in - 1) - i;
    } else {
      o = (i == 0 ? smaller(begin, 0) : begin + i) + k;
    }
    return o >= 0 && o < shape.out[d] ? o : -1;
  }
  PLIMSOLL_BODY void run(int64_t i) const {
    int64_t place[kMostDimensions] = {}, own[kMostDimensions] = {};
    for (int64_t d = shape.rank - 1, rest = i; d >= 0; --d) {
      const Division here = divide(rest, shape.in[d]);
      own[d] = here.remainder;
      rest = here.quotient;
    }
    float sum = 0;
    for (bool more = true; more;) {
      int64_t at = 0, distance = 1;
      for (int d = shape.rank - 1; d >= 0; --d) {
        const int64_t o = candidate(d, own[d], place[d]);
        at = o < 0 || at < 0 ? -1 : at + o * distance;
        distance *= shape.out[d];
      }
      if (at >= 0) sum += dy[at];
      more = false;
      for (int d = shape.rank - 1; d >= 0 && !more; --d) {
        more = ++place[d] < candidates(d, own[d]);
        if (!more) place[d] = 0;
      }
    }
    dx[i] = sum;
  }
};

// As ops/resize.h has it, in single precision.
enum class ResizeBy : int32_t { nearest, bilinear, bicubic };
struct ResizeLine {
  ResizeBy mode;
  bool align_corners;
  int64_t in, out;
  float scale;
};
struct ResizeTap {
  int64_t at;
  float weight;
};
PLIMSOLL_BODY int taps_of(const ResizeLine& line) {
  return line.mode == ResizeBy::nearest ? 1 : line.mode == ResizeBy::bilinear ? 2 : 4;
}
PLIMSOLL_BODY float cubic_near(float x) { return (1.25F * x - 2.25F) * x * x + 1; }
PLIMSOLL_BODY float cubic_far(float x) { return ((-0.75F * x + 3.75F) * x - 6) * x + 3; }
PLIMSOLL_BODY float coordinate(const ResizeLine& line, int64_t o) {
  const float place = static_cast<float>(o);
  if (line.mode == ResizeBy::nearest || line.align_corners) return line.scale * place;
  const float at = line.scale * (place + 0.5F) - 0.5F;
  return line.mode == ResizeBy::bilinear && at < 0 ? 0 : at;
}
PLIMSOLL_BODY ResizeTap resize_tap(const ResizeLine& line, float coordinate, int k) {
  const int64_t first = smaller(static_cast<int64_t>(floorf(coordinate)), line.in - 1);
  if (line.mode == ResizeBy::nearest) return {first, 1};
  const float rest = fminf(fmaxf(coordinate - static_cast<float>(first), 0), 1);
  if (line.mode == ResizeBy::bilinear) return {smaller(first + k, line.in - 1), k == 0 ? 1 - rest : rest};
  const float weight = k == 0   ? cubic_far(rest + 1)
                       : k == 1 ? cubic_near(rest)
                       : k == 2 ? cubic_near(1 - rest)
                                : cubic_far(2 - rest);
  return {smaller(larger(first - 1 + k, 0), line.in - 1), weight};
}
// Places of the result that may take element i: more than do, never fewer.
PLIMSOLL_BODY int64_t first_place(const ResizeLine& line, int64_t i) {
  if (i == 0 || line.scale <= 0) return 0;
  const float at = (static_cast<float>(i) - 3) / line.scale - 2;
  return at <= 0 ? 0 : smaller(static_cast<int64_t>(at), line.out);
}
PLIMSOLL_BODY int64_t last_place(const ResizeLine& line, int64_t i) {  // behind the last
  if (i == line.in - 1 || line.scale <= 0) return line.out;
  const float at = (static_cast<float>(i) + 4) / line.scale + 2;
  return at >= static_cast<float>(line.out) ? line.out : static_cast<int64_t>(at);
}

struct ResizeImage {
  using Kind = EachElement;
  float* y;
  const float* x;
  Image small, large;  // the result and the source
  ResizeLine h, w;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Spot s = spot(small, i);
    const float row = coordinate(h, s.h), column = coordinate(w, s.w);
    const int taps = taps_of(h);
    float sum = 0;
    for (int r = 0; r < taps; ++r) {
      const ResizeTap of_row = resize_tap(h, row, r);
      float line = 0;
      for (int c = 0; c < taps; ++c) {
        const ResizeTap of_column = resize_tap(w, column, c);
        line += of_column.weight * x[at(large, s.n, s.c, of_row.at, of_column.at)];
      }
      sum += of_row.weight * line;
    }
    y[i] = sum;
  }
};
struct ResizeImageBackward {
  using Kind = EachElement;
  float* dx;
  const float* dy;
  Image small, large;  // dy and dx
  ResizeLine h, w;
  PLIMSOLL_BODY static float weight(const ResizeLine& line, int64_t o, int64_t i) {
    const float place = coordinate(line, o);
    float sum = 0;
    for (int k = 0; k < taps_of(line); ++k) {
      const ResizeTap tap = resize_tap(line, place, k);
      if (tap.at == i) sum += tap.weight;
    }
    return sum;
  }
  PLIMSOLL_BODY void run(int64_t i) const {
    const Spot s = spot(large, i);
    const int64_t left = first_place(w, s.w), right = last_place(w, s.w);
    float sum = 0;
    for (int64_t oh = first_place(h, s.h); oh < last_place(h, s.h); ++oh) {
      const float of_row = weight(h, oh, s.h);
      if (of_row == 0) continue;
      float line = 0;
      for (int64_t ow = left; ow < right; ++ow) {
        const float of_column = weight(w, ow, s.w);
        if (of_column != 0) line += of_column * dy[at(small, s.n, s.c, oh, ow)];
      }
      sum += of_row * line;
    }
    dx[i] = sum;
  }
};

PLIMSOLL_BODY int64_t adaptive_first(int64_t in, const Divisor& out, int64_t o) { return divide(o * in, out).quotient; }
PLIMSOLL_BODY int64_t adaptive_last(int64_t in, const Divisor& out, int64_t o) {  // behind the last
  return divide((o + 1) * in + out - 1, out).quotient;
}
struct AdaptiveAverage {
  using Kind = EachElement;
  float* y;
  const float* x;
  Image small, large;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Spot s = spot(small, i);
    const int64_t top = adaptive_first(large.h, small.h, s.h), bottom = adaptive_last(large.h, small.h, s.h);
    const int64_t left = adaptive_first(large.w, small.w, s.w), right = adaptive_last(large.w, small.w, s.w);
    float sum = 0;
    for (int64_t ih = top; ih < bottom; ++ih) {
      for (int64_t iw = left; iw < right; ++iw) sum += x[at(large, s.n, s.c, ih, iw)];
    }
    y[i] = sum / static_cast<float>((bottom - top) * (right - left));
  }
};
// Element i lies in the windows from this one on; and up to where a window begins behind it.
PLIMSOLL_BODY int64_t first_window(const Divisor& in, int64_t out, int64_t i) { return divide(i * out, in).quotient; }
struct AdaptiveAverageBackward {
  using Kind = EachElement;
  float* dx;
  const float* dy;
  Image small, large;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Spot s = spot(large, i);
    float sum = 0;
    for (int64_t oh = first_window(large.h, small.h, s.h); oh < small.h; ++oh) {
      const int64_t top = adaptive_first(large.h, small.h, oh), bottom = adaptive_last(large.h, small.h, oh);
      if (top > s.h) break;
      for (int64_t ow = first_window(large.w, small.w, s.w); ow < small.w; ++ow) {
        const int64_t left = adaptive_first(large.w, small.w, ow), right = adaptive_last(large.w, small.w, ow);
        if (left > s.w) break;
        if (s.h < bottom && s.w < right)
          sum += dy[at(small, s.n, s.c, oh, ow)] / static_cast<float>((bottom - top) * (right - left));
      }
    }
    dx[i] = sum;
  }
};
struct AdaptiveMaximum {
  using Kind = EachElement;
  float* y;
  int32_t* index;
  const float* x;
  Image small, large;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Spot s = spot(small, i);
    const int64_t top = adaptive_first(large.h, small.h, s.h), bottom = adaptive_last(large.h, small.h, s.h);
    const int64_t left = adaptive_first(large.w, small.w, s.w), right = adaptive_last(large.w, small.w, s.w);
    int64_t best = top * large.w + left;
    float most = x[at(large, s.n, s.c, top, left)];
    for (int64_t ih = top; ih < bottom; ++ih) {
      for (int64_t iw = left; iw < right; ++iw) {
        const float v = x[at(large, s.n, s.c, ih, iw)];
        if (!(v > most) && v == v) continue;
        most = v;
        best = ih * large.w + iw;
      }
    }
    y[i] = most;
    index[i] = static_cast<int32_t>(best);
  }
};
struct AdaptiveMaximumBackward {
  using Kind = EachElement;
  float* dx;
  const float* dy;
  const int32_t* index;
  Image small, large;
  PLIMSOLL_BODY void run(int64_t i) const {
    const Spot s = spot(large, i);
    const int64_t own = s.h * large.w + s.w;
    float sum = 0;
    for (int64_t oh = first_window(large.h, small.h, s.h); oh < small.h; ++oh) {
      if (adaptive_first(large.h, small.h, oh) > s.h) break;
      for (int64_t ow = first_window(large.w, small.w, s.w); ow < small.w; ++ow) {
        if (adaptive_first(large.w, small.w, ow) > s.w) break;
        const int64_t from = at(small, s.n, s.c, oh, ow);
        if (index[from] == own) sum += dy[from];
      }
    }
    dx[i] = sum;
  }
};

}  // namespace plimsoll::cuda
