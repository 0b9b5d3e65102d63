// A tensor that is cut into slices, as one product that makes queries, keys and values, gets its gradient whole from theirs:
//
//   before   dq ──> SliceBackward ─┐
//            dk ──> SliceBackward ─┼─> Add ──> gradient       each as large as the whole, most of it zeros
//            dv ──> SliceBackward ─┘
//   after    dq, dk, dv ──> Concat ──> gradient
#pragma once

#include "plimsoll/autodiff.h"

namespace plimsoll {

// Of a training step: sums of gradients of slices that lie side by side along an axis and leave nothing out; one other gradient may
// be among them, and is added to what is joined. Returns how many.
int join_slice_gradients(Network& training);

}  // namespace plimsoll
