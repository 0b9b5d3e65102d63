// Sixteen lanes as two registers of AVX2: what compilers make of longer vectors than a register goes through memory. Part of
// own_vector.h, which needs the same of own_whole.h.
#pragma once

namespace plimsoll::cpu {

template <class T>
struct Halves {
  typedef T Half __attribute__((vector_size(32)));
  typedef T Lane __attribute__((may_alias));  // some compilers have no references to a lane
  Half low, high;

  PLIMSOLL_INLINE T operator[](int64_t lane) const { return lane < 8 ? low[lane] : high[lane - 8]; }
  PLIMSOLL_INLINE Lane& operator[](int64_t lane) { return reinterpret_cast<Lane*>(this)[lane]; }
  PLIMSOLL_INLINE Halves operator-() const { return {-low, -high}; }
  PLIMSOLL_INLINE Halves operator>>(int bits) const { return {low >> bits, high >> bits}; }

#define PLIMSOLL_OPERATOR(op)                                                 \
  PLIMSOLL_INLINE friend Halves operator op(const Halves a, const Halves b) { \
    return {a.low op b.low, a.high op b.high};                                \
  }                                                                           \
  PLIMSOLL_INLINE Halves& operator op##=(const Halves b) { return *this = *this op b; }
  PLIMSOLL_OPERATOR(+);
  PLIMSOLL_OPERATOR(-);
  PLIMSOLL_OPERATOR(*);
  PLIMSOLL_OPERATOR(/);
  PLIMSOLL_OPERATOR(&);
  PLIMSOLL_OPERATOR(|);
  PLIMSOLL_OPERATOR(^);
  PLIMSOLL_OPERATOR(<<);
#undef PLIMSOLL_OPERATOR

// A lane of the result is -1 where it holds, else 0.
#define PLIMSOLL_COMPARISON(op)                                                              \
  PLIMSOLL_INLINE friend Halves<int32_t> operator op(const Halves a, const Halves b) {       \
    return {Halves<int32_t>::Half(a.low op b.low), Halves<int32_t>::Half(a.high op b.high)}; \
  }
  PLIMSOLL_COMPARISON(<);
  PLIMSOLL_COMPARISON(<=);
  PLIMSOLL_COMPARISON(>);
  PLIMSOLL_COMPARISON(>=);
  PLIMSOLL_COMPARISON(==);
  PLIMSOLL_COMPARISON(!=);
#undef PLIMSOLL_COMPARISON
};
using f32x16 = Halves<float>;
using i32x16 = Halves<int32_t>;
using u32x16 = Halves<uint32_t>;

template <class T>
PLIMSOLL_INLINE Halves<T> splat_halves(T x) {
  const typename Halves<T>::Half half{x, x, x, x, x, x, x, x};
  return {half, half};
}
PLIMSOLL_INLINE f32x16 splat(float x) { return splat_halves(x); }
PLIMSOLL_INLINE i32x16 splat(int32_t x) { return splat_halves(x); }
PLIMSOLL_INLINE u32x16 splat(uint32_t x) { return splat_halves(x); }
PLIMSOLL_INLINE i32x16 lane_numbers() {
  return {i32x16::Half{0, 1, 2, 3, 4, 5, 6, 7}, i32x16::Half{8, 9, 10, 11, 12, 13, 14, 15}};
}

template <class To, class From>
PLIMSOLL_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  if constexpr (
      requires { from.low; } && requires(To to) { to.low; }) {
    return {(decltype(To::low))(from.low), (decltype(To::high))(from.high)};
  } else {
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
  }
}
PLIMSOLL_INLINE f32x16 to_float(i32x16 v) {
  return {__builtin_convertvector(v.low, f32x8), __builtin_convertvector(v.high, f32x8)};
}

// Lanes of a where a comparison holds, else of b.
template <class V>
PLIMSOLL_INLINE V choose(const i32x16& holds, const V& a, const V& b) {
  return {holds.low ? a.low : b.low, holds.high ? a.high : b.high};
}

