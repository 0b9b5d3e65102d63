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
  Search(const Graph& graph, const ValueTimeline& timeline) : timeline_(timeline), steps_(timeline.steps.size()) {
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
    begin_.live &= useful(0);
  }

  std::optional<FastestOrder> fastest(int64_t budget, int64_t states) {
    const std::optional<Moment> end = run(Wanted::time, budget, states);
    if (!end) return std::nullopt;
    FastestOrder found = order_to(*end);
    found.is_bound = is_exact();
    return found;
  }

  std::optional<int64_t> least_bytes(int64_t states) {
    if (!is_exact()) return std::nullopt;
    if (!run(Wanted::bytes, bytes_of(begin_.live), states)) return std::nullopt;
    return budget_;
  }

 private:
  enum class Wanted { time, bytes };
  struct StepSets {
    uint32_t before = 0;
    uint64_t inputs = 0, outputs = 0, again_inputs = 0, again_outputs = 0, overwritten = 0;
  };
  struct Known {
    double cost = 0;  // ms, or bytes
    Moment from;
    int32_t step = -1;  // that ran; -1: a value went
    bool closed = false;
  };
  struct Open {
    double least;  // of the whole: ms, or bytes
    int32_t done;  // of those that take as much, the furthest first
    Moment moment;
    bool operator<(const Open& other) const { return std::pair(-least, done) < std::pair(-other.least, other.done); }
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

  // Whether all ways are looked at in which a step may take the bytes of another's values.
  bool is_exact() const {
    const std::vector<TimelineValue>& values = timeline_.values;
    for (const TimelineStep& step : timeline_.steps) {
      if (!step.over_views.empty()) return false;
      for (const TimelineInPlace& pair : step.in_place) {
        if (pair.required && values[pair.input].producer >= 0) return false;
      }
    }
    return std::ranges::all_of(values, [&](const TimelineValue& value) {
      return value.before < 0 || (value.producer >= 0 && (steps_[value.producer].overwritten & bit(value.before)) != 0);
    });
  }

  // Where the path ends; nothing where none is found. Looking for bytes, the budget is what paths that end need at least, so far.
  std::optional<Moment> run(Wanted wanted, int64_t budget, int64_t states) {
    wanted_ = wanted;
    budget_ = budget;
    reach(begin_, wanted == Wanted::bytes ? static_cast<double>(budget) : 0, begin_, -1);
    const uint32_t all = static_cast<uint32_t>((uint64_t{1} << steps_.size()) - 1);
    while (!open_.empty() && states-- > 0) {
      const Open next = open_.top();
      open_.pop();
      const Moment now = next.moment;
      Known& known = known_[now];
      if (std::exchange(known.closed, true)) continue;
      const double cost = known.cost;  // the table may move
      if (wanted == Wanted::bytes) budget_ = std::max(budget_, static_cast<int64_t>(cost));
      if (now.done == all && (now.live & at_end_) == at_end_) return now;
      bool any_in_the_way = false;
      for (size_t s = 0; s < steps_.size(); ++s) any_in_the_way |= try_step(now, cost, s);
      if (!any_in_the_way) continue;
      for (uint64_t rest = now.live & ~stays_; rest != 0; rest &= rest - 1) {
        const uint64_t gone = rest & ~(rest - 1);
        reach({now.done, now.live & ~gone}, cost, now, -1);
      }
    }
    return std::nullopt;
  }

  // Runs the step where it may; says whether there was too little room for it.
  bool try_step(const Moment& now, double cost, size_t s) {
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
    const Moment then{now.done | uint32_t{1} << s, (now.live & ~gone) | fresh};
    const int64_t needs = bytes_of(now.live) + step.workspace;
    const Run run{now, s, cost, needs};
    const bool fits = needs + bytes_of(adds) <= budget_;
    take_places(run, then, adds, 0);
    return !fits;
  }

  // A step that runs.
  struct Run {
    const Moment& from;
    size_t step;
    double cost;    // before it
    int64_t needs;  // bytes beside what its outputs add
  };

  // In every way in which its outputs may take the places of inputs, from this pair on; what is overwritten is gone behind it.
  void take_places(const Run& run, const Moment& then, uint64_t adds, size_t pair) {
    const TimelineStep& step = timeline_.steps[run.step];
    for (; pair < step.in_place.size(); ++pair) {
      const TimelineInPlace& may = step.in_place[pair];
      const uint64_t input = bit(may.input), output = bit(may.output);
      if (may.required || (adds & output) == 0 || (stays_ & input) != 0 || (then.live & input) == 0) continue;
      take_places(run, {then.done, then.live & ~input}, adds & ~output, pair + 1);
    }
    const int64_t bytes = run.needs + bytes_of(adds);
    const auto step_index = static_cast<int32_t>(run.step);
    if (wanted_ == Wanted::bytes) {
      reach(then, std::max(run.cost, static_cast<double>(bytes)), run.from, step_index);
    } else if (bytes <= budget_) {
      reach(then, run.cost + step.ms, run.from, step_index);
    }
  }

  // What may be read yet, or is wanted at the end.
  uint64_t useful(uint32_t done) const {
    uint64_t set = at_end_ | stays_;
    for (size_t s = steps_.size(); s-- > 0;) {
      const StepSets& sets = steps_[s];
      if ((done >> s & 1) == 0) {
        set |= sets.inputs;
      } else if ((sets.again_outputs & set) != 0) {
        set |= sets.again_inputs;
      }
    }
    return set;
  }

  void reach(Moment moment, double cost, const Moment& from, int32_t step) {
    moment.live &= useful(moment.done);
    const auto [place, fresh] = known_.try_emplace(moment, Known{cost, from, step});
    if (!fresh) {
      if (place->second.cost <= cost) return;
      place->second = {cost, from, step};
    }
    double least = cost;
    for (size_t s = 0; s < steps_.size() && wanted_ == Wanted::time; ++s) {
      if ((moment.done >> s & 1) == 0) least += timeline_.steps[s].ms;
    }
    open_.push({least, std::popcount(moment.done), moment});
  }

  FastestOrder order_to(Moment moment) const {
    FastestOrder found{.route = {}, .least_ms = known_.at(moment).cost};
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
  Wanted wanted_ = Wanted::time;
  int64_t budget_ = 0;
  std::vector<StepSets> steps_;
  Moment begin_;
  uint64_t at_end_ = 0, stays_ = 0, recomputable_ = 0;
  std::unordered_map<Moment, Known, HashOfMoment> known_;
  std::priority_queue<Open> open_;
};

// All ranks have one order.
bool has_few_steps(const ValueTimeline& timeline) {
  return timeline.steps.size() < kMostSteps && timeline.values.size() <= kMostValues &&
         std::ranges::none_of(timeline.steps, &TimelineStep::collective);
}

}  // namespace

std::optional<FastestOrder> fastest_order(const Graph& graph, const ValueTimeline& timeline, int64_t budget,
                                          int64_t states) {
  if (!has_few_steps(timeline)) return std::nullopt;
  return Search(graph, timeline).fastest(budget, states);
}

std::optional<int64_t> least_live_exactly(const Graph& graph, const ValueTimeline& timeline, int64_t states) {
  if (!has_few_steps(timeline)) return std::nullopt;
  return Search(graph, timeline).least_bytes(states);
}

}  // namespace plimsoll
