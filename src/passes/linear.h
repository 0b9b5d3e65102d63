// What passes that look for linear layers ask of a forward graph.
#pragma once

#include "base/by_id.h"
#include "plimsoll/autodiff.h"

namespace plimsoll {

// How often each tensor is read, or kept for what comes after the graph.
ById<TensorId, int> count_uses(const Network& network);

// A linear layer without an activation: inputs are x, weights and, of some, a bias. `transposed`: the weights are [inputs,
// outputs].
bool is_linear(const Graph& graph, const Op& op, bool& transposed);

// Whether each row of the output is a row of the input, its last dimension.
bool keeps_rows(const Graph& graph, const Op& op);

}  // namespace plimsoll
