#include "plan/placement/search.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "base/clock.h"

namespace plimsoll {
namespace {

// Keys of states that were searched in vain. Forgets what another key of the same slot overwrites.
class Failures {
 public:
  struct Key {
    uint64_t low = 0, high = 0;
    bool operator==(const Key&) const = default;
  };

  bool contains(const Key& key) const { return !slots_.empty() && slots_[slot(key)] == key; }
  void add(const Key& key) {
    if (++added_ > slots_.size() && slots_.size() < kMostSlots) grow();
    slots_[slot(key)] = key;
  }

 private:
  static constexpr size_t kMostSlots = size_t{1} << 21;  // 32 MiB
  size_t slot(const Key& key) const { return key.low & (slots_.size() - 1); }
  void grow() {
    std::vector<Key> old(std::max<size_t>(1024, 4 * slots_.size()));
    old.swap(slots_);
    for (const Key& key : old) {
      if (key != Key{}) slots_[slot(key)] = key;
    }
  }

  std::vector<Key> slots_;
  size_t added_ = 0;
};

// Mixes all bits of a number into all bits of the result (the finalizer of SplitMix64).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

class Search {
 public:
  using Outcome = PlacementSearch::Outcome;

  Search(const PlacementProblem& problem, std::vector<int64_t> least, int64_t capacity)
      : problem_(problem), least_(std::move(least)), capacity_(capacity), meets_(problem.items.size()) {
    sorted_.resize(problem.items.size());
    std::iota(sorted_.begin(), sorted_.end(), 0);
    std::stable_sort(sorted_.begin(), sorted_.end(),
                     [&](int32_t a, int32_t b) { return item(a).lower < item(b).lower; });
    std::vector<int32_t> alive;
    for (int32_t i : sorted_) {
      std::erase_if(alive, [&](int32_t other) { return item(other).upper <= item(i).lower; });
      for (int32_t other : alive) {
        meets_[i].push_back(other);
        meets_[other].push_back(i);
      }
      alive.push_back(i);
    }
    for (uint64_t i = 0; i < 2 * problem.items.size(); ++i) item_bits_.push_back(mix(i * 0x9e3779b97f4a7c15U));
  }

  // `order`: all items, those to be tried first in front. Failures hold for this order alone.
  Outcome run(const std::vector<int32_t>& order, Failures& failures, int64_t effort, Clock::time_point deadline) {
    const size_t count = order.size();
    rank_.resize(count);
    for (size_t p = 0; p < count; ++p) rank_[order[p]] = static_cast<int32_t>(p);
    find_twins();
    offset_ = least_;
    placed_.assign(count, false);
    waiting_neighbours_.resize(count);
    for (size_t i = 0; i < count; ++i) waiting_neighbours_[i] = static_cast<int32_t>(meets_[i].size());
    placed_order_.clear();
    changes_.clear();
    waiting_ = sorted_;
    to_come_ = problem_.live;
    failures_ = &failures;
    effort_left_ = effort;
    deadline_ = deadline;
    stopped_ = false;
    if (solve_parts({0, count}, {-1, -1})) return Outcome::found;
    return stopped_ ? Outcome::stopped : Outcome::none;
  }

  const std::vector<int64_t>& offsets() const { return offset_; }
  int64_t effort_left() const { return effort_left_; }

 private:
  struct Range {
    size_t begin, end;
  };                                          // of waiting_
  using Place = std::pair<int64_t, int32_t>;  // an offset, and at equal offsets a rank

  const PlacementItem& item(int32_t i) const { return problem_.items[i]; }
  int64_t top(int32_t i) const { return offset_[i] + item(i).size; }
  Place place_of(int32_t i) const { return {offset_[i], rank_[i]}; }

