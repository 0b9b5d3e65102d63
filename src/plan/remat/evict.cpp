#include "plan/remat/evict.h"

#include <algorithm>
#include <numeric>

namespace plimsoll {
namespace {

constexpr double kLeastKept = 0.02;
constexpr int kMostBrought = 4;
constexpr size_t kMostRuns = 10;  // times the steps: from here on it does little else

class Evictor {
 public:
  Evictor(const ValueTimeline& timeline, int64_t budget, EvictionRule rule, double most_ms, int64_t effort,
          const RelaxedPresence* relaxed)
      : timeline_(timeline),
        budget_(budget),
        rule_(rule),
        most_ms_(most_ms),
        effort_(effort),
        relaxed_(relaxed),
        values_(timeline.values.size()),
        ran_(timeline.steps.size(), false),
        around_(timeline.values.size(), 0),
        parent_(timeline.values.size()),
        class_ms_(timeline.values.size(), 0),
        readers_(timeline.values.size()) {
    std::iota(parent_.begin(), parent_.end(), 0);
    for (const TimelineValue& value : timeline.values)
      may_return_.push_back(value.recomputable && may_run_again(timeline, value.producer));
    for (int32_t s = 0; s < static_cast<int32_t>(timeline.steps.size()); ++s) {
      start_ms_.push_back(start_ms_.empty() ? 0 : start_ms_.back() + timeline.steps[s - 1].ms);
      for (int32_t v : timeline.steps[s].recompute_inputs) {
        for (int32_t w : timeline.steps[s].recompute_outputs) readers_[v].push_back(w);
      }
    }
    start_ms_.push_back(timeline.compute_ms);
    for (int32_t v = 0; v < static_cast<int32_t>(values_.size()); ++v) {
      if (timeline.values[v].producer < 0) arrive(v);
    }
  }

  std::optional<Sequence> run() {
    for (now_ = 0; now_ < static_cast<int32_t>(timeline_.steps.size()); ++now_) {
      if (!run_step(now_)) return std::nullopt;
    }
    for (size_t v = 0; v < values_.size(); ++v) values_[v].locks += timeline_.values[v].at_end ? 1 : 0;
    std::vector<int32_t> wanted;  // at the end
    for (size_t v = 0; v < values_.size(); ++v) {
      if (timeline_.values[v].at_end) wanted.push_back(static_cast<int32_t>(v));
    }
    for (const int32_t v : wanted) lock(v);
    if (!bring(wanted)) return std::nullopt;
    return std::move(sequence_);
  }

 private:
  struct Value {
    bool is_there = false, evicted = false, lost = false, is_listed = false;
    int32_t locks = 0, next_use = 0;
    int locked_at = 0;  // the depth of the innermost step that waits for it
    double used_at = 0;
  };

  void arrive(int32_t v) {
    if (values_[v].is_there) return;
    values_[v].is_there = true;
    live_ += timeline_.values[v].bytes;
    values_[v].used_at = clock_;
    if (values_[v].evicted) leave_class(v);
    values_[v].evicted = false;
    if (!may_return_[v] || timeline_.values[v].bytes == 0 || values_[v].is_listed) return;
    values_[v].is_listed = true;
    listed_.push_back(v);
  }
  void go(int32_t v) {
    if (!values_[v].is_there) return;
    values_[v].is_there = false;
    live_ -= timeline_.values[v].bytes;
    if (!may_return_[v]) return;
    values_[v].evicted = true;
    join_class(v);
  }
  bool is_over(int32_t v) const {  // nobody reads it any more, for all that is known
    const TimelineValue& value = timeline_.values[v];
    return !value.at_end && values_[v].next_use == static_cast<int32_t>(value.uses.size()) && value.producer >= 0;
  }

