// Functions that a network writes out, where expressions have one of their own: GELU by tanh as 0.5 x (1 + tanh(...)), SiLU as
// x / (1 + exp(-x)). They are known by their values, since there are many ways to write them.
#pragma once

#include "ops/expression.h"

namespace plimsoll {

// The same expression, GELU (by erf and by tanh), SiLU and Mish of one argument standing for what computes them. Only what is
// made of functions that are analytic around the real axis is looked at: two of these that agree in many places agree everywhere.
Expression with_known_functions(const Expression& expression);

}  // namespace plimsoll
