// Runs a plan on paper: engines side by side, each step with the cost that the table has for it.
#pragma once

#include "plimsoll/cost.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

// What a copy takes on an engine that does nothing else. A rate of 0 is an instant copy (for papers' models).
double copy_ms(const TierInfo& tier, Move::Direction direction, Bytes bytes);

// The time of every step, as the costs have it for the step's kernel and threads: Step::time_ms and estimated.
void take_times(const Graph& graph, Plan& plan, const CostTable& costs);

// Peak, step time, traffic and the timeline of every engine, from the plan alone: its steps have their times. The plan must be
// valid (verify.h).
Prediction simulate(const Graph& graph, const Plan& plan);
// The same with the times that `costs` has for the steps.
Prediction simulate(const Graph& graph, Plan plan, const CostTable& costs);

}  // namespace plimsoll
