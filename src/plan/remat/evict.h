// Rules that decide while the steps run, without a look ahead, what is let go when memory is short: it comes back when
// it is wanted, by running its producer again, and before that what this reads.
//
// Dynamic Tensor Rematerialization (Kirisame et al., ICLR 2021): what costs the least goes, by
//
//     h = ms to compute it again, with what is evicted around it / (its bytes x ms since it was used)
//
// Around it is what it would be computed from and what would be computed from it, as far as that is evicted too (h_DTR);
// h_eq approximates this by classes that are joined when something goes, and never divided.
#pragma once

#include <optional>

#include "plan/remat/run_set.h"
#include "plan/remat/time_bound.h"

namespace plimsoll {

enum class EvictionRule : uint8_t {
  dtr,      // h_DTR
  dtr_eq,   // h_eq
  ahead,    // h_DTR with the ms until it is used next in place of those since: for who knows the future
  relaxed,  // the same, times what a linear program would keep of it at the next moment
};

// The steps as they run within the budget; nothing where the rule finds no room, or computes more than `most_ms` again, or
// has looked at as many values as `effort` says. `relaxed`: for that rule.
std::optional<Sequence> evict_as_it_runs(const ValueTimeline& timeline, int64_t budget, EvictionRule rule,
                                         double most_ms, int64_t effort = INT64_MAX,
                                         const RelaxedPresence* relaxed = nullptr);

}  // namespace plimsoll
