// The order of few steps in which what runs again takes the least time.
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
// more than `states` are looked at. `least_ms`: what the step takes at least, in any order; a bound on every plan where nothing is
// written in the place of what is read through a view.
struct FastestOrder {
  Route route;
  double least_ms = 0;
  bool is_bound = false;
};
std::optional<FastestOrder> fastest_order(const Graph& graph, const ValueTimeline& timeline, int64_t budget,
                                          int64_t states);

}  // namespace plimsoll
