// Makes a placement problem smaller: items that live at nearly the same time become one, one on top of the other, and
// short ones that follow each other become one, side by side.
//
//    +------+                 +-------+     The bundle lives as long as any of it, so it wastes bytes at some times.
//   ++------+-+      ->      ++       ++    It is only made where the sum of what lives then stays below the height
//   |         |              |         |    that is looked for: a placement of the bundles is one of the items.
//   +---------+              +---------+
//
// A deep network's activations wait for their backward steps in a stack; far from the peak, where there is room to
// waste, whole blocks of layers become one item, and only what is near the peak is left to be searched.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "plan/placement/problem.h"

namespace plimsoll {

struct Bundles {
  PlacementProblem problem;  // `buffer` numbers the bundles; times are those of the whole problem
  struct Member {
    int32_t item = 0;
    int64_t offset = 0;  // in the bundle
  };
  std::vector<std::vector<Member>> members;  // by bundle
  std::vector<int64_t> offsets_of_items(const PlacementProblem& whole, const std::vector<int64_t>& offsets) const;
};

struct BundleChoice {
  double share = 0.5;      // from 0 to 1: how much of the room below the height bundles may waste at any time
  bool backwards = false;  // joins what ends together before what begins together
};
// When the time is over nothing more is joined.
Bundles make_bundles(const PlacementProblem& problem, int64_t height, const BundleChoice& choice,
                     Clock::time_point deadline = Clock::time_point::max());

}  // namespace plimsoll
