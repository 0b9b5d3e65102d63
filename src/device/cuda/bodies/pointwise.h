// Pointwise, Expand, Cast, Reduce. An expression is a short program that every thread runs on four neighbouring
// elements, so that each step of it is read once for them.
#pragma once

#include <cmath>

#include "device/cuda/bodies/common.h"
#include "ops/expression_function.h"

namespace plimsoll::cuda {

enum class Number : int32_t { f32, i32, i64, u8 };
PLIMSOLL_BODY float read_number(const void* from, Number dtype, int64_t i) {
  switch (dtype) {
    case Number::i32: return static_cast<float>(static_cast<const int32_t*>(from)[i]);
    case Number::i64: return static_cast<float>(static_cast<const int64_t*>(from)[i]);
    case Number::u8: return static_cast<float>(static_cast<const uint8_t*>(from)[i]);
    case Number::f32: break;
  }
  return static_cast<const float*>(from)[i];
}

// The sizes of a storage that is walked, and where another tensor has its elements meanwhile: steps of 0 where it is
// stretched.
inline constexpr int kFour = 4;
inline constexpr int kMostWalked = 8;
struct WalkSizes {
  int32_t count = 0;
  Divisor size[kMostWalked];
};
struct WalkSteps {
  int64_t step[kMostWalked];
};
template <class Index>
PLIMSOLL_BODY int64_t walked_to_by(const WalkSizes& sizes, const WalkSteps& steps, Index i) {
  int64_t at = 0;
  for (int d = sizes.count - 1; d > 0; --d) {
    const Division here = divide(static_cast<int64_t>(i), sizes.size[d]);
    at += here.remainder * steps.step[d];
    i = static_cast<Index>(here.quotient);
  }
  return sizes.count > 0 ? at + static_cast<int64_t>(i) * steps.step[0] : 0;
}
PLIMSOLL_BODY int64_t walked_to(const WalkSizes& sizes, const WalkSteps& steps, int64_t i) {
  return is_narrow(i) ? walked_to_by(sizes, steps, static_cast<uint32_t>(i)) : walked_to_by(sizes, steps, i);
}

inline constexpr int kMostRegisters = 48, kMostInstructions = 320, kMostNumbers = 80, kMostPointwiseInputs = 18;
inline constexpr uint8_t kLoadInput = 255, kLoadNumber = 254;  // in the place of a function

// How four neighbours of the output find theirs in a stretched input of f32: each by itself, next to each other, or all in one place.
enum class InFours : uint8_t { each, next, same };
struct PointwiseSource {
  const void* from;
  Number dtype;
  bool alongside;  // it lies as the output does
  InFours fours;
  WalkSteps steps;
};
PLIMSOLL_BODY void load_input(const PointwiseSource& input, const WalkSizes& sizes, int64_t first, int some, float* r) {
  const float* const from = static_cast<const float*>(input.from);
  if (input.alongside && some == kFour) {
    const Four four = load_four(from + first);
    for (int k = 0; k < kFour; ++k) r[k] = four.v[k];
    return;
  }
  if (input.fours == InFours::next) {
    const Four four = load_four(from + walked_to(sizes, input.steps, first));
    for (int k = 0; k < kFour; ++k) r[k] = four.v[k];
    return;
  }
  if (input.fours == InFours::same) {
    const float value = from[walked_to(sizes, input.steps, first)];
    for (int k = 0; k < kFour; ++k) r[k] = value;
    return;
  }
  for (int k = 0; k < kFour; ++k) {
    const int64_t at = input.alongside ? first + k : k < some ? walked_to(sizes, input.steps, first + k) : 0;
    r[k] = k < some ? read_number(input.from, input.dtype, at) : 0;
  }
}

// r = function(x, z, w), of four elements; of those that take fewer, only the first are read.
struct FunctionOfFours {
  PLIMSOLL_BODY static void apply(Function function, const float* x, const float* z, const float* w, float* r) {
    switch (function) {
#define PLIMSOLL_CASE(name, ...)                                            \
  case Function::name:                                                      \
    for (int k = 0; k < kFour; ++k) r[k] = static_cast<float>(__VA_ARGS__); \
    break;
      PLIMSOLL_CASE(add, x[k] + z[k])
      PLIMSOLL_CASE(sub, x[k] - z[k])
      PLIMSOLL_CASE(mul, x[k] * z[k])
      PLIMSOLL_CASE(div, x[k] / z[k])
      PLIMSOLL_CASE(pow, powf(x[k], z[k]))
      PLIMSOLL_CASE(max, high(x[k], z[k]))
      PLIMSOLL_CASE(min, low(x[k], z[k]))
      PLIMSOLL_CASE(eq, x[k] == z[k])
      PLIMSOLL_CASE(ne, x[k] != z[k])
      PLIMSOLL_CASE(lt, x[k] < z[k])
      PLIMSOLL_CASE(le, x[k] <= z[k])
      PLIMSOLL_CASE(gt, x[k] > z[k])
      PLIMSOLL_CASE(ge, x[k] >= z[k])
      PLIMSOLL_CASE(logical_and, x[k] != 0 && z[k] != 0)
      PLIMSOLL_CASE(logical_or, x[k] != 0 || z[k] != 0)
      PLIMSOLL_CASE(neg, -x[k])
      PLIMSOLL_CASE(abs, fabsf(x[k]))
      PLIMSOLL_CASE(exp, expf(x[k]))
      PLIMSOLL_CASE(log, logf(x[k]))
      PLIMSOLL_CASE(log1p, log1pf(x[k]))
      PLIMSOLL_CASE(expm1, expm1f(x[k]))
      PLIMSOLL_CASE(sqrt, sqrtf(x[k]))
      PLIMSOLL_CASE(rsqrt, 1 / sqrtf(x[k]))
      PLIMSOLL_CASE(reciprocal, 1 / x[k])
      PLIMSOLL_CASE(square, x[k] * x[k])
      PLIMSOLL_CASE(sin, sinf(x[k]))
      PLIMSOLL_CASE(cos, cosf(x[k]))
      PLIMSOLL_CASE(atan, atanf(x[k]))
      PLIMSOLL_CASE(erf, erff(x[k]))
      PLIMSOLL_CASE(sigmoid, 1 / (1 + expf(-x[k])))
      PLIMSOLL_CASE(tanh, tanhf(x[k]))
      PLIMSOLL_CASE(relu, x[k] <= 0 ? 0 : x[k])
      PLIMSOLL_CASE(gelu, 0.5f * x[k] * erfcf(-0.70710678f * x[k]))
      PLIMSOLL_CASE(gelu_tanh, 0.5f * x[k] * (1 + tanhf(0.79788456f * (x[k] + 0.044715f * x[k] * x[k] * x[k]))))
      PLIMSOLL_CASE(silu, x[k] / (1 + expf(-x[k])))
      PLIMSOLL_CASE(gelu_derivative, 0.5f * erfcf(-0.70710678f * x[k]) + 0.39894228f * x[k] * expf(-0.5f * x[k] * x[k]))
      PLIMSOLL_CASE(gelu_tanh_derivative, gelu_tanh_derivative(x[k]))
      PLIMSOLL_CASE(silu_derivative, silu_derivative(x[k]))
      PLIMSOLL_CASE(softplus, soft_plus(x[k]))
      PLIMSOLL_CASE(mish, x[k] * tanhf(soft_plus(x[k])))
      PLIMSOLL_CASE(hardsigmoid, low(high(x[k] + 3, 0), 6) / 6)
      PLIMSOLL_CASE(hardswish, x[k] * (low(high(x[k] + 3, 0), 6) / 6))
      PLIMSOLL_CASE(sign, x[k] > 0 ? 1 : x[k] < 0 ? -1 : x[k])
      PLIMSOLL_CASE(floor, floorf(x[k]))
      PLIMSOLL_CASE(round, rintf(x[k]))
      PLIMSOLL_CASE(logical_not, x[k] == 0)
      PLIMSOLL_CASE(leaky_relu, x[k] > 0 ? x[k] : z[k] * x[k])
      PLIMSOLL_CASE(elu, x[k] > 0 ? x[k] : z[k] * expm1f(x[k]))
      PLIMSOLL_CASE(hardtanh, low(high(x[k], z[k]), w[k]))
      PLIMSOLL_CASE(clamp, low(high(x[k], z[k]), w[k]))
      PLIMSOLL_CASE(where, x[k] != 0 ? z[k] : w[k])
#undef PLIMSOLL_CASE
    }
  }

