// Placements that take buffers in the order of time, as an allocator at run time must: they see nothing of what comes.
#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>

#include "plan/placement/problem.h"

namespace plimsoll {
namespace {

// The free regions of a heap that grows at its end, by offset; neighbours are always joined.
class Heap {
 public:
  enum class Fit { first, best };

  int64_t take(int64_t size, Fit fit) {
    auto chosen = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second < size) continue;
      if (chosen == free_.end() || it->second < chosen->second) chosen = it;
      if (fit == Fit::first) break;
    }
    if (chosen == free_.end()) {
      // Grow: the last region may be free up to the end.
      int64_t offset = end_;
      if (!free_.empty()) {
        auto last = std::prev(free_.end());
        if (last->first + last->second == end_) {
          offset = last->first;
          free_.erase(last);
        }
      }
      end_ = offset + size;
      return offset;
    }
    const auto [offset, room] = *chosen;
    free_.erase(chosen);
    if (room > size) free_[offset + size] = room - size;
    return offset;
  }

  void give_back(int64_t offset, int64_t size) {
    auto it = free_.emplace(offset, size).first;
    if (auto next = std::next(it); next != free_.end() && it->first + it->second == next->first) {
      it->second += next->second;
      free_.erase(next);
    }
    if (it == free_.begin()) return;
    if (auto before = std::prev(it); before->first + before->second == it->first) {
      before->second += it->second;
      free_.erase(it);
    }
  }

 private:
  std::map<int64_t, int64_t> free_;  // offset -> size
  int64_t end_ = 0;
};

Placement place_in_time_order(const std::vector<Buffer>& buffers, int64_t block, Heap::Fit fit) {
  const PlacementProblem problem = make_problem(buffers, block);
  std::vector<int32_t> begins(problem.items.size());
  std::iota(begins.begin(), begins.end(), 0);
  std::vector<int32_t> ends = begins;
  auto item = [&](int32_t i) -> const PlacementItem& { return problem.items[static_cast<size_t>(i)]; };
  std::stable_sort(begins.begin(), begins.end(), [&](int32_t a, int32_t b) { return item(a).lower < item(b).lower; });
  std::stable_sort(ends.begin(), ends.end(), [&](int32_t a, int32_t b) { return item(a).upper < item(b).upper; });
  std::vector<int64_t> offsets(problem.items.size(), 0);
  Heap heap;
  size_t ended = 0;
  for (int32_t i : begins) {
    for (; ended < ends.size() && item(ends[ended]).upper <= item(i).lower; ++ended) {
      heap.give_back(offsets[static_cast<size_t>(ends[ended])], item(ends[ended]).size);
    }
    offsets[static_cast<size_t>(i)] = heap.take(item(i).size, fit);
  }
  return make_placement(problem, offsets, buffers.size());
}

// The bound of the problem itself, not of the problem in blocks.
Placement with_bound(Placement placement, const std::vector<Buffer>& buffers, int64_t alignment) {
  placement.lower_bound = {make_problem(buffers, alignment).lower_bound};
  placement.proven_optimal = placement.height == placement.lower_bound;
  return placement;
}

}  // namespace

Placement place_first_fit(const std::vector<Buffer>& buffers, const PlacementOptions& options) {
  const int64_t block = std::lcm<int64_t>(1024, options.alignment);
  return with_bound(place_in_time_order(buffers, block, Heap::Fit::first), buffers, options.alignment);
}

Placement place_best_fit(const std::vector<Buffer>& buffers, const PlacementOptions& options) {
  return place_in_time_order(buffers, options.alignment, Heap::Fit::best);
}

std::vector<PlacementMethod> placement_methods() {
  return {
      {"offline", "sees all lifetimes at once: several greedy orders, then a search", place_offline},
      {"first_fit", "the papers' heap: the first hole that is large enough, 1 KB blocks", place_first_fit},
      {"best_fit", "a heap that takes the smallest hole that is large enough", place_best_fit},
  };
}

}  // namespace plimsoll
