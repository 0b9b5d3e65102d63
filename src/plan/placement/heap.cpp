// Placements that take buffers in the order of time, as an allocator at run time must: they see nothing of what comes.
#include "plan/placement/heap.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <numeric>

namespace plimsoll {

void Heap::add(int64_t offset, int64_t size) {
  free_.emplace(offset, size);
  by_size_.emplace(size, offset);
  by_class_[std::bit_width(static_cast<uint64_t>(size)) - 1].insert(offset);
}

void Heap::remove(std::map<int64_t, int64_t>::iterator region) {
  const auto [offset, size] = *region;
  free_.erase(region);
  by_size_.erase({size, offset});
  by_class_[std::bit_width(static_cast<uint64_t>(size)) - 1].erase(offset);
}

std::map<int64_t, int64_t>::iterator Heap::find(int64_t size, Fit fit) {
  if (fit == Fit::best) {
    const auto smallest = by_size_.lower_bound({size, 0});
    return smallest == by_size_.end() ? free_.end() : free_.find(smallest->second);
  }
  int64_t lowest = -1;
  const size_t own = std::bit_width(static_cast<uint64_t>(size)) - 1;
  for (size_t k = own + 1; k < by_class_.size(); ++k) {
    if (!by_class_[k].empty() && (lowest < 0 || *by_class_[k].begin() < lowest)) lowest = *by_class_[k].begin();
  }
  for (int64_t offset : by_class_[own]) {
    if (lowest >= 0 && offset > lowest) break;
    if (free_.at(offset) < size) continue;
    lowest = offset;
    break;
  }
  return lowest < 0 ? free_.end() : free_.find(lowest);
}

int64_t Heap::take(int64_t size, Fit fit) {
  const auto chosen = find(size, fit);
  if (chosen == free_.end()) {
    const int64_t offset = used();  // the last region may be free up to the end
    if (offset < end_) remove(std::prev(free_.end()));
    end_ = offset + size;
    return offset;
  }
  const auto [offset, room] = *chosen;
  remove(chosen);
  if (room > size) add(offset + size, room - size);
  return offset;
}

void Heap::give_back(int64_t offset, int64_t size) {
  auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    if (const auto before = std::prev(next); before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      remove(before);
    }
  }
  if (next != free_.end() && offset + size == next->first) {
    size += next->second;
    remove(next);
  }
  add(offset, size);
}

int64_t Heap::used() const {
  if (free_.empty()) return end_;
  const auto last = std::prev(free_.end());
  return last->first + last->second == end_ ? last->first : end_;
}

std::vector<int64_t> place_on_heap(const PlacementProblem& problem, Heap::Fit fit, bool backwards) {
  std::vector<PlacementItem> items = problem.items;
  for (PlacementItem& item : items) {
    if (!backwards) break;
    const int32_t lower = item.lower;
    item.lower = problem.times - item.upper;
    item.upper = problem.times - lower;
  }
  std::vector<int64_t> offsets(items.size(), 0);
  Heap heap;
  visit_in_time_order(
      items, [&](int32_t i) { offsets[i] = heap.take(items[i].size, fit); },
      [&](int32_t i) { heap.give_back(offsets[i], items[i].size); });
  return offsets;
}

Placement place_first_fit(const std::vector<Buffer>& buffers, const PlacementOptions& options) {
  const PlacementProblem blocks = make_problem(buffers, std::lcm<int64_t>(1024, options.alignment));
  Placement placement = make_placement(blocks, place_on_heap(blocks, Heap::Fit::first, false), buffers.size());
  // The bound of the problem itself, not of the problem in blocks.
  placement.lower_bound = placement.proven_lower_bound = {make_problem(buffers, options.alignment).lower_bound};
  placement.proven_optimal = placement.height == placement.lower_bound;
  return placement;
}

Placement place_best_fit(const std::vector<Buffer>& buffers, const PlacementOptions& options) {
  const PlacementProblem problem = make_problem(buffers, options.alignment);
  return make_placement(problem, place_on_heap(problem, Heap::Fit::best, false), buffers.size());
}

std::vector<PlacementMethod> placement_methods() {
  return {
      {"offline", "sees all lifetimes at once: several greedy orders, then a search", place_offline},
      {"first_fit", "the papers' heap: the first hole that is large enough, 1 KB blocks", place_first_fit},
      {"best_fit", "a heap that takes the smallest hole that is large enough", place_best_fit},
      {"gtbm", "Dymem's unified pool: movable tensors from its low end, temporary ones from its high end", place_gtbm,
       true},
  };
}

}  // namespace plimsoll
