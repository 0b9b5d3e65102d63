#include "plan/reorder.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "plan/bounds.h"
#include "plan/order_constraints.h"
#include "plan/remat/changes.h"

namespace plimsoll {
namespace {

constexpr double kLowered = 0.97;                        // of the peak: what lies above that is made less
constexpr double kWorthIt = 0.99;                        // of the given order's peak, which another must not be above
constexpr int64_t kAboveCounts = 1024;                   // times what lies there at all
constexpr int64_t kFirstRound = 1'000'000;               // exchanges
constexpr double kHotOrder = 0.02, kColdOrder = 0.0002;  // parts of the peak
constexpr int kSweeps = 12;
constexpr int64_t kLargeStates = 1 << 20;  // bytes of an update's
constexpr double kMostlyLarge = 0.25;      // of the bytes of all states: fewer are no reason for another order
constexpr int64_t kWalked = 100'000'000;   // steps, for the bound on bytes

// An order, and the bytes that lie in the arena during each of its steps. Two neighbours that change places change those of
// these two alone.
class Order {
 public:
  using Score = __int128;  // bytes over many steps
  Order(const ValueTimeline& timeline, const OrderConstraints& constraints, std::vector<int32_t> steps)
      : timeline_(&timeline), constraints_(&constraints), steps_(std::move(steps)) {
    find_last_uses();
    int64_t live = 0;
    for (const TimelineValue& value : timeline.values) {
      if (value.producer < 0) live += value.bytes;
    }
    across_.push_back(live);
    for (const int32_t s : steps_) {
      across_.push_back(across_.back() + change(s));
    }
  }

  Score score() const { return score_; }
  int64_t peak() const {
    int64_t most = 0;
    for (int32_t i = 0; i < count(); ++i) most = std::max(most, during(steps_[i], across_[i]));
    return most;
  }
  // What lies above so many bytes is what the score counts, and, far less, what lies there at all.
  void aim_at(int64_t bytes) {
    limit_ = bytes;
    score_ = 0;
    for (int32_t i = 0; i < count(); ++i) score_ += score(during(steps_[i], across_[i]));
  }
  const std::vector<int32_t>& steps() const { return steps_; }
  int32_t count() const { return static_cast<int32_t>(steps_.size()); }
  int32_t place_of(int32_t step) const { return place_of_[step]; }
  bool may_swap(int32_t place) const { return !constraints_->waits(steps_[place + 1], steps_[place]); }

  // The step at the place and the next.
  void swap(int32_t place) {
    int32_t &a = steps_[place], &b = steps_[place + 1];
    score_ -= score(during(a, across_[place])) + score(during(b, across_[place + 1]));
    for (const int32_t v : timeline_->steps[a].inputs) {
      if (last_use_[v] == b) last_use_[v] = a;
    }
    std::swap(a, b);
    std::swap(place_of_[a], place_of_[b]);
    score_ += score(during(a, across_[place]));
    across_[place + 1] = across_[place] + change(a);
    score_ += score(during(b, across_[place + 1]));
  }

 private:
  static constexpr int32_t kEnd = std::numeric_limits<int32_t>::max();

  Score score(int64_t bytes) const { return kAboveCounts * Score{std::max<int64_t>(bytes - limit_, 0)} + bytes; }

  void find_last_uses() {
    last_use_.assign(timeline_->values.size(), -1);
    place_of_.resize(steps_.size());
    for (int32_t i = 0; i < count(); ++i) place_of_[steps_[i]] = i;
    for (size_t v = 0; v < timeline_->values.size(); ++v) {
      const TimelineValue& value = timeline_->values[v];
      for (const int32_t s : value.uses) {
        if (last_use_[v] < 0 || place_of_[s] > place_of_[last_use_[v]]) last_use_[v] = s;
      }
      if (value.at_end || value.state >= 0) last_use_[v] = kEnd;
    }
  }
  // A state's new value lies in the bytes of the old one.
  bool adds(int32_t value) const { return timeline_->values[value].before < 0; }
  bool dies_at(int32_t value, int32_t step) const { return last_use_[value] == step; }