  // Of items that are alike the one of lower rank is placed first.
  void find_twins() {
    std::vector<int32_t> order(rank_.size());
    std::iota(order.begin(), order.end(), 0);
    auto kind = [&](int32_t i) { return std::tuple(item(i).lower, item(i).upper, item(i).size, least_[i]); };
    std::sort(order.begin(), order.end(),
              [&](int32_t a, int32_t b) { return kind(a) != kind(b) ? kind(a) < kind(b) : rank_[a] < rank_[b]; });
    twin_before_.assign(rank_.size(), -1);
    for (size_t p = 1; p < order.size(); ++p) {
      if (kind(order[p - 1]) == kind(order[p])) twin_before_[order[p]] = order[p - 1];
    }
  }
  bool twin_waits(int32_t i) const { return twin_before_[i] >= 0 && !placed_[twin_before_[i]]; }

  // Solves each run of items of waiting_ that no time joins to the next, for places after `last`.
  bool solve_parts(Range range, Place last) {
    size_t begin = range.begin;
    int32_t reach = 0;
    for (size_t p = range.begin; p < range.end; ++p) {
      const PlacementItem& it = item(waiting_[p]);
      if (p > begin && it.lower >= reach) {
        if (!solve({begin, p}, last)) return false;
        begin = p;
      }
      reach = p == begin ? it.upper : std::max(reach, it.upper);
    }
    return begin == range.end || solve({begin, range.end}, last);
  }

  // Everything in `range` is still to be placed, after `last`.
  bool solve(Range range, Place last) {
    effort_left_ -= static_cast<int64_t>(range.end - range.begin);
    if (effort_left_ <= 0 || ((++nodes_ & 1023) == 0 && Clock::now() > deadline_)) {
      stopped_ = true;
      return false;
    }
    const int64_t floor = std::max<int64_t>(last.first, 0);
    int64_t lowest_top = std::numeric_limits<int64_t>::max(), highest_top = 0, smallest = lowest_top;
    bool falls = false;
    for (size_t p = range.begin; p < range.end; ++p) {
      const int32_t i = waiting_[p];
      lowest_top = std::min(lowest_top, top(i));
      highest_top = std::max(highest_top, top(i));
      smallest = std::min(smallest, item(i).size);
      falls = falls || (offset_[i] < floor && waiting_neighbours_[i] == 0);
      effort_left_ -= item(i).length() / 32;  // has_room looks at all its times
    }
    if (highest_top > capacity_) return false;
    if (falls || lowest_top <= floor) return false;  // it could fall: there is a lower solution elsewhere
    if (!has_room(range, floor, smallest)) return false;
    const Failures::Key key = key_of(range, last);
    if (failures_->contains(key)) return false;

    const size_t candidates = candidates_.size();
    for (size_t p = range.begin; p < range.end; ++p) {
      const int32_t i = waiting_[p];
      if (offset_[i] < lowest_top && place_of(i) > last && !twin_waits(i)) candidates_.push_back(i);
    }
    std::sort(candidates_.begin() + static_cast<std::ptrdiff_t>(candidates), candidates_.end(),
              [&](int32_t a, int32_t b) { return place_of(a) < place_of(b); });
    const size_t candidates_end = candidates_.size(), waiting_end = waiting_.size();
    bool found = false;
    for (size_t c = candidates; c < candidates_end && !found && !stopped_; ++c) {
      const int32_t next = candidates_[c];
      const Place here = place_of(next);
      const size_t placed = placed_order_.size(), changed = changes_.size();
      place(next);
      for (size_t p = range.begin; p < range.end; ++p) {
        if (waiting_[p] != next) waiting_.push_back(waiting_[p]);
      }
      found = solve_parts({waiting_end, waiting_.size()}, here);
      waiting_.resize(waiting_end);
      if (found) break;
      take_back(placed, changed);
      if (waiting_neighbours_[next] == 0) break;  // nobody is above it: its place was not the reason
    }
    candidates_.resize(candidates);
    if (!found && !stopped_) failures_->add(key);
    return found;
  }