  // Runs a step, the first time or again; what it reads is brought before.
  bool run_step(int32_t s) {
    const TimelineStep& step = timeline_.steps[s];
    const bool again = ran_[s];
    const std::span<const int32_t> inputs = again ? step.recompute_inputs : step.inputs;
    const std::span<const int32_t> outputs = again ? step.recompute_outputs : step.outputs;
    if (++depth_ > 5000 || looks_ > effort_) return false;
    for (int32_t v : inputs) lock(v);
    if (!bring(inputs)) return false;
    const auto room = [&] {
      int64_t bytes = step.workspace;
      for (int32_t v : outputs) {
        if (!values_[v].is_there && !takes_place(step, v, again)) bytes += timeline_.values[v].bytes;
      }
      return bytes;
    };
    while (live_ + room() > budget_) {
      int32_t victim = cheapest(false);
      if (victim < 0) victim = cheapest(true);
      if (victim < 0) return false;
      go(victim);
    }
    --depth_;
    clock_ += step.ms;
    if (again) again_ms_ += step.ms;
    if (again_ms_ > most_ms_ || sequence_.size() > kMostRuns * timeline_.steps.size()) return false;
    sequence_.push_back(s);
    ran_[s] = true;
    for (int32_t v : outputs) arrive(v);
    for (int32_t v : inputs) {
      unlock(v);
      values_[v].used_at = clock_;
      if (!again) ++values_[v].next_use;
    }
    if (!again) {
      for (const TimelineInPlace& pair : step.in_place) {
        if (!pair.required) continue;
        if (values_[pair.input].is_there) live_ -= timeline_.values[pair.input].bytes;
        values_[pair.input].is_there = false;
        values_[pair.input].lost = true;
      }
    }
    for (int32_t v : inputs) {
      if (values_[v].locks == 0 && is_over(v)) go(v);
    }
    for (int32_t v : outputs) {
      if (values_[v].locks == 0 && is_over(v)) go(v);
    }
    return true;
  }

  // What a step waits for is locked. Where nothing else can go, what steps wait for that are not the next to run goes too, and
  // comes once more.
  void lock(int32_t v) {
    ++values_[v].locks;
    locked_.push_back({v, values_[v].locked_at});
    values_[v].locked_at = depth_;
  }
  void unlock(int32_t v) {
    --values_[v].locks;
    const auto own = std::find_if(locked_.rbegin(), locked_.rend(), [&](const auto& l) { return l.first == v; });
    values_[v].locked_at = own->second;
    locked_.erase(std::next(own).base());
  }
  bool bring(std::span<const int32_t> values) {
    for (int tries = 0; tries < kMostBrought; ++tries) {
      bool all = true;
      for (const int32_t v : values) {
        if (values_[v].is_there) continue;
        all = false;
        if (!may_return_[v] || values_[v].lost || !run_step(timeline_.values[v].producer)) return false;
      }
      if (all) return true;
    }
    return false;
  }

  bool takes_place(const TimelineStep& step, int32_t output, bool again) const {
    return std::any_of(step.in_place.begin(), step.in_place.end(), [&](const TimelineInPlace& pair) {
      if (pair.output != output) return false;
      const TimelineValue& input = timeline_.values[pair.input];
      return pair.required || (!again && input.state < 0 && !input.at_end && !input.uses.empty() &&
                               input.uses.back() == now_ && values_[pair.input].locks == 1);
    });
  }

  int32_t cheapest(bool locked) {
    const bool looks_ahead = rule_ == EvictionRule::ahead || rule_ == EvictionRule::relaxed;
    int32_t best = -1;
    double least = 0;
    looks_ += std::ssize(listed_);
    for (size_t i = 0; i < listed_.size();) {
      const int32_t v = listed_[i];
      if (!values_[v].is_there) {
        values_[v].is_listed = false;
        listed_[i] = listed_.back();
        listed_.pop_back();
        continue;
      }
      ++i;
      const TimelineValue& value = timeline_.values[v];
      if (values_[v].locks > 0 && (!locked || values_[v].locked_at >= depth_)) continue;
      if (looks_ahead && value.at_end && !locked) continue;  // at the end it would take all that led to it
      double age = clock_ - values_[v].used_at;
      if (looks_ahead) {
        const int32_t use = values_[v].next_use;
        const double at = use < static_cast<int32_t>(value.uses.size()) ? start_ms_[value.uses[use]] : start_ms_.back();
        age = at - start_ms_[now_];
      }
      double h = (cost_around(v) + 1e-9) / (static_cast<double>(value.bytes) * (age + 1e-6));
      if (rule_ == EvictionRule::relaxed) h *= kLeastKept + relaxed_->of(v, now_);
      if (best < 0 || h < least || (h == least && v < best)) {
        best = v;
        least = h;
      }
    }
    return best;
  }

