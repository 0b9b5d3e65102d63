// The way up: improve_tradeoff.
#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <utility>

#include "plan/raised_ranges.h"
#include "plan/simulate.h"
#include "plan/tier_room.h"
#include "plan/tradeoff.h"

namespace plimsoll {
namespace {

// The largest of a range of numbers, told at once.
class RangeMaximum {
 public:
  explicit RangeMaximum(std::vector<int64_t> numbers) : levels_{std::move(numbers)} {
    for (size_t width = 1; 2 * width <= levels_[0].size(); width *= 2) {
      const std::vector<int64_t>& below = levels_.back();
      std::vector<int64_t> level(below.size() - width);
      for (size_t i = 0; i < level.size(); ++i) level[i] = std::max(below[i], below[i + width]);
      levels_.push_back(std::move(level));
    }
  }
  // Of [begin, end), which is not empty.
  int64_t largest(int32_t begin, int32_t end) const {
    const int k = std::bit_width(static_cast<uint32_t>(end - begin)) - 1;
    return std::max(levels_[k][begin], levels_[k][end - (1 << k)]);
  }

 private:
  std::vector<std::vector<int64_t>> levels_;  // levels_[k][i]: of [i, i + 2^k)
};

// Walks up again: with every more memory, what costs most for its bytes is kept again, or moved where it was rebuilt.
class Ascent {
 public:
  Ascent(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, const std::vector<TradeoffPoint>& points,
         bool within_room, bool many_at_once)
      : timeline_(timeline),
        tiers_(tiers),
        points_(points),
        within_room_(within_room || tiers.size() > 1),
        many_at_once_(many_at_once),
        scheduler_(timeline),
        least_ms_(points.size(), 0) {
    by_peak_.resize(points.size());
    for (size_t i = 0; i < points.size(); ++i) by_peak_[i] = i;
    std::stable_sort(by_peak_.begin(), by_peak_.end(),
                     [&](size_t a, size_t b) { return points[a].peak < points[b].peak; });
  }

  std::vector<LimitedPoint> run(const std::vector<int64_t>& limits, int tries) {
    std::vector<LimitedPoint> result;
    size_t seen = 0;
    for (int64_t limit : limits) {
      if (best_.ms != kNever && !consider(best_.decisions, limit)) {
        std::swap(schedule_, best_schedule_);  // no better, but that of the best within this limit
      }
      std::vector<size_t> fresh;
      for (; seen < by_peak_.size() && points_[by_peak_[seen]].peak <= limit; ++seen) fresh.push_back(by_peak_[seen]);
      // Those that copy gain by room: the best of all below are judged again.
      for (size_t i = 0; i < seen; ++i) {
        if (points_[by_peak_[i]].copies) fresh.push_back(by_peak_[i]);
      }
      std::stable_sort(fresh.begin(), fresh.end(), [&](size_t a, size_t b) { return points_[a].ms < points_[b].ms; });
      fresh.erase(std::unique(fresh.begin(), fresh.end()), fresh.end());
      if (fresh.size() > kPointsJudged) fresh.resize(kPointsJudged);
      for (size_t i : fresh) consider_point(i, limit);
      if (best_.ms == kNever) continue;
      if (many_at_once_) fill(limit);
      improve(limit, tries);
      if (result.empty() || best_.ms < result.back().ms) result.push_back(best_);
    }
    return result;
  }

 private:
  static constexpr double kNever = 1e300;
  static constexpr size_t kPointsJudged = 6;                        // of those below a limit
  static constexpr std::array<double, 3> kFilled = {1, 0.85, 0.7};  // of a limit
  static constexpr size_t kStepsKept = 4000;  // schedules of deeper networks are not kept: they are large

