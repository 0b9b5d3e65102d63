// When copies start and when they must be complete.
#include <algorithm>

#include "plan/engines.h"
#include "plan/schedule.h"

#include "plan/simulate.h"

namespace plimsoll {
namespace {

class Spreader {
 public:
  Spreader(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, int64_t limit, Schedule& schedule,
           const std::vector<int32_t>* earliest)
      : timeline_(timeline), tiers_(tiers), limit_(limit), schedule_(schedule), earliest_(earliest) {
    starts_.reserve(schedule.steps.size() + 1);
    double now = 0;
    for (const ScheduledStep& step : schedule.steps) {
      starts_.push_back(now);
      now += timeline.steps[step.step].ms;
    }
    starts_.push_back(now);
    find_neighbours();
  }

  void run() {
    spread_out();
    spread_in();
    schedule_.peak = 0;
    for (size_t d = 0; d < schedule_.live.size(); ++d) {
      if (schedule_.live[d] <= schedule_.peak) continue;
      schedule_.peak = schedule_.live[d];
      schedule_.peak_step = static_cast<int32_t>(d);
    }
  }

 private:
  int32_t count() const { return static_cast<int32_t>(schedule_.steps.size()); }
  int64_t bytes_of(const ScheduledMove& move) const {
    return timeline_.values[schedule_.residences[move.residence].value].bytes;
  }
  double ms_of(const ScheduledMove& move) const {
    const int64_t bytes = timeline_.values[schedule_.residences[move.residence].value].copied_bytes;
    return copy_ms(tiers_[move.tier], move.out ? Move::Direction::out : Move::Direction::in, {bytes});
  }

  // A value's residences, one after the other; and the copy that put it into its slot.
  void find_neighbours() {
    const size_t residences = schedule_.residences.size();
    next_.assign(residences, -1);
    previous_.assign(residences, -1);
    std::vector<int32_t> last(timeline_.values.size(), -1);
    for (int32_t r = 0; r < static_cast<int32_t>(residences); ++r) {
      int32_t& previous = last[schedule_.residences[r].value];
      previous_[r] = previous;
      if (previous >= 0) next_[previous] = r;
      previous = r;
    }
  }

  std::vector<int32_t> sorted(bool out) const {
    std::vector<int32_t> list;
    for (int32_t m = 0; m < static_cast<int32_t>(schedule_.moves.size()); ++m) {
      if (schedule_.moves[m].out == out) list.push_back(m);
    }
    std::stable_sort(list.begin(), list.end(), [&](int32_t a, int32_t b) {
      return out ? schedule_.moves[a].after < schedule_.moves[b].after
                 : schedule_.moves[a].before > schedule_.moves[b].before;
    });
    return list;
  }

  void spread_out() {
    std::vector<double> free_at(tiers_.size(), 0);
    for (int32_t m : sorted(true)) {
      ScheduledMove& move = schedule_.moves[m];
      Residence& residence = schedule_.residences[move.residence];
      const double start = std::max(starts_[move.after + 1], free_at[move.tier]);
      const double end = start + ms_of(move);
      free_at[move.tier] = end;
      int32_t before = static_cast<int32_t>(std::lower_bound(starts_.begin(), starts_.end(), end) - starts_.begin());
      before = std::min(before, count());
      if (next_[move.residence] >= 0) {
        before = std::min(before, schedule_.residences[next_[move.residence]].first);
      }
      const int64_t bytes = bytes_of(move);
      for (int32_t d = residence.last + 1; d < before; ++d) {
        if (schedule_.live[d] + bytes > limit_) break;
        schedule_.live[d] += bytes;
        residence.last = d;
      }
      move.before = residence.last + 1;
    }
  }

  void spread_in() {
    std::vector<double> next_start(tiers_.size(), 1e300);
    for (int32_t m : sorted(false)) {
      ScheduledMove& move = schedule_.moves[m];
      Residence& residence = schedule_.residences[move.residence];
      const double start = std::min(starts_[move.before], next_start[move.tier]) - ms_of(move);
      // The last step that starts no later than the copy.
      int32_t first =
          static_cast<int32_t>(std::upper_bound(starts_.begin(), starts_.end(), start) - starts_.begin()) - 1;
      first = std::max(first, earliest_ == nullptr ? 0 : (*earliest_)[m]);
      if (const int32_t previous = previous_[move.residence]; previous >= 0) {
        first = std::max(first, schedule_.residences[previous].last + 1);
      }
      const int64_t bytes = bytes_of(move);
      while (residence.first > first && schedule_.live[residence.first - 1] + bytes <= limit_) {
        --residence.first;
        schedule_.live[residence.first] += bytes;
      }
      move.after = residence.first - 1;
      next_start[move.tier] = std::max(start, starts_[residence.first]);
      next_start[move.tier] = std::min(next_start[move.tier], starts_[move.before]);
    }
  }

  const ValueTimeline& timeline_;
  const std::vector<TierInfo>& tiers_;
  int64_t limit_;
  Schedule& schedule_;
  const std::vector<int32_t>* earliest_;
  std::vector<double> starts_;            // by step, were there no copies to wait for; one more for the end
  std::vector<int32_t> next_, previous_;  // by residence: of the same value
};

}  // namespace

void spread_copies(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, int64_t limit, Schedule& schedule,
                   const std::vector<int32_t>* earliest) {
  if (!schedule.moves.empty()) Spreader(timeline, tiers, limit, schedule, earliest).run();
}

ScheduleTime time_of(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, const Schedule& schedule) {
  if (schedule.moves.empty()) return {schedule.compute_ms, 0};
  std::vector<double> step_ms;
  step_ms.reserve(schedule.steps.size());
  for (const ScheduledStep& step : schedule.steps) step_ms.push_back(timeline.steps[step.step].ms);
  std::vector<EngineMove> moves;
  moves.reserve(schedule.moves.size());
  for (const ScheduledMove& move : schedule.moves) {
    const int64_t bytes = timeline.values[schedule.residences[move.residence].value].copied_bytes;
    moves.push_back({move.out, move.tier, bytes, move.after, move.before});
  }
  std::stable_sort(moves.begin(), moves.end(), [](const EngineMove& a, const EngineMove& b) {
    return a.after != b.after ? a.after < b.after : a.before < b.before;
  });
  const EngineTimes times = run_engines(step_ms, moves, tiers);
  return {times.total_ms, times.stall_ms};
}

}  // namespace plimsoll
