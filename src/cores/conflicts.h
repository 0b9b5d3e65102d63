// Pairs of ops that training found slower together than one after the other: no plan lets them meet again.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "plimsoll/cost.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

using OpPair = std::pair<OpId, OpId>;  // the lower number first
using OpPairs = std::set<OpPair>;

// The pairs among the plan's ops that run something which are in `found`, or whose signatures are conflicts by the
// costs, in order: CoreSharing::conflicts.
std::vector<OpPair> conflicts_of(const Graph& graph, const Plan& plan, const CostTable& costs,
                                 const OpPairs& found = {});

}  // namespace plimsoll
