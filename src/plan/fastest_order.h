// The order of few steps in which what runs again takes the least time, and the one that needs the least memory.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/route.h"
#include "plan/value_timeline.h"

namespace plimsoll {

// By a shortest path (A*, Hart et al., 1968) over which steps have run and which values lie in the arena: a step runs for
// the first time or again, and what is in its way goes. Nothing is copied, and nothing lies between offsets.
//
// The order of first runs; nothing where no order fits the budget, where there are 32 steps or more, or more than 64 values, or where
// more than `states` are looked at.
struct FastestOrder {
  Route route;
  double least_ms = 0;   // what the step takes at least, in any order
  bool is_bound = true;  // no plan takes less: not so where steps take bytes of others in ways that are not looked at
};
std::optional<FastestOrder> fastest_order(const Graph& graph, const ValueTimeline& timeline, int64_t budget,
                                          int64_t states);

// By the same search for the path whose fullest step is the least full: no plan in any order needs less. Nothing where that is not
// known: as above, or where steps take bytes of others in ways that are not looked at.
std::optional<int64_t> least_live_exactly(const Graph& graph, const ValueTimeline& timeline, int64_t states);

}  // namespace plimsoll
