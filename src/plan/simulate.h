// Runs a plan on paper: engines side by side, each step with the time that the plan has for it.
#pragma once

#include "plimsoll/cost.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

// What a copy takes on an engine that does nothing else. A rate of 0 is an instant copy (for papers' models).
double copy_ms(const TierInfo& tier, Move::Direction direction, Bytes bytes);

// What a batch takes over the link to the arena.
double feed_ms(const Graph& graph, const Feeding& feeding);

// What the table predicts for a step's kernel with its number of threads. A step of Affinity::spread has the time of such
// threads in a step, where that was measured; one that is `together` with others (together.h), its share of their launch.
Cost step_cost(const Graph& graph, const Step& step, bool together, const CostTable& costs);

// Gives every step its time, and whether it is an estimate.
void take_times(const Graph& graph, Plan& plan, const CostTable& costs);

// Gives collectives theirs, by the plan's link; the steps that they are of take none.
void take_times_of_collectives(const Graph& graph, Plan& plan);

// Peak, step time, traffic and the timeline of every engine. The plan must be valid (verify.h), and have its times.
Prediction simulate(const Graph& graph, const Plan& plan);
// The same with the times that the table has for the steps.
Prediction simulate(const Graph& graph, Plan plan, const CostTable& costs);

// Both: times from the table, and the prediction that follows from them.
void predict(const Graph& graph, Plan& plan, const CostTable& costs);

}  // namespace plimsoll
