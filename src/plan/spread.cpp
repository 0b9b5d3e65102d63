// When copies start and when they must be complete.
#include <algorithm>

#include "plan/engines.h"
#include "plan/schedule.h"

#include "plan/simulate.h"

namespace plimsoll {
namespace {

// Which moves are `taken`, in the order of a step of theirs that is below `steps`; of one step as they come.
template <class Taken, class Step>
std::vector<int32_t> moves_by_step(const std::vector<ScheduledMove>& moves, size_t steps, const Taken& taken,
                                   const Step& step) {
  std::vector<int32_t> next(steps + 1, 0);  // by step: where its next move goes
  for (const ScheduledMove& move : moves) {
    if (taken(move)) ++next[static_cast<size_t>(step(move)) + 1];
  }
  for (size_t s = 1; s <= steps; ++s) next[s] += next[s - 1];
  std::vector<int32_t> order(next.back());
  for (size_t m = 0; m < moves.size(); ++m) {
    if (taken(moves[m])) order[next[step(moves[m])]++] = static_cast<int32_t>(m);
  }
  return order;
}

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

  // The first step of [begin, end) where more than `most` bytes are alive, else end. Here planning spends much of its
  // time: no branch but one for four steps.
  int32_t first_above(int32_t begin, int32_t end, int64_t most) const {
    const int64_t* live = schedule_.live.data();
    while (begin + 4 <= end && !any_above(live + begin, most)) begin += 4;
    while (begin < end && live[begin] <= most) ++begin;
    return begin;
  }
  // The last such step, else begin - 1.
  int32_t last_above(int32_t begin, int32_t end, int64_t most) const {
    const int64_t* live = schedule_.live.data();
    while (end - 4 >= begin && !any_above(live + end - 4, most)) end -= 4;
    while (end > begin && live[end - 1] <= most) --end;
    return end - 1;
  }
  static bool any_above(const int64_t* live, int64_t most) {
    return ((live[0] > most) | (live[1] > most) | (live[2] > most) | (live[3] > most)) != 0;
  }
  void add(int32_t begin, int32_t end, int64_t bytes) {
    int64_t* live = schedule_.live.data();
#pragma omp simd
    for (int32_t d = begin; d < end; ++d) live[d] += bytes;
  }

  std::vector<int32_t> sorted(bool out) const {
    return moves_by_step(
        schedule_.moves, starts_.size() + 1, [&](const ScheduledMove& move) { return move.out == out; },
        [&](const ScheduledMove& move) { return out ? move.after + 1 : count() - move.before; });
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
      if (residence.next >= 0) before = std::min(before, schedule_.residences[residence.next].first);
      const int64_t bytes = bytes_of(move);
      const int32_t begin = residence.last + 1;
      residence.last = first_above(begin, std::max(begin, before), limit_ - bytes) - 1;
      add(begin, residence.last + 1, bytes);
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
      if (residence.previous >= 0) first = std::max(first, schedule_.residences[residence.previous].last + 1);
      const int64_t bytes = bytes_of(move);
      const int32_t wanted = residence.first;
      residence.first = last_above(std::min(first, wanted), wanted, limit_ - bytes) + 1;
      add(residence.first, wanted, bytes);
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
  std::vector<double> starts_;  // by step, were there no copies to wait for; one more for the end
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
  // Of those that start after the same step, what is wanted first is copied first; by that step the engines order them.
  const std::vector<int32_t> order = moves_by_step(
      schedule.moves, step_ms.size() + 2, [](const ScheduledMove&) { return true; },
      [](const ScheduledMove& move) { return move.before; });
  std::vector<EngineMove> moves;
  moves.reserve(order.size());
  for (int32_t m : order) {
    const ScheduledMove& move = schedule.moves[m];
    const int64_t bytes = timeline.values[schedule.residences[move.residence].value].copied_bytes;
    moves.push_back({move.out, move.tier, bytes, move.after, move.before});
  }
  const EngineTimes times = run_engines(step_ms, moves, tiers);
  return {times.total_ms, times.stall_ms};
}

}  // namespace plimsoll
