// The height of what is placed, over time: largest over a range, and set over a range, both in the logarithm of the
// number of times.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace plimsoll {

class Skyline {
 public:
  explicit Skyline(int32_t times) {
    while (size_ < times) size_ *= 2;
    nodes_.assign(2 * size_, {});
    nodes_[1] = {0, 0};  // all of it, with nothing written below
  }
  int64_t largest(int32_t lower, int32_t upper) const { return largest(1, 0, size_, lower, upper); }
  void set(int32_t lower, int32_t upper, int64_t height) { set(1, 0, size_, lower, upper, height); }

 private:
  struct Node {
    int64_t largest = 0;
    int64_t all = -1;  // every time below this node has this height; -1: they differ
  };
  const Node& node(int32_t i) const { return nodes_[i]; }
  Node& node(int32_t i) { return nodes_[i]; }

  int64_t largest(int32_t i, int32_t begin, int32_t end, int32_t lower, int32_t upper) const {
    if (upper <= begin || end <= lower) return 0;
    if ((lower <= begin && end <= upper) || node(i).all >= 0) return node(i).largest;
    const int32_t middle = (begin + end) / 2;
    return std::max(largest(2 * i, begin, middle, lower, upper), largest(2 * i + 1, middle, end, lower, upper));
  }
  void set(int32_t i, int32_t begin, int32_t end, int32_t lower, int32_t upper, int64_t height) {
    if (upper <= begin || end <= lower) return;
    if (lower <= begin && end <= upper) {
      node(i) = {height, height};
      return;
    }
    if (node(i).all >= 0) {
      node(2 * i) = node(2 * i + 1) = {node(i).all, node(i).all};
      node(i).all = -1;
    }
    const int32_t middle = (begin + end) / 2;
    set(2 * i, begin, middle, lower, upper, height);
    set(2 * i + 1, middle, end, lower, upper, height);
    node(i).largest = std::max(node(2 * i).largest, node(2 * i + 1).largest);
  }

  int32_t size_ = 1;
  std::vector<Node> nodes_;
};

}  // namespace plimsoll
