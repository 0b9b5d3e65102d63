// Rotary positions as PyTorch's modules write them become one op:
//
//   x ─┬──────────────────────── mul cos ─┐
//      ├─ Slice (second half) ─ neg ─┐     ├─ Add      and, where only part of a row is turned, x a Slice and
//      └─ Slice (first half) ────────┴─ Concat ─ mul sin ─┘        behind the sum a Concat with the other
#pragma once

#include "plimsoll/autodiff.h"

namespace plimsoll {

// Of a forward network. Returns how many. Where the angles are trained, or what is between is read by others, nothing is changed.
int fuse_rotary(Network& network);

}  // namespace plimsoll
