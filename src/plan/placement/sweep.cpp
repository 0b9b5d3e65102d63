#include "plan/placement/sweep.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "plan/placement/decompose.h"
#include "plan/placement/first_fit.h"

namespace plimsoll {
namespace {

constexpr int kMostHoles = 50;                        // so many are compared, of the smallest that are large enough
constexpr int kMostMoves = 300;                       // for one that finds no hole
constexpr int64_t kMovingLooksOfASweep = 20'000'000;  // what all moves of a sweep may look at
constexpr int kMostDoublings = 8;                     // of the cost to move what was moved before for the same one
constexpr double kNearlyFull = 0.01;                  // what is free is nothing beside this part of the height
constexpr int64_t kOutOfReach = int64_t{1} << 44;
constexpr int64_t kSizes = 1 << 16, kAges = 1 << 10;  // what costs are reckoned in: parts of the height, of a mean life
constexpr int64_t kOldest = 16;                       // mean lives

// What lives now, by offset, and the holes between.
class Shelf {
 public:
  struct Hole {
    int32_t below = -1, above = -1;  // items at its borders; -1: the floor, the ceiling
  };
  using Holes = std::map<std::pair<int64_t, int64_t>, Hole>;  // by size and offset

  Shelf(const std::vector<PlacementItem>& items, const std::vector<int64_t>& offsets, int64_t height)
      : items_(items), offsets_(offsets), height_(height) {
    if (height > 0) holes_[{height, 0}] = {};
  }
  const Holes& holes() const { return holes_; }
  const std::vector<int32_t>& items() const { return on_it_; }

  void put(int32_t i) {  // at its offset, where there is room
    const auto at = find(i);
    const int32_t below = at == on_it_.begin() ? -1 : *std::prev(at), above = at == on_it_.end() ? -1 : *at;
    remove_hole(below, above);
    add_hole(below, i);
    add_hole(i, above);
    on_it_.insert(at, i);
  }
  void take(int32_t i) {  // while it has its offset
    const auto at = find(i);
    const int32_t below = at == on_it_.begin() ? -1 : *std::prev(at),
                  above = std::next(at) == on_it_.end() ? -1 : *std::next(at);
    remove_hole(below, i);
    remove_hole(i, above);
    add_hole(below, above);
    on_it_.erase(at);
  }

 private:
  std::vector<int32_t>::iterator find(int32_t i) {
    return std::partition_point(on_it_.begin(), on_it_.end(),
                                [&](int32_t other) { return offsets_[other] < offsets_[i]; });
  }
  int64_t begin(int32_t below) const { return below < 0 ? 0 : offsets_[below] + items_[below].size; }
  int64_t end(int32_t above) const { return above < 0 ? height_ : offsets_[above]; }
  void add_hole(int32_t below, int32_t above) {
    if (end(above) > begin(below)) holes_[{end(above) - begin(below), begin(below)}] = {below, above};
  }
  void remove_hole(int32_t below, int32_t above) { holes_.erase({end(above) - begin(below), begin(below)}); }

  const std::vector<PlacementItem>& items_;
  const std::vector<int64_t>& offsets_;
  const int64_t height_;
  std::vector<int32_t> on_it_;
  Holes holes_;
};

class Sweep {
 public:
  Sweep(const PlacementProblem& problem, const SweepChoice& choice, Clock::time_point deadline)
      : problem_(problem),
        choice_(of_whole_sizes(choice, problem)),
        deadline_(deadline),
        items_(problem.items),
        moment_(choice.moment) {
    offsets_.assign(items_.size(), -1);
    for (const PlacementItem& item : items_) {
      mean_size_ += static_cast<double>(item.size) / static_cast<double>(items_.size());
      mean_length_ += item.length();
    }
    weighed_.push_back(0);
    for (const int64_t live : problem.live) {
      const double rest = 1 - static_cast<double>(live) / static_cast<double>(problem.lower_bound);
      weighed_.push_back(weighed_.back() + 1 / (rest + kNearlyFull) / (rest + kNearlyFull));
    }
    mean_length_ = std::max<int64_t>(1, mean_length_ / static_cast<int64_t>(std::max<size_t>(1, items_.size())));
  }

