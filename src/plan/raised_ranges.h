// A row of numbers that are raised range by range.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace plimsoll {

// Numbers of which a whole range is raised at once, and the largest of a range is told: a segment tree.
class RaisedRanges {
 public:
  explicit RaisedRanges(const std::vector<int64_t>& numbers)
      : leaves_(std::bit_ceil(std::max<size_t>(numbers.size(), 1))), most_(2 * leaves_, 0), raised_(2 * leaves_, 0) {
    std::ranges::copy(numbers, most_.begin() + static_cast<std::ptrdiff_t>(leaves_));
    for (size_t i = leaves_ - 1; i > 0; --i) most_[i] = std::max(most_[2 * i], most_[2 * i + 1]);
  }
  // Of [begin, end), which is not empty.
  int64_t largest(size_t begin, size_t end) const { return largest(1, 0, leaves_, begin, end); }
  void raise(size_t begin, size_t end, int64_t by) { raise(1, 0, leaves_, begin, end, by); }
  // The least `from` so that none of [from, end) is above `most`; `begin` where none of the range is.
  size_t first_after_above(size_t begin, size_t end, int64_t most) const {
    return begin < end ? first_after_above(1, 0, leaves_, begin, end, most) : end;
  }

 private:
  int64_t largest(size_t node, size_t from, size_t to, size_t begin, size_t end) const {
    if (begin <= from && to <= end) return most_[node];
    const size_t middle = (from + to) / 2;
    int64_t most = INT64_MIN;
    if (begin < middle) most = largest(2 * node, from, middle, begin, end);
    if (end > middle) most = std::max(most, largest(2 * node + 1, middle, to, begin, end));
    return most + raised_[node];
  }
  void raise(size_t node, size_t from, size_t to, size_t begin, size_t end, int64_t by) {
    if (begin <= from && to <= end) {
      most_[node] += by;
      raised_[node] += by;
      return;
    }
    const size_t middle = (from + to) / 2;
    if (begin < middle) raise(2 * node, from, middle, begin, end, by);
    if (end > middle) raise(2 * node + 1, middle, to, begin, end, by);
    most_[node] = std::max(most_[2 * node], most_[2 * node + 1]) + raised_[node];
  }
  size_t first_after_above(size_t node, size_t from, size_t to, size_t begin, size_t end, int64_t most) const {
    if (most_[node] <= most) return std::max(from, begin);
    if (to - from == 1) return to;
    const size_t middle = (from + to) / 2;
    most -= raised_[node];
    if (end > middle) {
      const size_t found = first_after_above(2 * node + 1, middle, to, begin, end, most);
      if (found > std::max(middle, begin) || begin >= middle) return found;
    }
    return first_after_above(2 * node, from, middle, begin, std::min(end, middle), most);
  }

  size_t leaves_;
  std::vector<int64_t> most_;    // by node: of its range, what was raised above the node left out
  std::vector<int64_t> raised_;  // by node: its whole range, by so much
};

}  // namespace plimsoll
