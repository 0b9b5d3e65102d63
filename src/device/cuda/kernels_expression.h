// Expressions of elements as programs for RunExpression.
#pragma once

#include <vector>

#include "device/cuda/kernels.h"
#include "ops/expression.h"

namespace plimsoll::cuda {

// Throws Error(unsupported) that names the op where the expression is too long for a body.
void write_program(const Op& op, const Expression& expression, RunExpression& body);

// Of rows of `width` elements that lie one after the other; of inputs that are `one_row`, all rows have the same. Who launches it
// sets y, count and the inputs' addresses.
RunExpression expression_of_rows(const Op& op, const Expression& expression, const std::vector<bool>& one_row,
                                 int64_t width);

}  // namespace plimsoll::cuda
