// Looks for the runs that cost the least within a budget: simulated annealing on a RunSet. A change lets a value go in one
// of its gaps, with the chain of reruns that this takes, or takes reruns back, or moves them to another stage, or two of
// these at once; what is above the budget costs as well, the more the longer it lasts.
#pragma once

#include <cstdint>
#include <span>

#include "plan/remat/run_set.h"

namespace plimsoll {

struct FoundRuns {
  Sequence sequence;
  double again_ms = 0;  // of what runs again
  int64_t peak = 0;
  bool fits = false;
};

// With so much effort: things looked at, as RunSet counts them; much the same on every machine, and in the same order. What
// is found with more is never worse. It ends early where nothing runs again.
// `starts`: runs that are known, beside those of rules. `enough_ms`: it ends as well where no more than that runs again.
FoundRuns find_runs(const ValueTimeline& timeline, int64_t budget, int64_t effort,
                    std::span<const Sequence> starts = {}, double enough_ms = 0);

// The same, where stages have limits of their own, from runs that are known: what a plan's offsets need beside its bytes.
FoundRuns improve_runs(const ValueTimeline& timeline, std::span<const int64_t> limits, const Sequence& start,
                       int64_t effort);

}  // namespace plimsoll
