// A Pointwise op and the linear layer that alone reads it become one op (ops/pointwise_linear.cpp), which makes the
// expression of some rows at a time.
#pragma once

#include "plimsoll/autodiff.h"
#include "plimsoll/compile.h"

namespace plimsoll {

// Of a forward network. Between the two may stand dropout and reshapes of whole rows. Only where the expression has more
// bytes than `above`, which must not follow the budget, where its gradient keeps no more than before, and where the layer
// is not to be split (options). Returns how many were found.
inline constexpr Bytes kExpressionAbove = 4_MiB;
int fuse_pointwise_linear(Network& network, const FusionOptions& options = {}, Bytes above = kExpressionAbove);

}  // namespace plimsoll
