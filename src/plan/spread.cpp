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

// The same, going through the step as it will run: what leaves gives its bytes back when its copy is complete, what comes
// starts as soon as the engine and the room are there for it, in the order in which it is wanted, if it would be late else.
class SpreaderInTurn {
 public:
  SpreaderInTurn(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, int64_t limit, Schedule& schedule)
      : timeline_(timeline),
        tiers_(tiers),
        limit_(limit),
        schedule_(schedule),
        live_(schedule.live),
        steps_(static_cast<int32_t>(schedule.steps.size())),
        lines_(tiers.size()),
        out_free_at_(tiers.size(), 0) {
    starts_.reserve(schedule.steps.size() + 1);
    starts_.push_back(0);
    for (const ScheduledStep& step : schedule.steps) starts_.push_back(starts_.back() + timeline.steps[step.step].ms);
    const size_t count = schedule.steps.size() + 2;
    outs_ = moves_by_step(
        schedule.moves, count, [](const ScheduledMove& move) { return move.out; },
        [](const ScheduledMove& move) { return move.after + 1; });
    const std::vector<int32_t> ins = moves_by_step(
        schedule.moves, count, [](const ScheduledMove& move) { return !move.out; },
        [](const ScheduledMove& move) { return move.before; });
    for (int32_t m : ins) lines_[schedule.moves[m].tier].moves.push_back(m);
    for (Line& line : lines_) find_latest_starts(line);
    closing_.resize(count);
    for (int32_t m : outs_) closing_[residence_of(m).last + 1].push_back(m);
    complete_at_.assign(schedule.moves.size(), 0);
  }

