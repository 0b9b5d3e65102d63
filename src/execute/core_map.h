// Which hardware threads a step's threads get. Place c is core c's first hardware thread, place cores + c its second.
//
//   cores_a_cache = 2        close: 0 1     spread: 0 2     smt, while 0 and 1 are taken: 4 5
//     core    0 1 | 2 3
//     second  4 5 | 6 7
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plimsoll/plan.h"

namespace plimsoll {

class CoreMap {
 public:
  CoreMap(int cores, int cores_a_cache, bool smt);  // smt: with the cores' second hardware threads

  void clear();  // every place is free
  int cores() const { return cores_; }
  int places() const { return static_cast<int>(free_.size()); }
  int free_cores() const { return free_cores_; }  // by their first hardware threads

  // Whether there is room for so many threads: on cores of their own, or by smt beside others.
  bool has_own(int threads) const { return threads <= free_cores_; }
  bool has_smt(int threads) const { return threads <= free_smt_; }
  // Whether these places are free and lie as wanted.
  bool suits(std::span<const int> places, Affinity affinity) const;
  // Finds places for so many threads, for which there is room; by smt, those beside others.
  void find(int threads, Affinity affinity, std::vector<int>& places) const;
  void take(std::span<const int> places);
  void leave(std::span<const int> places);

 private:
  bool is_free(int place) const { return free_[place] != 0; }
  void set(int place, bool free);
  int caches_of(std::span<const int> places) const;
  int caches() const { return (cores_ + cores_a_cache_ - 1) / cores_a_cache_; }

  int cores_, cores_a_cache_;
  std::vector<uint8_t> free_;  // by place
  int free_cores_ = 0;
  int free_smt_ = 0;  // second hardware threads whose core is taken
};

}  // namespace plimsoll
