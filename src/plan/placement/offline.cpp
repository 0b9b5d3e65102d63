// Offline placement: several greedy orders, each deterministic; the first that reaches the lower bound ends the work.
// What they leave is improved by a local search over orders.
//
// A placement is made from an order of the items: each takes the lowest offset where it meets nobody placed before it.
// Deep networks have tens of thousands of items of which thousands are alive at once; there the long-lived ones, which
// nest like a stack, are put on a skyline (a tree over time), and only the short-lived ones look for holes among each
// other.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <tuple>

#include "plan/placement/problem.h"
#include "plan/placement/search.h"

namespace plimsoll {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kPairLimit = 3'000'000;  // pairs of items alive together that a full search for holes may look at
constexpr size_t kSearchItems = 4000;      // searched all together
constexpr size_t kHotItems = 600;          // where there are long ones: of the short ones
constexpr int64_t kSearchNodes = 4'000'000;

// The height of what is placed, over time: largest over a range, and set over a range.
class Skyline {
 public:
  explicit Skyline(int32_t times) {
    while (size_ < times) size_ *= 2;
    nodes_.assign(static_cast<size_t>(2 * size_), {});
  }
  int64_t largest(int32_t lower, int32_t upper) const { return largest(1, 0, size_, lower, upper); }
  void set(int32_t lower, int32_t upper, int64_t height) { set(1, 0, size_, lower, upper, height); }

 private:
  struct Node {
    int64_t largest = 0;
    int64_t all = -1;  // every time below this node has this height; -1: they differ
  };
  const Node& node(int32_t i) const { return nodes_[static_cast<size_t>(i)]; }
  Node& node(int32_t i) { return nodes_[static_cast<size_t>(i)]; }

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

class OfflineSearch {
 public:
  OfflineSearch(const PlacementProblem& problem, const PlacementOptions& options)
      : problem_(problem),
        goal_(std::max(problem.lower_bound, options.capacity.count)),
        deadline_(Clock::now() +
                  std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds))) {
    find_pressure();
    split();
    find_neighbours();
  }

  std::vector<int64_t> run() {
    for (std::vector<int32_t>& order : orders()) {
      try_order(order);
      if (done()) return best_offsets_;
    }
    improve();
    return best_offsets_;
  }

 private:
  size_t count() const { return problem_.items.size(); }
  const PlacementItem& item(int32_t i) const { return problem_.items[static_cast<size_t>(i)]; }
  bool done() const { return best_height_ <= goal_; }

  // By item: the largest sum of live bytes while it lives. What lives at the peak has no room to spare.
  void find_pressure() {
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
  int64_t pairs_within(int32_t length) const {
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

  void split() {
    short_length_ = std::max(problem_.times, 1);
    while (short_length_ > 0 && pairs_within(short_length_) > kPairLimit) short_length_ /= 2;
  }
  bool is_long(int32_t i) const { return item(i).length() > short_length_; }

  // For every short item, the short items alive at some time with it.
  void find_neighbours() {
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

  std::vector<std::vector<int32_t>> orders() const {
    std::vector<int32_t> first(count());
    std::iota(first.begin(), first.end(), 0);
    std::vector<std::vector<int32_t>> result;
    auto add = [&](auto key) {  // largest key first
      std::vector<int32_t> order = first;
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) > key(b); });
      result.push_back(std::move(order));
    };
    auto area = [&](int32_t i) { return static_cast<double>(item(i).size) * item(i).length(); };
    auto pressure = [&](int32_t i) { return pressure_[static_cast<size_t>(i)]; };
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

  // Offsets when items come in this order: the long ones first, on the skyline, then the short ones into holes above
  // it.
  int64_t place(const std::vector<int32_t>& order, std::vector<int64_t>& offsets) const {
    offsets.assign(count(), -1);
    const Skyline skyline = place_long(order, offsets);
    return place_short(order, skyline, offsets);
  }

  Skyline place_long(const std::vector<int32_t>& order, std::vector<int64_t>& offsets) const {
    Skyline skyline(problem_.times);
    for (int32_t i : order) {
      if (!is_long(i)) continue;
      const int64_t offset = skyline.largest(item(i).lower, item(i).upper);
      offsets[static_cast<size_t>(i)] = offset;
      skyline.set(item(i).lower, item(i).upper, offset + item(i).size);
    }
    return skyline;
  }

  // Places what has no offset yet; returns the height of all.
  int64_t place_short(const std::vector<int32_t>& order, const Skyline& skyline, std::vector<int64_t>& offsets) const {
    int64_t height = skyline.largest(0, problem_.times);
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (int32_t i : order) {
      if (is_long(i)) continue;
      int64_t& offset = offsets[static_cast<size_t>(i)];
      if (offset < 0) {
        taken.clear();
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

  void try_order(const std::vector<int32_t>& order) {
    std::vector<int64_t> offsets;
    const int64_t height = place(order, offsets);
    if (!best_order_.empty() && height >= best_height_) return;
    best_height_ = height;
    best_order_ = order;
    best_offsets_ = std::move(offsets);
  }

  // What the greedy orders leave is searched: everything, or, where that is too much, the short items that live where
  // there is least room; the others then find their places around them.
  void improve() {
    std::vector<int64_t> offsets(count(), -1);
    const Skyline skyline = place_long(best_order_, offsets);
    std::vector<int32_t> hot;
    for (int32_t i : best_order_) {
      if (!is_long(i)) hot.push_back(i);
    }
    std::stable_sort(hot.begin(), hot.end(), [&](int32_t a, int32_t b) {
      return pressure_[static_cast<size_t>(a)] > pressure_[static_cast<size_t>(b)];
    });
    if (const size_t most = hot.size() == count() ? kSearchItems : kHotItems; hot.size() > most) hot.resize(most);
    std::sort(hot.begin(), hot.end());

    PlacementProblem part{.items = {},
                          .buffer = hot,
                          .times = problem_.times,
                          .live = problem_.live,
                          .lower_bound = problem_.lower_bound};
    std::vector<int64_t> least;
    for (int32_t i : hot) {
      part.items.push_back(item(i));
      least.push_back(skyline.largest(item(i).lower, item(i).upper));
    }
    const PlacementSearchResult search = search_placement(part, least, goal_, deadline_, kSearchNodes);
    if (!search.found) return;
    for (size_t p = 0; p < hot.size(); ++p) offsets[static_cast<size_t>(hot[p])] = search.offsets[p];
    for (const std::vector<int32_t>& order : orders()) {
      std::vector<int64_t> around = offsets;
      const int64_t height = place_short(order, skyline, around);
      if (height >= best_height_) continue;
      best_height_ = height;
      best_offsets_ = std::move(around);
      if (done()) return;
    }
  }

  const PlacementProblem& problem_;
  int64_t goal_;
  Clock::time_point deadline_;
  int32_t short_length_ = 0;
  std::vector<int64_t> pressure_;
  std::vector<std::vector<int32_t>> neighbours_;
  std::vector<int32_t> best_order_;
  std::vector<int64_t> best_offsets_;
  int64_t best_height_ = 0;
};

}  // namespace

Placement place_offline(const std::vector<Buffer>& buffers, const PlacementOptions& options) {
  const PlacementProblem problem = make_problem(buffers, options.alignment);
  if (problem.items.empty()) return make_placement(problem, {}, buffers.size());
  return make_placement(problem, OfflineSearch(problem, options).run(), buffers.size());
}

}  // namespace plimsoll
