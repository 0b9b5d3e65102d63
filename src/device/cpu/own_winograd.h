// The transforms of Winograd's convolutions along one side of an image (Lavin and Gray, "Fast Algorithms for Convolutional
// Neural Networks", 2016). Elements lie `step` vectors apart.
#pragma once

#include <algorithm>

#include "device/cpu/own_vector.h"

namespace plimsoll::cpu::winograd {

// F(kTile, kTaps): so many outputs of so many taps by kTile + kTaps - 1 products instead of kTile * kTaps. What is convolved
// are polynomials' coefficients, and products are their values at 0, 1, -1, 2, -2 and infinity, as many of these as it takes (none where
// there is one tap).
//
//   in        B'  pixels to points       out       A'  points to outputs
//   weights   G   taps to points         sums      G'  points to taps: weights turned round
//   gradient  A   outputs to points: out turned round
template <int kTile, int kTaps>
struct Minimal;

template <>
struct Minimal<4, 1> {
  PLIMSOLL_INLINE static void in(f32x16* to, int to_step, const f32x16* d, int step) {
    for (int i = 0; i < 4; ++i) to[i * to_step] = d[i * step];
  }
  PLIMSOLL_INLINE static void out(f32x16* to, int to_step, const f32x16* m, int step) { in(to, to_step, m, step); }
  PLIMSOLL_INLINE static void gradient(f32x16* to, int to_step, const f32x16* y, int step) { in(to, to_step, y, step); }
  PLIMSOLL_INLINE static void weights(f32x16* to, int to_step, const f32x16* w, int) {
    for (int i = 0; i < 4; ++i) to[i * to_step] = w[0];
  }
  PLIMSOLL_INLINE static void sums(f32x16* to, int, const f32x16* u, int step) {
    to[0] = (u[0] + u[step]) + (u[2 * step] + u[3 * step]);
  }
};

// At 0, 1, -1, 2 and infinity.
template <>
struct Minimal<4, 2> {
  PLIMSOLL_INLINE static void in(f32x16* to, int to_step, const f32x16* d, int step) {
    const f32x16 d1 = d[step], d2 = d[2 * step], d3 = d[3 * step];
    const f32x16 a = d3 - d1, b = d1 + d1;
    to[0] = (d[0] + d[0]) + a - (d2 + d2);
    to[to_step] = d3 - d2 - b;
    to[2 * to_step] = d3 - splat(3.0f) * d2 + b;
    to[3 * to_step] = a;
    to[4 * to_step] = d[4 * step] - d2 - (a + a);
  }
  PLIMSOLL_INLINE static void out(f32x16* to, int to_step, const f32x16* m, int step) {
    const f32x16 a = m[step] + m[2 * step], b = m[step] - m[2 * step], c = m[3 * step];
    to[0] = m[0] + a + c;
    to[to_step] = b + (c + c);
    to[2 * to_step] = a + splat(4.0f) * c;
    to[3 * to_step] = b + splat(8.0f) * c + m[4 * step];
  }
  PLIMSOLL_INLINE static void gradient(f32x16* to, int to_step, const f32x16* y, int step) {
    const f32x16 y0 = y[0], y1 = y[step], y2 = y[2 * step], y3 = y[3 * step];
    const f32x16 a = y0 + y2, b = y1 + y3;
    to[0] = y0;
    to[to_step] = a + b;
    to[2 * to_step] = a - b;
    to[3 * to_step] = (y0 + (y1 + y1)) + (splat(4.0f) * y2 + splat(8.0f) * y3);
    to[4 * to_step] = y3;
  }
  PLIMSOLL_INLINE static void weights(f32x16* to, int to_step, const f32x16* w, int step) {
    const f32x16 w0 = w[0], w1 = w[step], sixth = splat(1.0f / 6);
    to[0] = w0 * splat(0.5f);
    to[to_step] = (w0 + w1) * splat(-0.5f);
    to[2 * to_step] = (w1 - w0) * sixth;
    to[3 * to_step] = (w0 + (w1 + w1)) * sixth;
    to[4 * to_step] = w1;
  }
  PLIMSOLL_INLINE static void sums(f32x16* to, int to_step, const f32x16* u, int step) {
    const f32x16 half = splat(0.5f), sixth = splat(1.0f / 6);
    const f32x16 u1 = u[step], u2 = u[2 * step], u3 = u[3 * step];
    to[0] = (u[0] - u1) * half + (u3 - u2) * sixth;
    to[to_step] = (u2 + (u3 + u3)) * sixth - u1 * half + u[4 * step];
  }
};

// At 0, 1, -1, 2, -2 and infinity. The values at x and -x are the sum and the difference of an even and an odd part: `a` and `b` at
// 1, `c` and `d` at 2.
struct SixPoints {
  f32x16 zero, a, b, c, d, infinity;

