#include "plan/placement/greedy.h"

#include <algorithm>
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
    std::vector<int64_t> level(below.size() - static_cast<size_t>(width));
    for (size_t t = 0; t < level.size(); ++t) level[t] = std::max(below[t], below[t + static_cast<size_t>(width)]);
    levels.push_back(std::move(level));
  }
  pressure_.resize(count());
  for (size_t i = 0; i < count(); ++i) {
    const PlacementItem& it = problem_.items[i];
    size_t k = 0;
    while ((2 << k) <= it.length()) ++k;
    pressure_[i] =
        std::max(levels[k][static_cast<size_t>(it.lower)], levels[k][static_cast<size_t>(it.upper - (1 << k))]);
  }
}

// Number of pairs alive together among the items that live at most `length`.
int64_t GreedyPlacer::pairs_within(int32_t length) const {
  std::vector<int32_t> begins(static_cast<size_t>(problem_.times) + 1, 0), ends = begins;
  for (const PlacementItem& it : problem_.items) {
    if (it.length() > length) continue;
    ++begins[static_cast<size_t>(it.lower)];
    ++ends[static_cast<size_t>(it.upper)];
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
  neighbours_.resize(count());
  std::vector<int32_t> by_lower;
  for (size_t i = 0; i < count(); ++i) {
    if (!is_long(static_cast<int32_t>(i))) by_lower.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(by_lower.begin(), by_lower.end(),
                   [&](int32_t a, int32_t b) { return item(a).lower < item(b).lower; });
  std::vector<int32_t> alive;
  for (int32_t i : by_lower) {
    std::erase_if(alive, [&](int32_t other) { return item(other).upper <= item(i).lower; });
    for (int32_t other : alive) {
      neighbours_[static_cast<size_t>(i)].push_back(other);
      neighbours_[static_cast<size_t>(other)].push_back(i);
    }
    alive.push_back(i);
  }
}

std::vector<std::vector<int32_t>> GreedyPlacer::orders() const {
  std::vector<int32_t> first(count());
  std::iota(first.begin(), first.end(), 0);
  std::vector<std::vector<int32_t>> result;
  auto add = [&](auto key) {  // largest key first
    std::vector<int32_t> order = first;
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) > key(b); });
    result.push_back(std::move(order));
  };
  auto area = [&](int32_t i) { return static_cast<double>(item(i).size) * item(i).length(); };
  add([&](int32_t i) { return std::tuple(item(i).length(), item(i).size); });
  add([&](int32_t i) { return std::tuple(pressure(i), item(i).length(), item(i).size); });
  add([&](int32_t i) { return std::tuple(item(i).size, item(i).length()); });
  add([&](int32_t i) { return area(i); });
  add([&](int32_t i) { return std::tuple(pressure(i), item(i).size, item(i).length()); });
  add([&](int32_t i) { return std::tuple(pressure(i), area(i)); });
  add([&](int32_t i) { return std::tuple(-item(i).lower, item(i).length()); });
  add([&](int32_t i) { return std::tuple(item(i).upper, item(i).length()); });
  return result;
}

Skyline GreedyPlacer::place_long(const std::vector<int32_t>& order, std::vector<int64_t>& offsets) const {
  Skyline skyline(problem_.times);
  for (int32_t i : order) {
    if (!is_long(i)) continue;
    const int64_t offset = skyline.largest(item(i).lower, item(i).upper);
    offsets[static_cast<size_t>(i)] = offset;
    skyline.set(item(i).lower, item(i).upper, offset + item(i).size);
  }
  return skyline;
}

int64_t GreedyPlacer::place_short(const std::vector<int32_t>& order, const Skyline& skyline,
                                  std::vector<int64_t>& offsets) const {
  int64_t height = skyline.largest(0, problem_.times);
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (int32_t i : order) {
    if (is_long(i)) continue;
    int64_t& offset = offsets[static_cast<size_t>(i)];
    if (offset < 0) {
      taken.clear();
      looks_ += static_cast<int64_t>(neighbours_[static_cast<size_t>(i)].size());
      for (int32_t other : neighbours_[static_cast<size_t>(i)]) {
        const int64_t begin = offsets[static_cast<size_t>(other)];
        if (begin >= 0) taken.emplace_back(begin, begin + item(other).size);
      }
      std::sort(taken.begin(), taken.end());
      offset = skyline.largest(item(i).lower, item(i).upper);
      for (const auto& [begin, end] : taken) {
        if (begin - offset >= item(i).size) break;
        offset = std::max(offset, end);
      }
    }
    height = std::max(height, offset + item(i).size);
  }
  return height;
}

}  // namespace plimsoll
