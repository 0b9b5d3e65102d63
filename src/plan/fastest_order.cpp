#include "plan/fastest_order.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/order_constraints.h"

namespace plimsoll {
namespace {

constexpr size_t kMostSteps = 32, kMostValues = 64;
constexpr size_t kMostPairs = 6;  // of a step, by which it may write in place

struct Moment {
  uint32_t done = 0;  // by step: it has run
  uint64_t live = 0;  // by value: it lies in the arena
  friend bool operator==(const Moment&, const Moment&) = default;
};
struct HashOfMoment {
  size_t operator()(const Moment& m) const {
    return static_cast<size_t>((m.live ^ (uint64_t{m.done} << 29)) * 0x9e3779b97f4a7c15U >> 7);
  }
};

class Search {
 public:
  Search(const Graph& graph, const ValueTimeline& timeline, int64_t budget)
      : timeline_(timeline), budget_(budget), steps_(timeline.steps.size()) {
    const OrderConstraints constraints(graph, timeline);
    for (size_t s = 0; s < steps_.size(); ++s) {
      const TimelineStep& step = timeline.steps[s];
      StepSets& sets = steps_[s];
      for (const int32_t b : constraints.before(static_cast<int32_t>(s))) sets.before |= uint32_t{1} << b;
      sets.inputs = set_of(step.inputs);
      sets.outputs = set_of(step.outputs);
      sets.again_inputs = set_of(step.recompute_inputs);
      sets.again_outputs = set_of(step.recompute_outputs);
      for (const TimelineInPlace& pair : step.in_place) {
        if (pair.required) sets.overwritten |= bit(pair.input);
      }
    }
    for (size_t v = 0; v < timeline.values.size(); ++v) {
      const TimelineValue& value = timeline.values[v];
      if (value.producer < 0) begin_.live |= bit(v);
      if (value.at_end) at_end_ |= bit(v);
      if (value.state >= 0) stays_ |= bit(v);
      if (value.recomputable) recomputable_ |= bit(v);
    }
  }

  std::optional<FastestOrder> run(int64_t states) {
    reach(begin_, 0, begin_, -1);
    const uint32_t all = static_cast<uint32_t>((uint64_t{1} << steps_.size()) - 1);
    while (!open_.empty() && states-- > 0) {
      const Open next = open_.top();
      open_.pop();
      const Moment now = next.moment;
      Known& known = known_[now];
      if (std::exchange(known.closed, true)) continue;
      if (now.done == all && (now.live & at_end_) == at_end_) return order_to(now, known.ms);
      const double ms = known.ms;  // the table may move
      bool any_in_the_way = false;
      for (size_t s = 0; s < steps_.size(); ++s) any_in_the_way |= try_step(now, ms, s);
      if (!any_in_the_way) continue;
      for (uint64_t rest = now.live & ~stays_; rest != 0; rest &= rest - 1) {
        const uint64_t gone = rest & ~(rest - 1);
        reach({now.done, now.live & ~gone}, ms, now, -1);
      }
    }
    return std::nullopt;
  }

 private:
  struct StepSets {
    uint32_t before = 0;
    uint64_t inputs = 0, outputs = 0, again_inputs = 0, again_outputs = 0, overwritten = 0;
  };
  struct Known {
    double ms = 0;
    Moment from;
    int32_t step = -1;  // that ran; -1: a value went
    bool closed = false;
  };
  struct Open {
    double least_ms;  // of the whole
    int32_t done;     // of those that take as long, the furthest first
    Moment moment;
    bool operator<(const Open& other) const {
      return std::pair(-least_ms, done) < std::pair(-other.least_ms, other.done);
    }
  };

  static uint64_t bit(size_t i) { return uint64_t{1} << i; }
  static uint64_t bit(int32_t i) { return uint64_t{1} << i; }
  static uint64_t set_of(std::span<const int32_t> values) {
    uint64_t set = 0;
    for (const int32_t v : values) set |= bit(v);
    return set;
  }
  int64_t bytes_of(uint64_t set) const {
    int64_t bytes = 0;
    for (; set != 0; set &= set - 1) bytes += timeline_.values[static_cast<size_t>(std::countr_zero(set))].bytes;
    return bytes;
  }

