// Placement as time goes away from one moment, to both sides of it.
//
//  offset
//   |   +-----+---+         What lives at the moment is piled up without a gap, so that room comes free from the bottom as
//   | +-+-----+---+----+    time goes forwards, and from the top as it goes backwards. What begins then takes a hole whose
//   | |       |     +--+    borders live about as long as it does, and that it nearly fills: what lies together ends
//   +-+---+---+---+-+--+    together, and leaves one large hole.
//         moment -> time
//
// Of many items this is near the largest sum alive, where the moment is its time. Where no hole is large enough others are
// moved: whoever blocks it at the least cost is taken out and looks for a place of its own, at which others may be in
// the way. All that it may meet is what began before, for what is to come has no place yet.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "plan/placement/problem.h"

namespace plimsoll {

struct SweepRule {
  double contact = 1;  // weight of the share of a life along which the border of the hole lives as well
  double alike = 1;    // of how differently long they live
  double filled = 1;   // of what is left of the hole
};

struct SweepChoice {
  int64_t height = 0;  // what finds no place below it is put on top of it
  int32_t moment = 0;  // a time of the problem
  SweepRule rule;
  bool moves = false;  // others are moved
};

struct SweepResult {
  std::vector<int64_t> offsets;
  int64_t height = 0;
  int64_t looks = 0;   // at holes and items: what the time goes into
  int32_t moment = 0;  // where the largest of what found no place lives; the one chosen where there is none
};

// When the time is over there are no offsets, and the height is INT64_MAX.
SweepResult sweep(const PlacementProblem& problem, const SweepChoice& choice,
                  Clock::time_point deadline = Clock::time_point::max());

}  // namespace plimsoll
