// A placement problem made ready: aligned sizes, times numbered without gaps, what never lives left out.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/placement/placement.h"

namespace plimsoll {

struct PlacementItem {
  int32_t lower = 0;  // alive in [lower, upper), in numbered times
  int32_t upper = 0;
  int64_t size = 0;      // aligned, more than 0
  int64_t duration = 0;  // in the caller's units
  int32_t length() const { return upper - lower; }
};

struct PlacementProblem {
  std::vector<PlacementItem> items;
  std::vector<int32_t> buffer;  // of each item: its index in the caller's list
  int32_t times = 0;
  std::vector<int64_t> live;  // by time: the sum of sizes
  int64_t lower_bound = 0;    // the largest of them
};

// Fills live and lower_bound from the items and the number of times.
void find_live(PlacementProblem& problem);

// Throws Error(invalid_input) on a negative size, sizes that cannot be summed, or an alignment that is not positive.
PlacementProblem make_problem(const std::vector<Buffer>& buffers, int64_t alignment);

// Offsets of the items as an answer for the caller's buffers; what never lives lies at 0.
Placement make_placement(const PlacementProblem& problem, const std::vector<int64_t>& offsets, size_t buffer_count);

}  // namespace plimsoll
