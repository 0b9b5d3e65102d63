// Sixteen floats at once. With AVX-512 that is one register, by the compilers' vector types; else two of eight (own_halves.h). Intrinsics
// stand only where a type cannot say it. Loads and stores take any alignment.
//
// A count is either kAll, known when compiled, or an int below 16: the lanes from the first on that exist. Loads give
// zeros in the others.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#ifdef __x86_64__
#include <immintrin.h>
#endif

// The vector type is only passed between functions of one file, all inlined: how it would be passed does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

#define PLIMSOLL_INLINE inline __attribute__((always_inline))
#define PLIMSOLL_INLINED __attribute__((always_inline))  // of a lambda in an inner loop

namespace plimsoll::cpu {

inline constexpr int64_t kLanes = 16;
using All = std::integral_constant<int, 16>;
inline constexpr All kAll{};

typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));

}  // namespace plimsoll::cpu

#ifdef __AVX512F__
#include "device/cpu/own_whole.h"
#else
#include "device/cpu/own_halves.h"
#endif

namespace plimsoll::cpu {

PLIMSOLL_INLINE f32x16 first_lanes(f32x16 v, All) { return v; }
// `other` in the lanes from `count` on.
PLIMSOLL_INLINE f32x16 lanes_or(f32x16 v, int count, float other) {
  return choose(lane_numbers() < splat(static_cast<int32_t>(count)), v, splat(other));
}
PLIMSOLL_INLINE f32x16 lanes_or(f32x16 v, All, float) { return v; }

// Keeps what is not a number.
PLIMSOLL_INLINE f32x16 relu(f32x16 v) { return choose(v <= splat(0.0f), splat(0.0f), v); }

// Lanes i and i + 8 together, then i and i + 4, and so on.
template <class Join>
PLIMSOLL_INLINE float join_lanes(f32x16 v, const Join& join) {
  const f32x8 eight = join(low_half(v), high_half(v));
  const f32x4 four =
      join(__builtin_shufflevector(eight, eight, 0, 1, 2, 3), __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
  const f32x4 two = join(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));
  return join(two[0], two[1]);
}
PLIMSOLL_INLINE float sum_of_lanes(f32x16 v) {
  return join_lanes(v, [](auto a, auto b) { return a + b; });
}
PLIMSOLL_INLINE float largest_lane(f32x16 v) {
  return join_lanes(v, [](auto a, auto b) { return a > b ? a : b; });
}

// Adds lane by lane into sixteen doubles.
PLIMSOLL_INLINE void add_lanes(double* sums, f32x16 v) {
  float lanes[16];
  store(lanes, v);
  for (int i = 0; i < 16; ++i) sums[i] += static_cast<double>(lanes[i]);
}

// exp(x) * 2^(bias - 127), where neither leaves the normal numbers.
PLIMSOLL_INLINE f32x16 scaled_exponential(f32x16 x, uint32_t bias) {
  const f32x16 rounder = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  const f32x16 shifted = x * splat(1.44269504088896341f) + rounder;
  const f32x16 n = shifted - rounder;
  const f32x16 r = (x - n * splat(0.693359375f)) + n * splat(2.12194440e-4f);  // ln 2 in two parts
  f32x16 p = splat(1.9875691500e-4f);
  p = p * r + splat(1.3981999507e-3f);
  p = p * r + splat(8.3334519073e-3f);
  p = p * r + splat(4.1665795894e-2f);
  p = p * r + splat(1.6666665459e-1f);
  p = p * r + splat(5.0000001201e-1f);
  p = p * r * r + r + splat(1.0f);
  const u32x16 exponent = (bits_as<u32x16>(shifted) + splat(bias)) << splat(23u);  // the rounder's bits fall off
  return p * bits_as<f32x16>(exponent);
}
// Relative error below 2e-7; below -87 it stays at 1.6e-38, above 88 at 1.6e38, so that it never overflows.
PLIMSOLL_INLINE f32x16 exponential(f32x16 x) {
  // In this order it keeps what is not a number.
  return scaled_exponential(minimum(splat(88.0f), maximum(splat(-87.0f), x)), 127u);
}

// The same, but 0 below -87: of scores that are masked by minus infinity.
PLIMSOLL_INLINE f32x16 exponential_or_zero(f32x16 x) {
  const f32x16 e = exponential(x);
  return choose(x < splat(-87.0f), splat(0.0f), e);
}

PLIMSOLL_INLINE f32x16 sigmoid(f32x16 x) { return splat(1.0f) / (splat(1.0f) + exponential(-x)); }

PLIMSOLL_INLINE f32x16 hyperbolic_tangent(f32x16 x) {
  const f32x16 magnitude = maximum(-x, x);
  const f32x16 e = exponential(magnitude + magnitude);
  const f32x16 far = splat(1.0f) - splat(2.0f) / (e + splat(1.0f));
  const f32x16 s = x * x;
  f32x16 p = splat(-5.70498872745e-3f);
  p = p * s + splat(2.06390887954e-2f);
  p = p * s + splat(-5.37397155531e-2f);
  p = p * s + splat(1.33314422036e-1f);
  p = p * s + splat(-3.33332819422e-1f);
  const f32x16 near = p * s * x + x;
  return choose(magnitude < splat(0.625f), near, choose(x < splat(0.0f), -far, far));
}

// As std::exp: infinity above 88.7, and 0 below -86.6, where the numbers are hardly normal ones.
PLIMSOLL_INLINE f32x16 natural_exponential(f32x16 x) {
  const f32x16 y = scaled_exponential(minimum(splat(88.73f), maximum(splat(-86.6f), x)), 126u) * splat(2.0f);
  return choose(x > splat(88.72284f), splat(__builtin_inff()), choose(x < splat(-86.6f), splat(0.0f), y));
}

// As std::log; relative error below 3e-7 beside 1, absolute below 1e-7 near it.
PLIMSOLL_INLINE f32x16 natural_logarithm(f32x16 x) {
  const i32x16 tiny = x < splat(1.17549435e-38f);
  const f32x16 scaled = choose(tiny, x * splat(8388608.0f), x);     // 2^23
  const i32x16 bits = bits_as<i32x16>(scaled) - splat(0x3f3504f3);  // of sqrt(1/2)
  const i32x16 exponent = bits >> 23;
  const f32x16 m = bits_as<f32x16>((bits & splat(0x007fffff)) + splat(0x3f3504f3));  // in [sqrt(1/2), sqrt(2))
  const f32x16 r = m - splat(1.0f);
  f32x16 p = splat(6.971611443e-2f);
  p = p * r + splat(-1.147973381e-1f);
  p = p * r + splat(1.168541992e-1f);
  p = p * r + splat(-1.242568734e-1f);
  p = p * r + splat(1.424905765e-1f);
  p = p * r + splat(-1.666780232e-1f);
  p = p * r + splat(2.000071575e-1f);
  p = p * r + splat(-2.499999696e-1f);
  p = p * r + splat(3.333333118e-1f);
  const f32x16 n = to_float(exponent) - choose(tiny, splat(23.0f), splat(0.0f));
  f32x16 y = r * r * (r * p) + (n * splat(-2.12194440e-4f) - r * r * splat(0.5f)) + r;
  y += n * splat(0.693359375f);
  y = choose(x == splat(__builtin_inff()), x, y);
  y = choose(x == splat(0.0f), splat(-__builtin_inff()), y);
  return choose((x < splat(0.0f)) | (x != x), splat(__builtin_nanf("")), y);
}

// log(1 + x) and exp(x) - 1, exact to some roundings near 0 too: what was lost in the sum is known from it.
PLIMSOLL_INLINE f32x16 logarithm_of_one_plus(f32x16 x) {
  const f32x16 u = splat(1.0f) + x, lost = u - splat(1.0f);
  const f32x16 y = natural_logarithm(u);
  return choose(u == splat(1.0f), x, choose(u == splat(__builtin_inff()), u, y * (x / lost)));
}
PLIMSOLL_INLINE f32x16 exponential_minus_one(f32x16 x) {
  const f32x16 far = natural_exponential(x) - splat(1.0f);
  f32x16 p = splat(2.4801587e-5f);  // the series, to x^8
  p = p * x + splat(1.9841270e-4f);
  p = p * x + splat(1.3888889e-3f);
  p = p * x + splat(8.3333333e-3f);
  p = p * x + splat(4.1666667e-2f);
  p = p * x + splat(1.6666667e-1f);
  p = p * x + splat(0.5f);
  const f32x16 near = p * x * x + x;
  return choose(maximum(-x, x) < splat(0.5f), near, far);
}

// As std::erf; absolute error below 1.5e-7, relative too.
PLIMSOLL_INLINE f32x16 error_function(f32x16 x) {
  const f32x16 magnitude = minimum(maximum(-x, x), splat(4.0f));  // 1 from there on
  const f32x16 s = x * x;
  f32x16 p = splat(7.875875049e-5f);
  p = p * s + splat(-8.016864283e-4f);
  p = p * s + splat(5.189087423e-3f);
  p = p * s + splat(-2.685421201e-2f);
  p = p * s + splat(1.128359472e-1f);
  p = p * s + splat(-3.761262667e-1f);
  p = p * s + splat(1.128379166f);
  f32x16 q = splat(1.637151419e-6f);  // the logarithm of 1 - erf(magnitude)
  q = q * magnitude + splat(-4.605804278e-5f);
  q = q * magnitude + splat(5.968056265e-4f);
  q = q * magnitude + splat(-4.759596297e-3f);
  q = q * magnitude + splat(2.642113602e-2f);
  q = q * magnitude + splat(-1.100800830e-1f);
  q = q * magnitude + splat(-6.318260515e-1f);
  q = q * magnitude + splat(-1.130233435f);
  q = q * magnitude + splat(3.201380530e-4f);
  const f32x16 far = splat(1.0f) - exponential(q);
  const f32x16 y = choose(magnitude < splat(1.0f), p * x, choose(x < splat(0.0f), -far, far));
  return choose(x != x, x, y);
}

// As std::sin, or std::cos; absolute error below 1.2e-7 up to 8192, in double precision beyond.
template <bool kCosine>
PLIMSOLL_INLINE f32x16 sine_or_cosine(f32x16 x) {
  const f32x16 rounder = splat(12582912.0f);
  const f32x16 shifted = x * splat(0.636619772f) + rounder;  // 2 / pi
  const f32x16 n = shifted - rounder;
  f32x16 r = x - n * splat(1.5703125f);  // pi / 2 in three parts
  r = r - n * splat(4.837512969970703125e-4f);
  r = r - n * splat(7.54978995489188216e-8f);
  const u32x16 quarter = bits_as<u32x16>(shifted) + splat(kCosine ? 1u : 0u);
  const f32x16 s = r * r;
  f32x16 p = splat(2.724992582e-6f);
  p = p * s + splat(-1.984008674e-4f);
  p = p * s + splat(8.333331875e-3f);
  p = p * s + splat(-1.666666666e-1f);
  f32x16 q = splat(-2.730095920e-7f);
  q = q * s + splat(2.480060038e-5f);
  q = q * s + splat(-1.388888767e-3f);
  q = q * s + splat(4.166666666e-2f);
  const f32x16 sine = p * s * r + r, cosine = q * s * s - splat(0.5f) * s + splat(1.0f);
  const f32x16 y = choose((quarter & splat(1u)) != splat(0u), cosine, sine);
  f32x16 result = bits_as<f32x16>(bits_as<u32x16>(y) ^ ((quarter & splat(2u)) << splat(30u)));
  if (largest_lane(maximum(-x, x)) <= 8192.0f) return result;  // false where a lane is not a number
  for (int i = 0; i < kLanes; ++i) {
    const double lane = static_cast<double>(x[i]);
    result[i] = static_cast<float>(kCosine ? std::cos(lane) : std::sin(lane));
  }
  return result;
}

// As std::atan; relative error below 2.5e-7.
PLIMSOLL_INLINE f32x16 arc_tangent(f32x16 x) {
  const f32x16 magnitude = maximum(-x, x);
  const i32x16 steep = magnitude > splat(2.41421356f), slanted = magnitude > splat(0.41421356f);
  // Less a quarter or an eighth of a turn, by the tangent of a difference.
  const f32x16 above = choose(steep, splat(-1.0f), magnitude - splat(1.0f));
  const f32x16 below = choose(steep, magnitude, magnitude + splat(1.0f));
  const f32x16 z = choose(slanted, above / below, magnitude);
  const f32x16 turned = choose(steep, splat(1.57079637f), choose(slanted, splat(0.785398185f), splat(0.0f)));
  const f32x16 s = z * z;
  f32x16 p = splat(8.05374449538e-2f);
  p = p * s + splat(-1.38776856032e-1f);
  p = p * s + splat(1.99777106478e-1f);
  p = p * s + splat(-3.33329491539e-1f);
  const f32x16 y = p * s * z + z + turned;
  return choose(x != x, x, choose(x < splat(0.0f), -y, y));
}

// Bits of storage elements [i, i + count) of a mask, from bit 0 on. The first form wants i to be a multiple of 8, and
// count to be 16 or 8.
PLIMSOLL_INLINE uint32_t aligned_bits(const uint8_t* mask, int64_t i, int count) {
  if (count <= 8) return mask[i / 8];
  uint16_t bits;
  std::memcpy(&bits, mask + i / 8, sizeof bits);
  return bits;
}
PLIMSOLL_INLINE void put_aligned_bits(uint8_t* mask, int64_t i, int count, uint32_t bits) {
  if (count <= 8) {
    mask[i / 8] = static_cast<uint8_t>(bits);
  } else {
    const uint16_t two = static_cast<uint16_t>(bits);
    std::memcpy(mask + i / 8, &two, sizeof two);
  }
}
PLIMSOLL_INLINE uint32_t any_bits(const uint8_t* mask, int64_t i, int count) {
  const int64_t first = i / 8, last = (i + count - 1) / 8;
  uint32_t bits = mask[first];
  if (last > first) bits |= static_cast<uint32_t>(mask[first + 1]) << 8;
  if (last > first + 1) bits |= static_cast<uint32_t>(mask[first + 2]) << 16;
  return (bits >> (i % 8)) & ((1u << count) - 1);
}

}  // namespace plimsoll::cpu
