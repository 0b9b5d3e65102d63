// Exact search for a placement of at most a given height.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "plan/placement/problem.h"

namespace plimsoll {

// Items are placed from the lowest offset up, each on top of what it meets (every problem that has a solution has one
// of this kind). A branch is cut when some time has no room for what is still to come, when an item could fall below
// what was placed last, when an item without anybody above it was placed in vain, or when the same items waited above
// the same profile before. Times that nobody to come crosses split the problem in parts. Several orders take turns,
// with more and more effort each. The ideas but the memory of failures are MiniMalloc's (Moffitt, ASPLOS 2023):
// canonical solutions, dominance, section inference, decomposition.
class PlacementSearch {
 public:
  // `least`: by item, the lowest offset that it may have.
  PlacementSearch(const PlacementProblem& problem, std::vector<int64_t> least, int64_t capacity);
  ~PlacementSearch();

  struct Limits {
    Clock::time_point deadline;
    int64_t effort = 0;  // items looked at, at least: the same on every machine
  };
  enum class Outcome { found, none, stopped };  // none: no placement within the capacity exists
  struct Result {
    Outcome outcome = Outcome::stopped;
    int64_t effort = 0;  // spent
  };
  // Goes on where it stopped.
  Result advance(const Limits& limits);

  const std::vector<int64_t>& offsets() const;  // where found

 private:
  struct Turns;
  std::unique_ptr<Turns> turns_;
};

}  // namespace plimsoll
