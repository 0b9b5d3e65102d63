#include "plan/placement/search.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

namespace plimsoll {
namespace {

using Clock = std::chrono::steady_clock;

class Search {
 public:
  Search(const PlacementProblem& problem, const std::vector<int64_t>& least, int64_t capacity,
         Clock::time_point deadline)
      : problem_(problem), least_(least), capacity_(capacity), deadline_(deadline), meets_(problem.items.size()) {
    sorted_.resize(problem.items.size());
    std::iota(sorted_.begin(), sorted_.end(), 0);
    std::stable_sort(sorted_.begin(), sorted_.end(),
                     [&](int32_t a, int32_t b) { return item(a).lower < item(b).lower; });
    std::vector<int32_t> alive;
    for (int32_t i : sorted_) {
      std::erase_if(alive, [&](int32_t other) { return item(other).upper <= item(i).lower; });
      for (int32_t other : alive) {
        meets_[at(i)].push_back(other);
        meets_[at(other)].push_back(i);
      }
      alive.push_back(i);
    }
    lowest_.resize(static_cast<size_t>(problem.times));
    to_come_.resize(static_cast<size_t>(problem.times) + 1);
    unpainted_.resize(static_cast<size_t>(problem.times) + 1);
  }

  enum class Outcome { found, none, stopped };

  // `order`: all items, those to be tried first in front.
  Outcome run(const std::vector<int32_t>& order, int64_t node_limit) {
    const size_t count = order.size();
    rank_.resize(count);
    for (size_t p = 0; p < count; ++p) rank_[at(order[p])] = static_cast<int32_t>(p);
    offset_ = least_;
    placed_.assign(count, false);
    waiting_neighbours_.resize(count);
    for (size_t i = 0; i < count; ++i) waiting_neighbours_[i] = static_cast<int32_t>(meets_[i].size());
    placed_order_.clear();
    changes_.clear();
    nodes_left_ = node_limit;
    stopped_ = false;
    if (solve_parts({0, count}, {-1, -1})) return Outcome::found;
    return stopped_ ? Outcome::stopped : Outcome::none;
  }

  const std::vector<int64_t>& offsets() const { return offset_; }

 private:
  struct Range {
    size_t begin, end;
  };                                          // of sorted_
  using Place = std::pair<int64_t, int32_t>;  // an offset, and at equal offsets a rank

  static size_t at(int32_t i) { return static_cast<size_t>(i); }
  const PlacementItem& item(int32_t i) const { return problem_.items[at(i)]; }
  int64_t top(int32_t i) const { return offset_[at(i)] + item(i).size; }
  Place place_of(int32_t i) const { return {offset_[at(i)], rank_[at(i)]}; }

  template <class Visit>
  void for_each_waiting(Range range, const Visit& visit) const {
    for (size_t p = range.begin; p < range.end; ++p) {
      if (!placed_[at(sorted_[p])]) visit(sorted_[p]);
    }
  }

  // Solves each run of waiting items that no time joins to the next, for places after `last`.
  bool solve_parts(Range range, Place last) {
    size_t begin = range.end;
    int32_t reach = 0;
    for (size_t p = range.begin; p < range.end; ++p) {
      const int32_t i = sorted_[p];
      if (placed_[at(i)]) continue;
      if (begin == range.end) {
        begin = p;
        reach = item(i).upper;
      } else if (item(i).lower >= reach) {
        if (!solve({begin, p}, last)) return false;
        begin = p;
        reach = item(i).upper;
      } else {
        reach = std::max(reach, item(i).upper);
      }
    }
    return begin == range.end || solve({begin, range.end}, last);
  }

  // Everything that waits in `range` is still to be placed, after `last`.
  bool solve(Range range, Place last) {
    if (--nodes_left_ <= 0 || ((nodes_left_ & 255) == 0 && Clock::now() > deadline_)) {
      stopped_ = true;
      return false;
    }
    const int64_t floor = std::max<int64_t>(last.first, 0);
    int64_t lowest_top = std::numeric_limits<int64_t>::max(), highest_top = 0, smallest = lowest_top;
    for_each_waiting(range, [&](int32_t i) {
      lowest_top = std::min(lowest_top, top(i));
      highest_top = std::max(highest_top, top(i));
      smallest = std::min(smallest, item(i).size);
    });
    if (highest_top > capacity_) return false;
    if (lowest_top <= floor) return false;  // that item could fall: there is a lower solution elsewhere
    if (!has_room(range, floor, smallest)) return false;

    for (Place tried = last;;) {
      int32_t next = -1;
      for_each_waiting(range, [&](int32_t i) {
        if (place_of(i) > tried && offset_[at(i)] < lowest_top && (next < 0 || place_of(i) < place_of(next))) next = i;
      });
      if (next < 0) return false;
      tried = place_of(next);
      const size_t placed = placed_order_.size(), changed = changes_.size();
      place(next);
      if (solve_parts(range, tried)) return true;
      take_back(placed, changed);
      if (stopped_) return false;
      if (waiting_neighbours_[at(next)] == 0) return false;  // nobody is above it: its place was not the reason
    }
  }

