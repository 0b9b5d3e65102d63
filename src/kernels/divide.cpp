// WD: one configuration an op, least time, workspaces within a total. A multiple-choice knapsack, solved in three
// stages:
//
//   time                 1. The relaxation, where an op may mix two configurations: hulls' edges by time saved per byte,
//    | o                    until the total is used up. That prices a byte (lambda) and proves a lower bound.
//    |  \                2. A configuration whose price t + lambda * m is so far above its op's least that no choice with
//    |   o _    lambda      it beats the best choice known is dropped; for most ops one is left.
//    |    o  `-o         3. Ops with several left, the least decided first: lists of (workspace, time) that nothing
//    +------------- bytes   beats, each entry kept only while its bound says that it may still win.
//
// The bound of an entry, all later ops at their choice of stage 1: bytes left over save at most the best rate of the
// later ops' larger configurations, bytes too many cost at least the least rate of their smaller ones.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "plimsoll/kernels.h"

namespace plimsoll {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kMostEntries = size_t{1} << 22;  // kept for the way back, over all lists
constexpr size_t kMostInList = size_t{1} << 18;

struct Item {
  int64_t bytes = 0;
  double ms = 0;
  size_t index = 0;  // in the front
};
using Items = std::vector<Item>;  // bytes ascending, ms strictly descending

Items items_of(const std::vector<Configuration>& front) {
  Items all, kept;
  all.reserve(front.size());
  for (size_t i = 0; i < front.size(); ++i) all.push_back({front[i].workspace.count, front[i].time_ms, i});
  const auto before = [](const Item& a, const Item& b) { return a.bytes != b.bytes ? a.bytes < b.bytes : a.ms < b.ms; };
  if (!std::is_sorted(all.begin(), all.end(), before)) std::stable_sort(all.begin(), all.end(), before);
  kept.reserve(all.size());
  for (const Item& item : all) {
    if (kept.empty() || item.ms < kept.back().ms) kept.push_back(item);
  }
  return kept;
}

// An edge of a class's lower hull: what the larger item saves per byte more.
struct Edge {
  double rate = 0;
  int32_t of = 0;  // class
  int32_t to = 0;  // item
};

void add_hull(const Items& items, int32_t of, std::vector<Edge>& edges, std::vector<int32_t>& hull) {
  const auto rate = [&](int32_t a, int32_t b) {
    const Item &from = items[a], &to = items[b];
    return (from.ms - to.ms) / static_cast<double>(to.bytes - from.bytes);
  };
  hull.clear();
  for (int32_t i = 0; i < static_cast<int32_t>(items.size()); ++i) {
    while (hull.size() >= 2 && rate(hull[hull.size() - 2], hull.back()) <= rate(hull.back(), i)) hull.pop_back();
    hull.push_back(i);
  }
  for (size_t i = 1; i < hull.size(); ++i) edges.push_back({rate(hull[i - 1], hull[i]), of, hull[i]});
}

struct Relaxation {
  double lambda = 0;            // ms a byte
  double bound = 0;             // nothing is faster
  std::vector<int32_t> choice;  // by class: the items of whole edges
  std::vector<Edge> left;       // edges that were not taken, best first
  int64_t bytes = 0;
  double ms = 0;
};

Relaxation relax(const std::vector<Items>& classes, int64_t total) {
  Relaxation relaxed;
  relaxed.choice.assign(classes.size(), 0);
  std::vector<Edge> edges;
  std::vector<int32_t> hull;
  for (size_t k = 0; k < classes.size(); ++k) {
    add_hull(classes[k], static_cast<int32_t>(k), edges, hull);
    relaxed.bytes += classes[k][0].bytes;
    relaxed.ms += classes[k][0].ms;
  }
  // Rates fall along a hull, so a class's edges stay in their order.
  std::stable_sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.rate > b.rate; });
  size_t next = 0;
  for (; next < edges.size(); ++next) {
    const Items& items = classes[edges[next].of];
    int32_t& chosen = relaxed.choice[edges[next].of];
    const Item &from = items[chosen], &to = items[edges[next].to];
    if (relaxed.bytes + to.bytes - from.bytes > total) {
      relaxed.lambda = edges[next].rate;
      break;
    }
    relaxed.bytes += to.bytes - from.bytes;
    relaxed.ms += to.ms - from.ms;
    chosen = edges[next].to;
  }
  relaxed.bound = relaxed.ms - relaxed.lambda * static_cast<double>(total - relaxed.bytes);
  relaxed.left.assign(edges.begin() + static_cast<std::ptrdiff_t>(next), edges.end());
  return relaxed;
}

struct PartChoice {
  std::vector<int32_t> item;
  int64_t bytes = 0;
  double ms = 0;
};

