// The functions of expressions. A file of its own, since GPU code reads it.
#pragma once

#include <cstdint>

namespace plimsoll {

// In the order of the table in expression.cpp. Comparisons give 1 or 0; what is not 0 is true.
enum class Function : uint8_t {
  add,
  sub,
  mul,
  div,
  pow,
  max,
  min,
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  logical_and,
  logical_or,
  neg,
  abs,
  exp,
  log,
  log1p,
  expm1,
  sqrt,
  rsqrt,
  reciprocal,
  square,
  sin,
  cos,
  atan,
  erf,
  sigmoid,
  tanh,
  relu,
  gelu,
  gelu_tanh,
  silu,
  gelu_derivative,  // each in one pass, since a step has as many of them as of the functions
  gelu_tanh_derivative,
  silu_derivative,
  softplus,
  mish,
  hardsigmoid,
  hardswish,
  sign,
  floor,
  round,
  logical_not,
  leaky_relu,  // x, slope below 0
  elu,         // x, alpha
  hardtanh,
  clamp,  // x, least, largest; they differ in the gradient at the bounds
  where,  // condition, value where it is true, value where it is not
};
inline constexpr int kFunctions = static_cast<int>(Function::where) + 1;

}  // namespace plimsoll
