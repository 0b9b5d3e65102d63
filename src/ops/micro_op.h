// One op with fewer rows of the batch.
#pragma once

#include "plimsoll/graph.h"

namespace plimsoll {

// An op of a graph as it is in a network whose batch is smaller: its tensors' rows cut to `batch`, weights as they are,
// layouts kept. So its signature, and with it its costs, are those of that network.
struct MicroOp {
  Graph graph;
  OpId op;
};
// Throws Error(invalid_input) where the op does not run in parts, or has fewer rows.
MicroOp micro_op(const Graph& graph, const Op& op, int64_t batch);

}  // namespace plimsoll
