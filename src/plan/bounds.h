// What no schedule of a timeline can beat, whatever is decided: cheap to know before a plan is looked for.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/value_timeline.h"

namespace plimsoll {

// That a step needs in the arena for itself.
int64_t own_bytes(const ValueTimeline& timeline, const TimelineStep& step);

// That lie in the arena when all steps have run, in whatever order: outputs, and, without tiers, states.
int64_t bytes_at_end(const ValueTimeline& timeline, bool tiers);

// Bytes in the arena: those that the step with the most needs for itself, and, without tiers, what cannot be computed
// again and is there all the time; or those at the end.
int64_t least_live(const ValueTimeline& timeline, bool tiers);

// Milliseconds with so many bytes in the arena; kAnyTime where no schedule keeps within them.
//
//   live   ____/\____       What lies across a step besides what the step itself needs, and is above the budget there,
//  budget ---/--\-----      is out of the arena during that step and comes back later: computed again, the cheapest
//         __/    \___       for its bytes first, or copied, which takes the tiers' engines their time.
double least_ms(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, int64_t budget);

}  // namespace plimsoll