  void run() {
    for (step_ = 0; step_ <= steps_; ++step_) {
      start_copies_out();
      end_copies_out();
      wait_for_room();
      for (Line& line : lines_) start_copies_in(line);
      for (size_t i = 0; i < arriving_.size();) {
        if (schedule_.moves[arriving_[i]].before > step_) {
          ++i;
          continue;
        }
        now_ = std::max(now_, complete_at_[arriving_[i]]);
        arriving_.erase(arriving_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (step_ < steps_) now_ += starts_[step_ + 1] - starts_[step_];
    }
    schedule_.live = std::move(live_);
    schedule_.peak = 0;
    for (int32_t d = 0; d < steps_; ++d) {
      if (schedule_.live[d] <= schedule_.peak) continue;
      schedule_.peak = schedule_.live[d];
      schedule_.peak_step = d;
    }
  }

 private:
  // What comes in from a tier, in the order in which it is wanted.
  struct Line {
    std::vector<int32_t> moves;
    std::vector<double> latest;  // by move: when it must start, if compute never waits
    size_t next = 0;
    double free_at = 0;
  };

  Residence& residence_of(int32_t m) { return schedule_.residences[schedule_.moves[m].residence]; }
  int64_t bytes_of(int32_t m) { return timeline_.values[residence_of(m).value].bytes; }
  double ms_of(int32_t m) {
    const ScheduledMove& move = schedule_.moves[m];
    const int64_t bytes = timeline_.values[residence_of(m).value].copied_bytes;
    return copy_ms(tiers_[move.tier], move.out ? Move::Direction::out : Move::Direction::in, {bytes});
  }

  void find_latest_starts(Line& line) {
    line.latest.resize(line.moves.size());
    double next = 1e300;
    for (size_t i = line.moves.size(); i-- > 0;) {
      next = std::min(next, starts_[schedule_.moves[line.moves[i]].before]) - ms_of(line.moves[i]);
      line.latest[i] = next;
    }
  }

  void start_copies_out() {
    for (; next_out_ < outs_.size() && schedule_.moves[outs_[next_out_]].after < step_; ++next_out_) {
      const int32_t m = outs_[next_out_];
      double& free_at = out_free_at_[schedule_.moves[m].tier];
      complete_at_[m] = free_at = std::max(now_, free_at) + ms_of(m);
    }
    for (int32_t m : closing_[step_]) {
      leaving_.push_back(m);
      leaving_bytes_ += bytes_of(m);
    }
  }
  void end_copies_out() {
    for (size_t i = 0; i < leaving_.size();) {
      if (complete_at_[leaving_[i]] <= now_) {
        end_copy_out(i);
      } else {
        ++i;
      }
    }
  }
  void end_copy_out(size_t i) {
    const int32_t m = leaving_[i];
    Residence& residence = residence_of(m);
    const int64_t bytes = bytes_of(m);
    for (int32_t d = residence.last + 1; d < step_; ++d) live_[d] += bytes;
    residence.last = step_ - 1;
    schedule_.moves[m].before = step_;
    leaving_bytes_ -= bytes;
    leaving_.erase(leaving_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void wait_for(size_t i) {
    now_ = std::max(now_, complete_at_[leaving_[i]]);
    end_copy_out(i);
  }

  // For what the step itself wants, for what left and is there anew, and at the end for all.
  void wait_for_room() {
    for (size_t i = 0; i < leaving_.size();) {
      const int32_t next = residence_of(leaving_[i]).next;
      if (next >= 0 && schedule_.residences[next].first <= step_) {
        wait_for(i);
      } else {
        ++i;
      }
    }
    while (!leaving_.empty() && (step_ == steps_ || live_[step_] + leaving_bytes_ > limit_)) {
      const auto first =
          std::ranges::min_element(leaving_, {}, [&](int32_t m) { return complete_at_[m]; }) - leaving_.begin();
      wait_for(static_cast<size_t>(first));
    }
    end_copies_out();
  }

  void start_copies_in(Line& line) {
    const double until = now_ + (step_ < steps_ ? starts_[step_ + 1] - starts_[step_] : 0);
    for (; line.next < line.moves.size(); ++line.next) {
      const int32_t m = line.moves[line.next];
      ScheduledMove& move = schedule_.moves[m];
      const bool is_wanted = move.before <= step_;
      if (!is_wanted && (line.free_at >= until || !may_start(m, line.latest[line.next]))) return;
      line.free_at = std::max(line.free_at, now_) + ms_of(m);
      const int64_t bytes = bytes_of(m);
      for (int32_t d = step_; d < move.before; ++d) live_[d] += bytes;
      complete_at_[m] = line.free_at;
      residence_of(m).first = std::min(step_, move.before);
      move.after = step_ - 1;
      arriving_.push_back(m);
    }
  }
  bool may_start(int32_t m, double latest) {
    if (latest >= starts_[step_ + 1]) return false;  // the next step is early enough
    const int32_t previous = residence_of(m).previous;
    if (previous >= 0 && schedule_.residences[previous].last >= step_) return false;
    const auto is_previous = [&](int32_t out) { return schedule_.moves[out].residence == previous; };
    if (std::ranges::any_of(leaving_, is_previous)) return false;
    const int64_t most = limit_ - bytes_of(m);
    if (live_[step_] + leaving_bytes_ > most) return false;
    for (int32_t d = step_ + 1; d < schedule_.moves[m].before; ++d) {
      if (live_[d] > most) return false;
    }
    return true;
  }

  const ValueTimeline& timeline_;
  const std::vector<TierInfo>& tiers_;
  const int64_t limit_;
  Schedule& schedule_;
  std::vector<int64_t> live_;
  const int32_t steps_;
  std::vector<double> starts_;  // by step, were there no copies to wait for; one more for the end
  std::vector<Line> lines_;     // by tier
  std::vector<int32_t> outs_;   // in the order in which they may start
  size_t next_out_ = 0;
  std::vector<std::vector<int32_t>> closing_;  // by step: copies out of what is of no more use from there on
  std::vector<int32_t> leaving_;               // of those, what is not complete
  int64_t leaving_bytes_ = 0;
  std::vector<double> out_free_at_, complete_at_;  // by tier, by move
  int32_t step_ = 0;
  std::vector<int32_t> arriving_;
  double now_ = 0;
};

}  // namespace

void spread_copies(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, int64_t limit, Schedule& schedule,
                   const std::vector<int32_t>* earliest) {
  if (!schedule.moves.empty()) Spreader(timeline, tiers, limit, schedule, earliest).run();
}

double spread_in_turn(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, int64_t limit,
                      Schedule& schedule) {
  if (schedule.moves.empty()) return schedule.compute_ms;
  if (std::ranges::none_of(tiers, &TierInfo::beside_compute)) {
    spread_copies(timeline, tiers, limit, schedule);
    return time_of(timeline, tiers, schedule).total_ms;
  }
  SpreaderInTurn(timeline, tiers, limit, schedule).run();
  return time_of(timeline, tiers, schedule).total_ms;
}

ScheduleTime time_of(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, const Schedule& schedule,
                     std::vector<EngineSpan>* spans) {
  if (schedule.moves.empty() && spans == nullptr) return {schedule.compute_ms, 0};
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
  const EngineTimes times = run_engines(step_ms, moves, tiers, spans);
  return {times.total_ms, times.stall_ms};
}

}  // namespace plimsoll