  // Of what waits, where, and whether it may be placed next.
  Failures::Key key_of(Range range, Place last) const {
    Failures::Key key;
    for (size_t p = range.begin; p < range.end; ++p) {
      const int32_t i = waiting_[p];
      const bool blocked = place_of(i) <= last;
      const uint64_t bits =
          item_bits_[2 * static_cast<size_t>(i) + (blocked ? 1 : 0)] ^ static_cast<uint64_t>(offset_[i]);
      key.low += mix(bits + 0x9e3779b97f4a7c15U);
      key.high += mix(bits + 0x3c6ef372fe94f82aU);
    }
    return key;
  }

  // At every time, what is to come fits above the lowest place that any of it can have.
  bool has_room(Range range, int64_t floor, int64_t smallest) {
    // Of what waits at the time that is looked at, what is the lowest until a time that nothing lower reaches: places rise
    // with these times. By its begin the next that waits.
    lowest_.clear();
    size_t first = 0;  // of lowest_
    int32_t time = item(waiting_[range.begin]).lower;
    for (size_t p = range.begin; p <= range.end; ++p) {
      const int32_t until = p < range.end ? item(waiting_[p]).lower : std::numeric_limits<int32_t>::max();
      while (first < lowest_.size() && time < until) {
        const int32_t end = std::min(until, lowest_[first].until);
        const int64_t room = capacity_ - lowest_[first].offset;
        for (; time < end; ++time) {
          if (to_come_[time] > room) return false;
        }
        if (time == lowest_[first].until) ++first;
      }
      if (p == range.end) break;
      // What is below the floor stands on something that is still to come.
      const int32_t i = waiting_[p];
      const int64_t offset = offset_[i] < floor ? floor + smallest : offset_[i];
      size_t at = lowest_.size();
      while (at > first && lowest_[at - 1].offset >= offset) --at;
      if (at > first && lowest_[at - 1].until >= item(i).upper) continue;
      size_t end = at;
      while (end < lowest_.size() && lowest_[end].until <= item(i).upper) ++end;
      const Lowest added{offset, item(i).upper};
      if (end == at) {
        lowest_.insert(lowest_.begin() + static_cast<std::ptrdiff_t>(at), added);
      } else {
        lowest_[at] = added;
        lowest_.erase(lowest_.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                      lowest_.begin() + static_cast<std::ptrdiff_t>(end));
      }
    }
    return true;
  }

  void place(int32_t i) {
    placed_[i] = true;
    placed_order_.push_back(i);
    add_to_come(i, -item(i).size);
    const int64_t height = top(i);
    for (int32_t other : meets_[i]) {
      --waiting_neighbours_[other];
      if (placed_[other] || offset_[other] >= height) continue;
      changes_.emplace_back(other, offset_[other]);
      offset_[other] = height;
    }
  }

  void add_to_come(int32_t i, int64_t bytes) {
    int64_t* const to_come = to_come_.data();
    for (int32_t t = item(i).lower, end = item(i).upper; t < end; ++t) to_come[t] += bytes;
  }

  // Back to when so many items were placed and so many offsets changed.
  void take_back(size_t placed, size_t changed) {
    for (; changes_.size() > changed; changes_.pop_back()) offset_[changes_.back().first] = changes_.back().second;
    for (; placed_order_.size() > placed; placed_order_.pop_back()) {
      placed_[placed_order_.back()] = false;
      add_to_come(placed_order_.back(), item(placed_order_.back()).size);
      for (int32_t other : meets_[placed_order_.back()]) ++waiting_neighbours_[other];
    }
  }

