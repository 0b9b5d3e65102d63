// The largest of what a ReLU gives is above 0 just where the element that it came from is. So the gradient may go through
// the ReLU before it goes back through the pool:
//
//   before   dy ──> MaxPoolBackward ──> ReluBackward ──> gradient      which reads the ReLU's output
//   after    dy ──> ReluBackward ──> MaxPoolBackward ──> gradient      which reads the pool's: a quarter, where windows are 2 x 2
//
// Each element is the same. The ReLU's output need not be there any more when the backward pass begins.
#pragma once

#include "plimsoll/autodiff.h"

namespace plimsoll {

// Of a training step. Returns how many.
int pass_relu_gradients_before_pools(Network& training);
// Whether it is a pool's gradient that has gone through a ReLU before, as above.
bool is_behind_relu_gradient(const Graph& graph, const Op& op);

}  // namespace plimsoll
