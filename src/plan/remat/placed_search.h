// Looks for the runs that cost the least where what they keep has offsets within a budget: simulated annealing on runs and
// offsets together, for what lies between offsets is lost, and a rerun may lie where there is room.
//
// A value is in memory in spans (run_set.h), and each span is an item with an offset of its own, or with none yet. A change
// lets a value go, takes reruns back or moves them, as in search.h; or it puts an item that has no offset where it displaces
// the least. What has no offset costs, until everything has one.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/remat/run_set.h"

namespace plimsoll {

// Whether such a search knows all places of a timeline: none where an op overwrites its inputs.
bool has_plain_places(const ValueTimeline& timeline);

struct PlacedRuns {
  struct Item {
    int32_t value = 0;  // -1: the workspace of the run
    RunSet::Run first = 0, last = 0;
    int64_t offset = 0, bytes = 0;
  };
  Sequence sequence;
  std::vector<RunSet::Run> runs;  // of the sequence
  std::vector<Item> items;        // without what is a state's
  double again_ms = 0;
  bool fits = false;  // else neither is of use
};

// `room`: bytes above the states. `starts`: known runs, the best first. With so much effort: things looked at.
PlacedRuns place_runs(const ValueTimeline& timeline, int64_t room, const std::vector<Sequence>& starts, int64_t effort);

}  // namespace plimsoll