  SweepResult run() {
    pile_up();
    go();
    for (PlacementItem& item : items_)
      item.lower = problem_.times - std::exchange(item.upper, problem_.times - item.lower);
    moment_ = problem_.times - 1 - moment_;
    const double whole = weighed_.back();
    std::reverse(weighed_.begin(), weighed_.end());
    for (double& until : weighed_) until = whole - until;
    go();
    SweepResult result{.offsets = {}, .height = INT64_MAX, .looks = looks_, .moment = choice_.moment};
    if (is_in_time()) put_on_top(result);
    return result;
  }

 private:
  // With a height that is a multiple of what all sizes have in common: then offsets from the top are, like those from the
  // bottom, as aligned as sizes are.
  static SweepChoice of_whole_sizes(SweepChoice choice, const PlacementProblem& problem) {
    int64_t common = 0;
    for (const PlacementItem& item : problem.items) common = std::gcd(common, item.size);
    if (common > 0) choice.height -= choice.height % common;
    return choice;
  }
  bool lives_at_moment(const PlacementItem& item) const { return item.lower <= moment_ && moment_ < item.upper; }
  int64_t end(int32_t i) const { return offsets_[i] + items_[i].size; }

  // What ends soon lies at the bottom, what has just begun at the top.
  void pile_up() {
    std::vector<int32_t> low, high;
    for (size_t i = 0; i < items_.size(); ++i) {
      const PlacementItem& item = items_[i];
      if (!lives_at_moment(item)) continue;
      (item.upper - moment_ <= moment_ + 1 - item.lower ? low : high).push_back(static_cast<int32_t>(i));
    }
    std::stable_sort(low.begin(), low.end(), [&](int32_t a, int32_t b) { return items_[a].upper < items_[b].upper; });
    std::stable_sort(high.begin(), high.end(), [&](int32_t a, int32_t b) { return items_[a].lower > items_[b].lower; });
    int64_t bottom = 0, top = choice_.height;
    for (int32_t i : low) {
      offsets_[i] = bottom;
      bottom += items_[i].size;
    }
    for (int32_t i : high) offsets_[i] = top -= items_[i].size;
  }

  // Everything after the moment, in the order of time.
  void go() {
    Shelf shelf(items_, offsets_, choice_.height);
    shelf_ = &shelf;
    std::vector<int32_t> order;
    by_end_.resize(items_.size());
    std::iota(by_end_.begin(), by_end_.end(), 0);
    std::stable_sort(by_end_.begin(), by_end_.end(),
                     [&](int32_t a, int32_t b) { return items_[a].upper < items_[b].upper; });
    for (size_t i = 0; i < items_.size(); ++i) {
      if (lives_at_moment(items_[i])) shelf.put(static_cast<int32_t>(i));
      if (items_[i].lower > moment_) order.push_back(static_cast<int32_t>(i));
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return std::tuple(items_[a].lower, -items_[a].size) < std::tuple(items_[b].lower, -items_[b].size);
    });
    now_ = moment_;
    ended_ = static_cast<size_t>(
        std::partition_point(by_end_.begin(), by_end_.end(), [&](int32_t i) { return items_[i].upper <= now_; }) -
        by_end_.begin());
    for (size_t p = 0; p < order.size(); ++p) {
      const int32_t i = order[p];
      if (p % 256 == 0 && !is_in_time()) return;
      now_ = items_[i].lower;
      for (; ended_ < by_end_.size() && items_[by_end_[ended_]].upper <= now_; ++ended_) {
        if (offsets_[by_end_[ended_]] >= 0) shelf.take(by_end_[ended_]);
      }
      offsets_[i] = best_hole(i);
      if (offsets_[i] >= 0) {
        shelf.put(i);
      } else if (!choice_.moves || looks_ > kMovingLooksOfASweep || !make_room(i)) {
        left_.push_back(i);
      }
    }
  }
  bool is_in_time() const { return deadline_ == Clock::time_point::max() || Clock::now() <= deadline_; }

