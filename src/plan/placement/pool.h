// Dymem's unified memory pool (section 3.3.3) and the search for its size.
//
//   0        lowest avail      highest avail     size
//   +--+---+----+                    +---+------+  +-----------
//   |movable ...|    squeeze gap     |temporary |  | reclaimed ...   (the incremental space grows on its own)
//   +--+---+----+                    +---+------+  +-----------
#pragma once

#include <functional>
#include <optional>

#include "plan/placement/heap.h"
#include "plan/placement/placement.h"

namespace plimsoll {

class UnifiedPool {
 public:
  explicit UnifiedPool(int64_t size) : size_(size), smallest_gap_(size) {}

  // A place of its own kind for so many bytes: from the start of the pool, or of the incremental space for what is
  // reclaimed. Nothing when low and high end would meet.
  std::optional<int64_t> take(int64_t size, Mobility mobility);
  void give_back(int64_t offset, int64_t size, Mobility mobility);

  int64_t size() const { return size_; }
  int64_t squeeze_gap() const { return smallest_gap_; }             // min over time of (highest avail - lowest avail)
  int64_t incremental_bytes() const { return incremental_.end(); }  // ever needed

 private:
  int64_t size_, smallest_gap_;
  Heap low_, high_, incremental_;  // the high one counts from the pool's end down
};

// mem_size = (init - squeeze_gap) + beta, and beta more as long as training does not work in it.
Bytes fit_pool_size(Bytes init, Bytes squeeze_gap, Bytes beta, const std::function<bool(Bytes)>& trains);

}  // namespace plimsoll
