// Expressions of elements as programs for RunExpression and RunChain.
#pragma once

#include <vector>

#include "device/cuda/kernels.h"
#include "ops/expression.h"

namespace plimsoll::cuda {

// An expression as the body that runs it: a chain of steps where it is one, else a program for any.
class PreparedExpression {
 public:
  PreparedExpression() = default;
  // Throws Error(unsupported) that names the op where the expression is too long for a body, or has too many inputs.
  // `inputs`: how each is read; who launches sets their addresses.
  PreparedExpression(const Op& op, const Expression& expression, const WalkSizes& sizes,
                     const std::vector<PointwiseSource>& inputs);

  // action(body) with the body, whose y, count and inputs' addresses are not set yet.
  template <class Action>
  void with_body(const Action& action) const {
    if (chained_) {
      RunChain body = chain_;
      action(body);
    } else {
      RunExpression body = general_;
      action(body);
    }
  }
  bool is_chain() const { return chained_; }

 private:
  RunExpression general_{};
  RunChain chain_{};
  bool chained_ = false;
};

// How an input that is walked so is read by fours: `steps` in dimensions of `sizes`.
InFours in_fours(const WalkSizes& sizes, const WalkSteps& steps, Number dtype);

// Of rows of `width` elements that lie one after the other; of inputs that are `one_row`, all rows have the same.
PreparedExpression expression_of_rows(const Op& op, const Expression& expression, const std::vector<bool>& one_row,
                                      int64_t width);

}  // namespace plimsoll::cuda