  // Runs the step where it may; says whether there was too little room for it.
  bool try_step(const Moment& now, double ms, size_t s) {
    const StepSets& sets = steps_[s];
    const bool again = (now.done >> s & 1) != 0;
    const uint64_t inputs = again ? sets.again_inputs : sets.inputs, made = again ? sets.again_outputs : sets.outputs;
    if ((now.live & inputs) != inputs || (now.done & sets.before) != sets.before) return false;
    if (again && ((made & ~now.live) == 0 || (made & recomputable_) != made || sets.overwritten != 0)) return false;
    const TimelineStep& step = timeline_.steps[s];
    const uint64_t fresh = made & ~now.live;
    // What must be overwritten lends its bytes.
    uint64_t adds = fresh, gone = sets.overwritten;
    for (const TimelineInPlace& pair : step.in_place) {
      if (pair.required) adds &= ~bit(pair.output);
    }
    for (uint64_t rest = fresh; rest != 0; rest &= rest - 1) {
      const auto v = static_cast<size_t>(std::countr_zero(rest));
      if (const int32_t old = timeline_.values[v].before; old >= 0) {
        adds &= ~bit(v);
        gone |= bit(old);
      }
    }
    const int64_t room = budget_ - bytes_of(now.live) - step.workspace;
    const Moment then{now.done | uint32_t{1} << s, (now.live & ~gone) | fresh};
    const bool fits = bytes_of(adds) <= room;
    if (fits) reach(then, ms + step.ms, now, static_cast<int32_t>(s));
    // What may be overwritten is gone behind it.
    for (uint64_t pairs = 1; pairs < uint64_t{1} << step.in_place.size(); ++pairs) {
      uint64_t taken = 0, left = adds;
      for (size_t p = 0; p < step.in_place.size(); ++p) {
        const TimelineInPlace& pair = step.in_place[p];
        const uint64_t input = bit(pair.input), output = bit(pair.output);
        if ((pairs >> p & 1) == 0 || pair.required || (left & output) == 0 || ((stays_ | taken) & input) != 0 ||
            (now.live & input) == 0)
          continue;
        taken |= input;
        left &= ~output;
      }
      if (std::popcount(taken) == std::popcount(pairs) && bytes_of(left) <= room)
        reach({then.done, then.live & ~taken}, ms + step.ms, now, static_cast<int32_t>(s));
    }
    return !fits;
  }

  void reach(const Moment& moment, double ms, const Moment& from, int32_t step) {
    const auto [place, fresh] = known_.try_emplace(moment, Known{ms, from, step});
    if (!fresh) {
      if (place->second.ms <= ms) return;
      place->second = {ms, from, step};
    }
    double least = ms;
    for (size_t s = 0; s < steps_.size(); ++s) {
      if ((moment.done >> s & 1) == 0) least += timeline_.steps[s].ms;
    }
    open_.push({least, std::popcount(moment.done), moment});
  }

  FastestOrder order_to(Moment moment, double ms) const {
    const bool is_bound =
        std::ranges::all_of(timeline_.steps, [](const TimelineStep& step) { return step.over_views.empty(); });
    FastestOrder found{.route = {}, .least_ms = ms, .is_bound = is_bound};
    std::vector<int32_t> first_runs;
    while (!(moment == begin_)) {
      const Known& known = known_.at(moment);
      if (known.step >= 0 && (known.from.done >> known.step & 1) == 0) first_runs.push_back(known.step);
      moment = known.from;
    }
    for (size_t i = first_runs.size(); i-- > 0;) found.route.order.push_back(timeline_.steps[first_runs[i]].op);
    return found;
  }

  const ValueTimeline& timeline_;
  const int64_t budget_;
  std::vector<StepSets> steps_;
  Moment begin_;
  uint64_t at_end_ = 0, stays_ = 0, recomputable_ = 0;
  std::unordered_map<Moment, Known, HashOfMoment> known_;
  std::priority_queue<Open> open_;
};

}  // namespace

std::optional<FastestOrder> fastest_order(const Graph& graph, const ValueTimeline& timeline, int64_t budget,
                                          int64_t states) {
  if (timeline.steps.size() >= kMostSteps || timeline.values.size() > kMostValues) return std::nullopt;
  if (std::ranges::any_of(timeline.steps, &TimelineStep::collective)) return std::nullopt;  // all ranks' order
  if (std::ranges::any_of(timeline.steps, [](const TimelineStep& s) { return s.in_place.size() > kMostPairs; }))
    return std::nullopt;
  return Search(graph, timeline, budget).run(states);
}

}  // namespace plimsoll
