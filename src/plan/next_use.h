// What is copied, decided anew: of all that waits, what is wanted next stays in the arena (Belady, 1966), and what left
// comes back in the order in which it is wanted, as early as that leaves room (Cao et al., SIGMETRICS 1995).
//
//   limit  ----------------------------------
//   bytes      ____aaaa__________aaaaaaa        a waits from 4 to 21. What is wanted before 21 fills the arena at 8 to 17,
//          ___/ other  \________/               so a leaves at 4 and may come back from 18 on.
//   step       4       8       17     21
#pragma once

#include <vector>

#include "plan/schedule.h"

namespace plimsoll {

// When a step starts depends on the copies that it waits for. So after each choice the step is gone through, and the choice is made
// again by these times.
//
// Ways to copy within `limit` beside the reruns of `decisions`, which stay; none where these lead to no schedule. With some of them
// the schedule may need more than the limit: who asks weighs them. `states_may_move`: as in TradeoffOptions.
std::vector<Decisions> copy_by_next_use(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers,
                                        const Decisions& decisions, int64_t limit, bool states_may_move);

}  // namespace plimsoll