  const PlacementProblem& problem_;
  std::vector<int64_t> least_;
  int64_t capacity_;
  Clock::time_point deadline_;
  std::vector<std::vector<int32_t>> meets_;  // by item: those alive together with it
  std::vector<int32_t> sorted_;              // items by lower
  std::vector<uint64_t> item_bits_;          // two an item, for keys: free to be placed next, and not
  std::vector<int32_t> rank_, twin_before_;
  std::vector<int64_t> offset_;  // of placed items; of others the lowest that is left
  std::vector<char> placed_;
  std::vector<int32_t> waiting_neighbours_;
  std::vector<int32_t> placed_order_;
  std::vector<std::pair<int32_t, int64_t>> changes_;  // item, its offset before
  std::vector<int32_t> waiting_, candidates_;         // stacks: of every open node its part and its candidates
  std::vector<int64_t> to_come_;                      // by time: bytes of what waits
  struct Lowest {
    int64_t offset = 0;
    int32_t until = 0;
  };
  std::vector<Lowest> lowest_;  // only inside has_room
  Failures* failures_ = nullptr;
  int64_t effort_left_ = 0, nodes_ = 0;
  bool stopped_ = false;
};

std::vector<std::vector<int32_t>> make_orders(const PlacementProblem& problem) {
  std::vector<int64_t> pressure(problem.items.size());  // by item: the largest sum of live bytes while it lives
  for (size_t i = 0; i < pressure.size(); ++i) {
    const PlacementItem& item = problem.items[i];
    pressure[i] = *std::max_element(problem.live.begin() + item.lower, problem.live.begin() + item.upper);
  }
  std::vector<int32_t> all(problem.items.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<int32_t>> orders;
  auto add = [&](auto key) {  // largest key first
    std::vector<int32_t> order = all;
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) > key(b); });
    orders.push_back(std::move(order));
  };
  auto item = [&](int32_t i) -> const PlacementItem& { return problem.items[i]; };
  auto total = [&](int32_t i) { return pressure[i]; };
  auto width = [&](int32_t i) { return item(i).duration; };
  auto area = [&](int32_t i) { return static_cast<double>(item(i).size) * static_cast<double>(item(i).duration); };
  auto sections = [&](int32_t i) { return item(i).length(); };
  auto boxes = [&](int32_t i) { return static_cast<double>(item(i).size) * item(i).length(); };
  add([&](int32_t i) { return std::tuple(width(i), area(i), total(i)); });
  add([&](int32_t i) { return std::tuple(total(i), area(i), width(i)); });
  add([&](int32_t i) { return std::tuple(total(i), width(i), area(i)); });
  add([&](int32_t i) { return std::tuple(sections(i), boxes(i), total(i)); });
  add([&](int32_t i) { return std::tuple(total(i), boxes(i), sections(i)); });
  add([&](int32_t i) { return std::tuple(total(i), sections(i), boxes(i)); });
  return orders;
}

}  // namespace

struct PlacementSearch::Turns {
  Turns(const PlacementProblem& problem, std::vector<int64_t> least, int64_t capacity)
      : search(problem, std::move(least), capacity), orders(make_orders(problem)), failures(orders.size()) {
    turn = std::max(int64_t{1} << 18, 4 * static_cast<int64_t>(problem.items.size() * problem.items.size()));
  }

  Search search;
  std::vector<std::vector<int32_t>> orders;
  std::vector<Failures> failures;
  size_t order = 0;  // whose turn it is
  int64_t turn;
};

PlacementSearch::PlacementSearch(const PlacementProblem& problem, std::vector<int64_t> least, int64_t capacity)
    : turns_(std::make_unique<Turns>(problem, std::move(least), capacity)) {}
PlacementSearch::~PlacementSearch() = default;

PlacementSearch::Result PlacementSearch::advance(const Limits& limits) {
  Result result;
  while (result.effort < limits.effort) {
    const int64_t allowed = std::min(turns_->turn, limits.effort - result.effort);
    result.outcome =
        turns_->search.run(turns_->orders[turns_->order], turns_->failures[turns_->order], allowed, limits.deadline);
    result.effort += allowed - std::max<int64_t>(turns_->search.effort_left(), 0);
    if (result.outcome != Outcome::stopped) break;
    if (++turns_->order == turns_->orders.size()) {
      turns_->order = 0;
      turns_->turn *= 2;
    }
    if (Clock::now() > limits.deadline) break;
  }
  return result;
}

const std::vector<int64_t>& PlacementSearch::offsets() const { return turns_->search.offsets(); }

}  // namespace plimsoll