// Fills what the relaxation left free, class by class in the order of their next edges.
PartChoice fill(const std::vector<Items>& classes, const Relaxation& relaxed, int64_t total) {
  PartChoice choice{relaxed.choice, relaxed.bytes, relaxed.ms};
  for (const Edge& edge : relaxed.left) {
    const Items& items = classes[edge.of];
    int32_t& chosen = choice.item[edge.of];
    const int64_t room = items[chosen].bytes + total - choice.bytes;
    const auto beyond = std::upper_bound(items.begin(), items.end(), room,
                                         [](int64_t bytes, const Item& item) { return bytes < item.bytes; });
    const int32_t best = static_cast<int32_t>(beyond - items.begin()) - 1;
    if (best <= chosen) continue;
    choice.bytes += items[best].bytes - items[chosen].bytes;
    choice.ms += items[best].ms - items[chosen].ms;
    chosen = best;
  }
  return choice;
}

// A class with more than one item that may be in a better choice, relative to its item of the relaxation.
struct Open {
  size_t of = 0;
  struct Way {
    int64_t bytes = 0;
    double ms = 0;
    double above = 0;  // how much the price is above the class's least
    int32_t item = 0;
  };
  std::vector<Way> ways;    // bytes ascending
  double gain = 0;          // the best rate of the larger ways: ms saved a byte
  double loss = kInfinity;  // the least rate of the smaller ways: ms lost a byte
};

struct Combination {
  int64_t bytes = 0;
  double ms = 0;
  uint32_t from = 0;  // in the list before
  int32_t item = 0;
};
using List = std::vector<Combination>;  // bytes ascending, ms strictly descending

class DivisionSearch {
 public:
  DivisionSearch(const std::vector<Items>& classes, int64_t total)
      : classes_(classes), total_(total), relaxed_(relax(classes, total)), best_(fill(classes, relaxed_, total)) {}

  void run() {
    open_classes();
    List list{{relaxed_.bytes, relaxed_.ms, 0, -1}};
    for (size_t k = 0; k < open_.size() && !list.empty(); ++k) {
      list = extend(list, open_[k], k);
      steps_.push_back(list);
      kept_ += list.size();
      take_best(list);
      if (kept_ > kMostEntries) {
        exact_ = false;
        return;
      }
    }
  }

  const PartChoice& best() const { return best_; }
  bool exact() const { return exact_; }
  double bound() const { return exact_ ? best_.ms : std::min(best_.ms, relaxed_.bound); }

 private:
  // Sums round: what is nearer than this is not told apart.
  bool may_win(double bound) const { return bound < best_.ms - 1e-13 * std::fabs(best_.ms); }

  void open_classes() {
    for (size_t k = 0; k < classes_.size(); ++k) {
      const Items& items = classes_[k];
      const Item& base = items[relaxed_.choice[k]];
      const double least = base.ms + relaxed_.lambda * static_cast<double>(base.bytes);
      Open open{.of = k};
      for (size_t i = 0; i < items.size(); ++i) {
        const double above = std::max(0.0, items[i].ms + relaxed_.lambda * static_cast<double>(items[i].bytes) - least);
        const bool is_base = static_cast<int32_t>(i) == relaxed_.choice[k];
        if (!is_base && !may_win(relaxed_.bound + above)) continue;
        const int64_t bytes = items[i].bytes - base.bytes;
        const double ms = items[i].ms - base.ms;
        open.ways.push_back({bytes, ms, above, static_cast<int32_t>(i)});
        if (bytes > 0) open.gain = std::max(open.gain, -ms / static_cast<double>(bytes));
        if (bytes < 0) open.loss = std::min(open.loss, ms / static_cast<double>(-bytes));
      }
      if (open.ways.size() > 1) open_.push_back(std::move(open));
    }
    const auto doubt = [&](const Open& open) {
      return std::min(relaxed_.lambda - open.gain, open.loss - relaxed_.lambda);
    };
    std::stable_sort(open_.begin(), open_.end(), [&](const Open& a, const Open& b) { return doubt(a) < doubt(b); });
    gain_after_.assign(open_.size() + 1, 0);
    loss_after_.assign(open_.size() + 1, kInfinity);
    shrink_after_.assign(open_.size() + 1, 0);
    for (size_t k = open_.size(); k-- > 0;) {
      gain_after_[k] = std::max(gain_after_[k + 1], open_[k].gain);
      loss_after_[k] = std::min(loss_after_[k + 1], open_[k].loss);
      shrink_after_[k] = shrink_after_[k + 1] + std::min<int64_t>(0, open_[k].ways[0].bytes);
    }
  }

