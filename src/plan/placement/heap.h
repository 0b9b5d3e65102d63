// A heap in one address space that grows at its end: free regions, always joined with their neighbours.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "plan/placement/problem.h"

namespace plimsoll {

class Heap {
 public:
  enum class Fit { first, best };  // the lowest region that is large enough; the smallest, and of these the lowest

  int64_t take(int64_t size, Fit fit);
  void give_back(int64_t offset, int64_t size);
  int64_t end() const { return end_; }  // what was ever needed
  int64_t used() const;                 // up to the end of the highest region that is taken

 private:
  void add(int64_t offset, int64_t size);
  void remove(std::map<int64_t, int64_t>::iterator region);
  std::map<int64_t, int64_t>::iterator find(int64_t size, Fit fit);

  std::map<int64_t, int64_t> free_;                // offset -> size
  std::set<std::pair<int64_t, int64_t>> by_size_;  // size, offset
  std::array<std::set<int64_t>, 64> by_class_;     // offsets of the sizes in [2^k, 2^(k+1))
  int64_t end_ = 0;
};

// Calls begin(i) for every item when it starts to live, in the order of time, and before it end(i) for those that are
// gone.
template <class Begin, class End>
void visit_in_time_order(const std::vector<PlacementItem>& items, Begin&& begin, End&& end) {
  std::vector<int32_t> begins(items.size());
  for (size_t i = 0; i < items.size(); ++i) begins[i] = static_cast<int32_t>(i);
  std::vector<int32_t> ends = begins;
  auto item = [&](int32_t i) -> const PlacementItem& { return items[i]; };
  std::stable_sort(begins.begin(), begins.end(), [&](int32_t a, int32_t b) { return item(a).lower < item(b).lower; });
  std::stable_sort(ends.begin(), ends.end(), [&](int32_t a, int32_t b) { return item(a).upper < item(b).upper; });
  size_t ended = 0;
  for (int32_t i : begins) {
    for (; ended < ends.size() && item(ends[ended]).upper <= item(i).lower; ++ended) end(ends[ended]);
    begin(i);
  }
}

// Offsets by a heap that takes the items as time goes, or as it would go backwards.
std::vector<int64_t> place_on_heap(const PlacementProblem& problem, Heap::Fit fit, bool backwards);

}  // namespace plimsoll
