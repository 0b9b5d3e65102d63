// First fit in any order: each item takes the lowest offset where it meets nobody placed before it. Exact, as a search
// for holes among all that is placed is, but for tens of thousands of items of which thousands live together.
//
//           [0,8)            A tree over time. A node keeps which bytes are taken at some time below it, and which are
//       [0,4)   [4,8)        taken by what lives through all of it, as ranges with no useful hole between them. Where
//     [0,2) ...  ...         a lifetime is cut into nodes, their ranges and those of the nodes above are all it meets.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "plan/placement/problem.h"

namespace plimsoll {

class FirstFit {
 public:
  explicit FirstFit(const PlacementProblem& problem);

  // Places all items in this order and returns the height. What reaches `limit` is of no use: as soon as an item has no
  // place below it the limit is returned, and what is left has no meaning. So it is when the time is over.
  int64_t place(std::span<const int32_t> order, std::vector<int64_t>& offsets, int64_t limit = INT64_MAX,
                Clock::time_point deadline = Clock::time_point::max());

  int64_t looks() const { return looks_; }  // at ranges of bytes so far: what the time goes into

 private:
  struct Range {
    int64_t begin = 0, end = 0;
  };
  using Ranges = std::vector<Range>;  // in order, with a hole between any two

  void collect(int32_t node, int32_t begin, int32_t end, int32_t lower, int32_t upper);
  void add(int32_t node, int32_t begin, int32_t end, int32_t lower, int32_t upper, Range taken);
  void add(Ranges& ranges, Range taken);
  int64_t lowest_room(int64_t size, int64_t limit);

  const PlacementProblem& problem_;
  int32_t size_ = 1;
  std::vector<Ranges> below_, through_;                     // by node: taken at some time of it; at all times of it
  std::vector<int64_t> smallest_;                           // by position in the order: the smallest size from there on
  int64_t smallest_hole_ = 1;                               // what is smaller is of no use to anybody
  std::vector<std::pair<const Range*, const Range*>> met_;  // what is left to look at; only inside `place`
  int64_t looks_ = 0;
};

}  // namespace plimsoll