PLIMSOLL_INLINE f32x16 load(const float* from, All = kAll) {
  f32x16 v;
  std::memcpy(&v.low, from, sizeof v.low);
  std::memcpy(&v.high, from + 8, sizeof v.high);
  return v;
}
PLIMSOLL_INLINE i32x16 load(const int32_t* from) {
  i32x16 v;
  std::memcpy(&v.low, from, sizeof v.low);
  std::memcpy(&v.high, from + 8, sizeof v.high);
  return v;
}
PLIMSOLL_INLINE void store(float* to, f32x16 v, All = kAll) {
  std::memcpy(to, &v.low, sizeof v.low);
  std::memcpy(to + 8, &v.high, sizeof v.high);
}
PLIMSOLL_INLINE i32x16 first_bits(int count) { return lane_numbers() < splat(static_cast<int32_t>(count)); }
// Zero in the lanes from `count` on.
PLIMSOLL_INLINE f32x16 first_lanes(f32x16 v, int count) {
  return bits_as<f32x16>(bits_as<i32x16>(v) & first_bits(count));
}
// The lanes whose bit is set, zero in the others.
PLIMSOLL_INLINE f32x16 keep_lanes(uint32_t bits, f32x16 v) {
  const i32x16 bit{i32x16::Half{1, 2, 4, 8, 16, 32, 64, 128},
                   i32x16::Half{256, 512, 1024, 2048, 4096, 8192, 16384, 32768}};
  return bits_as<f32x16>(bits_as<i32x16>(v) & ((splat(static_cast<int32_t>(bits)) & bit) == bit));
}

#ifdef __AVX2__
PLIMSOLL_INLINE f32x16 maximum(f32x16 a, f32x16 b) {  // b where either is not a number
  return {f32x8(_mm256_max_ps(__m256(a.low), __m256(b.low))), f32x8(_mm256_max_ps(__m256(a.high), __m256(b.high)))};
}
PLIMSOLL_INLINE f32x16 minimum(f32x16 a, f32x16 b) {
  return {f32x8(_mm256_min_ps(__m256(a.low), __m256(b.low))), f32x8(_mm256_min_ps(__m256(a.high), __m256(b.high)))};
}
PLIMSOLL_INLINE f32x16 load(const float* from, int count) {
  const i32x16 bits = first_bits(count);
  return {f32x8(_mm256_maskload_ps(from, __m256i(bits.low))), f32x8(_mm256_maskload_ps(from + 8, __m256i(bits.high)))};
}
PLIMSOLL_INLINE void store(float* to, f32x16 v, int count) {
  const i32x16 bits = first_bits(count);
  _mm256_maskstore_ps(to, __m256i(bits.low), __m256(v.low));
  _mm256_maskstore_ps(to + 8, __m256i(bits.high), __m256(v.high));
}
// Past the caches; `to` is aligned to what is written. Needs finish_streaming before another thread reads.
template <class Half>
PLIMSOLL_INLINE void stream(float* to, Half v) {
  _mm256_stream_ps(to, __m256(v));
}
PLIMSOLL_INLINE void stream(float* to, f32x16 v) {
  stream(to, v.low);
  stream(to + 8, v.high);
}
PLIMSOLL_INLINE void finish_streaming() { _mm_sfence(); }
PLIMSOLL_INLINE uint32_t bits_of(i32x16 holds) {
  return static_cast<uint32_t>(_mm256_movemask_ps(__m256(holds.low))) |
         static_cast<uint32_t>(_mm256_movemask_ps(__m256(holds.high))) << 8;
}
PLIMSOLL_INLINE f32x16 square_root(f32x16 v) {
  return {f32x8(_mm256_sqrt_ps(__m256(v.low))), f32x8(_mm256_sqrt_ps(__m256(v.high)))};
}
// The whole number below, and the nearest one, halves to the even neighbour.
PLIMSOLL_INLINE f32x16 round_down(f32x16 v) {
  return {f32x8(_mm256_round_ps(__m256(v.low), 0x09)), f32x8(_mm256_round_ps(__m256(v.high), 0x09))};
}
PLIMSOLL_INLINE f32x16 round_to_even(f32x16 v) {
  return {f32x8(_mm256_round_ps(__m256(v.low), 0x08)), f32x8(_mm256_round_ps(__m256(v.high), 0x08))};
}
// The high and low halves of the products of 32-bit lanes.
PLIMSOLL_INLINE void multiply(u32x16::Half a, uint32_t m, u32x16::Half& high, u32x16::Half& low) {
  const __m256i factor = _mm256_set1_epi64x(m), lanes = __m256i(a);
  const __m256i even = _mm256_mul_epu32(lanes, factor), odd = _mm256_mul_epu32(_mm256_srli_epi64(lanes, 32), factor);
  high = u32x16::Half(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA));
  low = u32x16::Half(_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA));
}
PLIMSOLL_INLINE void multiply(u32x16 a, uint32_t m, u32x16& high, u32x16& low) {
  multiply(a.low, m, high.low, low.low);
  multiply(a.high, m, high.high, low.high);
}
#else
PLIMSOLL_INLINE f32x16 maximum(f32x16 a, f32x16 b) { return choose(a > b, a, b); }
PLIMSOLL_INLINE f32x16 minimum(f32x16 a, f32x16 b) { return choose(a < b, a, b); }
PLIMSOLL_INLINE f32x16 load(const float* from, int count) {
  f32x16 v;
  std::memcpy(&v, from, count * sizeof(float));
  return v;
}
PLIMSOLL_INLINE void store(float* to, f32x16 v, int count) { std::memcpy(to, &v, count * sizeof(float)); }
template <class V>
PLIMSOLL_INLINE void stream(float* to, V v) {
  std::memcpy(to, &v, sizeof v);
}
PLIMSOLL_INLINE void finish_streaming() {}
PLIMSOLL_INLINE uint32_t bits_of(i32x16 holds) {
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= static_cast<uint32_t>(holds[i] != 0) << i;
  return bits;
}
template <class Function>
PLIMSOLL_INLINE f32x16 lane_by_lane(f32x16 v, const Function& function) {
  for (int i = 0; i < kLanes; ++i) v[i] = function(v[i]);
  return v;
}
PLIMSOLL_INLINE f32x16 square_root(f32x16 v) {
  return lane_by_lane(v, [](float x) { return std::sqrt(x); });
}
PLIMSOLL_INLINE f32x16 round_down(f32x16 v) {
  return lane_by_lane(v, [](float x) { return std::floor(x); });
}
PLIMSOLL_INLINE f32x16 round_to_even(f32x16 v) {
  return lane_by_lane(v, [](float x) { return std::nearbyint(x); });
}
PLIMSOLL_INLINE void multiply(u32x16 a, uint32_t m, u32x16& high, u32x16& low) {
  for (int i = 0; i < kLanes; ++i) {
    const uint64_t product = uint64_t{a[i]} * m;
    high[i] = static_cast<uint32_t>(product >> 32);
    low[i] = static_cast<uint32_t>(product);
  }
}
#endif

