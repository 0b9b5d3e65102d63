// Parameters that are divided among the ranks, in the graph of a training step.
#pragma once

#include "plimsoll/autodiff.h"

namespace plimsoll {

// Of a tensor that an AllGather makes, and of which every rank has a piece.
bool is_gathered(const Graph& graph, TensorId id);
TensorId piece_of(const Graph& graph, TensorId gathered);

// Where the backward pass reads what was gathered for the forward pass, and others were in between, it is gathered anew.
// So it need not be there in between.
void gather_again(Network& network);

}  // namespace plimsoll
