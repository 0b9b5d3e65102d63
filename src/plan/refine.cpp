// Changes at random: refine_tradeoff.
#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "plan/next_use.h"
#include "plan/tier_room.h"
#include "plan/tradeoff.h"

namespace plimsoll {
namespace {

class Refinement {
 public:
  Refinement(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, int64_t least_limit,
             const RefinementOptions& options)
      : timeline_(timeline), tiers_(tiers), options_(options), scheduler_(timeline) {
    for (size_t v = 0; v < timeline.values.size(); ++v) {
      const TimelineValue& value = timeline.values[v];
      if (value.bytes < least_limit / kSmall) continue;
      for (int32_t g = 0; g < static_cast<int32_t>(value.uses.size()); ++g) {
        const int32_t from = g == 0 ? value.producer : value.uses[static_cast<size_t>(g) - 1];
        if (value.uses[static_cast<size_t>(g)] - from > 1) add_weighted(gaps_, value.first_gap + g, value.bytes);
      }
      if (options.states_may_move && value.producer < 0) add_weighted(outside_, static_cast<int32_t>(v), value.bytes);
    }
  }

  std::vector<LimitedPoint> run(const std::vector<LimitedPoint>& points, const std::vector<int64_t>& limits) {
    std::vector<LimitedPoint> result;
    LimitedPoint best{{}, 0, kAnyTime};
    size_t seen = 0;
    for (const int64_t limit : limits) {
      limit_ = limit;
      if (best.ms < kAnyTime) take_if_better({best.decisions, limit_, ms_of(best.decisions, best.ms)}, best);
      for (; seen < points.size() && points[seen].limit <= limit_; ++seen) take_if_better(points[seen], best);
      for (const Decisions& reruns : options_.reruns) copy_beside(reruns, kManyParts, best);
      if (best.ms == kAnyTime) continue;
      if (best.ms > timeline_.compute_ms * kRounding) {
        copy_beside(Decisions(best.decisions), kFewParts, best);
        anneal(best);
      }
      if (result.empty() || best.ms < result.back().ms) result.push_back(best);
    }
    return result;
  }

 private:
  static constexpr double kFewParts[] = {0, 0.3};
  static constexpr double kManyParts[] = {0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.7, 0.85};
  static constexpr int64_t kSmall = 2'000;  // part of the least limit
  static constexpr double kWarmth = 0.005;  // of the step's time
  static constexpr double kRounding = 1 + 1e-9;

  static void take_if_better(const LimitedPoint& point, LimitedPoint& best) {
    if (point.ms < best.ms) best = point;
  }

  // Copies anew, beside the reruns of `start` but so many parts of them, of those that cost most for their bytes.
  void copy_beside(const Decisions& start, std::span<const double> parts, LimitedPoint& best) {
    const std::vector<int32_t> reruns = dearest_reruns(start);
    size_t last = SIZE_MAX;
    for (const double part : parts) {
      const auto count = static_cast<size_t>(part * static_cast<double>(reruns.size()));
      if (count == std::exchange(last, count)) continue;
      Decisions base = start;
      for (size_t i = 0; i < count; ++i) base.gaps[reruns[i]] = kKeep;
      for (Decisions& decisions : copy_by_next_use(timeline_, tiers_, base, limit_, options_.states_may_move)) {
        const double ms = ms_of(decisions, best.ms);
        take_if_better({std::move(decisions), limit_, ms}, best);
      }
    }
  }
  // The gaps behind which something runs again, what costs most for its bytes first.
  std::vector<int32_t> dearest_reruns(const Decisions& decisions) const {
    std::vector<std::pair<double, int32_t>> found;
    for (size_t v = 0; v < timeline_.values.size(); ++v) {
      const TimelineValue& value = timeline_.values[v];
      if (value.producer < 0 || value.bytes == 0) continue;
      const double ms_a_byte = timeline_.steps[value.producer].ms / static_cast<double>(value.bytes);
      for (int32_t gap = value.first_gap; gap < value.first_gap + value.gap_count(); ++gap) {
        if (decisions.gaps[gap] == kDrop) found.emplace_back(-ms_a_byte, gap);
      }
    }
    std::ranges::sort(found);
    std::vector<int32_t> gaps;
    for (const auto& [ms_a_byte, gap] : found) gaps.push_back(gap);
    return gaps;
  }