  // Of values at the points, the sums and differences of those at x and -x.
  PLIMSOLL_INLINE static SixPoints of(const f32x16* m, int step) {
    return {
        m[0],       m[step] + m[2 * step], m[step] - m[2 * step], m[3 * step] + m[4 * step], m[3 * step] - m[4 * step],
        m[5 * step]};
  }
  PLIMSOLL_INLINE void put(f32x16* to, int step) const {
    to[0] = zero;
    to[step] = a + b;
    to[2 * step] = a - b;
    to[3 * step] = c + d;
    to[4 * step] = c - d;
    to[5 * step] = infinity;
  }
};

// In is the same, whatever the six pixels become.
struct MinimalAtSix {
  PLIMSOLL_INLINE static void in(f32x16* to, int to_step, const f32x16* d, int step) {
    const f32x16 four = splat(4.0f), five = splat(5.0f);
    const f32x16 d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step], d5 = d[5 * step];
    const f32x16 e = d3 - d1;
    SixPoints{four * d0 - five * d2 + d4, d4 - four * d2, d3 - four * d1, d4 - d2, e + e, four * d1 - five * d3 + d5}
        .put(to, to_step);
  }
};

template <>
struct Minimal<4, 3> : MinimalAtSix {
  PLIMSOLL_INLINE static void out(f32x16* to, int to_step, const f32x16* m, int step) {
    const SixPoints p = SixPoints::of(m, step);
    to[0] = p.zero + p.a + p.c;
    to[to_step] = p.b + (p.d + p.d);
    to[2 * to_step] = p.a + splat(4.0f) * p.c;
    to[3 * to_step] = p.b + splat(8.0f) * p.d + p.infinity;
  }
  PLIMSOLL_INLINE static void gradient(f32x16* to, int to_step, const f32x16* y, int step) {
    const f32x16 y0 = y[0], y1 = y[step], y2 = y[2 * step], y3 = y[3 * step];
    SixPoints{y0, y0 + y2, y1 + y3, y0 + splat(4.0f) * y2, y1 + y1 + splat(8.0f) * y3, y3}.put(to, to_step);
  }
  PLIMSOLL_INLINE static void weights(f32x16* to, int to_step, const f32x16* w, int step) {
    const f32x16 w0 = w[0], w1 = w[step], w2 = w[2 * step], sixth = splat(-1.0f / 6);
    SixPoints{w0 * splat(0.25f),
              (w0 + w2) * sixth,
              w1 * sixth,
              w0 * splat(1.0f / 24) + w2 * splat(1.0f / 6),
              w1 * splat(1.0f / 12),
              w2}
        .put(to, to_step);
  }
  PLIMSOLL_INLINE static void sums(f32x16* to, int to_step, const f32x16* u, int step) {
    const SixPoints p = SixPoints::of(u, step);
    const f32x16 a = p.a * splat(-1.0f / 6), b = p.b * splat(-1.0f / 6);
    to[0] = p.zero * splat(0.25f) + a + p.c * splat(1.0f / 24);
    to[to_step] = b + p.d * splat(1.0f / 12);
    to[2 * to_step] = a + p.c * splat(1.0f / 6) + p.infinity;
  }
};

template <>
struct Minimal<2, 5> : MinimalAtSix {
  PLIMSOLL_INLINE static void out(f32x16* to, int to_step, const f32x16* m, int step) {
    const SixPoints p = SixPoints::of(m, step);
    to[0] = p.zero + p.a + p.c;
    to[to_step] = p.b + (p.d + p.d) + p.infinity;
  }
  PLIMSOLL_INLINE static void gradient(f32x16* to, int to_step, const f32x16* y, int step) {
    const f32x16 y0 = y[0], y1 = y[step];
    SixPoints{y0, y0, y1, y0, y1 + y1, y1}.put(to, to_step);
  }
  PLIMSOLL_INLINE static void weights(f32x16* to, int to_step, const f32x16* w, int step) {
    const f32x16 w0 = w[0], w1 = w[step], w2 = w[2 * step], w3 = w[3 * step], w4 = w[4 * step];
    const f32x16 sixth = splat(-1.0f / 6);
    SixPoints{w0 * splat(0.25f),
              (w0 + w2 + w4) * sixth,
              (w1 + w3) * sixth,
              w0 * splat(1.0f / 24) + w2 * splat(1.0f / 6) + w4 * splat(2.0f / 3),
              w1 * splat(1.0f / 12) + w3 * splat(1.0f / 3),
              w4}
        .put(to, to_step);
  }
  PLIMSOLL_INLINE static void sums(f32x16* to, int to_step, const f32x16* u, int step) {
    const SixPoints p = SixPoints::of(u, step);
    const f32x16 a = p.a * splat(-1.0f / 6), b = p.b * splat(-1.0f / 6);
    to[0] = p.zero * splat(0.25f) + a + p.c * splat(1.0f / 24);
    to[to_step] = b + p.d * splat(1.0f / 12);
    to[2 * to_step] = a + p.c * splat(1.0f / 6);
    to[3 * to_step] = b + p.d * splat(1.0f / 3);
    to[4 * to_step] = a + p.c * splat(2.0f / 3) + p.infinity;
  }
};

// What a pass reads and writes: pixels and results, or results and pixels. With stride 2 the even pixels are reached by one half of
// the taps and the odd ones by the other; of a padding that is odd these halves change places.
enum class To { results, pixels, pixels_behind_odd_padding };

