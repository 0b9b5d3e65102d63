#include "plan/placement/greedy.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <tuple>

namespace plimsoll {
namespace {

constexpr int64_t kPairLimit = 3'000'000;  // pairs of items alive together that a full search for holes may look at

}  // namespace

GreedyPlacer::GreedyPlacer(const PlacementProblem& problem) : problem_(problem) {
  find_pressure();
  split();
  find_neighbours();
}

// By item: the largest sum of live bytes while it lives. What lives at the peak has no room to spare.
void GreedyPlacer::find_pressure() {
  std::vector<std::vector<int64_t>> levels{problem_.live};  // levels[k][t] = largest of live[t, t + 2^k)
  for (int32_t width = 1; 2 * width <= problem_.times; width *= 2) {
    const std::vector<int64_t>& below = levels.back();
    std::vector<int64_t> level(below.size() - width);
    for (size_t t = 0; t < level.size(); ++t) level[t] = std::max(below[t], below[t + width]);
    levels.push_back(std::move(level));
  }
  pressure_.resize(count());
  for (size_t i = 0; i < count(); ++i) {
    const PlacementItem& it = problem_.items[i];
    size_t k = 0;
    while ((2 << k) <= it.length()) ++k;
    pressure_[i] = std::max(levels[k][it.lower], levels[k][it.upper - (1 << k)]);
  }
}

// Number of pairs alive together among the items that live at most `length`.
int64_t GreedyPlacer::pairs_within(int32_t length) const {
  std::vector<int32_t> begins(problem_.times + 1, 0), ends = begins;
  for (const PlacementItem& it : problem_.items) {
    if (it.length() > length) continue;
    ++begins[it.lower];
    ++ends[it.upper];
  }
  int64_t alive = 0, pairs = 0;
  for (size_t t = 0; t < begins.size(); ++t) {
    alive -= ends[t];
    for (int32_t n = 0; n < begins[t]; ++n) pairs += alive++;
  }
  return pairs;
}

void GreedyPlacer::split() {
  short_length_ = std::max(problem_.times, 1);
  while (short_length_ > 0 && pairs_within(short_length_) > kPairLimit) short_length_ /= 2;
}

// For every short item, the short items alive at some time with it.
void GreedyPlacer::find_neighbours() {
  std::vector<int32_t> by_lower, alive;
  for (size_t i = 0; i < count(); ++i) {
    if (!is_long(static_cast<int32_t>(i))) by_lower.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(by_lower.begin(), by_lower.end(),
                   [&](int32_t a, int32_t b) { return item(a).lower < item(b).lower; });
  auto for_each_pair = [&](auto&& visit) {
    alive.clear();
    for (int32_t i : by_lower) {
      std::erase_if(alive, [&](int32_t other) { return item(other).upper <= item(i).lower; });
      for (int32_t other : alive) visit(i, other);
      alive.push_back(i);
    }
  };
  first_neighbour_.assign(count() + 1, 0);
  for_each_pair([&](int32_t i, int32_t other) {
    ++first_neighbour_[i + 1];
    ++first_neighbour_[other + 1];
  });
  for (size_t i = 0; i < count(); ++i) first_neighbour_[i + 1] += first_neighbour_[i];
  neighbours_.resize(first_neighbour_.back());
  std::vector<size_t> next(first_neighbour_.begin(), first_neighbour_.end() - 1);
  for_each_pair([&](int32_t i, int32_t other) {
    neighbours_[next[i]++] = other;
    neighbours_[next[other]++] = i;
  });
}

std::vector<int32_t> GreedyPlacer::order(size_t index) const {
  std::vector<int32_t> order(count());
  std::iota(order.begin(), order.end(), 0);
  auto by = [&](auto key) {  // largest key first
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) > key(b); });
    return std::move(order);
  };
  auto area = [&](int32_t i) { return static_cast<double>(item(i).size) * item(i).length(); };
  switch (index) {
    case 0: return by([&](int32_t i) { return std::tuple(item(i).length(), item(i).size); });
    case 1: return by([&](int32_t i) { return std::tuple(pressure(i), item(i).length(), item(i).size); });
    case 2: return by([&](int32_t i) { return std::tuple(item(i).size, item(i).length()); });
    case 3: return by([&](int32_t i) { return area(i); });
    case 4: return by([&](int32_t i) { return std::tuple(pressure(i), item(i).size, item(i).length()); });
    case 5: return by([&](int32_t i) { return std::tuple(pressure(i), area(i)); });
    case 6: return by([&](int32_t i) { return std::tuple(-item(i).lower, item(i).length()); });
    default: return by([&](int32_t i) { return std::tuple(item(i).upper, item(i).length()); });
  }
}

Skyline GreedyPlacer::place_long(const std::vector<int32_t>& order, std::vector<int64_t>& offsets) const {
  Skyline skyline(problem_.times);
  for (int32_t i : order) {
    if (!is_long(i)) continue;
    const int64_t offset = skyline.largest(item(i).lower, item(i).upper);
    offsets[i] = offset;
    skyline.set(item(i).lower, item(i).upper, offset + item(i).size);
  }
  return skyline;
}

void GreedyPlacer::Room::take(int64_t begin, int64_t end) {
  if (end <= lowest) return;
  if (begin - lowest < size) {
    lowest = end;
    for (; !taken.empty() && taken.back().first - lowest < size; taken.pop_back()) {
      lowest = std::max(lowest, taken.back().second);
    }
    return;
  }
  // [first, last) of what lies so near that there is no room between.
  const auto last = std::partition_point(taken.begin(), taken.end(), [&](const std::pair<int64_t, int64_t>& range) {
    return begin - range.second < size;
  });
  auto first = last;
  for (; first != taken.begin() && std::prev(first)->first - end < size; --first) {
    begin = std::min(begin, std::prev(first)->first);
    end = std::max(end, std::prev(first)->second);
  }
  if (first == last) {
    taken.insert(first, {begin, end});
  } else {
    *first = {begin, end};
    taken.erase(first + 1, last);
  }
}

int64_t GreedyPlacer::place_short(const std::vector<int32_t>& order, const Skyline& skyline,
                                  std::vector<int64_t>& offsets, int64_t limit) const {
  int64_t height = skyline.largest(0, problem_.times);
  if (height >= limit) return limit;
  rooms_.resize(count());
  for (int32_t i : order) {
    if (is_long(i) || offsets[i] >= 0) continue;
    Room& room = rooms_[i];
    room.lowest = skyline.largest(item(i).lower, item(i).upper);
    room.size = item(i).size;
    room.taken.clear();
  }
  // Whether all of them still have a place below the limit.
  auto tell = [&](int32_t i) {
    const int64_t begin = offsets[i], end = begin + item(i).size;
    looks_ += static_cast<int64_t>(neighbours(i).size());
    for (int32_t other : neighbours(i)) {
      if (offsets[other] >= 0) continue;
      Room& room = rooms_[other];
      room.take(begin, end);
      if (room.lowest + room.size >= limit) return false;
    }
    return true;
  };
  for (int32_t i : order) {
    if (is_long(i) || offsets[i] < 0) continue;
    height = std::max(height, offsets[i] + item(i).size);
    if (!tell(i)) return limit;
  }
  for (int32_t i : order) {
    if (is_long(i) || offsets[i] >= 0) continue;
    offsets[i] = rooms_[i].lowest;
    height = std::max(height, offsets[i] + item(i).size);
    if (height >= limit || !tell(i)) return limit;
  }
  return height;
}

}  // namespace plimsoll
