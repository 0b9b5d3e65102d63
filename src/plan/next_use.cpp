#include "plan/next_use.h"

#include <algorithm>
#include <tuple>

#include "plan/raised_ranges.h"
#include "plan/simulate.h"
#include "plan/tier_room.h"

namespace plimsoll {
namespace {

class NextUse {
 public:
  NextUse(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, bool states_may_move)
      : timeline_(timeline), tiers_(tiers), states_may_move_(states_may_move) {}

  std::vector<Decisions> run(const Decisions& decisions, int64_t limit) {
    base_ = decisions;
    limit_ = limit;
    keep_what_is_copied();
    Scheduler(timeline_).run(base_, schedule_);
    if (schedule_.unrecoverable >= 0) return {};
    list_stretches();
    find_starts();
    // Back as early as can be; then, since it is known what leaves, no earlier than the engine's turns ask for.
    std::vector<Decisions> found;
    choose(std::vector<int32_t>(stretches_.size(), 0));
    found.push_back(chosen());
    const bool waits = std::ranges::any_of(tiers_, &TierInfo::beside_compute);
    for (int round = 0; round < (waits ? kRounds : 1); ++round) {
      if (round > 0 && !go_through(found.back())) break;
      choose(latest_starts());
      Decisions other = chosen();
      if (std::ranges::find(found, other) != found.end()) break;
      found.push_back(std::move(other));
    }
    return found;
  }

 private:
  static constexpr int kRounds = 4;

  // What waits between two steps, for its value's next use.
  struct Stretch {
    int32_t value = -1, gap = -1;
    int32_t from = -1, to = 0;  // steps of the schedule; from -1: it is there from the start
    int32_t home = -1;          // the value that lies elsewhere between steps if this one leaves; -1: none does
    bool at_the_end = false;    // a state behind its last use, which is read first at `to`
    bool stays = true;
    int32_t gone = 0;  // while it leaves, it takes room until this step, by the times known so far
  };

  int32_t steps() const { return static_cast<int32_t>(schedule_.steps.size()); }

  void keep_what_is_copied() {
    for (size_t v = 0; v < timeline_.values.size(); ++v) {
      const TimelineValue& value = timeline_.values[v];
      const auto gaps = base_.gaps.begin() + value.first_gap;
      const bool comes_home = states_may_move_ && base_.home[v] >= 0;
      if (comes_home) base_.home[v] = -1;
      for (auto gap = gaps; gap != gaps + value.gap_count(); ++gap) {
        if (*gap >= kOffload || (comes_home && *gap == kDrop)) *gap = kKeep;
      }
    }
  }

  void list_stretches() {
    stretches_.clear();
    waiting_.assign(steps() + 1, 0);
    std::vector<int32_t> used_at, seen;  // by residence, by step
    for (const Residence& r : schedule_.residences) used_at.push_back(r.in >= 0 ? r.first : r.written);
    for (int32_t d = 0, now = -1; d < steps(); ++d) {
      if (!schedule_.steps[d].recompute) now = schedule_.steps[d].step;
      seen.push_back(now);
    }
    std::vector<int32_t> first_use(timeline_.values.size(), -1);
    for (int32_t d = 0; d < steps(); ++d) {
      const ScheduledStep& scheduled = schedule_.steps[d];
      const TimelineStep& step = timeline_.steps[scheduled.step];
      const size_t count = scheduled.recompute ? step.recompute_inputs.size() : step.inputs.size();
      for (size_t i = 0; i < count; ++i) {
        const int32_t r = schedule_.inputs[scheduled.first_input + i];
        if (used_at[r] < 0 && first_use[schedule_.residences[r].value] < 0)
          first_use[schedule_.residences[r].value] = d;
        add_stretch(r, used_at[r], d, seen);
        used_at[r] = d;
      }
    }
    for (size_t r = 0; r < schedule_.residences.size(); ++r) {
      const Residence& residence = schedule_.residences[r];
      const TimelineValue& value = timeline_.values[residence.value];
      if (value.state < 0 || value.is_output || !value.at_end || residence.last <= used_at[r]) continue;
      const int32_t home = value.before >= 0 ? value.before : residence.value;
      if (base_.home[home] >= 0 || !states_may_move_ || value.bytes == 0) continue;
      add_waiting(used_at[r] + 1, steps(), value.bytes);
      stretches_.push_back({.value = residence.value,
                            .from = used_at[r],
                            .to = first_use[home] >= 0 ? first_use[home] : steps(),
                            .home = home,
                            .at_the_end = true});
    }
    own_ = schedule_.live;
    int64_t waits = 0;
    for (int32_t d = 0; d < steps(); ++d) own_[d] -= waits += waiting_[d];
    std::ranges::stable_sort(
        stretches_, {}, [&](const Stretch& s) { return std::tuple(s.at_the_end ? steps() + s.to : s.to, -s.from); });
  }
  void add_waiting(int32_t begin, int32_t end, int64_t bytes) {
    waiting_[begin] += bytes;
    waiting_[end] -= bytes;
  }

  void add_stretch(int32_t r, int32_t from, int32_t to, const std::vector<int32_t>& seen) {
    const Residence& residence = schedule_.residences[r];
    const TimelineValue& value = timeline_.values[residence.value];
    if (to - from < 2 || value.bytes == 0 || (from >= 0 && schedule_.steps[from].recompute)) return;
    const bool from_start = from < 0;
    if (from_start && !states_may_move_ && base_.home[residence.value] < 0) return;
    const int32_t now = from_start ? -1 : seen[from];
    const auto g = std::upper_bound(value.uses.begin(), value.uses.end(), now) - value.uses.begin();
    add_waiting(from + 1, to, value.bytes);
    stretches_.push_back({.value = residence.value,
                          .gap = value.first_gap + static_cast<int32_t>(g),
                          .from = from,
                          .to = to,
                          .home = states_may_move_ && (from_start || value.state >= 0) ? residence.value : -1});
  }