  // The offset at one end of the hole that suits best, or -1.
  int64_t best_hole(int32_t i) {
    const PlacementItem& item = items_[i];
    const double until = weighed_[item.upper], length = until - weighed_[now_];
    // How well a border suits, from 0 to 1 each. The floor and the ceiling live for ever.
    auto contact = [&](int32_t border) {
      return border < 0 ? 1 : (std::min(until, weighed_[items_[border].upper]) - weighed_[now_]) / length;
    };
    auto alike = [&](int32_t border) {
      const double apart = std::abs((border < 0 ? weighed_.back() : weighed_[items_[border].upper]) - until);
      return length / (apart + length);
    };
    auto worth = [&](int32_t border) {
      return choice_.rule.contact * contact(border) + choice_.rule.alike * alike(border);
    };
    int64_t best = -1;
    double most = 0;
    auto consider = [&](int64_t offset, double worth) {
      if (best >= 0 && worth <= most) return;
      best = offset;
      most = worth;
    };
    int seen = 0;
    const auto& holes = shelf_->holes();
    for (auto hole = holes.lower_bound({item.size, 0}); hole != holes.end() && seen < kMostHoles; ++hole, ++seen) {
      const auto& [size, offset] = hole->first;
      const auto& [below, above] = hole->second;
      if (size == item.size) {
        consider(offset, worth(below) + worth(above));
        continue;
      }
      const double rest = static_cast<double>(size - item.size),
                   lost = choice_.rule.filled * rest / (rest + mean_size_);
      consider(offset, worth(below) - lost);
      consider(offset + size - item.size, worth(above) - lost);
    }
    looks_ += 1 + seen;
    return best;
  }

  // What it costs to move an item that has a place: large ones hardly find another, old ones meet many.
  int64_t cost(int32_t i) const {
    const auto size =
        static_cast<int64_t>(static_cast<double>(items_[i].size) * kSizes / static_cast<double>(choice_.height));
    const int64_t age =
        std::min<int64_t>(kAges * (std::min(now_, items_[i].upper) - items_[i].lower) / mean_length_, kOldest * kAges);
    const auto moved = moved_.find(i);
    return (1 + size) * (kAges / 2 + age) << (moved == moved_.end() ? 0 : moved->second);
  }

  struct Border {
    int64_t offset = 0, cost = 0;
    bool operator<(const Border& other) const { return offset < other.offset; }
  };
  // The offset at which those in the way cost least, and who they are. -1: there is none.
  int64_t cheapest_place(int32_t i, std::vector<int32_t>& in_the_way) {
    const PlacementItem& item = items_[i];
    begins_.clear();
    ends_.clear();
    met_.clear();
    for (int32_t other : shelf_->items()) {
      if (items_[other].lower < item.upper) met_.push_back(other);
    }
    auto add = [&](int32_t other) {
      const int64_t price = cost(other);
      begins_.push_back({offsets_[other], price});
      ends_.push_back({end(other), price});
    };
    for (int32_t other : met_) add(other);
    const auto now_count = static_cast<std::ptrdiff_t>(met_.size());
    for (size_t p = ended_; p-- > 0 && items_[by_end_[p]].upper > item.lower;) {
      ++looks_;
      const int32_t other = by_end_[p];
      if (offsets_[other] < 0 || items_[other].lower >= item.upper) continue;
      met_.push_back(other);
      add(other);
    }
    looks_ += static_cast<int64_t>(shelf_->items().size());
    for (std::vector<Border>* borders : {&begins_, &ends_}) {
      std::sort(borders->begin() + now_count, borders->end());
      std::inplace_merge(borders->begin(), borders->begin() + now_count, borders->end());
    }
    int64_t best = -1, least = kOutOfReach;
    auto consider = [&](int64_t offset, int64_t price) {
      if (price >= least) return;
      best = offset;
      least = price;
    };
    // On the floor, and on top of each.
    int64_t below = 0, before = 0;  // cost of all that begins below the item's end, and of all that ends before it
    size_t b = 0, e = 0;
    for (int64_t offset = 0; offset <= choice_.height - item.size;) {
      for (; e < ends_.size() && ends_[e].offset <= offset; ++e) before += ends_[e].cost;
      for (; b < begins_.size() && begins_[b].offset < offset + item.size; ++b) below += begins_[b].cost;
      consider(offset, below - before);
      if (e == ends_.size()) break;
      offset = ends_[e].offset;
    }
    // Below each, and below the ceiling.
    below = before = 0;
    b = e = 0;
    for (bool more = true; more;) {
      while (b < begins_.size() && begins_[b].offset < item.size) below += begins_[b++].cost;
      more = b < begins_.size();
      const int64_t top = more ? begins_[b].offset : choice_.height;
      if (top < item.size) break;
      for (; e < ends_.size() && ends_[e].offset <= top - item.size; ++e) before += ends_[e].cost;
      consider(top - item.size, below - before);
      for (; b < begins_.size() && begins_[b].offset == top; ++b) below += begins_[b].cost;
    }
    in_the_way.clear();
    for (int32_t other : met_) {
      if (best >= 0 && offsets_[other] < best + item.size && end(other) > best) in_the_way.push_back(other);
    }
    return best;
  }