 private:
  // These keep what is not a number.
  PLIMSOLL_BODY static float high(float x, float y) { return x > y || x != x ? x : y; }
  PLIMSOLL_BODY static float low(float x, float y) { return x < y || x != x ? x : y; }
  PLIMSOLL_BODY static float gelu_tanh_derivative(float x) {
    const float t = tanhf(0.79788456f * (x + 0.044715f * x * x * x));
    return 0.5f * (1 + t + x * (1 - t * t) * 0.79788456f * (1 + 3 * 0.044715f * x * x));
  }
  PLIMSOLL_BODY static float silu_derivative(float x) {
    const float s = 1 / (1 + expf(-x));
    return s * (1 + x * (1 - s));
  }
  PLIMSOLL_BODY static float soft_plus(float x) { return high(x, 0) + log1pf(expf(-fabsf(x))); }
};

struct RunExpression {
  using Kind = EachElement;
  float* y;
  int64_t count;
  WalkSizes sizes;
  PointwiseSource inputs[kMostPointwiseInputs];
  float numbers[kMostNumbers];
  uint8_t function[kMostInstructions], to[kMostInstructions], a[kMostInstructions], b[kMostInstructions],
      c[kMostInstructions];
  int32_t length;

  PLIMSOLL_BODY void run(int64_t thread) const {
    const int64_t first = thread * kFour;
    const int some = static_cast<int>(smaller(kFour, count - first));
    float values[kMostRegisters][kFour];
    for (int i = 0; i < length; ++i) step(i, first, some, values);
    for (int k = 0; k < some; ++k) y[first + k] = values[0][k];
  }

