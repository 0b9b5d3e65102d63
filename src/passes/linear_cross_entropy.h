// A linear layer and the cross entropy that alone reads its logits become one op (ops/linear_cross_entropy.cpp), which
// makes the logits of some rows at a time.
#pragma once

#include "plimsoll/autodiff.h"

namespace plimsoll {

// Of a forward network. Between layer and loss may stand reshapes, and slices of whole rows, which move before the
// layer: so causal language models shift their logits. Only where the logits have more bytes than `above`, which must
// not follow the budget, since that must not change the result, and nobody else reads them. Returns how many losses were
// found.
inline constexpr Bytes kLogitsAbove = 16_MiB;
int fuse_linear_cross_entropy(Network& network, Bytes above = kLogitsAbove);

// Of a training step: where the gradient of such a loss does not depend on it, as is usual, forward and backward op
// become one that makes the logits once. Returns how many pairs were found.
int fuse_linear_cross_entropy_training(Network& training);

}  // namespace plimsoll
