// What no plan of a training step beats within a budget, by prices of bytes.
//
// What is assumed: the steps run for the first time in the order of the timeline, by its kernels, one at a time. Steps may run
// again anywhere, any number of times; with tiers, anything may be copied out and in at any time, and tiers have room for all of
// it; what is overwritten is lost, wherever else it lay. Then the following holds for each plan, so that the least of a linear program that asks for no more is a lower bound.
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
// If what goes of N has a value as large as the right side at its most, the left is that large; else nothing was cut. The same
// holds with any values A of N left out of the left and counted as gone, e less by their bytes (Carr et al., 2000). Such rows, and
//
//   10  own(p) r(p, s) + sum over v of bytes(v) (x(v, s) - r(producer of v, s)) <= budget     v not read or written by p
//
// are added where the solution does not keep them: what is there at step s and did not run again since step s - 1 was there
// all the time, beside what the rerun of p needs. What the program leaves between 0 and 1 is then decided by cases (branch and
// bound), as far as the effort goes.
//
// Where there are many steps only some of them are looked at, those above the budget, evenly: the stage of a rerun is then
// all that lies between two of these, and what is used between them is there at its beginning, or is computed again in it.
// After some sets of moments of more and more parts, moments are chosen one by one: the one that lets the bound rise most.
//
// With tiers a value that was away may come back by a copy as well. Where an engine copies beside computing, the copy may be under
// way at a moment, when step s begins. Then x(v, s) is the part of v that has come, by the time that the copy takes. With
//
//   i(v, j), o(v, j)   the part of v's copies in, and of its copies out, that is made in window j, between two moments next to
//                      each other, by the time that it takes; no more than 1
//   h(v)               1 where v, which comes from outside, lies in a tier between steps, else 0
//
//   5  the sum of i(v, j) over the windows between two moments is added to the left of rows 1 and 2
//   6  x(v, s) + r + h(v) + the sum of o(v, j) until s >= what is on the right of rows 1 and 2
//                                                 what comes by a copy lay outside: it was copied there before it went
//   7  1 - h(v) + the sum of i(v, j) until s >= x(v, s)   what lies outside at the start must be copied in first
//   8  x(w, end) + h(v) >= 1, and the sum of o(w, j) >= h(v)   w, the new value of state v, must be where v was
//   9  stall(j) + ms of the first runs and of the reruns of window j + what copies slow them down >= ms of the copies out, and
//      of the copies in, of window j              each engine makes one copy at a time
//
// A plan says step by step what lies where, so that what comes in while step s runs has its room when s begins. Where much may come
// meanwhile, s has two moments, one when it begins and one when it is done. Between these nothing runs again and nothing waits. With
//
//   y(v, s)   1 where v, or what is still to come of it, has room while step s runs, else 0
//
//  11  y(v, s) >= x(v, s) + i(v, the window in which s runs)
//
// rows 3 and 4 have y in place of x. Cases are of what has room, too: it has all of it from the beginning of its copy.
//
// The objective counts reruns, stalls, and what copies take from computing: while an engine copies, computing is slower by its
// share, or stands still where there is no engine. Several tiers count as one that is as fast as all of them together and takes
// as little of computing as the one that takes least: with a slow one beside a fast one, that is weak.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/value_timeline.h"

namespace plimsoll {

// Milliseconds that no plan takes less than; that of all steps once where nothing more is known, kAnyTime where there is no plan.
// More effort is never worse. `enough_ms`: a bound that need not be higher, the time of a plan.
double bound_time(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, int64_t budget, int64_t effort,
                  double enough_ms);

// What the linear program keeps where fractions of values may be kept: for rules to go by (evict.h).
struct RelaxedPresence {
  std::vector<int32_t> moments;  // steps, ascending
  std::vector<float> there;      // by value, then by moment: from 0 to 1
  // At the first moment that is not before the step.
  float of(int32_t value, int32_t step) const;
};
// Near the optimum of so many moments at most, without tiers; nothing where no plan fits, or every value does.
std::optional<RelaxedPresence> relax_presence(const ValueTimeline& timeline, int64_t budget, int32_t moments,
                                              int64_t effort);

}  // namespace plimsoll
