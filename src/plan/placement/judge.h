// For tests: what is wrong with a placement, pair by pair. Knows nothing of how placements are made.
#pragma once

#include <fmt/format.h>

#include <string>

#include "plan/placement/placement.h"

namespace plimsoll {

// "" for a placement that is right.
inline std::string judge(const std::vector<Buffer>& buffers, const Placement& placement, int64_t alignment) {
  if (placement.offsets.size() != buffers.size()) return "not one offset a buffer";
  int64_t height = 0, bound = 0;
  auto lives = [](const Buffer& b) { return b.bytes.count > 0 && b.lower < b.upper; };
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& a = buffers[i];
    if (!lives(a)) continue;
    const int64_t begin = placement.offsets[i].count, end = begin + a.bytes.count;
    if (begin < 0 || begin % alignment != 0) return fmt::format("buffer {} lies at {}", i, begin);
    height = std::max(height, end);
    int64_t live = 0;  // when it begins: sums are largest where something begins
    for (size_t j = 0; j < buffers.size(); ++j) {
      const Buffer& b = buffers[j];
      if (!lives(b)) continue;
      if (b.lower <= a.lower && a.lower < b.upper) live += align_up(b.bytes, alignment).count;
      if (j >= i || a.upper <= b.lower || b.upper <= a.lower) continue;
      const int64_t other = placement.offsets[j].count;
      if (other < end && begin < other + b.bytes.count) return fmt::format("buffers {} and {} share bytes", j, i);
    }
    bound = std::max(bound, live);
  }
  if (placement.height.count < height) return fmt::format("the height is {}, not {}", height, placement.height.count);
  if (placement.lower_bound.count != bound)
    return fmt::format("the bound is {}, not {}", bound, placement.lower_bound.count);
  if (placement.proven_lower_bound < placement.lower_bound || placement.proven_lower_bound > placement.height)
    return "a proof that cannot be";
  if (placement.proven_optimal != (placement.height == placement.proven_lower_bound))
    return "optimal, or not, against the proof";
  return "";
}

}  // namespace plimsoll