 private:
  PLIMSOLL_BODY void step(int i, int64_t first, int some, float (*values)[kFour]) const {
    float* const r = values[to[i]];
    if (function[i] == kLoadInput) return load_input(inputs[a[i]], sizes, first, some, r);
    if (function[i] == kLoadNumber) {
      for (int k = 0; k < kFour; ++k) r[k] = numbers[a[i]];
      return;
    }
    FunctionOfFours::apply(static_cast<Function>(function[i]), values[a[i]], values[b[i]], values[c[i]], r);
  }
};

// An expression whose every step takes what the step before it made, inputs and numbers, as most do: what is between stays in a
// thread's registers, where values that are found by a number cannot.
inline constexpr int kMostChained = 16, kMostChainInputs = 8;
inline constexpr uint8_t kMade = 255,
                         kFirstNumber = 64;  // an operand: what was made, number k from here on, or an input
struct RunChain {
  using Kind = EachElement;
  float* y;
  int64_t count;
  WalkSizes sizes;
  PointwiseSource inputs[kMostChainInputs];
  float numbers[kMostChained];
  uint8_t function[kMostChained], operands[kMostChained], a[kMostChained], b[kMostChained], c[kMostChained];
  int32_t length;

  PLIMSOLL_BODY void run(int64_t thread) const {
    const int64_t first = thread * kFour;
    const int some = static_cast<int>(smaller(kFour, count - first));
    float made[kFour] = {}, x[kFour], z[kFour] = {}, w[kFour] = {};
    for (int i = 0; i < length; ++i) {
      fetch(a[i], first, some, made, x);
      if (operands[i] > 1) fetch(b[i], first, some, made, z);
      if (operands[i] > 2) fetch(c[i], first, some, made, w);
      FunctionOfFours::apply(static_cast<Function>(function[i]), x, z, w, made);
    }
    if (some == kFour && reinterpret_cast<uintptr_t>(y) % alignof(Four) == 0) {
      store_four(y + first, {{made[0], made[1], made[2], made[3]}});
    } else {
      for (int k = 0; k < kFour; ++k) {
        if (k < some) y[first + k] = made[k];
      }
    }
  }

 private:
  PLIMSOLL_BODY void fetch(uint8_t operand, int64_t first, int some, const float* made, float* r) const {
    if (operand == kMade) {
      for (int k = 0; k < kFour; ++k) r[k] = made[k];
    } else if (operand >= kFirstNumber) {
      for (int k = 0; k < kFour; ++k) r[k] = numbers[operand - kFirstNumber];
    } else {
      load_input(inputs[operand], sizes, first, some, r);
    }
  }
};

template <class T>
struct ExpandElements {
  using Kind = EachElement;
  T* y;
  const T* x;
  WalkSizes sizes;
  WalkSteps steps;
  PLIMSOLL_BODY void run(int64_t i) const { y[i] = x[walked_to(sizes, steps, i)]; }
};

// Fractions are cut off; what is out of range becomes the nearest number that is in it, what is no number 0.
struct CastElements {
  using Kind = EachElement;
  void* y;
  const void* x;
  Number to, from;
  PLIMSOLL_BODY void run(int64_t i) const {
    if (from == Number::f32) {
      const float v = static_cast<const float*>(x)[i];
      if (to == Number::f32) {
        static_cast<float*>(y)[i] = v;
      } else {
        put(i, v != v                         ? 0
               : v >= 9223372036854775808.0f  ? INT64_MAX
               : v <= -9223372036854775808.0f ? INT64_MIN
                                              : static_cast<int64_t>(v));
      }
      return;
    }
    const int64_t v = from == Number::i64   ? static_cast<const int64_t*>(x)[i]
                      : from == Number::i32 ? static_cast<const int32_t*>(x)[i]
                                            : static_cast<const uint8_t*>(x)[i];
    if (to == Number::f32) {
      static_cast<float*>(y)[i] = static_cast<float>(v);
    } else {
      put(i, v);
    }
  }

