// The trade-off between memory and time, as a curve: decisions from "keep everything" down to the least memory that was found,
// each with the peak that it needs. The curve does not depend on any budget, so a larger budget can only choose among more.
#pragma once

#include "plan/schedule.h"

namespace plimsoll {

struct TradeoffOptions {
  bool recompute = true;
  std::vector<bool> tiers;         // which may be used; empty: all
  double patience = 1;             // scales the number of schedules that are tried
};

struct TradeoffPoint {
  Decisions decisions;
  int64_t peak = 0;                // bytes in the arena with copies where they must be
  double ms = 0;                   // of the step, copies spread within that peak
  bool copies = false;             // whether anything is copied out or in
};

// Walks down from `start`: among all gaps that lie across the steps with the most bytes alive, lets go the one that costs the
// least time for the bytes that it frees, and so on until nothing more can be let go.
std::vector<TradeoffPoint> find_tradeoff(const Frame& frame, const std::vector<TierInfo>& tiers, const Decisions& start,
                                         const TradeoffOptions& options);

}  // namespace plimsoll
