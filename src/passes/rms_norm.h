// RMSNorm as PyTorch's modules write it becomes one op:
//
//   x ─┬─ square ─ mean of each row ─ add epsilon ─ rsqrt ─ mul ─┬─ mul gamma        RmsNormForward(x, gamma)
//      └────────────────────────────────────────────────────────┘
#pragma once

#include "plimsoll/autodiff.h"

namespace plimsoll {

// Of a forward network; a gamma need not be there. Returns how many. Where what is between is read by others, nothing is changed.
int fuse_rms_norm(Network& network);

}  // namespace plimsoll
