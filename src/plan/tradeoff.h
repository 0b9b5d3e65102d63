// The trade-off between memory and time, as a curve: decisions from "keep everything" down to the least memory that was
// found, each with the peak that it needs. The curve does not depend on any budget, so a larger budget can only choose
// among more.
#pragma once

#include "plan/schedule.h"

namespace plimsoll {

struct TradeoffOptions {
  bool recompute = true;
  std::vector<bool> tiers;  // which may be used; empty: all
  bool within_room =
      false;  // of one tier too; else only that of several is divided, and who asks sees what did not fit
  bool states_may_move = true;  // parameters and what belongs to them may lie in a tier between steps
  size_t effort = 20'000'000;   // at most so many steps are scheduled on the way: some seconds
  double most_ms = kAnyTime;    // what computes longer is of no use
};

struct TradeoffPoint {
  Decisions decisions;
  int64_t peak = 0;     // bytes in the arena with copies where they must be
  double ms = 0;        // of the step, copies spread within that peak
  bool copies = false;  // whether anything is copied out or in
};

// The decisions of points, without what they need and cost: that depends on kernels.
struct Descents {
  std::vector<Decisions> in_place, others;  // in_place: what uses no tier
};

// Walks down from `start`: among all gaps that lie across the steps with the most bytes alive, lets go the one that
// costs the least time for the bytes that it frees, and so on until nothing more can be let go.
std::vector<TradeoffPoint> find_tradeoff(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers,
                                         const Decisions& start, const TradeoffOptions& options);

// A point with the memory that its copies may spread over.
struct LimitedPoint {
  Decisions decisions;
  int64_t limit = 0;
  double ms = 0;
  friend bool operator==(const LimitedPoint&, const LimitedPoint&) = default;
};
struct AscentOptions {
  int tries = 0;              // single changes at a limit, at most
  bool within_room = false;   // of one tier too
  bool many_at_once = false;  // the room is filled first
  bool states_may_move = true;
  int changes = 0;  // at random, at every kLimitsARung-th limit (refine_point)
};
inline constexpr size_t kLimitsARung = 4;

// Walks up again over `limits` (ascending): at each, the best of the points that fit is improved, starting from what was
// found for the limit below. So times only fall along the result, and what is found for a limit does not depend on those
// above it.
std::vector<LimitedPoint> improve_tradeoff(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers,
                                           const std::vector<TradeoffPoint>& points, const std::vector<int64_t>& limits,
                                           const AscentOptions& options);

// A point that is no slower within its limit, by changes at random (simulated annealing): of what a gap does, of where a state
// lies between steps. Where copies take turns with each other, what they wait for is found by no price of a single one.
LimitedPoint refine_point(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, const LimitedPoint& start,
                          const AscentOptions& options);

}  // namespace plimsoll