  // Moves others for an item that begins now. Returns whether all have a place in the end; else nothing was moved.
  bool make_room(int32_t first) {
    moved_.clear();
    std::map<int32_t, int64_t> was;                                               // offsets before
    std::set<std::pair<int64_t, int32_t>> waiting{{-items_[first].size, first}};  // the largest first
    std::vector<int32_t> in_the_way;
    auto put = [&](int32_t i, int64_t offset) {
      offsets_[i] = offset;
      if (offset >= 0 && items_[i].upper > now_) shelf_->put(i);
    };
    auto take = [&](int32_t i) {
      if (offsets_[i] >= 0 && items_[i].upper > now_) shelf_->take(i);
      offsets_[i] = -1;
    };
    for (int moves = 0; !waiting.empty(); ++moves) {
      const int32_t i = waiting.begin()->second;
      const int64_t offset = moves < kMostMoves && is_in_time() ? cheapest_place(i, in_the_way) : -1;
      if (offset < 0) break;
      waiting.erase(waiting.begin());
      for (int32_t other : in_the_way) {
        was.emplace(other, offsets_[other]);
        take(other);
        waiting.emplace(-items_[other].size, other);
      }
      was.emplace(i, -1);
      put(i, offset);
      int& doublings = moved_[i];
      doublings = std::min(doublings + 1, kMostDoublings);
    }
    if (waiting.empty()) return true;
    for (const auto& [i, offset] : was) take(i);
    for (const auto& [i, offset] : was) put(i, offset);
    return false;
  }

  void put_on_top(SweepResult& result) {
    if (!left_.empty()) {
      const int32_t largest = *std::max_element(left_.begin(), left_.end(), [&](int32_t a, int32_t b) {
        return problem_.items[a].size < problem_.items[b].size;
      });
      const PlacementItem& item = problem_.items[largest];
      result.moment = static_cast<int32_t>(
          std::max_element(problem_.live.begin() + item.lower, problem_.live.begin() + item.upper) -
          problem_.live.begin());
      const PlacementProblem part = make_part(problem_, left_);
      std::vector<int32_t> order(left_.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return part.items[a].size > part.items[b].size; });
      std::vector<int64_t> above(left_.size());
      FirstFit(part).place(order, above);
      for (size_t p = 0; p < left_.size(); ++p) offsets_[left_[p]] = choice_.height + above[p];
    }
    result.height = 0;
    for (size_t i = 0; i < items_.size(); ++i) result.height = std::max(result.height, end(static_cast<int32_t>(i)));
    result.offsets = std::move(offsets_);
  }

  const PlacementProblem& problem_;
  const SweepChoice choice_;
  const Clock::time_point deadline_;
  std::vector<PlacementItem> items_;  // on the way backwards with their times reversed
  std::vector<double> weighed_;       // time until there; moments at which little is free count for more
  int32_t moment_ = 0, now_ = 0;
  double mean_size_ = 0;
  int64_t mean_length_ = 0, looks_ = 0;
  std::vector<int64_t> offsets_;  // -1: has none yet
  std::vector<int32_t> by_end_;   // all items; the first `ended_` do not live any more
  size_t ended_ = 0;
  Shelf* shelf_ = nullptr;
  std::vector<int32_t> left_;     // what found no place
  std::map<int32_t, int> moved_;  // how often, only inside make_room
  std::vector<Border> begins_, ends_;
  std::vector<int32_t> met_;
};

}  // namespace

SweepResult sweep(const PlacementProblem& problem, const SweepChoice& choice, Clock::time_point deadline) {
  return Sweep(problem, choice, deadline).run();
}

}  // namespace plimsoll
