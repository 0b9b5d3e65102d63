// Changes of a point at random: refine_point.
#include <algorithm>
#include <cmath>
#include <random>

#include "plan/tier_room.h"
#include "plan/tradeoff.h"

namespace plimsoll {
namespace {

class Refinement {
 public:
  Refinement(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, int64_t limit,
             const AscentOptions& options)
      : timeline_(timeline), tiers_(tiers), limit_(limit), options_(options), scheduler_(timeline) {
    for (size_t v = 0; v < timeline.values.size(); ++v) {
      const TimelineValue& value = timeline.values[v];
      if (value.bytes < limit / kSmall) continue;
      for (int32_t g = 0; g < static_cast<int32_t>(value.uses.size()); ++g) {
        const int32_t from = g == 0 ? value.producer : value.uses[static_cast<size_t>(g) - 1];
        if (value.uses[static_cast<size_t>(g)] - from > 1) add_weighted(gaps_, value.first_gap + g, value.bytes);
      }
      if (options.states_may_move && value.producer < 0) add_weighted(outside_, static_cast<int32_t>(v), value.bytes);
    }
  }

  LimitedPoint run(const LimitedPoint& start) {
    LimitedPoint best = start;
    if (gaps_.items.empty()) return best;
    Decisions now = start.decisions;
    double now_ms = start.ms;
    for (int i = 0; i < options_.changes; ++i) {
      Decisions trial = now;
      change(trial);
      if (draw(4) == 0) change(trial);
      const double left = 1 - static_cast<double>(i) / options_.changes;
      const double warmth = kWarmth * left * left * start.ms;
      const double most = now_ms - warmth * std::log(std::uniform_real_distribution<double>(1e-9, 1)(random_));
      const double ms = time_of_decisions(trial, most);
      if (ms > most) continue;
      now = std::move(trial);
      now_ms = ms;
      if (ms < best.ms) best = {now, limit_, ms};
    }
    return best;
  }

 private:
  static constexpr int64_t kSmall = 2'000;  // part of the limit
  static constexpr double kWarmth = 0.005;  // of the step's time

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
    trial.gaps[gap] = static_cast<Choice>(choice);
  }

  double time_of_decisions(const Decisions& decisions, double most_ms) {
    if (options_.within_room && TierRoom(timeline_, tiers_, decisions).overfull()) return kAnyTime;
    scheduler_.run_within(decisions, schedule_, SIZE_MAX, most_ms);
    if (schedule_.unrecoverable >= 0 || schedule_.peak > limit_ || schedule_.compute_ms > most_ms) return kAnyTime;
    spread_copies(timeline_, tiers_, limit_, schedule_);
    return time_of(timeline_, tiers_, schedule_).total_ms;
  }

  const ValueTimeline& timeline_;
  const std::vector<TierInfo>& tiers_;
  const int64_t limit_;
  const AscentOptions& options_;
  Scheduler scheduler_;
  Schedule schedule_;
  Weighted gaps_, outside_;
  std::mt19937_64 random_{1};
};

}  // namespace

LimitedPoint refine_point(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, const LimitedPoint& start,
                          const AscentOptions& options) {
  return Refinement(timeline, tiers, start.limit, options).run(start);
}

}  // namespace plimsoll
