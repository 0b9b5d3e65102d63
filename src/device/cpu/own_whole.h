// Sixteen lanes as one register of AVX-512. Part of own_vector.h.
#pragma once

namespace plimsoll::cpu {

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));

PLIMSOLL_INLINE f32x16 splat(float x) { return f32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
PLIMSOLL_INLINE i32x16 splat(int32_t x) { return i32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
PLIMSOLL_INLINE u32x16 splat(uint32_t x) { return u32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
PLIMSOLL_INLINE i32x16 lane_numbers() { return i32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

template <class To, class From>
PLIMSOLL_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
PLIMSOLL_INLINE f32x16 to_float(i32x16 v) { return __builtin_convertvector(v, f32x16); }

// Lanes of a where a comparison holds, else of b.
template <class V>
PLIMSOLL_INLINE V choose(i32x16 holds, V a, V b) {
  return holds ? a : b;
}
PLIMSOLL_INLINE f32x16 maximum(f32x16 a, f32x16 b) { return a > b ? a : b; }  // b where either is not a number
PLIMSOLL_INLINE f32x16 minimum(f32x16 a, f32x16 b) { return a < b ? a : b; }

PLIMSOLL_INLINE f32x16 load(const float* from, All = kAll) {
  f32x16 v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
PLIMSOLL_INLINE void store(float* to, f32x16 v, All = kAll) { std::memcpy(to, &v, sizeof v); }
PLIMSOLL_INLINE i32x16 load(const int32_t* from) {
  i32x16 v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
PLIMSOLL_INLINE __mmask16 first_bits(int count) { return static_cast<__mmask16>((1u << count) - 1); }
PLIMSOLL_INLINE f32x16 load(const float* from, int count) {
  return f32x16(_mm512_maskz_loadu_ps(first_bits(count), from));
}
PLIMSOLL_INLINE void store(float* to, f32x16 v, int count) { _mm512_mask_storeu_ps(to, first_bits(count), __m512(v)); }
// Zero in the lanes from `count` on.
PLIMSOLL_INLINE f32x16 first_lanes(f32x16 v, int count) {
  return f32x16(_mm512_maskz_mov_ps(first_bits(count), __m512(v)));
}
// Past the caches; `to` is aligned to what is written. Needs finish_streaming before another thread reads.
template <class V>
PLIMSOLL_INLINE void stream(float* to, V v) {
  _mm512_stream_ps(to, __m512(v));
}
PLIMSOLL_INLINE void finish_streaming() { _mm_sfence(); }

// Bit i: lane i is greater than zero, or at least `least`.
PLIMSOLL_INLINE uint32_t positive_bits(f32x16 v) {
  return _mm512_cmp_ps_mask(__m512(v), _mm512_setzero_ps(), _CMP_GT_OQ);
}
PLIMSOLL_INLINE uint32_t bits_at_least(u32x16 v, uint32_t least) {
  return _mm512_cmp_epu32_mask(__m512i(v), _mm512_set1_epi32(static_cast<int>(least)), _MM_CMPINT_NLT);
}
// The lanes whose bit is set, zero in the others.
PLIMSOLL_INLINE f32x16 keep_lanes(uint32_t bits, f32x16 v) {
  return f32x16(_mm512_maskz_mov_ps(static_cast<__mmask16>(bits), __m512(v)));
}
// Masked, since GCC 12 warns of what the others leave undefined.
PLIMSOLL_INLINE f32x16 square_root(f32x16 v) { return f32x16(_mm512_maskz_sqrt_ps(0xffff, __m512(v))); }
// The whole number below, and the nearest one, halves to the even neighbour.
PLIMSOLL_INLINE f32x16 round_down(f32x16 v) { return f32x16(_mm512_maskz_roundscale_ps(0xffff, __m512(v), 0x09)); }
PLIMSOLL_INLINE f32x16 round_to_even(f32x16 v) { return f32x16(_mm512_maskz_roundscale_ps(0xffff, __m512(v), 0x08)); }

// The high and low halves of the products of 32-bit lanes.
PLIMSOLL_INLINE void multiply(u32x16 a, uint32_t m, u32x16& high, u32x16& low) {
  const __m512i factor = _mm512_set1_epi64(m), lanes = __m512i(a);
  const __m512i even = _mm512_mul_epu32(lanes, factor);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(lanes, 32), factor);
  high = u32x16(_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd));
  low = u32x16(_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32)));
}

// A product that is not joined with a sum behind it: compilers choose which of two products they join with their sum.
PLIMSOLL_INLINE f32x16 rounded(f32x16 v) {
  asm("" : "+v"(v));
  return v;
}

PLIMSOLL_INLINE f32x8 low_half(f32x16 v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7); }
PLIMSOLL_INLINE f32x8 high_half(f32x16 v) { return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15); }
PLIMSOLL_INLINE f32x16 of_halves(f32x8 low, f32x8 high) {
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

// Sixteen of the 32 lanes of a and b, from lane `first` on.
PLIMSOLL_INLINE f32x16 window(f32x16 a, f32x16 b, int first) {
  const __m512i index = __m512i(lane_numbers() + splat(static_cast<int32_t>(first)));
  return f32x16(_mm512_permutex2var_ps(__m512(a), index, __m512(b)));
}
template <int kFirst>
PLIMSOLL_INLINE f32x16 window(f32x16 a, f32x16 b) {
  return [&]<int... kLane>(std::integer_sequence<int, kLane...>) PLIMSOLL_INLINED {
    return __builtin_shufflevector(a, b, (kFirst + kLane)...);
  }
  (std::make_integer_sequence<int, 16>{});
}

// Blocks of kWidth lanes: the second ones of a change places with the first ones of b.
template <int kWidth>
PLIMSOLL_INLINE void swap_blocks(f32x16& a, f32x16& b) {
  [&]<int... kLane>(std::integer_sequence<int, kLane...>) PLIMSOLL_INLINED {
    const f32x16 first = __builtin_shufflevector(a, b, ((kLane & kWidth) != 0 ? 16 + kLane - kWidth : kLane)...);
    b = __builtin_shufflevector(a, b, ((kLane & kWidth) != 0 ? 16 + kLane : kLane + kWidth)...);
    a = first;
  }
  (std::make_integer_sequence<int, 16>{});
}

}  // namespace plimsoll::cpu
