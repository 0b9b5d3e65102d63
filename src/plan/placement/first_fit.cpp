#include "plan/placement/first_fit.h"

#include <algorithm>

namespace plimsoll {

FirstFit::FirstFit(const PlacementProblem& problem) : problem_(problem) {
  while (size_ < problem.times) size_ *= 2;
  below_.resize(2 * static_cast<size_t>(size_));
  through_.resize(below_.size());
}

int64_t FirstFit::place(std::span<const int32_t> order, std::vector<int64_t>& offsets, int64_t limit,
                        Clock::time_point deadline) {
  for (Ranges& ranges : below_) ranges.clear();
  for (Ranges& ranges : through_) ranges.clear();
  smallest_.resize(order.size());
  int64_t smallest = INT64_MAX, height = 0;
  for (size_t p = order.size(); p-- > 0;) {
    smallest_[p] = smallest = std::min(smallest, problem_.items[order[p]].size);
  }
  for (size_t p = 0; p < order.size(); ++p) {
    const PlacementItem& item = problem_.items[order[p]];
    if (p % 256 == 0 && deadline != Clock::time_point::max() && Clock::now() > deadline) return limit;
    smallest_hole_ = smallest_[p];
    met_.clear();
    collect(1, 0, size_, item.lower, item.upper);
    const int64_t offset = lowest_room(item.size, limit);
    if (offset < 0) return limit;
    offsets[order[p]] = offset;
    height = std::max(height, offset + item.size);
    add(1, 0, size_, item.lower, item.upper, {offset, offset + item.size});
  }
  return height;
}

void FirstFit::collect(int32_t node, int32_t begin, int32_t end, int32_t lower, int32_t upper) {
  if (below_[node].empty()) return;
  const bool inside = lower <= begin && end <= upper;
  const Ranges& ranges = inside ? below_[node] : through_[node];
  if (!ranges.empty()) met_.emplace_back(ranges.data(), ranges.data() + ranges.size());
  if (inside) return;
  const int32_t middle = (begin + end) / 2;
  if (lower < middle) collect(2 * node, begin, middle, lower, upper);
  if (middle < upper) collect(2 * node + 1, middle, end, lower, upper);
}

// The lowest offset with room between all that is met, or -1 where that would reach the limit.
int64_t FirstFit::lowest_room(int64_t size, int64_t limit) {
  int64_t offset = 0;
  for (bool moved = true; moved;) {
    moved = false;
    size_t left = 0;
    for (auto [first, last] : met_) {
      ++looks_;
      // Doubling steps, then halves: what is near is found at once.
      ptrdiff_t step = 1;
      for (; step < last - first && first[step].end <= offset; step *= 2) first += step;
      first = std::partition_point(first, first + std::min(step, last - first),
                                   [&](const Range& r) { return r.end <= offset; });
      if (first == last) continue;
      if (first->begin - offset < size) {
        offset = first->end;
        if (size >= limit - offset) return -1;
        moved = true;
      }
      met_[left++] = {first, last};
    }
    met_.resize(left);
  }
  return size < limit - offset ? offset : -1;
}

void FirstFit::add(int32_t node, int32_t begin, int32_t end, int32_t lower, int32_t upper, Range taken) {
  add(below_[node], taken);
  if (lower <= begin && end <= upper) {
    add(through_[node], taken);
    return;
  }
  const int32_t middle = (begin + end) / 2;
  if (lower < middle) add(2 * node, begin, middle, lower, upper, taken);
  if (middle < upper) add(2 * node + 1, middle, end, lower, upper, taken);
}

void FirstFit::add(Ranges& ranges, Range taken) {
  // What the new range joins: everything with no useful hole between.
  const auto first = std::partition_point(ranges.begin(), ranges.end(),
                                          [&](const Range& r) { return r.end <= taken.begin - smallest_hole_; });
  auto last = first;
  for (; last != ranges.end() && last->begin - taken.end < smallest_hole_; ++last) {
    taken.begin = std::min(taken.begin, last->begin);
    taken.end = std::max(taken.end, last->end);
    ++looks_;
  }
  if (first == last) {
    ranges.insert(first, taken);
  } else {
    *first = taken;
    ranges.erase(first + 1, last);
  }
}

}  // namespace plimsoll
