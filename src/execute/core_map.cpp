#include "execute/core_map.h"

#include <algorithm>

namespace plimsoll {

CoreMap::CoreMap(int cores, int cores_a_cache, bool smt)
    : cores_(std::max(cores, 1)),
      cores_a_cache_(std::clamp(cores_a_cache, 1, cores_)),
      free_(smt ? 2 * cores_ : cores_) {
  clear();
}

void CoreMap::clear() {
  std::fill(free_.begin(), free_.end(), uint8_t{1});
  free_cores_ = cores_;
  free_smt_ = 0;
}

int CoreMap::caches_of(std::span<const int> places) const {
  int count = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    auto cache = [&](size_t k) { return places[k] % cores_ / cores_a_cache_; };
    bool seen = false;
    for (size_t k = 0; k < i && !seen; ++k) seen = cache(k) == cache(i);
    count += !seen;
  }
  return count;
}

bool CoreMap::suits(std::span<const int> places, Affinity affinity) const {
  const int threads = static_cast<int>(places.size());
  for (int place : places) {
    if (!is_free(place) || (place >= cores_) != (affinity == Affinity::smt)) return false;
    if (affinity == Affinity::smt && is_free(place - cores_)) return false;
  }
  if (affinity == Affinity::smt || cores_a_cache_ == 1 || threads == 1) return true;
  const int found = caches_of(places);
  if (affinity == Affinity::spread) return found == std::min(threads, caches());
  return found <= (threads + cores_a_cache_ - 1) / cores_a_cache_ + 1;  // a row of cores may begin within a cache
}

void CoreMap::find(int threads, Affinity affinity, std::vector<int>& places) const {
  places.clear();
  auto full = [&] { return static_cast<int>(places.size()) == threads; };
  if (affinity == Affinity::smt) {
    for (int core = 0; core < cores_ && !full(); ++core) {
      if (!is_free(core) && is_free(cores_ + core)) places.push_back(cores_ + core);
    }
    return;
  }
  if (affinity == Affinity::spread) {  // one of each cache, then a second one of each, and so on
    for (int turn = 0; turn < cores_a_cache_ && !full(); ++turn) {
      for (int core = turn; core < cores_ && !full(); core += cores_a_cache_) {
        if (is_free(core)) places.push_back(core);
      }
    }
    return;
  }
  // The first row of free cores that is long enough, or else any.
  int row = 0, first = 0;
  for (int core = 0; core < cores_; ++core) {
    row = is_free(core) ? row + 1 : 0;
    if (row < threads) continue;
    first = core + 1 - threads;
    break;
  }
  for (int core = first; core < cores_ && !full(); ++core) {
    if (is_free(core)) places.push_back(core);
  }
}

void CoreMap::set(int place, bool free) {
  const bool first = place < cores_;
  const int core = first ? place : place - cores_;
  const bool has_smt = static_cast<int>(free_.size()) > cores_;
  auto open = [&] { return has_smt && !is_free(core) && is_free(cores_ + core) ? 1 : 0; };
  free_smt_ -= open();
  free_cores_ += first ? (free ? 1 : 0) - (is_free(place) ? 1 : 0) : 0;
  free_[place] = free ? 1 : 0;
  free_smt_ += open();
}

void CoreMap::take(std::span<const int> places) {
  for (int place : places) set(place, false);
}

void CoreMap::leave(std::span<const int> places) {
  for (int place : places) set(place, true);
}

}  // namespace plimsoll
