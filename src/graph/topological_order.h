// An order in which every tensor is written before it is read.
#pragma once

#include <vector>

#include "plimsoll/graph.h"

namespace plimsoll {

// The order of the graph's list where that is one. Throws Error(invalid_input) on a cycle.
std::vector<OpId> topological_order(const Graph& graph);

}  // namespace plimsoll
