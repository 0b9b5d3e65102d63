// Cuts a placement problem into parts that can be solved one by one, without losing any solution.
//
//  offset
//   |  +--+ part  +-----+ part     Times that nothing crosses cut the problem. What lives through the whole of a
//   |  +--+---+   +--+--+          piece can lie at its bottom in some best placement, so it is put there; without
//   |  |  base|   |base |          it there may be more cuts.
//   +--+------+---+-----+--> time
#pragma once

#include <cstdint>
#include <vector>

#include "plan/placement/problem.h"

namespace plimsoll {

struct PlacementPart {
  PlacementProblem problem;  // `buffer` numbers the items of the whole problem
  int64_t base = 0;          // what lies below it
};

struct Decomposition {
  std::vector<int64_t> offsets;      // of the items at the bottom of their pieces; -1 of those in parts
  std::vector<PlacementPart> parts;  // the one that reaches highest, by its lower bound, comes first
};

Decomposition decompose(const PlacementProblem& problem);

// Some items of a problem as a problem of its own, with times numbered anew; `buffer` numbers the items given.
PlacementProblem make_part(const PlacementProblem& problem, std::vector<int32_t> items);

}  // namespace plimsoll