  // Whether these decisions are better within `limit` than the best so far; then they are the best.
  bool consider(const Decisions& decisions, int64_t limit) {
    if (within_room_ && TierRoom(timeline_, tiers_, decisions).overfull()) return false;
    scheduler_.run_within(decisions, schedule_, SIZE_MAX, best_.ms);
    return take_if_better(decisions, limit);
  }
  // Their schedule is known.
  bool take_if_better(const Decisions& decisions, int64_t limit) {
    if (schedule_.unrecoverable >= 0 || schedule_.peak > limit || schedule_.compute_ms > best_.ms) return false;
    const double ms = spread_in_turn(timeline_, tiers_, limit, schedule_);
    if (ms >= best_.ms) return false;
    best_ = {decisions, limit, ms};
    std::swap(schedule_, best_schedule_);
    return true;
  }
  // A point is considered again and again: with every limit its copies have more room.
  void consider_point(size_t i, int64_t limit) {
    const Decisions& decisions = points_[i].decisions;
    if (!points_[i].copies || timeline_.steps.size() > kStepsKept) {
      consider(decisions, limit);
      return;
    }
    if (least_ms_[i] >= best_.ms) return;
    auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const KeptSchedule& k) { return k.point == i; });
    if (kept == kept_.end()) {
      if (within_room_ && TierRoom(timeline_, tiers_, decisions).overfull()) return;
      if (kept_.size() < kPointsJudged) {
        kept_.emplace_back();
      } else {
        std::rotate(kept_.begin(), kept_.begin() + 1, kept_.end());  // the one that was asked for longest ago
      }
      kept = std::prev(kept_.end());
      kept->point = i;
      scheduler_.run(decisions, kept->schedule);
      schedule_ = kept->schedule;
      least_ms_[i] = spread_in_turn(timeline_, tiers_, INT64_MAX, schedule_);
      if (least_ms_[i] >= best_.ms) return;
    } else {
      std::rotate(kept, kept + 1, kept_.end());
      kept = std::prev(kept_.end());
    }
    schedule_ = kept->schedule;
    take_if_better(decisions, limit);
  }

  struct Toggle {
    int32_t gap = -1, value = -1;
    Choice choice = kKeep;
    double gain = 0;
  };

  // A gap that is not kept, from one step to another.
  struct Stretch {
    int32_t gap, from, to;
    int64_t bytes;
    double gain;  // of keeping it: ms a byte
  };
  // Those that gain most first.
  std::vector<Stretch> list_stretches(const Schedule& schedule) const {
    const Decisions& decisions = best_.decisions;
    const std::vector<int32_t> step_of = first_runs(schedule);
    std::vector<Stretch> list;
    for (size_t v = 0; v < timeline_.values.size(); ++v) {
      const TimelineValue& value = timeline_.values[v];
      if (value.bytes == 0) continue;
      for (int32_t g = 0; g < static_cast<int32_t>(value.uses.size()); ++g) {
        const Choice choice = decisions.gaps[value.first_gap + g];
        if (choice == kKeep) continue;
        double ms = value.recomputable ? timeline_.steps[value.producer].ms : 0;
        if (decisions.home[v] >= 0) ms = one_copy_ms(decisions.home[v], Move::Direction::in, value);
        if (choice >= kOffload) {
          const int tier = choice - kOffload;
          ms = one_copy_ms(tier, Move::Direction::out, value) + one_copy_ms(tier, Move::Direction::in, value);
        }
        const int32_t from = g == 0 ? (value.producer < 0 ? 0 : step_of[value.producer]) : step_of[value.uses[g - 1]];
        list.push_back(
            {value.first_gap + g, from, step_of[value.uses[g]], value.bytes, ms / static_cast<double>(value.bytes)});
      }
    }
    std::ranges::stable_sort(list, std::greater(), &Stretch::gain);
    return list;
  }
  double one_copy_ms(int tier, Move::Direction direction, const TimelineValue& value) const {
    return copy_ms(tiers_[tier], direction, {value.copied_bytes});
  }
  // By step of the timeline: where it is scheduled the first time.
  std::vector<int32_t> first_runs(const Schedule& schedule) const {
    std::vector<int32_t> step_of(timeline_.steps.size(), 0);
    for (int32_t d = 0; d < static_cast<int32_t>(schedule.steps.size()); ++d) {
      if (!schedule.steps[d].recompute) step_of[schedule.steps[d].step] = d;
    }
    return step_of;
  }

  // Keeps what costs most for its bytes, all at once, as far as there is room: single changes that gain nothing, where an
  // engine is busy with other copies, gain together. The copies that are left may want some of the room.
  void fill(int64_t limit) {
    scheduler_.run(best_.decisions, schedule_);  // copies not spread
    const std::vector<Stretch> stretches = list_stretches(schedule_);
    const std::vector<int64_t> live = live_of_first_runs(schedule_);
    for (double share : kFilled) {
      const int64_t most = static_cast<int64_t>(share * static_cast<double>(limit));
      RaisedRanges filled(live);
      Decisions trial = best_.decisions;
      for (const Stretch& stretch : stretches) {
        const size_t begin = static_cast<size_t>(stretch.from) + 1;
        const size_t end = static_cast<size_t>(std::max(stretch.to, stretch.from + 1));
        if (begin < end) {
          if (filled.largest(begin, end) + stretch.bytes > most) continue;
          filled.raise(begin, end, stretch.bytes);
        }
        trial.gaps[stretch.gap] = kKeep;
      }
      if (trial != best_.decisions && consider(trial, limit)) return;
    }
  }

