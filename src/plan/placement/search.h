// Exact search for a placement of at most a given height.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "plan/placement/problem.h"

namespace plimsoll {

struct PlacementSearchResult {
  bool found = false;
  bool exhausted = false;        // not found, and there is none
  std::vector<int64_t> offsets;  // where found
};

// Items are placed from the lowest offset up, each on top of what it meets (every problem that has a solution has one
// of this kind). A branch is cut when some time has no room for what is still to come, when an item could fall below
// what was placed last, or when an item without anybody above it was placed in vain. Times that nobody to come crosses
// split the problem in two. The ideas are MiniMalloc's (Moffitt, ASPLOS 2023): canonical solutions, dominance, section
// inference, decomposition. Several orders take turns, with more and more nodes each. `least`: by item, the lowest
// offset that it may have.
PlacementSearchResult search_placement(const PlacementProblem& problem, const std::vector<int64_t>& least,
                                       int64_t capacity, std::chrono::steady_clock::time_point deadline,
                                       int64_t node_limit);

}  // namespace plimsoll