 private:
  PLIMSOLL_BODY void put(int64_t i, int64_t v) const {
    if (to == Number::i64) static_cast<int64_t*>(y)[i] = v;
    if (to == Number::i32) static_cast<int32_t*>(y)[i] = static_cast<int32_t>(larger(INT32_MIN, smaller(INT32_MAX, v)));
    if (to == Number::u8) static_cast<uint8_t*>(y)[i] = static_cast<uint8_t>(larger(0, smaller(255, v)));
  }
};

enum class ReduceBy : int32_t { sum, max, min, sum_of_squares };
PLIMSOLL_BODY bool is_sum(ReduceBy by) { return by == ReduceBy::sum || by == ReduceBy::sum_of_squares; }
PLIMSOLL_BODY double reduce_start(ReduceBy by) {
  constexpr double infinity = HUGE_VAL;
  return is_sum(by) ? 0 : by == ReduceBy::max ? -infinity : infinity;
}
// What an element counts.
PLIMSOLL_BODY double taken(ReduceBy by, double x) { return by == ReduceBy::sum_of_squares ? x * x : x; }
// What is not a number wins.
PLIMSOLL_BODY double reduced(ReduceBy by, double a, double b) {
  if (is_sum(by)) return a + b;
  if (a != a || b != b) return a + b;
  return (by == ReduceBy::max) == (a > b) ? a : b;
}
struct Reduced {
  double value = 0;
  ReduceBy by = ReduceBy::sum;
  PLIMSOLL_BODY void add(const Reduced& other) { value = reduced(by, value, other.value); }
};

// How the elements of a result are found: result i begins at walked_to(kept, i), its elements are `summed` from there.
struct ReduceSource {
  const void* x;
  Number dtype;
  ReduceBy by;
  WalkSizes kept, summed;
  WalkSteps kept_steps, summed_steps;
  int64_t elements;  // of a result
  PLIMSOLL_BODY double joined(int64_t result, int64_t first, int64_t end, int64_t by_steps) const {
    const int64_t at = walked_to(kept, kept_steps, result);
    double value = reduce_start(by);
    for (int64_t e = first; e < end; e += by_steps)
      value = reduced(by, value,
                      taken(by, static_cast<double>(read_number(x, dtype, at + walked_to(summed, summed_steps, e)))));
    return value;
  }
};
// A block a result: where neighbours are summed.
struct ReduceRows {
  using Kind = EachBlock;
  using Value = Reduced;
  float* y;
  ReduceSource source;
  WalkSteps to;
  double share;
  PLIMSOLL_BODY Reduced partial(int64_t result, int thread) const {
    Reduced part;
    part.value = source.joined(result, thread, source.elements, kBlock);
    part.by = source.by;
    return part;
  }
  PLIMSOLL_BODY void finish(int64_t result, const Reduced& sum) const {
    y[walked_to(source.kept, to, result)] = static_cast<float>(sum.value * share);
  }
};
// A thread a piece of a result, or of four: where neighbours are of different results.
struct ReducePieces {
  using Kind = EachFour;
  double* pieces;  // [piece][result]
  ReduceSource source;
  Divisor results;
  int64_t length;
  bool fours;  // four results lie next to each other, and so do all their elements
  PLIMSOLL_BODY void run(int64_t i) const {
    const Division d = divide(i, results);
    const int64_t first = d.quotient * length;
    pieces[i] = source.joined(d.remainder, first, smaller(first + length, source.elements), 1);
  }
  PLIMSOLL_BODY void four(int64_t i) const {
    const Division d = divide(i, results);
    const int64_t first = d.quotient * length, end = smaller(first + length, source.elements);
    const float* const from =
        static_cast<const float*>(source.x) + walked_to(source.kept, source.kept_steps, d.remainder);
    double value[4];
    for (int k = 0; k < 4; ++k) value[k] = reduce_start(source.by);
    for_indices(first, end, 1, [&](int64_t e) {
      const Four here = load_four(from + walked_to(source.summed, source.summed_steps, e));
      for (int k = 0; k < 4; ++k)
        value[k] = reduced(source.by, value[k], taken(source.by, static_cast<double>(here.v[k])));
    });
    for (int k = 0; k < 4; ++k) pieces[i + k] = value[k];
  }
  bool by_four() const { return fours && lie_by_four(static_cast<const float*>(source.x)); }
};
struct ReduceTotals {
  using Kind = EachElement;
  float* y;
  const double* pieces;
  ReduceBy by;
  WalkSizes kept;
  WalkSteps to;
  int64_t results, count;
  double share;
  PLIMSOLL_BODY void run(int64_t i) const {
    double value = pieces[i];
    PLIMSOLL_UNROLL(8)
    for (int64_t p = 1; p < count; ++p) value = reduced(by, value, pieces[p * results + i]);
    y[walked_to(kept, to, i)] = static_cast<float>(value * share);
  }
};

}  // namespace plimsoll::cuda