  int64_t during(int32_t s, int64_t across) const {
    const TimelineStep& step = timeline_->steps[s];
    int64_t bytes = across + step.workspace;
    for (const int32_t v : step.outputs) {
      if (!adds(v)) continue;
      const bool in_place = std::ranges::any_of(
          step.in_place, [&](const TimelineInPlace& pair) { return pair.output == v && dies_at(pair.input, s); });
      if (!in_place) bytes += timeline_->values[v].bytes;
    }
    return bytes;
  }
  int64_t change(int32_t s) const {
    const TimelineStep& step = timeline_->steps[s];
    int64_t bytes = 0;
    for (const int32_t v : step.outputs) {
      if (adds(v) && last_use_[v] >= 0) bytes += timeline_->values[v].bytes;
    }
    for (const int32_t v : step.inputs) {
      if (dies_at(v, s)) bytes -= timeline_->values[v].bytes;
    }
    return bytes;
  }

  const ValueTimeline* timeline_;
  const OrderConstraints* constraints_;
  std::vector<int32_t> steps_;     // by place
  std::vector<int32_t> place_of_;  // by step
  std::vector<int32_t> last_use_;  // by value: the step; -1 none, kEnd: it stays
  std::vector<int64_t> across_;    // by place: what lies there between the step before and this one
  int64_t limit_ = 0;
  Score score_ = 0;
};

// Moves the step at the place to where the order is best, looking in one direction; says whether it moved.
bool move_to_best(Order& order, int32_t place, bool later, int64_t& effort) {
  const Order::Score begun = order.score();
  Order::Score best = begun;
  const int32_t step = later ? 1 : -1;
  int32_t at = place, best_at = place;
  while ((later ? at + 1 < order.count() : at > 0) && effort > 0 && order.may_swap(later ? at : at - 1)) {
    order.swap(later ? at : at - 1);
    at += step;
    --effort;
    if (order.score() < best) {
      best = order.score();
      best_at = at;
    }
  }
  for (; at != best_at; at -= step) order.swap(later ? at - 1 : at);
  return best < begun;
}

int64_t share_of(int64_t bytes, double share) { return static_cast<int64_t>(share * static_cast<double>(bytes)); }

void improve(Order& order, int64_t& effort) {
  for (int sweep = 0; sweep < kSweeps && effort > 0; ++sweep) {
    bool moved = false;
    const bool later = sweep % 2 == 0;
    const std::vector<int32_t> steps = order.steps();
    const auto visit = [&](int32_t s) {
      moved |= move_to_best(order, order.place_of(s), later, effort) ||
               move_to_best(order, order.place_of(s), !later, effort);
    };
    if (later) {
      for (size_t i = steps.size(); i-- > 0;) visit(steps[i]);
    } else {
      for (const int32_t s : steps) visit(s);
    }
    if (!moved) return;
  }
}

// As long as it becomes lower and is above the budget.
void lower_peak(Order& order, int64_t budget, int64_t& effort) {
  for (int64_t peak = order.peak(); peak > budget && effort > 0;) {
    order.aim_at(std::max(budget, share_of(peak, kLowered)));
    improve(order, effort);
    if (order.peak() >= peak) return;
    peak = order.peak();
  }
}

// Steps go to places at random, as simulated annealing has it, each round longer than the one before, until the budget is kept.
void anneal(Order& order, int64_t budget, int64_t effort) {
  Draws draws(static_cast<uint64_t>(order.count()));
  Order best = order;
  for (int64_t round = kFirstRound, peak = best.peak(); effort > 0 && peak > budget; round *= 2) {
    best.aim_at(std::max(budget, share_of(peak, kLowered)));
    order = best;
    const double hot = kHotOrder * static_cast<double>(peak), cold = kColdOrder * static_cast<double>(peak);
    double temperature = hot;
    int64_t left = std::min(round, effort);
    effort -= left;
    for (int64_t tried = 0, all = left; left > 0; ++tried) {
      if (tried % 64 == 0)
        temperature = hot * std::pow(cold / hot, 1 - static_cast<double>(left) / static_cast<double>(all));
      const Order::Score before = order.score();
      const int32_t from = draws.below(order.count()), step = draws.below(2) == 0 ? 1 : -1;
      const int32_t reach = 1 + draws.below(1 + draws.below(order.count()));
      int32_t at = from;
      const auto may_go = [&] {
        return step > 0 ? at + 1 < order.count() && order.may_swap(at) : at > 0 && order.may_swap(at - 1);
      };
      for (int32_t i = 0; i < reach && may_go(); ++i, at += step) order.swap(step > 0 ? at : at - 1);
      left -= 1 + 2 * std::abs(at - from);
      const auto more = static_cast<double>(order.score() - before) / kAboveCounts;
      if (more > -temperature * std::log(1 - draws.share())) {
        for (; at != from; at -= step) order.swap(step > 0 ? at - 1 : at);
      } else if (more < 0 && order.score() < best.score() && order.peak() <= peak) {
        best = order;
        peak = best.peak();
        if (peak <= budget) break;
      }
    }
  }
  order = std::move(best);
}

// Of the steps that may run, always the one that adds least, the one whose inputs are freshest where several do.
std::vector<int32_t> greedy_order(const ValueTimeline& timeline, const OrderConstraints& constraints) {
  const int32_t count = constraints.count();
  std::vector<int32_t> waiting(count), uses_left(timeline.values.size()), order, fresh(count, 0);
  for (int32_t s = 0; s < count; ++s) waiting[s] = static_cast<int32_t>(constraints.before(s).size());
  for (size_t v = 0; v < timeline.values.size(); ++v)
    uses_left[v] = static_cast<int32_t>(timeline.values[v].uses.size());
  const auto added = [&](int32_t s) {
    int64_t bytes = 0;
    for (const int32_t v : timeline.steps[s].outputs) {
      if (timeline.values[v].before < 0) bytes += timeline.values[v].bytes;
    }
    for (const int32_t v : timeline.steps[s].inputs) {
      const TimelineValue& value = timeline.values[v];
      if (uses_left[v] == 1 && !value.at_end && value.state < 0) bytes -= value.bytes;
    }
    return bytes;
  };
  using Key = std::tuple<int64_t, int32_t, int32_t>;
  std::priority_queue<Key, std::vector<Key>, std::greater<>> ready;
  const auto offer = [&](int32_t s) { ready.emplace(added(s), -fresh[s], s); };
  std::vector<bool> done(static_cast<size_t>(count), false);
  for (int32_t s = 0; s < count; ++s) {
    if (waiting[s] == 0) offer(s);
  }
  while (!ready.empty()) {
    const auto [bytes, freshness, s] = ready.top();
    ready.pop();
    if (done[s]) continue;
    if (added(s) != bytes) {  // less by now: somebody else has read an input
      offer(s);
      continue;
    }
    done[s] = true;
    order.push_back(s);
    for (const int32_t v : timeline.steps[s].inputs) {
      if (--uses_left[v] != 1) continue;
      for (const int32_t user : timeline.values[v].uses) {
        if (!done[user] && waiting[user] == 0) offer(user);
      }
    }
    for (const int32_t next : constraints.after(s)) {
      fresh[next] = static_cast<int32_t>(order.size());
      if (--waiting[next] == 0) offer(next);
    }
  }
  return order;
}

// Bytes of states that the step replaces, where they are worth waiting for.
int64_t large_states(const ValueTimeline& timeline, int32_t s) {
  int64_t bytes = 0;
  for (const int32_t v : timeline.steps[s].outputs) {
    if (timeline.values[v].before < 0) continue;
    if (!timeline.values[v].uses.empty()) return 0;  // read in the same step
    bytes += timeline.values[v].bytes;
  }
  return bytes < kLargeStates ? 0 : bytes;
}

// Whether the step does nothing but replace states, which nobody reads in the same step.
bool is_update(const ValueTimeline& timeline, int32_t s) {
  return std::ranges::all_of(timeline.steps[s].outputs, [&](int32_t v) {
    return timeline.values[v].before >= 0 && timeline.values[v].uses.empty();
  });
}

// Where all that step p makes is for steps that go with the update and for other updates, and takes more than what it reads
// and nobody else keeps: these others. They go along.
std::optional<std::vector<int32_t>> others_of(const ValueTimeline& timeline, const std::vector<int32_t>& goes_with,
                                              int32_t p, int32_t update) {
  const TimelineStep& step = timeline.steps[p];
  int64_t made = 0, kept = 0;
  std::vector<int32_t> others;
  bool is_for_it = false;
  for (const int32_t v : step.outputs) {
    const TimelineValue& value = timeline.values[v];
    if (value.at_end || value.state >= 0 || value.uses.empty()) return std::nullopt;
    for (const int32_t user : value.uses) {
      if (goes_with[user] == update) {
        is_for_it = true;
      } else if (goes_with[user] < 0 && is_update(timeline, user)) {
        others.push_back(user);
      } else {
        return std::nullopt;
      }
    }
    made += value.bytes;
  }
  for (const int32_t v : step.inputs) {
    const TimelineValue& value = timeline.values[v];
    if (value.state < 0 && !value.at_end) kept += value.bytes;
  }
  return is_for_it && made > kept ? std::optional(others) : std::nullopt;
}

// The steps in the order of these times, as far as each waits for what it reads.
Route in_order_of(const std::vector<double>& wanted, const ValueTimeline& timeline,
                  const OrderConstraints& constraints) {
  using Next = std::pair<double, int32_t>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> ready;
  std::vector<size_t> waiting(wanted.size());
  for (int32_t s = 0; s < constraints.count(); ++s) {
    waiting[s] = constraints.before(s).size();
    if (waiting[s] == 0) ready.emplace(wanted[s], s);
  }
  Route route;
  while (!ready.empty()) {
    const int32_t s = ready.top().second;
    ready.pop();
    route.order.push_back(timeline.steps[s].op);
    for (const int32_t next : constraints.after(s)) {
      if (--waiting[next] == 0) ready.emplace(wanted[next], next);
    }
  }
  return route;
}

}  // namespace

std::optional<Route> reorder_for(const Graph& graph, const ValueTimeline& timeline, int64_t budget, int64_t effort,
                                 int64_t random_effort) {
  if (std::ranges::any_of(timeline.steps, &TimelineStep::collective)) return std::nullopt;  // all ranks' order
  const OrderConstraints constraints(graph, timeline);
  std::vector<int32_t> given(timeline.steps.size());
  std::iota(given.begin(), given.end(), 0);
  Order best(timeline, constraints, given);
  const int64_t enough = std::max(budget, share_of(best.peak(), kWorthIt));
  if (best.peak() <= budget) return std::nullopt;
  Order other(timeline, constraints, greedy_order(timeline, constraints));
  for_each_in_parallel(2, [&](size_t i) {
    int64_t half = effort / 2;
    lower_peak(i == 0 ? best : other, budget, half);
  });
  if (other.peak() < best.peak()) best = std::move(other);
  if (best.peak() > budget && random_effort > 0) {
    other = best;
    anneal(other, budget, random_effort);
    if (other.peak() < best.peak()) best = std::move(other);
  }
  if (best.peak() > enough) return std::nullopt;
  Route route;
  for (const int32_t s : best.steps()) route.order.push_back(timeline.steps[s].op);
  return route;
}

int64_t peak_of_all(const Graph& graph, const ValueTimeline& timeline) {
  std::vector<int32_t> given(timeline.steps.size());
  std::iota(given.begin(), given.end(), 0);
  return Order(timeline, OrderConstraints(graph, timeline), given).peak();
}

std::optional<Route> postpone_updates(const Graph& graph, const ValueTimeline& timeline, double share) {
  if (std::ranges::any_of(timeline.steps, &TimelineStep::collective)) return std::nullopt;  // all ranks' order
  const auto count = static_cast<int32_t>(timeline.steps.size());
  std::vector<double> begins;  // of steps, and the end
  begins.reserve(timeline.steps.size() + 1);
  begins.push_back(0);
  for (const TimelineStep& step : timeline.steps) begins.push_back(begins.back() + step.ms);
  // Steps that are postponed with an update: those that make what it alone reads.
  std::vector<int32_t> goes_with(timeline.steps.size(), -1);
  std::vector<int32_t> updates;
  std::vector<double> bytes;
  for (int32_t s = 0; s < count; ++s) {
    const int64_t moved = large_states(timeline, s);
    if (moved == 0) continue;
    goes_with[s] = s;
    bool any_producer = false;
    for (int32_t p = s; p-- > 0;) {
      const auto others = others_of(timeline, goes_with, p, s);
      if (!others) continue;
      goes_with[p] = s;
      for (const int32_t other : *others) goes_with[other] = s;
      any_producer = true;
    }
    if (!any_producer) continue;  // its gradient would wait in its stead
    updates.push_back(s);
    bytes.push_back(static_cast<double>(moved));
  }
  if (updates.empty()) return std::nullopt;
  const double all = std::accumulate(bytes.begin(), bytes.end(), 0.0);
  double replaced = 0;
  for (const TimelineValue& value : timeline.values) {
    if (value.before >= 0) replaced += static_cast<double>(value.bytes);
  }
  if (all < kMostlyLarge * replaced) return std::nullopt;
  const double from = begins[updates.front()], length = share * (begins.back() - from);
  std::vector<double> wanted(begins.begin(), begins.end() - 1);
  bool any = false;
  double done = 0;
  for (size_t i = 0; i < updates.size(); ++i) {
    const double at = from + length * done / all;
    done += bytes[i];
    if (at <= begins[updates[i]]) continue;
    any = true;
    for (int32_t p = 0; p < count; ++p) {
      if (goes_with[p] == updates[i]) wanted[p] = at;
    }
  }
  if (!any) return std::nullopt;
  return in_order_of(wanted, timeline, OrderConstraints(graph, timeline));
}

int64_t least_live_in_any_order(const Graph& graph, const ValueTimeline& timeline, bool tiers) {
  const OrderConstraints constraints(graph, timeline);
  const size_t count = timeline.steps.size();
  std::vector<int64_t> bytes(count);
  for (size_t s = 0; s < count; ++s) bytes[s] = own_bytes(timeline, timeline.steps[s]);
  int64_t walks = tiers ? 0 : kWalked / static_cast<int64_t>(std::max<size_t>(count, 1));
  for (size_t v = 0; v < timeline.values.size(); ++v) {
    const TimelineValue& value = timeline.values[v];
    if (value.recomputable || (value.producer < 0 && value.uses.empty() && !value.at_end) || walks-- <= 0) continue;
    // Behind what makes it, and before what reads it.
    std::vector<bool> made(count, value.producer < 0), wanted(count, value.at_end);
    if (value.producer >= 0) {
      for (size_t s = static_cast<size_t>(value.producer); s < count; ++s)
        made[s] = std::ranges::any_of(constraints.before(static_cast<int32_t>(s)),
                                      [&](int32_t b) { return b == value.producer || made[b]; });
    }
    if (!value.at_end) {
      for (const int32_t use : value.uses) wanted[use] = true;
      for (size_t s = count; s-- > 0;) {
        for (const int32_t b : constraints.before(static_cast<int32_t>(s))) wanted[b] = wanted[b] || wanted[s];
      }
    }
    for (size_t s = 0; s < count; ++s) {
      const TimelineStep& step = timeline.steps[s];
      const bool is_own = std::ranges::find(step.inputs, static_cast<int32_t>(v)) != step.inputs.end() ||
                          std::ranges::find(step.outputs, static_cast<int32_t>(v)) != step.outputs.end();
      if (made[s] && wanted[s] && !is_own) bytes[s] += value.bytes;
    }
  }
  const int64_t most = bytes.empty() ? 0 : *std::ranges::max_element(bytes);
  return std::max(most, bytes_at_end(timeline, tiers));
}

}  // namespace plimsoll
