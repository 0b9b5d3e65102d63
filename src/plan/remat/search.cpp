#include "plan/remat/search.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/parallel.h"
#include "plan/remat/changes.h"
#include "plan/remat/evict.h"

namespace plimsoll {
namespace {

constexpr double kMostAgain = 4;               // times the step, of a start
constexpr int64_t kLeastOfRules = 20'000'000;  // looks of each of the rules
constexpr int64_t kEffortOfRelaxation = 50'000'000;
constexpr size_t kStepsFromNothing = 800;
constexpr int64_t kLeastRound = 100'000, kLeastRoundOfStep = 4'000;

class RunSearch {
 public:
  RunSearch(const ValueTimeline& timeline, std::span<const int64_t> limits, double enough_ms = 0)
      : set_(timeline, 0), changes_(timeline, set_), enough_ms_(enough_ms) {
    set_.set_limits(limits);
    double ms = 0, squares = 0;
    for (const TimelineStep& step : timeline.steps) {
      ms += step.ms;
      squares += step.ms * step.ms;
    }
    usual_ms_ = ms > 0 ? squares / ms : 1;
    first_price_ = 0.02 * ms / std::max(1.0, static_cast<double>(*std::max_element(limits.begin(), limits.end())));
    keep_best();
  }

  int64_t work() const { return set_.work() + changes_.work(); }
  bool fits() const { return best_excess_ == 0; }
  bool is_done() const { return !changes_.has_candidates() || (fits() && (best_.empty() || best_ms_ <= enough_ms_)); }

  // Considers a sequence as it is.
  void consider(const Sequence& sequence) {
    set_.take(sequence);
    changes_.list_reruns();
    note_if_better();
  }

  // Cools down once, from the best so far or from no reruns at all. `warmth`: of what usually runs again.
  void cool(bool from_best, double warmth, uint64_t seed, int64_t effort) {
    changes_.draw_from(seed);
    from_best ? restore_best() : changes_.restore({});
    price_ = first_price_;
    const double hot = usual_ms_ * warmth, cold = usual_ms_ * 0.001;
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
    Draws& draws = changes_.draws();
    const int32_t kind = draws.below(100);
    const bool over = set_.excess() > 0;
    const double before = energy();
    // The energy that the change may add is drawn first. What runs again costs more than all of the excess may be worth:
    // then it need not be looked at.
    const double allowed = -temperature_ * std::log(1 - draws.share());
    changes_.begin(allowed + price_ * static_cast<double>(set_.excess()));
    if (over ? kind < 50 : kind < 10) {
      changes_.propose_drop(-1);
    } else if (kind < 60) {
      changes_.propose_removal();
    } else if (kind < 75) {
      changes_.propose_shift();
    } else if (kind < 90) {
      const int32_t stage = changes_.propose_removal();
      changes_.propose_drop(stage);
      if (draws.below(4) == 0) changes_.propose_drop(stage);
    } else {
      changes_.propose_exchange();
    }
    if (changes_.none()) return;
    if (changes_.pending() && !changes_.too_dear()) changes_.apply();
    if (changes_.pending() || energy() - before > allowed) {
      changes_.take_back();
    } else {
      changes_.accept();
      note_if_better();
    }
    fitted_ += set_.excess() == 0 ? 1 : 0;
  }

  // What fits is better than what does not; of that, what is less above the budget.
  void note_if_better() {
    if (is_better(set_.excess(), set_.again_ms())) keep_best();
  }
  bool is_better(int64_t excess, double ms) const {
    return excess < best_excess_ || (excess == best_excess_ && ms < best_ms_ * (1 - 1e-12));
  }
  void keep_best() {
    best_ = changes_.reruns();
    best_ms_ = set_.again_ms();
    best_excess_ = set_.excess();
  }
  void restore_best() { changes_.restore(best_); }

  RunSet set_;
  RunChanges changes_;
  const double enough_ms_;
  double usual_ms_ = 1;                                   // of a rerun
  double first_price_ = 0, price_ = 0, temperature_ = 0;  // price: ms a byte and stage above the budget
  std::vector<Rerun> best_;
  double best_ms_ = 0;
  int64_t best_excess_ = 0;
  int fitted_ = 0;  // of the last changes
};

// Two at once: one begins from the best so far, the other from no reruns at all, or, of runs that are known, from the best
// as well. Where there are many steps, no search comes from nothing to what a rule has found: both begin from that. Each round is twice as long as the one before: with more effort there are more rounds.
FoundRuns search_in_rounds(const ValueTimeline& timeline, std::array<RunSearch, 2>& searches, int64_t effort,
                           bool known) {
  const auto work = [&] { return searches[0].work() + searches[1].work(); };
  int64_t round = kLeastRound + kLeastRoundOfStep * static_cast<int64_t>(timeline.steps.size());
  for (uint64_t i = 0; work() + 2 * round <= effort || (known && i == 0); ++i, round *= 2) {
    if (searches[0].is_done()) break;
    const bool far = timeline.steps.size() > kStepsFromNothing && (known || searches[0].fits());
    for_each_in_parallel(2, [&](size_t k) {
      const bool from_best = far || k == 1 || (known && i % 2 == 1);
      const double warmth = far ? (k == 0 ? 0.03 : 0.01) : from_best ? 0.1 : 0.3;
      searches[k].cool(from_best, warmth, 2 * i + k, round);
    });
    searches[0].learn_from(searches[1]);
    searches[1].learn_from(searches[0]);
  }
  return searches[0].result();
}

}  // namespace

FoundRuns find_runs(const ValueTimeline& timeline, int64_t budget, int64_t effort, std::span<const Sequence> starts,
                    double enough_ms) {
  const std::vector<int64_t> limits(timeline.steps.size() + 1, budget);
  std::array<RunSearch, 2> searches{RunSearch(timeline, limits, enough_ms), RunSearch(timeline, limits, enough_ms)};
  if (searches[0].is_done()) return searches[0].result();
  for (const Sequence& sequence : starts) searches[0].consider(sequence);
  for (const EvictionRule rule : {EvictionRule::dtr, EvictionRule::dtr_eq, EvictionRule::ahead}) {
    if (searches[0].is_done()) return searches[0].result();
    if (const auto sequence = evict_as_it_runs(timeline, budget, rule, kMostAgain * timeline.compute_ms,
                                               std::max(effort / 4, kLeastOfRules)))
      searches[0].consider(*sequence);
  }
  if (effort >= kEffortOfRelaxation && !searches[0].is_done()) {
    for (const int32_t moments : {2, 3, 4, 5, 6}) {
      const auto relaxed = relax_presence(timeline, budget, moments, 0);
      if (!relaxed) break;
      if (const auto sequence =
              evict_as_it_runs(timeline, budget, EvictionRule::relaxed, kMostAgain * timeline.compute_ms,
                               std::max(effort / 4, kLeastOfRules), &*relaxed))
        searches[0].consider(*sequence);
    }
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
