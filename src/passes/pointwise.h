// Fusion of Pointwise ops.
#pragma once

#include "plimsoll/autodiff.h"

namespace plimsoll {

// Makes one op of Pointwise ops (and sums) of `phase` of which one is read by the other alone, so that what passes
// between them is never in memory; and lets Pointwise ops stretch and convert by themselves what an Expand or a Cast
// made for them. Only where it needs no more memory: a forward op's gradient must not keep more than before, and a
// backward op's inputs must not wait longer than the result that they replace. Returns how many ops went.
int fuse_pointwise(Network& network, Phase phase);

}  // namespace plimsoll
