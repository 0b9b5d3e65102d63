// An expression of elements inside another kernel of our own.
#pragma once

#include <memory>

#include "ops/expression.h"
#include "plimsoll/device.h"

namespace plimsoll::cpu {

// y = the expression of so many inputs, all of them `elements` floats that lie one after the other; y may be any of them.
// bind takes {x0, x1, ..}, {y} and scratch of its own, and may be called before every run.
std::unique_ptr<Kernel> make_expression(const Expression& expression, size_t inputs, int64_t elements, int threads);

}  // namespace plimsoll::cpu