  // Which of them stay, the nearest use first. `earliest`: by stretch, the step from which on it has its place when it is back.
  void choose(const std::vector<int32_t>& earliest) {
    RaisedRanges live(own_);
    const auto raise = [&](int32_t begin, int32_t end, int64_t bytes) {
      if (begin < end) live.raise(begin, end, bytes);
    };
    for (const Stretch& stretch : stretches_)
      raise(stretch.from + 1, stretch.gone, timeline_.values[stretch.value].bytes);
    leaves_home_.assign(timeline_.values.size(), false);
    for (size_t i = 0; i < stretches_.size(); ++i) {
      Stretch& stretch = stretches_[i];
      const int64_t bytes = timeline_.values[stretch.value].bytes;
      const int32_t begin = stretch.from + 1, end = stretch.at_the_end ? steps() : stretch.to;
      raise(begin, stretch.gone, -bytes);
      // From here on there is room for it.
      const auto back = static_cast<int32_t>(live.first_after_above(begin, end, limit_ - bytes));
      stretch.stays = back == begin && !(stretch.at_the_end && leaves_home_[stretch.home]);
      if (!stretch.stays && stretch.home >= 0) leaves_home_[stretch.home] = true;
      if (!stretch.stays) raise(begin, std::min(stretch.gone, back), bytes);
      if (!stretch.stays && stretch.at_the_end) continue;
      raise(stretch.stays ? begin : std::max(back, std::min(earliest[i], end)), end, bytes);
    }
  }

  // When steps start and what leaves is gone, with the waits that these decisions lead to.
  bool go_through(const Decisions& decisions) {
    Scheduler(timeline_).run(decisions, trial_);
    if (trial_.unrecoverable >= 0 || trial_.steps.size() != schedule_.steps.size()) return false;
    spread_in_turn(timeline_, tiers_, limit_, trial_);
    std::vector<EngineSpan> spans;
    const double ms = time_of(timeline_, tiers_, trial_, &spans).total_ms;
    for (const EngineSpan& span : spans) {
      if (span.engine == 0) starts_[span.index] = span.start_ms;
    }
    starts_.back() = ms;
    std::vector<std::vector<const Residence*>> leaving(timeline_.values.size());
    for (const Residence& r : trial_.residences) {
      if (r.out >= 0) leaving[r.value].push_back(&r);
    }
    for (Stretch& stretch : stretches_) {
      stretch.gone = 0;
      for (const Residence* r : leaving[stretch.value]) {
        if (r->first <= stretch.from && stretch.from <= r->last) stretch.gone = r->last + 1;
      }
    }
    return true;
  }

  void find_starts() {
    starts_.assign(1, 0);
    for (const ScheduledStep& step : schedule_.steps) starts_.push_back(starts_.back() + timeline_.steps[step.step].ms);
  }
  // At which step what comes back must start to, one copy after the other.
  std::vector<int32_t> latest_starts() const {
    std::vector<int32_t> found(stretches_.size(), 0);
    double next = starts_.back();
    for (size_t i = stretches_.size(); i-- > 0;) {
      const Stretch& stretch = stretches_[i];
      if (stretch.at_the_end) continue;
      const TimelineValue& value = timeline_.values[stretch.value];
      const bool comes = !stretch.stays || (stretch.from < 0 && leaves_home_[stretch.value]);
      next = std::min(next, starts_[stretch.to]);
      if (comes) next -= copy_ms(tiers_[0], Move::Direction::in, {value.copied_bytes});
      const auto step = std::upper_bound(starts_.begin(), starts_.end(), next) - starts_.begin() - 1;
      found[i] = static_cast<int32_t>(std::max<std::ptrdiff_t>(step, 0));
    }
    return found;
  }

  Decisions chosen() const {
    Decisions decisions = base_;
    TierRoom room(timeline_, tiers_, base_);
    const auto take = [&](int32_t v) {
      const int8_t tier = room.first(timeline_.values[v].bytes);
      room.take(tier, timeline_.values[v].bytes);
      return tier;
    };
    for (int32_t v = 0; v < static_cast<int32_t>(leaves_home_.size()); ++v) {
      if (!leaves_home_[v]) continue;
      const TimelineValue& value = timeline_.values[v];
      decisions.home[v] = take(v);
      decisions.gaps[value.first_gap + value.gap_count() - 1] = kDrop;
    }
    for (const Stretch& stretch : stretches_) {
      if (stretch.stays || stretch.at_the_end) continue;
      Choice& gap = decisions.gaps[stretch.gap];
      gap = decisions.home[stretch.value] >= 0 ? kDrop : static_cast<Choice>(kOffload + take(stretch.value));
    }
    return decisions;
  }

  const ValueTimeline& timeline_;
  const std::vector<TierInfo>& tiers_;
  const bool states_may_move_;
  Decisions base_;
  Schedule schedule_;
  int64_t limit_ = 0;
  std::vector<Stretch> stretches_;
  std::vector<int64_t> waiting_;   // by step: the bytes of stretches that begin there, less those that end
  std::vector<int64_t> own_;       // by step: what does not wait
  std::vector<bool> leaves_home_;  // by value: between steps it lies in a tier
  std::vector<double> starts_;     // by step, with no waits at first; one more for the end
  Schedule trial_;
};

}  // namespace

std::vector<Decisions> copy_by_next_use(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers,
                                        const Decisions& decisions, int64_t limit, bool states_may_move) {
  return NextUse(timeline, tiers, states_may_move).run(decisions, limit);
}

}  // namespace plimsoll