  void anneal(LimitedPoint& best) {
    if (gaps_.items.empty()) return;
    Decisions now = best.decisions;
    double now_ms = best.ms;
    const double warmth = kWarmth * best.ms;
    for (int i = 0; i < options_.changes; ++i) {
      Decisions trial = now;
      change(trial);
      if (draw(4) == 0) change(trial);
      const double left = 1 - static_cast<double>(i) / options_.changes;
      const double drawn = std::log(std::uniform_real_distribution<double>(1e-9, 1)(random_));
      const double most = now_ms - warmth * left * left * drawn;
      const double ms = ms_of(trial, most);
      if (ms > most) continue;
      now = std::move(trial);
      now_ms = ms;
      take_if_better({now, limit_, ms}, best);
    }
  }

  size_t draw(size_t below) { return random_() % below; }

  // What is large is drawn more often, by the root of its bytes.
  struct Weighted {
    std::vector<int32_t> items;
    std::vector<double> sums;
  };
  static void add_weighted(Weighted& list, int32_t item, int64_t bytes) {
    list.items.push_back(item);
    list.sums.push_back((list.sums.empty() ? 0 : list.sums.back()) + std::sqrt(static_cast<double>(bytes)));
  }
  int32_t draw_weighted(const Weighted& list) {
    const double at = std::uniform_real_distribution<double>(0, list.sums.back())(random_);
    const auto found = std::ranges::upper_bound(list.sums, at);
    return list.items[std::min<size_t>(found - list.sums.begin(), list.items.size() - 1)];
  }

  void change(Decisions& trial) {
    if (!outside_.items.empty() && draw(3) == 0) {
      const int32_t v = draw_weighted(outside_);
      const TimelineValue& value = timeline_.values[v];
      const auto home = static_cast<int8_t>(static_cast<int>(draw(tiers_.size() + 1)) - 1);
      trial.home[v] = home;
      std::fill_n(trial.gaps.begin() + value.first_gap, value.gap_count(), home < 0 ? kKeep : kDrop);
      return;
    }
    const int32_t gap = draw_weighted(gaps_);
    const int32_t v = timeline_.value_of_gap[gap];
    const bool may_drop = timeline_.values[v].recomputable || trial.home[v] >= 0;
    const size_t choice = draw(tiers_.size() + 2);
    if (choice == 1 && !may_drop) return;
    const TimelineValue& value = timeline_.values[v];
    if (choice >= kOffload && value.at_end && !value.is_output) return;  // its home is where it must be in the end
    trial.gaps[gap] = static_cast<Choice>(choice);
  }

  double ms_of(const Decisions& decisions, double most_ms) {
    if (options_.within_room && TierRoom(timeline_, tiers_, decisions).overfull()) return kAnyTime;
    scheduler_.run_within(decisions, schedule_, SIZE_MAX, most_ms);
    if (schedule_.unrecoverable >= 0 || schedule_.peak > limit_ || schedule_.compute_ms > most_ms) return kAnyTime;
    return spread_in_turn(timeline_, tiers_, limit_, schedule_);
  }

  const ValueTimeline& timeline_;
  const std::vector<TierInfo>& tiers_;
  const RefinementOptions& options_;
  int64_t limit_ = 0;
  Scheduler scheduler_;
  Schedule schedule_;
  Weighted gaps_, outside_;
  std::mt19937_64 random_{1};
};

}  // namespace

std::vector<LimitedPoint> refine_tradeoff(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers,
                                          const std::vector<LimitedPoint>& points, const std::vector<int64_t>& limits,
                                          const RefinementOptions& options) {
  if (limits.empty()) return {};
  return Refinement(timeline, tiers, limits.front(), options).run(points, limits);
}

}  // namespace plimsoll
