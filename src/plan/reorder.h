// Another order of the steps, in which less lies in the arena at once (the subject of OLLA, Steiner et al., ICML 2023).
//
//   given:   a  b  c  f(a)  g(b)  h(c)      a, b and c lie there together
//   better:  a  f(a)  b  g(b)  c  h(c)      one at a time
//
// Steps change places with their neighbours as long as what lies there at the fullest steps becomes less. States count as if
// nothing moved them.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/route.h"
#include "plan/value_timeline.h"

namespace plimsoll {

// The order whose peak is the lowest that was found, or is within the budget; nothing where none is much lower than the
// timeline's. Data and overwritten bytes are waited for. `effort`: exchanges of neighbours; the same order on every machine.
// `random_effort`: more of them, at random (simulated annealing), where that does not come down to the budget.
std::optional<Route> reorder_for(const Graph& graph, const ValueTimeline& timeline, int64_t budget, int64_t effort,
                                 int64_t random_effort = 0);

// The order in which updates of large states, each with the steps that make its gradient, are spread over a share of what
// follows the first of them, in proportion to their bytes: so that a link has the time to bring states and to take them away, and what
// the gradients are made of waits instead of the gradients. Nothing where few of the states' bytes are postponed, or the order is all ranks'.
std::optional<Route> postpone_updates(const Graph& graph, const ValueTimeline& timeline, double share);

// Live bytes at the fullest step of the timeline's order, where nothing goes before its last use.
int64_t peak_of_all(const Graph& graph, const ValueTimeline& timeline);

// Bytes in the arena, whatever the order of the steps: those that the step with the most needs for itself, and, without tiers,
// what cannot be computed again and in any order is made before the step and read behind it.
int64_t least_live_in_any_order(const Graph& graph, const ValueTimeline& timeline, bool tiers);

}  // namespace plimsoll
