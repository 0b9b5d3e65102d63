// Which inputs of a PointwiseLinear op are what (pointwise_linear.cpp).
#pragma once

#include <optional>
#include <vector>

#include "ops/expression.h"
#include "plimsoll/ops.h"

namespace plimsoll {

struct PointwiseLinear {
  size_t operands = 1;  // x0, x1, ..: the first inputs
  size_t weights = 1;
  std::optional<size_t> step, bias;  // inputs; the seed is the one after the step
  size_t dy = 0;                     // of a backward op
  double p = 0;
  bool transposed = false;
  std::vector<int64_t> gradients;  // of a backward op: what its outputs are gradients of
  bool drops() const { return step.has_value(); }
};
PointwiseLinear pointwise_linear(const Attributes& attributes, size_t inputs, bool backward);
PointwiseLinear pointwise_linear(const Op& op, bool backward);

// An operand that has rows; the others are one row for all.
size_t row_operand(const Graph& graph, const Op& op);

// By operand: the gradient as an expression of all of them, and of the expression's own gradient as one more; nothing for
// those that the expression does not depend on. With `by_result`, of the expression's value too, as one more.
std::vector<std::optional<Expression>> operand_derivatives(const Attributes& attributes, bool by_result = false);

}  // namespace plimsoll