  // At every time, what is to come fits above the lowest place that any of it can have.
  bool has_room(Range range, int64_t floor, int64_t smallest) {
    int32_t begin = problem_.times, end = 0;
    by_offset_.clear();
    bool falls = false;
    for_each_waiting(range, [&](int32_t i) {
      begin = std::min(begin, item(i).lower);
      end = std::max(end, item(i).upper);
      int64_t offset = offset_[at(i)];
      if (offset < floor) {  // it stands on something that is still to come
        falls = falls || waiting_neighbours_[at(i)] == 0;
        offset = floor + smallest;
      }
      by_offset_.emplace_back(offset, i);
    });
    if (falls) return false;
    std::fill(to_come_.begin() + begin, to_come_.begin() + end + 1, 0);
    for (const auto& [offset, i] : by_offset_) {
      to_come_[static_cast<size_t>(item(i).lower)] += item(i).size;
      to_come_[static_cast<size_t>(item(i).upper)] -= item(i).size;
    }
    // From the lowest up, each item paints the times that no lower one has painted.
    std::sort(by_offset_.begin(), by_offset_.end());
    std::fill(lowest_.begin() + begin, lowest_.begin() + end, 0);
    std::iota(unpainted_.begin() + begin, unpainted_.begin() + end + 1, begin);
    for (const auto& [offset, i] : by_offset_) {
      for (int32_t t = next_unpainted(item(i).lower); t < item(i).upper; t = next_unpainted(t)) {
        lowest_[static_cast<size_t>(t)] = offset;
        unpainted_[static_cast<size_t>(t)] = t + 1;
      }
    }
    int64_t to_come = 0;
    for (int32_t t = begin; t < end; ++t) {
      to_come += to_come_[static_cast<size_t>(t)];
      if (to_come > 0 && lowest_[static_cast<size_t>(t)] + to_come > capacity_) return false;
    }
    return true;
  }

  int32_t next_unpainted(int32_t t) {
    while (unpainted_[static_cast<size_t>(t)] != t) {
      int32_t& next = unpainted_[static_cast<size_t>(t)];
      next = unpainted_[static_cast<size_t>(next)];
      t = next;
    }
    return t;
  }

  void place(int32_t i) {
    placed_[at(i)] = true;
    placed_order_.push_back(i);
    const int64_t height = top(i);
    for (int32_t other : meets_[at(i)]) {
      --waiting_neighbours_[at(other)];
      if (placed_[at(other)] || offset_[at(other)] >= height) continue;
      changes_.emplace_back(other, offset_[at(other)]);
      offset_[at(other)] = height;
    }
  }

  // Back to when so many items were placed and so many offsets changed.
  void take_back(size_t placed, size_t changed) {
    for (; changes_.size() > changed; changes_.pop_back()) offset_[at(changes_.back().first)] = changes_.back().second;
    for (; placed_order_.size() > placed; placed_order_.pop_back()) {
      placed_[at(placed_order_.back())] = false;
      for (int32_t other : meets_[at(placed_order_.back())]) ++waiting_neighbours_[at(other)];
    }
  }

  const PlacementProblem& problem_;
  const std::vector<int64_t>& least_;
  int64_t capacity_;
  Clock::time_point deadline_;
  std::vector<std::vector<int32_t>> meets_;  // by item: those alive together with it
  std::vector<int32_t> sorted_;              // items by lower
  std::vector<int32_t> rank_;
  std::vector<int64_t> offset_;  // of placed items; of others the lowest that is left
  std::vector<char> placed_;
  std::vector<int32_t> waiting_neighbours_;
  std::vector<int32_t> placed_order_;
  std::vector<std::pair<int32_t, int64_t>> changes_;  // item, its offset before
  // Only inside has_room:
  std::vector<std::pair<int64_t, int32_t>> by_offset_;
  std::vector<int64_t> lowest_, to_come_;  // by time
  std::vector<int32_t> unpainted_;         // by time: it, or a later one to ask next
  int64_t nodes_left_ = 0;
  bool stopped_ = false;
};

// By item: the largest sum of live bytes while it lives.
std::vector<int64_t> find_pressure(const PlacementProblem& problem) {
  std::vector<int64_t> pressure(problem.items.size());
  for (size_t i = 0; i < pressure.size(); ++i) {
    const PlacementItem& item = problem.items[i];
    pressure[i] = *std::max_element(problem.live.begin() + item.lower, problem.live.begin() + item.upper);
  }
  return pressure;
}

std::vector<std::vector<int32_t>> make_orders(const PlacementProblem& problem) {
  const std::vector<int64_t> pressure = find_pressure(problem);
  std::vector<int32_t> all(problem.items.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<int32_t>> orders;
  auto add = [&](auto key) {  // largest key first
    std::vector<int32_t> order = all;
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) > key(b); });
    orders.push_back(std::move(order));
  };
  auto item = [&](int32_t i) -> const PlacementItem& { return problem.items[static_cast<size_t>(i)]; };
  auto total = [&](int32_t i) { return pressure[static_cast<size_t>(i)]; };
  auto area = [&](int32_t i) { return static_cast<double>(item(i).size) * item(i).length(); };
  auto width = [&](int32_t i) { return item(i).length(); };
  add([&](int32_t i) { return std::tuple(width(i), area(i), total(i)); });
  add([&](int32_t i) { return std::tuple(total(i), area(i), width(i)); });
  add([&](int32_t i) { return std::tuple(total(i), width(i), area(i)); });
  return orders;
}

}  // namespace

PlacementSearchResult search_placement(const PlacementProblem& problem, const std::vector<int64_t>& least,
                                       int64_t capacity, Clock::time_point deadline, int64_t node_limit) {
  PlacementSearchResult result;
  Search search(problem, least, capacity, deadline);
  const std::vector<std::vector<int32_t>> orders = make_orders(problem);
  for (int64_t nodes = 1 << 12; node_limit > 0; nodes *= 2) {
    for (const std::vector<int32_t>& order : orders) {
      const Search::Outcome outcome = search.run(order, std::min(nodes, node_limit));
      node_limit -= nodes;
      if (outcome == Search::Outcome::found) return {true, false, search.offsets()};
      if (outcome == Search::Outcome::none) return {false, true, {}};
      if (node_limit <= 0 || Clock::now() > deadline) return result;
    }
  }
  return result;
}

}  // namespace plimsoll
