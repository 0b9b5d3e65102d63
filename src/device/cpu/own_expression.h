// An expression of elements inside another kernel of our own.
#pragma once

#include <memory>
#include <vector>

#include "ops/expression.h"
#include "plimsoll/device.h"

namespace plimsoll::cpu {

// y[rows,width] = the expression of inputs of that shape, row-major, or of [width] where `stretched` says so; y may be any
// of the former. bind takes {x0, x1, ..}, {y} and scratch of its own, and may be called before every run.
std::unique_ptr<Kernel> make_expression(const Expression& expression, const std::vector<bool>& stretched, int64_t rows,
                                        int64_t width, int threads);

}  // namespace plimsoll::cpu
