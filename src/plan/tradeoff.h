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
// Walks up again over `limits` (ascending): at each, the best of the points that fit is improved by single changes, at
// most `tries` of them, starting from what was found for the limit below; with `many_at_once` the room is filled first.
// So times only fall along the result, and what is found for a limit does not depend on those above it.
std::vector<LimitedPoint> improve_tradeoff(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers,
                                           const std::vector<TradeoffPoint>& points, const std::vector<int64_t>& limits,
                                           int tries, bool within_room, bool many_at_once);

struct RefinementOptions {
  bool within_room = false;            // of one tier too
  bool states_may_move = true;         // as in TradeoffOptions
  int changes = 0;                     // tried at a limit
  std::vector<Decisions> reruns = {};  // of plans without copies: what if some of it were copied instead
};
// Once more over these limits: at each the best of `points` (limits ascending) that fits is changed at random,
// gaps and where states lie between steps, by simulated annealing, starting from what was found below as well. Where copies
// take turns, what they wait for is found by no price of a single one. Times fall along this result too, and it does not
// depend on the limits above.
std::vector<LimitedPoint> refine_tradeoff(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers,
                                          const std::vector<LimitedPoint>& points, const std::vector<int64_t>& limits,
                                          const RefinementOptions& options);

}  // namespace plimsoll