// A pass of a convolution of so many taps and this stride along one side. With stride 2 it is two convolutions of stride 1, one of the
// even taps and one of the odd ones, whose points follow each other. To pixels, taps are read from the last to the first.
template <int kTapsOfSide, int kStride, To kTo>
struct Pass {
  static constexpr int kTaps = kTapsOfSide;
  static constexpr bool kToPixels = kTo != To::results;
  static constexpr int kTile = kStride == 1 && kTaps == 5 ? 2 : 4;
  static constexpr int taps_of(int phase) { return (kTaps - phase + kStride - 1) / kStride; }
  static constexpr int points_of(int phase) { return kTile + taps_of(phase) - 1; }
  static constexpr int kPoints = kStride == 1 ? points_of(0) : points_of(0) + points_of(1);

 private:
  static constexpr int kSwapped = kTo == To::pixels_behind_odd_padding ? 1 : 0;
  // To pixels: how many results before the one at the same place a phase reads.
  static constexpr int before_of(int phase) { return taps_of(phase) - 1 - (phase == 0 ? kSwapped : 0); }
  static constexpr int kBefore = kStride == 1 ? before_of(0) : std::max(before_of(0), before_of(1));
  static constexpr int first_of(int phase) { return kToPixels ? kBefore - before_of(phase) : phase; }
  static constexpr int end_of(int phase) { return first_of(phase) + points_of(phase); }

 public:
  // What a tile reads and writes, and how far it is to those of the next tile.
  static constexpr int kIn = !kToPixels     ? kStride * (kTile - 1) + kTaps
                             : kStride == 1 ? end_of(0)
                                            : std::max(end_of(0), end_of(1));
  static constexpr int kOut = kToPixels ? kStride * kTile : kTile;
  static constexpr int kInStep = kToPixels ? kTile : kStride * kTile;
  static constexpr int kOutStep = kOut;
  // How far before the first one the first tile begins.
  static constexpr int64_t in_before(int64_t padding) { return kToPixels ? kBefore - padding / kStride : padding; }
  static constexpr int64_t out_before(int64_t padding) { return kToPixels && !kSwapped ? padding % kStride : 0; }

  PLIMSOLL_INLINE static void in(f32x16* to, int to_step, const f32x16* d, int step) {
    for_each_phase([&]<int phase>() PLIMSOLL_INLINED {
      Of<phase>::in(to + point_of(phase) * to_step, to_step, d + first_of(phase) * step,
                    kToPixels ? step : kStride * step);
    });
  }
  PLIMSOLL_INLINE static void out(f32x16* to, int to_step, const f32x16* m, int step) {
    if constexpr (kToPixels || kStride == 1) {
      for_each_phase([&]<int phase>() PLIMSOLL_INLINED {
        Of<phase>::out(to + (phase ^ kSwapped) * to_step, kStride * to_step, m + point_of(phase) * step, step);
      });
    } else {
      f32x16 sum[2][kTile];
      for_each_phase([&]<int phase>()
                         PLIMSOLL_INLINED { Of<phase>::out(sum[phase], 1, m + point_of(phase) * step, step); });
      for (int i = 0; i < kTile; ++i) to[i * to_step] = sum[0][i] + sum[1][i];
    }
  }
  PLIMSOLL_INLINE static void gradient(f32x16* to, int to_step, const f32x16* y, int step) {
    for_each_phase([&]<int phase>()
                       PLIMSOLL_INLINED { Of<phase>::gradient(to + point_of(phase) * to_step, to_step, y, step); });
  }
  PLIMSOLL_INLINE static void weights(f32x16* to, int to_step, const f32x16* w, int step) {
    for_each_phase([&]<int phase>() PLIMSOLL_INLINED {
      f32x16 taps[taps_of(phase)];
      for (int i = 0; i < taps_of(phase); ++i) taps[i] = w[tap_of(phase, i) * step];
      Of<phase>::weights(to + point_of(phase) * to_step, to_step, taps, 1);
    });
  }
  PLIMSOLL_INLINE static void sums(f32x16* to, int to_step, const f32x16* u, int step) {
    for_each_phase([&]<int phase>() PLIMSOLL_INLINED {
      f32x16 taps[taps_of(phase)];
      Of<phase>::sums(taps, 1, u + point_of(phase) * step, step);
      for (int i = 0; i < taps_of(phase); ++i) to[tap_of(phase, i) * to_step] = taps[i];
    });
  }

 private:
  template <int phase>
  using Of = Minimal<kTile, taps_of(phase)>;
  static constexpr int point_of(int phase) { return phase == 0 ? 0 : points_of(0); }
  static constexpr int tap_of(int phase, int i) { return kStride * (kToPixels ? taps_of(phase) - 1 - i : i) + phase; }
  template <class Act>
  PLIMSOLL_INLINE static void for_each_phase(const Act& act) {
    act.template operator()<0>();
    if constexpr (kStride == 2) act.template operator()<1>();
  }
};

}  // namespace plimsoll::cpu::winograd