  void improve(int64_t limit, int tries) {
    for (int round = 0; round < 3 && tries > 0; ++round) {
      std::vector<Toggle> toggles = list_toggles(limit);
      bool better = false;
      for (const Toggle& toggle : toggles) {
        if (tries-- <= 0) break;
        Decisions trial = best_.decisions;
        if (toggle.gap >= 0) {
          trial.gaps[toggle.gap] = toggle.choice;
        } else {
          trial.retain[toggle.value] = true;
        }
        better = consider(trial, limit) || better;
      }
      if (!better) break;
    }
  }

  // By step; of what runs again, that is left out.
  static std::vector<int64_t> live_of_first_runs(const Schedule& schedule) {
    std::vector<int64_t> live = schedule.live;
    for (size_t d = 0; d < live.size(); ++d) {
      if (schedule.steps[d].recompute) live[d] = 0;
    }
    return live;
  }

  std::vector<Toggle> list_toggles(int64_t limit) {
    const std::vector<int32_t> step_of = first_runs(best_schedule_);
    const RangeMaximum live(live_of_first_runs(best_schedule_));
    std::vector<Toggle> list;
    for (size_t v = 0; v < timeline_.values.size(); ++v) {
      const TimelineValue& value = timeline_.values[v];
      if (value.bytes == 0) continue;
      if (!best_.decisions.retain[v] && value.recomputable) {
        list.push_back({-1, static_cast<int32_t>(v), kKeep,
                        timeline_.steps[value.producer].ms / static_cast<double>(value.bytes)});
      }
      for (int32_t g = 0; g < static_cast<int32_t>(value.uses.size()); ++g) {
        const int32_t gap = value.first_gap + g;
        const Choice choice = best_.decisions.gaps[gap];
        if (choice == kKeep) continue;
        const double rebuild = value.recomputable ? timeline_.steps[value.producer].ms : 0;
        double copy = 0;
        for (size_t t = 0; t < tiers_.size(); ++t) {
          const double ms = copy_ms(tiers_[t], Move::Direction::out, {value.bytes}) +
                            copy_ms(tiers_[t], Move::Direction::in, {value.bytes});
          if (choice == kDrop && value.recomputable && best_.decisions.home[v] < 0) {
            list.push_back({gap, -1, static_cast<Choice>(kOffload + static_cast<int>(t)),
                            (rebuild - 0.2 * ms) / static_cast<double>(value.bytes)});
          }
          if (choice == static_cast<Choice>(kOffload + static_cast<int>(t))) copy = ms;
        }
        if (choice >= kOffload && value.recomputable) {
          list.push_back({gap, -1, kDrop, (0.5 * copy - rebuild) / static_cast<double>(value.bytes)});
        }
        // Kept, if there is room all the way.
        const int32_t from = g == 0 ? (value.producer < 0 ? 0 : step_of[value.producer]) : step_of[value.uses[g - 1]];
        const int32_t to = step_of[value.uses[g]];
        if (from + 1 >= to || live.largest(from + 1, to) + value.bytes <= limit)
          list.push_back(
              {gap, -1, kKeep, std::max({rebuild, 0.5 * copy, 1e-9}) * 2 / static_cast<double>(value.bytes)});
      }
    }
    std::stable_sort(list.begin(), list.end(), [](const Toggle& a, const Toggle& b) { return a.gain > b.gain; });
    return list;
  }

  const ValueTimeline& timeline_;
  const std::vector<TierInfo>& tiers_;
  const std::vector<TradeoffPoint>& points_;
  const bool within_room_, many_at_once_;
  Scheduler scheduler_;
  Schedule schedule_, best_schedule_;
  struct KeptSchedule {
    size_t point = 0;
    Schedule schedule;  // copies not spread
  };
  std::vector<KeptSchedule> kept_;  // of points, the last asked for last
  std::vector<double> least_ms_;    // by point: with room for all copies; 0: not known yet
  std::vector<size_t> by_peak_;
  LimitedPoint best_{{}, 0, kNever};
};

}  // namespace

std::vector<LimitedPoint> improve_tradeoff(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers,
                                           const std::vector<TradeoffPoint>& points, const std::vector<int64_t>& limits,
                                           int tries, bool within_room, bool many_at_once) {
  return Ascent(timeline, tiers, points, within_room, many_at_once).run(limits, tries);
}

}  // namespace plimsoll
