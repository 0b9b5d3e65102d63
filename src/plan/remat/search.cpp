#include "plan/remat/search.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/parallel.h"
#include "base/random.h"
#include "plan/remat/evict.h"

namespace plimsoll {
namespace {

// Draws that are the same on every machine.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15U + 0x632be59bd9b4e019U) {}
  int32_t below(int64_t n) { return n <= 1 ? 0 : static_cast<int32_t>(next_bits(state_) % static_cast<uint64_t>(n)); }
  double share() { return static_cast<double>(next_bits(state_) >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

constexpr int32_t kMostTries = 4;
constexpr int32_t kReach = 64;                 // stages around a change that are looked at
constexpr int kRepairs = 6;                    // of what was taken back
constexpr double kMostAgain = 4;               // times the step, of a start
constexpr int64_t kLeastOfRules = 20'000'000;  // looks of each of the rules
constexpr int64_t kLeastRound = 100'000, kLeastRoundOfStep = 4'000;

struct Rerun {
  int32_t step, stage;
};

class RunSearch {
 public:
  RunSearch(const ValueTimeline& timeline, std::span<const int64_t> limits) : timeline_(timeline), set_(timeline, 0) {
    set_.set_limits(limits);
    for (int32_t v = 0; v < static_cast<int32_t>(timeline.values.size()); ++v) {
      const TimelineValue& value = timeline.values[v];
      if (value.recomputable && may_run_again(timeline, value.producer) && value.bytes > 0 &&
          (!value.uses.empty() || value.at_end))
        candidates_.push_back(v);
    }
    double ms = 0, squares = 0;
    for (const TimelineStep& step : timeline.steps) {
      ms += step.ms;
      squares += step.ms * step.ms;
    }
    usual_ms_ = ms > 0 ? squares / ms : 1;
    first_price_ = 0.02 * ms / std::max(1.0, static_cast<double>(*std::max_element(limits.begin(), limits.end())));
    keep_best();
  }

  int64_t work() const { return set_.work() + proposed_; }
  bool fits() const { return best_excess_ == 0; }
  bool is_done() const { return candidates_.empty() || (fits() && best_.empty()); }

  // Considers a sequence as it is.
  void consider(const Sequence& sequence) {
    set_.take(sequence);
    list_reruns();
    note_if_better();
  }

  // Cools down once, from the best so far or from no reruns at all.
  void cool(bool from_best, uint64_t seed, int64_t effort) {
    draws_ = Draws(seed);
    from_best ? restore_best() : restore({});
    price_ = first_price_;
    const double hot = usual_ms_ * (from_best ? 0.1 : 0.3), cold = usual_ms_ * 0.001;
    const int64_t first = work();
    for (int64_t tried = 1;; ++tried) {
      const double share = static_cast<double>(work() - first) / static_cast<double>(effort);
      if (share >= 1) break;
      if (tried % 16 == 1) temperature_ = hot * std::pow(cold / hot, share);
      propose();
      if (tried % 256 == 0) adapt();
    }
  }

  // What another has found, where that is better.
  void learn_from(const RunSearch& other) {
    if (!is_better(other.best_excess_, other.best_ms_)) return;
    best_ = other.best_;
    best_ms_ = other.best_ms_;
    best_excess_ = other.best_excess_;
  }

  FoundRuns result() {
    restore_best();
    return {set_.sequence(), set_.again_ms(), set_.peak(), set_.excess() == 0};
  }

 private:
  double energy() const { return set_.again_ms() + price_ * static_cast<double>(set_.excess()); }

  void adapt() {
    if (fitted_ == 0) price_ *= 1.25;
    if (fitted_ > 200) price_ /= 1.08;
    fitted_ = 0;
  }

  void propose() {
    changes_.clear();
    applied_ = 0;
    ++proposed_;
    const int32_t kind = draws_.below(100);
    const bool over = set_.excess() > 0;
    const double before = energy();
    const int64_t before_excess = set_.excess();
    // The energy that the change may add is drawn first. What runs again costs more than all of the excess may be worth:
    // then it need not be looked at.
    const double allowed = -temperature_ * std::log(1 - draws_.share());
    most_ms_ = allowed + price_ * static_cast<double>(before_excess);
    more_ms_ = 0;
    if (over ? kind < 50 : kind < 10) {
      propose_drop(-1);
    } else if (kind < 60) {
      propose_removal();
    } else if (kind < 75) {
      propose_shift();
    } else if (kind < 90) {
      const int32_t stage = propose_removal();
      propose_drop(stage);
      if (draws_.below(4) == 0) propose_drop(stage);
    } else {
      propose_exchange(before_excess);
    }
    if (changes_.empty()) return;
    if (applied_ < changes_.size() && more_ms_ <= most_ms_) apply();
    if (applied_ < changes_.size() || energy() - before > allowed) {
      take_back();
    } else {
      note_changes();
      note_if_better();
    }
    fitted_ += set_.excess() == 0 ? 1 : 0;
  }

  // Takes reruns back, and lets other values go where there is too much then.
  void propose_exchange(int64_t before_excess) {
    const int32_t stage = propose_removal();
    if (stage < 0) return;
    if (draws_.below(3) == 0) propose_removal_near(stage);
    apply();
    for (int i = 0; i < kRepairs && set_.excess() > before_excess; ++i) {
      const int32_t full = fullest(stage);
      if (full < 0) break;
      const size_t count = changes_.size();
      propose_drop(full);
      if (changes_.size() == count) continue;
      if (more_ms_ > most_ms_) return;
      apply();
    }
  }
  int32_t fullest(int32_t near) {
    int32_t best = -1;
    int64_t most = 0;
    for (int32_t t = std::max(0, near - 4 * kReach); t <= std::min(set_.steps(), near + kReach); ++t) {
      const int64_t over = set_.most(t) - set_.limit(t);
      if (over <= most) continue;
      most = over;
      best = t;
    }
    proposed_ += kReach / 4;
    return best;
  }
  void propose_removal_near(int32_t stage) {
    for (int i = 0; i < 8; ++i) {
      const int32_t t = stage + draws_.below(17) - 8;
      if (t < 0 || t > set_.steps() || set_.reruns_in(t).empty()) continue;
      const std::vector<int32_t>& list = set_.reruns_in(t);
      remove(list[static_cast<size_t>(draws_.below(std::ssize(list)))], t, 0);
      return;
    }
  }

  void apply() {
    for (; applied_ < changes_.size(); ++applied_) set_.toggle(changes_[applied_].step, changes_[applied_].stage);
    set_.settle();
  }
  void take_back() {
    if (applied_ == 0) return;
    for (size_t i = 0; i < applied_; ++i) set_.toggle(changes_[i].step, changes_[i].stage);
    set_.settle();
  }

  bool changed(int32_t step, int32_t stage) const {
    return std::any_of(changes_.begin(), changes_.end(),
                       [&](const Rerun& c) { return c.step == step && c.stage == stage; });
  }
  void change(int32_t step, int32_t stage) {
    const double ms = timeline_.steps[step].ms;
    more_ms_ += set_.runs(step, stage) ? -ms : ms;
    changes_.push_back({step, stage});
  }

  // Lets a value go in a gap; `near`: across that stage, -1: anywhere, where too much is there first of all.
  void propose_drop(int32_t near) {
    int32_t stage = near;
    if (stage < 0 && set_.excess() > 0 && draws_.below(10) < 8) {
      stage = draws_.below(set_.steps());
      for (int32_t i = 0; i < set_.steps() && set_.most(stage) <= set_.limit(stage); ++i)
        stage = stage + 1 == set_.steps() ? 0 : stage + 1;
      proposed_ += 2;
    }
    if (stage < 0) {
      drop(candidates_[static_cast<size_t>(draws_.below(std::ssize(candidates_)))], -1);
      return;
    }
    // Of a few, the one that costs the least for the bytes that it frees.
    const size_t begin = changes_.size();
    const double begin_ms = more_ms_;
    const double over = static_cast<double>(std::max<int64_t>(set_.most(stage) - set_.limit(stage), 1));
    double best = 0;
    chosen_.clear();
    for (int32_t tries = 1 + draws_.below(kMostTries); tries > 0; --tries) {
      const int32_t v = idle_across(stage);
      if (v < 0) break;
      drop(v, stage);
      if (changes_.size() == begin) continue;
      const double score = (more_ms_ - begin_ms) / std::min(static_cast<double>(timeline_.values[v].bytes), over);
      if (chosen_.empty() || score < best) {
        best = score;
        chosen_.assign(changes_.begin() + static_cast<std::ptrdiff_t>(begin), changes_.end());
      }
      changes_.resize(begin);
      more_ms_ = begin_ms;
    }
    for (const Rerun& each : chosen_) change(each.step, each.stage);
  }
  int32_t idle_across(int32_t stage) {
    const size_t count = candidates_.size();
    size_t at = static_cast<size_t>(draws_.below(static_cast<int64_t>(count)));
    for (size_t i = 0; i < count; ++i, at = at + 1 == count ? 0 : at + 1) {
      if (!idles_across(candidates_[at], stage)) continue;
      proposed_ += static_cast<int64_t>(i / 8);
      return candidates_[at];
    }
    proposed_ += static_cast<int64_t>(count / 8);
    return -1;
  }
  bool idles_across(int32_t v, int32_t stage) const {
    for (const RunSet::Span& span : set_.spans_of(v)) {
      if (set_.stage_of(span.first) < stage && stage <= set_.stage_of(span.last)) return true;
    }
    return false;
  }
  void drop(int32_t v, int32_t stage) {
    const std::vector<RunSet::Run>& uses = set_.uses_of(v);
    proposed_ += static_cast<int64_t>(uses.size());
    // Gaps: from a run or use to the next use of the same span.
    gaps_.clear();
    for (const RunSet::Span& span : set_.spans_of(v)) {
      RunSet::Run from = span.first;
      for (auto use = std::upper_bound(uses.begin(), uses.end(), span.first); use != uses.end() && *use <= span.last;
           ++use) {
        const int32_t a = set_.stage_of(from), b = set_.stage_of(*use);
        if (b > a && (stage < 0 || (a <= stage && stage <= b))) gaps_.emplace_back(from, *use);
        from = *use;
      }
    }
    if (gaps_.empty()) return;
    const auto [from, to] = gaps_[static_cast<size_t>(draws_.below(static_cast<int64_t>(gaps_.size())))];
    int32_t s = set_.stage_of(to);
    if (draws_.below(8) == 0) s -= draws_.below(s - set_.stage_of(from));
    add(timeline_.values[v].producer, s, 0);
  }

  // Runs the step again in the stage, with what it reads and is not there, or that stays for it.
  void add(int32_t step, int32_t stage, int depth) {
    if (depth > 60 || more_ms_ > most_ms_ || !set_.may_run(step, stage) || set_.runs(step, stage) ||
        changed(step, stage))
      return;
    change(step, stage);
    const RunSet::Run run = set_.run_of(step, stage);
    for (int32_t w : timeline_.steps[step].recompute_inputs) {
      const TimelineValue& value = timeline_.values[w];
      if (!value.recomputable || set_.is_there(w, run)) continue;
      if (draws_.below(100) < 60) add(value.producer, stage, depth + 1);
    }
  }

  // Takes a rerun back, and those that only served it. Its stage, -1: there is none.
  int32_t propose_removal() {
    if (reruns_.empty()) return -1;
    const Rerun rerun = reruns_[static_cast<size_t>(draws_.below(static_cast<int64_t>(reruns_.size())))];
    remove(rerun.step, rerun.stage, 0);
    return rerun.stage;
  }
  void remove(int32_t step, int32_t stage, int depth) {
    if (changed(step, stage)) return;
    change(step, stage);
    if (depth > 60 || draws_.below(100) < 20) return;
    for (int32_t w : timeline_.steps[step].recompute_inputs) {
      const int32_t producer = timeline_.values[w].producer;
      if (producer >= 0 && set_.runs(producer, stage) && serves_only(producer, stage, set_.run_of(step, stage)))
        remove(producer, stage, depth + 1);
    }
  }
  // Whether what a rerun makes is read by that one run and by no other.
  bool serves_only(int32_t step, int32_t stage, RunSet::Run reader) {
    const RunSet::Run run = set_.run_of(step, stage);
    for (int32_t v : timeline_.steps[step].recompute_outputs) {
      for (const RunSet::Span& span : set_.spans_of(v)) {
        if (span.first != run || span.last == run) continue;
        if (span.last != reader) return false;
        const std::vector<RunSet::Run>& uses = set_.uses_of(v);
        const auto first = std::upper_bound(uses.begin(), uses.end(), run);
        if (first == uses.end() || *first != reader) return false;
      }
    }
    return true;
  }

  void propose_shift() {
    if (reruns_.empty()) return;
    const Rerun rerun = reruns_[static_cast<size_t>(draws_.below(static_cast<int64_t>(reruns_.size())))];
    int32_t to = rerun.stage;
    const int32_t kind = draws_.below(3);
    if (kind == 0) {
      to += draws_.below(7) - 3;
    } else {  // to where another runs again
      const Rerun other = reruns_[static_cast<size_t>(draws_.below(static_cast<int64_t>(reruns_.size())))];
      to = kind == 1 ? other.stage : rerun.step + 1 + draws_.below(set_.steps() - rerun.step);
    }
    if (to == rerun.stage || to < 0 || to > set_.steps() || !set_.may_run(rerun.step, to) || set_.runs(rerun.step, to))
      return;
    if (draws_.below(2) == 0) {
      change(rerun.step, rerun.stage);
      add(rerun.step, to, 0);
      return;
    }
    remove(rerun.step, rerun.stage, 0);
    const std::vector<Rerun> moved = changes_;
    for (const Rerun& each : moved) {
      if (set_.may_run(each.step, to) && !set_.runs(each.step, to)) change(each.step, to);
    }
  }

  void list_reruns() {
    reruns_.clear();
    for (int32_t t = 0; t <= set_.steps(); ++t) {
      for (int32_t s : set_.reruns_in(t)) reruns_.push_back({s, t});
    }
  }
  void note_changes() {
    for (const Rerun& change : changes_) {
      if (set_.runs(change.step, change.stage)) {
        reruns_.push_back(change);
        continue;
      }
      const auto found = std::find_if(reruns_.begin(), reruns_.end(),
                                      [&](const Rerun& r) { return r.step == change.step && r.stage == change.stage; });
      if (found == reruns_.end()) continue;
      *found = reruns_.back();
      reruns_.pop_back();
    }
  }

  // What fits is better than what does not; of that, what is less above the budget.
  void note_if_better() {
    if (is_better(set_.excess(), set_.again_ms())) keep_best();
  }
  bool is_better(int64_t excess, double ms) const {
    return excess < best_excess_ || (excess == best_excess_ && ms < best_ms_ * (1 - 1e-12));
  }
  void keep_best() {
    best_ = reruns_;
    best_ms_ = set_.again_ms();
    best_excess_ = set_.excess();
  }
  void restore_best() { restore(best_); }
  void restore(std::vector<Rerun> reruns) {
    set_.clear();
    for (const Rerun& rerun : reruns) set_.toggle(rerun.step, rerun.stage);
    set_.settle();
    reruns_ = std::move(reruns);
  }

  const ValueTimeline& timeline_;
  RunSet set_;
  Draws draws_{0};
  std::vector<int32_t> candidates_;                       // values that may be let go
  double usual_ms_ = 1;                                   // of a rerun
  double first_price_ = 0, price_ = 0, temperature_ = 0;  // price: ms a byte and stage above the budget
  std::vector<Rerun> reruns_, best_, changes_, chosen_;
  size_t applied_ = 0;                // of the changes
  double more_ms_ = 0, most_ms_ = 0;  // of the changes; what may be of use
  double best_ms_ = 0;
  int64_t best_excess_ = 0;
  int fitted_ = 0;  // of the last changes
  int64_t proposed_ = 0;
  std::vector<std::pair<RunSet::Run, RunSet::Run>> gaps_;
};

// Two at once: one begins from the best so far, the other from no reruns at all, or, of runs that are known, from the best
// as well. Each round is twice as long as the one before: with more effort there are more rounds.
FoundRuns search_in_rounds(const ValueTimeline& timeline, std::array<RunSearch, 2>& searches, int64_t effort,
                           bool known) {
  const auto work = [&] { return searches[0].work() + searches[1].work(); };
  int64_t round = kLeastRound + kLeastRoundOfStep * static_cast<int64_t>(timeline.steps.size());
  for (uint64_t i = 0; work() + 2 * round <= effort || (known && i == 0); ++i, round *= 2) {
    for_each_in_parallel(2, [&](size_t k) { searches[k].cool(k == 1 || (known && i % 2 == 1), 2 * i + k, round); });
    searches[0].learn_from(searches[1]);
    searches[1].learn_from(searches[0]);
  }
  return searches[0].result();
}

}  // namespace

FoundRuns find_runs(const ValueTimeline& timeline, int64_t budget, int64_t effort) {
  const std::vector<int64_t> limits(timeline.steps.size() + 1, budget);
  std::array<RunSearch, 2> searches{RunSearch(timeline, limits), RunSearch(timeline, limits)};
  if (searches[0].is_done()) return searches[0].result();
  for (const EvictionRule rule : {EvictionRule::dtr, EvictionRule::dtr_eq, EvictionRule::ahead}) {
    if (const auto sequence = evict_as_it_runs(timeline, budget, rule, kMostAgain * timeline.compute_ms,
                                               std::max(effort / 4, kLeastOfRules)))
      searches[0].consider(*sequence);
  }
  searches[1].learn_from(searches[0]);
  return search_in_rounds(timeline, searches, effort, false);
}

FoundRuns improve_runs(const ValueTimeline& timeline, std::span<const int64_t> limits, const Sequence& start,
                       int64_t effort) {
  std::array<RunSearch, 2> searches{RunSearch(timeline, limits), RunSearch(timeline, limits)};
  if (searches[0].is_done()) return searches[0].result();
  for (RunSearch& search : searches) search.consider(start);
  return search_in_rounds(timeline, searches, effort, true);
}

}  // namespace plimsoll