  double bound(int64_t bytes, double ms, size_t next) const {
    if (bytes <= total_) return ms - gain_after_[next] * static_cast<double>(total_ - bytes);
    if (bytes + shrink_after_[next] > total_) return kInfinity;
    return ms + loss_after_[next] * static_cast<double>(bytes - total_);
  }

  List extend(const List& list, const Open& open, size_t k) {
    List merged, sum;
    for (const Open::Way& way : open.ways) {
      if (way.bytes != 0 && !may_win(relaxed_.bound + way.above)) continue;  // a better choice has been found since
      add_shifted(list, way, k + 1, merged, sum);
      std::swap(merged, sum);
    }
    if (merged.size() > kMostInList) cut(merged, k + 1);
    return merged;
  }

  // sum: of `merged` and `list` with the way taken, what nothing else there beats and the bound lets pass.
  void add_shifted(const List& list, const Open::Way& way, size_t next, const List& merged, List& sum) const {
    sum.clear();
    sum.reserve(merged.size() + list.size());
    size_t a = 0;
    uint32_t b = 0;
    double least = kInfinity;
    while (a < merged.size() || b < list.size()) {
      const bool old_first = b == list.size() || (a < merged.size() && merged[a].bytes <= list[b].bytes + way.bytes);
      if (old_first) {
        if (merged[a].ms < least) {
          least = merged[a].ms;
          push(sum, merged[a]);
        }
        ++a;
        continue;
      }
      const Combination made{list[b].bytes + way.bytes, list[b].ms + way.ms, b, way.item};
      ++b;
      if (!(made.ms < least) || !may_win(bound(made.bytes, made.ms, next))) continue;
      least = made.ms;
      push(sum, made);
    }
  }

  static void push(List& sum, const Combination& entry) {
    if (!sum.empty() && sum.back().bytes == entry.bytes) {
      sum.back() = entry;  // faster at the same bytes
    } else {
      sum.push_back(entry);
    }
  }

  // Too many to go on with: the most promising stay, and nothing is proven any more.
  void cut(List& list, size_t next) {
    exact_ = false;
    std::vector<double> bounds;
    for (const Combination& entry : list) bounds.push_back(bound(entry.bytes, entry.ms, next));
    std::vector<double> order = bounds;
    const auto middle = order.begin() + static_cast<std::ptrdiff_t>(kMostInList / 8);
    std::nth_element(order.begin(), middle, order.end());
    List kept;
    for (size_t i = 0; i < list.size(); ++i) {
      if (bounds[i] <= *middle) kept.push_back(list[i]);
    }
    list = std::move(kept);
  }

  // An entry that fits, later classes as in the relaxation, is a whole choice.
  void take_best(const List& list) {
    const auto beyond = std::upper_bound(list.begin(), list.end(), total_,
                                         [](int64_t bytes, const Combination& entry) { return bytes < entry.bytes; });
    if (beyond == list.begin() || !((beyond - 1)->ms < best_.ms)) return;
    best_ = {relaxed_.choice, (beyond - 1)->bytes, (beyond - 1)->ms};
    size_t at = beyond - 1 - list.begin();
    for (size_t k = steps_.size(); k-- > 0;) {
      const Combination& entry = steps_[k][at];
      best_.item[open_[k].of] = entry.item;
      at = entry.from;
    }
  }

  const std::vector<Items>& classes_;
  int64_t total_;
  Relaxation relaxed_;
  PartChoice best_;
  std::vector<Open> open_;
  std::vector<double> gain_after_, loss_after_;  // over the classes from here on
  std::vector<int64_t> shrink_after_;
  std::vector<List> steps_;
  size_t kept_ = 0;
  bool exact_ = true;
};

}  // namespace

std::optional<WorkspaceDivision> divide_workspace(std::span<const std::vector<Configuration>> fronts, Bytes total) {
  std::vector<Items> classes;
  classes.reserve(fronts.size());
  int64_t least = 0;
  for (const std::vector<Configuration>& front : fronts) {
    if (front.empty()) return std::nullopt;
    classes.push_back(items_of(front));
    least += classes.back()[0].bytes;
  }
  if (least > total.count) return std::nullopt;
  DivisionSearch search(classes, total.count);
  search.run();
  WorkspaceDivision division{.exact = search.exact(), .lower_bound_ms = search.bound()};
  for (size_t k = 0; k < fronts.size(); ++k) {
    division.chosen.push_back(classes[k][search.best().item[k]].index);
    division.time_ms += fronts[k][division.chosen.back()].time_ms;
    division.workspace += fronts[k][division.chosen.back()].workspace;
  }
  return division;
}

}  // namespace plimsoll
