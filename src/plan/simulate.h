// Runs a plan on paper: engines side by side, each step with the cost that the table has for it.
#pragma once

#include "plimsoll/cost.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

// What a copy takes on an engine that does nothing else. A rate of 0 is an instant copy (for papers' models).
double copy_ms(const TierInfo& tier, Move::Direction direction, Bytes bytes);

// Peak, step time, traffic and the timeline of every engine. The plan must be valid (verify.h).
Prediction simulate(const Graph& graph, const Plan& plan, const CostTable& costs);

}  // namespace plimsoll
