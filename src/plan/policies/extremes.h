// The ends of auto's curve that need no search: nothing waits in the arena but what must.
#pragma once

#include <vector>

#include "plan/policy.h"
#include "plan/schedule.h"

namespace plimsoll {

// Everything kept, but for states that must lie elsewhere (PolicyInput::state_homes): those come in for each use.
Decisions where_states_are(const PolicyInput& input, const ValueTimeline& timeline);

// Whatever waits, waits in the first tier that has room. With `states`, parameters and what belongs to them too; with
// `recompute`, what is made again sooner than copied is let go instead, which needs less of the tier.
struct Extreme {
  bool states, recompute;
};
std::vector<Extreme> extremes(const PolicyInput& input);  // none where there is no tier
Decisions everything_out(const PolicyInput& input, const ValueTimeline& timeline, Extreme extreme);

}  // namespace plimsoll