// Bit i: lane i is greater than zero, or at least `least`.
PLIMSOLL_INLINE uint32_t positive_bits(f32x16 v) { return bits_of(v > splat(0.0f)); }
PLIMSOLL_INLINE uint32_t bits_at_least(u32x16 v, uint32_t least) { return bits_of(v >= splat(least)); }

// A product that is not joined with a sum behind it: compilers choose which of two products they join with their sum.
PLIMSOLL_INLINE f32x16 rounded(f32x16 v) {
#ifdef __AVX2__
  asm("" : "+x"(v.low), "+x"(v.high));
#endif
  return v;
}

PLIMSOLL_INLINE f32x8 low_half(f32x16 v) { return v.low; }
PLIMSOLL_INLINE f32x8 high_half(f32x16 v) { return v.high; }
PLIMSOLL_INLINE f32x16 of_halves(f32x8 low, f32x8 high) { return {low, high}; }

// Sixteen of the 32 lanes of a and b, from lane `first` on.
PLIMSOLL_INLINE f32x16 window(f32x16 a, f32x16 b, int first) {
  float lanes[32];
  store(lanes, a);
  store(lanes + 16, b);
  return load(lanes + first);
}
template <int kFirst>
PLIMSOLL_INLINE f32x8 window(f32x8 a, f32x8 b) {
  return [&]<int... kLane>(std::integer_sequence<int, kLane...>) PLIMSOLL_INLINED {
    return __builtin_shufflevector(a, b, (kFirst + kLane)...);
  }
  (std::make_integer_sequence<int, 8>{});
}
template <int kFirst>
PLIMSOLL_INLINE f32x16 window(f32x16 a, f32x16 b) {
  if constexpr (kFirst <= 8) {
    return {window<kFirst>(a.low, a.high), window<kFirst>(a.high, b.low)};
  } else {
    return {window<kFirst - 8>(a.high, b.low), window<kFirst - 8>(b.low, b.high)};
  }
}

// Blocks of kWidth lanes: the second ones of a change places with the first ones of b.
template <int kWidth>
PLIMSOLL_INLINE void swap_blocks(f32x16& a, f32x16& b) {
  if constexpr (kWidth == 8) {
    std::swap(a.high, b.low);
  } else {
    const auto swap_in = [](f32x8& a, f32x8& b) PLIMSOLL_INLINED {
      [&]<int... kLane>(std::integer_sequence<int, kLane...>) PLIMSOLL_INLINED {
        const f32x8 first = __builtin_shufflevector(a, b, ((kLane & kWidth) != 0 ? 8 + kLane - kWidth : kLane)...);
        b = __builtin_shufflevector(a, b, ((kLane & kWidth) != 0 ? 8 + kLane : kLane + kWidth)...);
        a = first;
      }
      (std::make_integer_sequence<int, 8>{});
    };
    swap_in(a.low, b.low);
    swap_in(a.high, b.high);
  }
}

}  // namespace plimsoll::cpu
