// Splits fully connected layers whose weights are larger than the rest of a step would ever need at once. The weights
// become blocks of rows, states of their own:
//
//            w [4096, 25088]                w[0:256]   w[256:512]   ...
//                 |                             |          |
//     x --> FullyConnected --> y     x --+--> FullyConn. --|------------+
//                                        +------------> FullyConn. -----+--> Concat --> y
//                                        +-- ...                        |
//
// Autodiff then gives each block a gradient and an update of its own, and the gradient of x as a sum over the blocks.
// The layer keeps its name, and files know the weights whole (whole_states in graph.h).
#pragma once

#include "passes/passes.h"
#include "passes/rebuilder.h"

namespace plimsoll {

// Nothing when such weights are not split. Blocks of multiples of 16 rows, the number of them the least, or up to twice
// that where all are then equal: equal blocks share their measured costs.
RowBounds row_bounds(int64_t rows, Bytes bytes, const FusionOptions& options);

// `options` with sizes for this network: no block need be smaller than a quarter of the largest parameter that stays whole
// (an embedding of words, say), since a step with that one needs as much anyway, and smaller ones are only more ops.
FusionOptions split_sizes(const Network& network, FusionOptions options);

// By these sizes. Returns the number of layers split.
int split_fully_connected(Network& network, const FusionOptions& options);

}  // namespace plimsoll