  double ms_of(int32_t v) const { return timeline_.steps[timeline_.values[v].producer].ms; }

  // Its own ms and those of what is evicted around it.
  double cost_around(int32_t v) {
    double ms = ms_of(v);
    ++mark_;
    if (rule_ == EvictionRule::dtr_eq) {
      for_each_neighbour(v, [&](int32_t w) {
        const int32_t root = root_of(w);
        if (!values_[w].evicted || around_[root] == mark_) return;
        around_[root] = mark_;
        ms += class_ms_[root];
      });
      return ms;
    }
    around_[v] = mark_;
    for (const bool down : {false, true}) {
      stack_.assign(1, v);
      while (!stack_.empty()) {
        const int32_t at = stack_.back();
        stack_.pop_back();
        ++looks_;
        const auto visit = [&](int32_t w) {
          if (!values_[w].evicted || around_[w] == mark_) return;
          around_[w] = mark_;
          ms += ms_of(w);
          stack_.push_back(w);
        };
        if (down) {
          for (int32_t w : readers_[at]) visit(w);
        } else {
          for (int32_t w : timeline_.steps[timeline_.values[at].producer].recompute_inputs) visit(w);
        }
      }
    }
    return ms;
  }
  template <class Visit>
  void for_each_neighbour(int32_t v, const Visit& visit) const {
    for (int32_t w : timeline_.steps[timeline_.values[v].producer].recompute_inputs) visit(w);
    for (int32_t w : readers_[v]) visit(w);
  }

  int32_t root_of(int32_t v) {
    while (parent_[v] != v) v = parent_[v] = parent_[parent_[v]];
    return v;
  }
  void join_class(int32_t v) {
    if (rule_ != EvictionRule::dtr_eq) return;
    class_ms_[root_of(v)] += ms_of(v);
    for_each_neighbour(v, [&](int32_t w) {
      if (!values_[w].evicted) return;
      const int32_t a = root_of(v), b = root_of(w);
      if (a == b) return;
      parent_[b] = a;
      class_ms_[a] += class_ms_[b];
    });
  }
  // Its class keeps its other members: what is back only takes its own ms away.
  void leave_class(int32_t v) {
    if (rule_ != EvictionRule::dtr_eq) return;
    double& ms = class_ms_[root_of(v)];
    ms = std::max(0.0, ms - ms_of(v));
  }

  const ValueTimeline& timeline_;
  const int64_t budget_;
  const EvictionRule rule_;
  const double most_ms_;
  const int64_t effort_;
  const RelaxedPresence* const relaxed_;
  std::vector<Value> values_;
  std::vector<bool> ran_;         // by step
  std::vector<bool> may_return_;  // by value
  std::vector<double> start_ms_;
  std::vector<uint32_t> around_;  // by value: marks of cost_around
  std::vector<int32_t> parent_;   // by value: h_eq's classes
  std::vector<double> class_ms_;  // by root
  std::vector<std::vector<int32_t>> readers_;
  std::vector<std::pair<int32_t, int>> locked_;  // values, and at what depth they were locked before
  std::vector<int32_t> stack_, listed_;          // listed_: what may be let go, and some that went
  Sequence sequence_;
  uint32_t mark_ = 0;
  int32_t now_ = 0;
  int depth_ = 0;
  int64_t looks_ = 0;  // at values, to choose among them
  int64_t live_ = 0;
  double clock_ = 0, again_ms_ = 0;
};

}  // namespace

std::optional<Sequence> evict_as_it_runs(const ValueTimeline& timeline, int64_t budget, EvictionRule rule,
                                         double most_ms, int64_t effort, const RelaxedPresence* relaxed) {
  return Evictor(timeline, budget, rule, most_ms, effort, relaxed).run();
}

}  // namespace plimsoll
