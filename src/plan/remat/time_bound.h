// What no plan of a training step beats within a budget, by prices of bytes.
//
// What is assumed: the steps run for the first time in the order of the timeline, by its kernels, one at a time. Steps may run
// again anywhere, any number of times; nothing is copied to tiers. Then the following holds for each plan, so that the least
// of a linear program that asks for no more is a lower bound.
//
//   x(v, s)   1 where value v is in the arena while step s runs the first time, else 0
//   r(p, s)   1 where step p runs again between the first runs of steps s - 1 and s, else 0
//
//   1  r(p, s) >= x(v, s) - x(v, s - 1)           v, written by p, is there and was not: p ran between
//   2  x(w, s - 1) + r(q, s) >= r(p, s)           p, which ran again, read w, written by q: it was there since step s - 1,
//                                                 or q ran again, too
//   3  sum over v of bytes(v) x(v, s) <= budget   besides what step s writes where nothing lies, and its workspace
//
// Several runs of p in one stage count once, and what is between first runs is not asked for room: both make the bound less,
// not wrong. What cannot be computed again is there until its last use. A value that step s reads is there, and one that a
// step overwrites counts with it. Outputs that may take an input's place count as if they did.
//
// With `e` the bytes that must go at step s, row 3 is the stronger for what a single value frees beyond e being left out:
// the values needed later, N, and any set C of those that are not needed but for reruns,
//
//   4  sum over v in N of min(bytes(v), e + bytes(C)) (1 - x(v, s)) >= e + sum over d in C of bytes(d) x(d, s)
//
// If what goes of N has a value as large as the right side at its most, the left is that large; else nothing was cut.
//
// Where there are many steps only some of them are looked at, those above the budget, evenly: the stage of a rerun is then
// all that lies between two of these, and what is used between them is there at its beginning, or is computed again in it.
#pragma once

#include "plan/value_timeline.h"

namespace plimsoll {

struct TimeBound {
  double ms = 0;            // no plan takes less; that of all steps once where nothing more is known
  bool impossible = false;  // no plan exists
};

// More effort is never worse. `enough`: a bound that need not be higher, the time of a plan.
TimeBound bound_time(const ValueTimeline& timeline, int64_t budget, int64_t effort, double enough_ms);

}  // namespace plimsoll
