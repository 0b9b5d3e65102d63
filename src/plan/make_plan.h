// From a schedule to a plan: offsets in the arena, slots in the tiers.
#pragma once

#include <optional>
#include <vector>

#include "plan/policy.h"
#include "plan/schedule.h"

namespace plimsoll {

// Offsets above the states that are known already.
struct KnownOffsets {
  std::vector<Bytes> residences;  // of the schedule
  std::vector<Bytes> workspaces;  // by step of the schedule
};

// States that lie in the arena come first, from offset 0 in the order of graph.states, and homes first in their tiers
// in the same way, so that every plan with these homes agrees on where they lie; all else by the input's placement. Not
// yet simulated. The arena may be larger than the budget: who asks decides.
// `roughly_below`: offsets by greedy orders alone, to compare the arenas of many by; of those that do not come below it,
// nothing more is known.
// `known`: taken as they are; who gives them has seen that nothing meets.
// Where a tier has too little room and nobody asks why (explain), nothing is placed: the plan is of no use.
Plan make_plan(const PolicyInput& input, const ValueTimeline& timeline, const Decisions& decisions,
               const Schedule& schedule, std::string_view policy, std::optional<Bytes> roughly_below = {},
               const KnownOffsets* known = nullptr);

}  // namespace plimsoll
