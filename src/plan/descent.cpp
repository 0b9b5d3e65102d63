// The way down: find_tradeoff.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "plan/bounds.h"
#include "plan/repeats.h"
#include "plan/simulate.h"
#include "plan/tier_room.h"
#include "plan/tradeoff.h"

namespace plimsoll {
namespace {

constexpr size_t kStepsAChange = 150;  // so many changes are tried at once, for deep networks
constexpr size_t kMostRunsOfAll = 8;   // no more steps are scheduled than so many times those of the timeline,
constexpr size_t kFewSteps = 4000;     // or than so many
constexpr size_t kRepeatsFrom =
    2000;                          // steps: from here on a change that failed for some of equal values is left for all
constexpr int kFailuresOfAll = 2;  // of them
constexpr int kMostPutOff = 8;     // targets

// One change of the decisions.
struct Change {
  enum class Kind : uint8_t { gap, retain, home } kind = Kind::gap;
  int32_t index = 0;      // gap or value
  Choice choice = kDrop;  // of a gap; of a home: the tier
  double score = 0;       // cost a byte and step, the less the better
};

class Descent {
 public:
  Descent(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, const Decisions& start,
          const TradeoffOptions& options)
      : timeline_(timeline), tiers_(tiers), options_(options), decisions_(start), scheduler_(timeline) {
    if (timeline.steps.size() >= kRepeatsFrom) repeats_ = repeated_values(timeline);
  }

  std::vector<TradeoffPoint> run() {
    scheduler_.run(decisions_, schedule_);
    if (schedule_.unrecoverable >= 0) return {};
    keep_point();
    const double fraction = timeline_.steps.size() > 4000 ? 0.93 : timeline_.steps.size() > 1000 ? 0.97 : 0.985;
    double target = static_cast<double>(schedule_.peak);
    const int64_t least = least_live(timeline_, uses_tiers());
    while (schedule_.peak > least) {
      target = std::max(std::min(target, static_cast<double>(schedule_.peak)) * fraction, static_cast<double>(least));
      const int64_t before = schedule_.peak;
      if (!reach(static_cast<int64_t>(target))) {
        if (schedule_.peak < before) keep_point();
        break;
      }
      keep_point();
    }
    return std::move(points_);
  }

 private:
  bool uses_tiers() const {
    const bool allowed = options_.tiers.empty()
                             ? !tiers_.empty()
                             : std::find(options_.tiers.begin(), options_.tiers.end(), true) != options_.tiers.end();
    return allowed || std::any_of(decisions_.home.begin(), decisions_.home.end(), [](int8_t t) { return t >= 0; });
  }

  // Lets values go until no step has more than `target` bytes alive; false when that cannot be.
  bool reach(int64_t target) {
    unblock();
    bool some_put_off = put_off();
    std::vector<Change> all, changes;
    for (bool applied = true; schedule_.peak > target;) {
      if (effort_ > options_.effort) return false;
      if (applied) list_changes(target, all);
      if (all.empty()) {
        if (!std::exchange(some_put_off, false)) return false;
        unblock();
        applied = true;
        continue;
      }
      changes = all;
      // Several at once where there is much to do: those that fit side by side are taken in order of their score.
      const size_t batch =
          std::max<size_t>(1, std::min<size_t>(changes.size(), timeline_.steps.size() / kStepsAChange));
      size_t n = std::min(batch, changes.size());
      std::partial_sort(changes.begin(), changes.begin() + static_cast<std::ptrdiff_t>(n), changes.end(),
                        [](const Change& a, const Change& b) { return a.score < b.score; });
      n = those_with_room(changes, n);
      applied = false;
      for (size_t m = n; m > 0 && !applied; m /= 8) {
        changes.resize(m);
        applied = apply(changes, target);
        if (m > 1 && m < 8) m = 8;
      }
      if (applied) continue;
      // Rebuilt memory-centrically, what it is rebuilt from does not stay.
      applied = apply({changes[0]}, target, true);
      if (applied) continue;
      block(changes[0]);
      if (!repeats_.empty()) note_failure(repeated(changes[0]));
      std::erase_if(all, [&](const Change& change) { return is_blocked(change.kind, change.index, change.choice); });
    }
    return true;
  }

  // Of the first n, those that the tiers have room for side by side come first; how many. At least one.
  size_t those_with_room(std::vector<Change>& changes, size_t n) const {
    if (n < 2 || (tiers_.size() < 2 && !options_.within_room)) return n;
    TierRoom room(timeline_, tiers_, decisions_);
    size_t kept = 0;
    for (size_t i = 0; i < n; ++i) {
      const Change& change = changes[i];
      const bool home = change.kind == Change::Kind::home,
                 copied = home || (change.kind == Change::Kind::gap && change.choice >= kOffload);
      if (copied) {
        const int8_t tier = static_cast<int8_t>(home ? change.choice : change.choice - kOffload);
        const int64_t bytes = timeline_.values[home ? change.index : timeline_.value_of_gap[change.index]].bytes;
        if (kept > 0 && !room.has(tier, bytes)) continue;
        room.take(tier, bytes);
      }
      std::swap(changes[kept++], changes[i]);
    }
    return kept;
  }

  // Keeps the changes when they lessen what lies above the target; otherwise takes them back and remembers.
  bool apply(const std::vector<Change>& changes, int64_t target, bool memory_centric = false) {
    const double excess = excess_above(target);
    const int64_t peak = schedule_.peak;
    undo_.clear();
    for (const Change& change : changes) {
      if (memory_centric && (change.kind != Change::Kind::gap || change.choice != kDrop)) return false;
      set(change);
      if (memory_centric) release_sources(timeline_.value_of_gap[change.index], 40);
    }
    scheduler_.run_within(decisions_, trial_, most_steps(), options_.most_ms);
    effort_ += trial_.steps.size();
    bool good = trial_.unrecoverable < 0;
    if (good) {
      std::swap(schedule_, trial_);
      good = schedule_.peak <= peak && excess_above(target) < excess;
      if (!good) std::swap(schedule_, trial_);
    }
    if (good) return true;
    for (size_t i = undo_.size(); i-- > 0;) take_back(undo_[i]);
    return false;
  }

  // One change more does not lengthen the schedule by much: what multiplies recomputations is left for others, or
  // schedules become a hundred times as long as the training step, and trials of them as slow.
  size_t most_steps() const {
    const size_t all = timeline_.steps.size();
    return std::min(schedule_.steps.size() * 5 / 4 + all / 4 + kFewSteps / 8,
                    std::max(kMostRunsOfAll * all, kFewSteps));
  }

  // What a value is rebuilt from, as far as it is let go somewhere itself, does not stay when it was rebuilt.
  void release_sources(int32_t v, int depth) {
    if (depth == 0) return;
    for (int32_t w : timeline_.steps[timeline_.values[v].producer].recompute_inputs) {
      const TimelineValue& input = timeline_.values[w];
      if (!input.recomputable || !decisions_.retain[w]) continue;
      const auto gaps = decisions_.gaps.begin() + input.first_gap;
      if (std::none_of(gaps, gaps + input.gap_count(), [](Choice c) { return c != kKeep; })) continue;
      set({Change::Kind::retain, w});
      release_sources(w, depth - 1);
    }
  }

  double excess_above(int64_t target) const {
    double sum = 0;
    for (int64_t live : schedule_.live) sum += static_cast<double>(std::max<int64_t>(0, live - target));
    return sum;
  }

  struct Undo {
    Change change;
    int before = 0;
  };
  void set(const Change& change) {
    switch (change.kind) {
      case Change::Kind::gap:
        undo_.push_back({change, decisions_.gaps[change.index]});
        decisions_.gaps[change.index] = change.choice;
        break;
      case Change::Kind::retain:
        undo_.push_back({change, decisions_.retain[change.index]});
        decisions_.retain[change.index] = false;
        break;
      case Change::Kind::home: {
        const TimelineValue& value = timeline_.values[change.index];
        undo_.push_back({change, decisions_.home[change.index]});
        decisions_.home[change.index] = change.choice;
        // It lies outside from the start, so every gap may let it go without a copy.
        for (int32_t g = 0; g < value.gap_count(); ++g) {
          const int32_t gap = value.first_gap + g;
          undo_.push_back({{Change::Kind::gap, gap}, decisions_.gaps[gap]});
          decisions_.gaps[gap] = kDrop;
        }
        break;
      }
    }
  }
  void take_back(const Undo& undo) {
    switch (undo.change.kind) {
      case Change::Kind::gap: decisions_.gaps[undo.change.index] = static_cast<Choice>(undo.before); break;
      case Change::Kind::retain: decisions_.retain[undo.change.index] = undo.before != 0; break;
      case Change::Kind::home: decisions_.home[undo.change.index] = static_cast<int8_t>(undo.before); break;
    }
  }

  bool is_blocked(Change::Kind kind, int32_t index, Choice choice) const {
    const std::vector<uint32_t>& blocked = blocked_[static_cast<size_t>(kind)];
    return (blocked[index] >> choice & 1) != 0;
  }
  void unblock() {
    for (std::vector<uint32_t>& blocked : blocked_)
      blocked.assign(std::max(decisions_.gaps.size(), timeline_.values.size()), 0);
    failures_.clear();
  }
  void block(const Change& change) {
    blocked_[static_cast<size_t>(change.kind)][change.index] |= uint32_t{1} << change.choice;
  }

  // What is the same change in every one of equal blocks: its kind and choice, the class of its value, and which gap.
  using Repeated = std::tuple<Change::Kind, Choice, int32_t, int32_t>;
  struct PutOff {
    int targets = 0, targets_left = 0;
  };
  Repeated repeated(const Change& change) const {
    const bool is_gap = change.kind == Change::Kind::gap;
    const int32_t v = is_gap ? timeline_.value_of_gap[change.index] : change.index;
    return {change.kind, change.choice, repeats_[v], is_gap ? change.index - timeline_.values[v].first_gap : 0};
  }
  void note_failure(const Repeated& change) {
    if (++failures_[change] != kFailuresOfAll) return;
    block_equal(change);
    PutOff& off = put_off_[change];
    off.targets_left = off.targets = std::clamp(2 * off.targets, 1, kMostPutOff);
  }
  void block_equal(const Repeated& change) {
    const auto [kind, choice, of, gap] = change;
    for (int32_t v = 0; std::cmp_less(v, repeats_.size()); ++v) {
      if (repeats_[v] != of) continue;
      block({kind, kind == Change::Kind::gap ? timeline_.values[v].first_gap + gap : v, choice});
    }
  }

  // What failed for equal values mostly fails for the next targets, too: it waits, and twice as long each time that it fails again.
  // Says whether anything waits.
  bool put_off() {
    bool any = false;
    for (auto& [change, off] : put_off_) {
      if (off.targets_left == 0) continue;
      --off.targets_left;
      block_equal(change);
      any = true;
    }
    return any;
  }

  bool tier_allowed(size_t t) const {
    return options_.tiers.empty() || (t < options_.tiers.size() && options_.tiers[t]);
  }
  // Where no tier has room, any may be tried: slots that are not in use at the same time share their place.
  bool tier_offered(size_t t, int64_t bytes) const {
    if (options_.within_room && !room_->has(static_cast<int8_t>(t), bytes)) return false;
    return tier_allowed(t) &&
           (tiers_.size() < 2 || room_->has(static_cast<int8_t>(t), bytes) || !room_->has(room_->first(bytes), bytes));
  }

  // Every idle stretch of a residence across steps that are above the target, with the ways to end it.
  void list_changes(int64_t target, std::vector<Change>& changes) {
    const int32_t steps = static_cast<int32_t>(schedule_.steps.size());
    above_.assign(steps + 1, 0);
    for (int32_t d = 0; d < steps; ++d) above_[d + 1] = above_[d] + (schedule_.live[d] > target ? 1 : 0);
    start_ms_.assign(steps + 1, 0);
    for (int32_t d = 0; d < steps; ++d) start_ms_[d + 1] = start_ms_[d] + timeline_.steps[schedule_.steps[d].step].ms;
    timeline_step_.assign(steps, 0);
    for (int32_t d = 0, now = -1; d < steps; ++d) {
      if (!schedule_.steps[d].recompute) now = schedule_.steps[d].step;
      timeline_step_[d] = now;
    }
    copy_ms_.assign(2 * tiers_.size(), 0);
    for (const ScheduledMove& move : schedule_.moves) {
      const int64_t bytes = timeline_.values[schedule_.residences[move.residence].value].bytes;
      copy_ms_[2 * move.tier + (move.out ? 0 : 1)] += one_copy_ms(move.tier, move.out, bytes);
    }
    room_.emplace(timeline_, tiers_, decisions_);
    used_at_.assign(schedule_.residences.size(), -1);
    changes.clear();
    changes_ = &changes;
    for (size_t r = 0; r < schedule_.residences.size(); ++r) {
      const Residence& residence = schedule_.residences[r];
      used_at_[r] = residence.written >= 0                      ? residence.written
                    : residence.written < 0 && residence.in < 0 ? -1
                                                                : residence.first;
    }
    for (int32_t d = 0; d < steps; ++d) {
      const ScheduledStep& scheduled = schedule_.steps[d];
      const TimelineStep& step = timeline_.steps[scheduled.step];
      const size_t count = scheduled.recompute ? step.recompute_inputs.size() : step.inputs.size();
      for (size_t i = 0; i < count; ++i) {
        const int32_t r = schedule_.inputs[scheduled.first_input + i];
        consider(r, used_at_[r], d);
        used_at_[r] = d;
      }
    }
    // To the end: only what must be there then, and may have a home.
    for (size_t r = 0; r < schedule_.residences.size(); ++r) {
      if (schedule_.residences[r].last > used_at_[r]) consider(static_cast<int32_t>(r), used_at_[r], steps);
    }
  }

  double one_copy_ms(int8_t tier, bool out, int64_t bytes) const {
    return copy_ms(tiers_[tier], out ? Move::Direction::out : Move::Direction::in, {bytes});
  }

  // Between steps `from` and `to` the residence only waits.
  void consider(int32_t r, int32_t from, int32_t to) {
    if (to - from < 2) return;
    const int32_t over = above_[to] - above_[from + 1];
    if (over <= 0) return;
    const Residence& residence = schedule_.residences[r];
    const TimelineValue& value = timeline_.values[residence.value];
    if (value.bytes == 0) return;
    const double freed = static_cast<double>(value.bytes) * over;
    if (value.state >= 0 || (value.producer < 0 && decisions_.home[residence.value] < 0)) {
      consider_home(residence.value, freed, to - from);
      return;
    }
    if (value.at_end && to == static_cast<int32_t>(schedule_.steps.size())) return;
    // The gap of the timeline that this stretch lies in.
    const int32_t seen = from < 0 ? -1 : timeline_step_[from];
    const int32_t g =
        static_cast<int32_t>(std::upper_bound(value.uses.begin(), value.uses.end(), seen) - value.uses.begin());
    const int32_t gap = value.first_gap + g;
    const Choice now = decisions_.gaps[gap];
    const bool fetched_before = schedule_.residences[r].in >= 0;
    if (now != kKeep) {
      // It was rebuilt or fetched early and waits for its own use.
      if (decisions_.retain[residence.value] && !is_blocked(Change::Kind::retain, residence.value, 0)) {
        const double ms = value.recomputable && !fetched_before ? timeline_.steps[value.producer].ms : 0.2;
        changes_->push_back({Change::Kind::retain, residence.value, 0, (ms + 1e-6) * 4 / freed});
      }
      return;
    }
    const double idle = start_ms_[to] - start_ms_[from + 1];
    if (fetched_before || decisions_.home[residence.value] >= 0) {
      // A tier has it: it can be let go at no cost but a copy in.
      offer(gap, kDrop, copy_cost(schedule_.moves[std::max(residence.in, 0)].tier, value.bytes, false, idle), freed);
    } else if (options_.recompute && value.recomputable) {
      offer(
          gap, kDrop,
          rebuild_cost(residence.value, timeline_step_[std::min(to, static_cast<int32_t>(timeline_step_.size()) - 1)]),
          freed);
    }
    for (size_t t = 0; t < tiers_.size(); ++t) {
      if (!tier_offered(t, value.bytes) || fetched_before) continue;
      offer(gap, static_cast<Choice>(kOffload + static_cast<int>(t)),
            copy_cost(static_cast<int8_t>(t), value.bytes, true, idle), freed);
    }
  }

  void consider_home(int32_t v, double freed, int32_t steps) {
    const TimelineValue& value = timeline_.values[v];
    const int32_t owner = value.before >= 0 ? value.before : v;
    if (decisions_.home[owner] >= 0 || steps < 2) {
      return;  // it has a home, and is kept from one use to the next
    }
    if (value.state >= 0 && !options_.states_may_move) return;
    for (size_t t = 0; t < tiers_.size(); ++t) {
      if (!tier_offered(t, value.bytes) || is_blocked(Change::Kind::home, owner, static_cast<Choice>(t))) continue;
      const double uses = static_cast<double>(timeline_.values[owner].uses.size());
      const double ms =
          uses * copy_cost(static_cast<int8_t>(t), value.bytes, true, start_ms_.back() / std::max(uses, 1.0));
      changes_->push_back({Change::Kind::home, owner, static_cast<Choice>(t), (ms + 1e-6) / freed});
    }
  }

  void offer(int32_t gap, Choice choice, double ms, double freed) {
    if (!is_blocked(Change::Kind::gap, gap, choice))
      changes_->push_back({Change::Kind::gap, gap, choice, (ms + 1e-6) / freed});
  }

  // What a copy out and in costs: what it takes from compute, what does not fit the gap, and what the engine has no
  // time for.
  double copy_cost(int8_t tier, int64_t bytes, bool also_out, double idle) const {
    const double in = one_copy_ms(tier, false, bytes), out = also_out ? one_copy_ms(tier, true, bytes) : 0;
    const double total = start_ms_.back();
    double ms = tiers_[tier].compute_share * (in + out) + 0.02 * (in + out);
    ms += std::max(0.0, in + out - idle);
    // Out before the peak, in after it: the engines have no more time than that.
    const double turn = start_ms_[schedule_.peak_step];
    ms += std::min(in, std::max(0.0, copy_ms_[2 * tier + 1] + in - 0.9 * (total - turn)));
    ms += std::min(out, std::max(0.0, copy_ms_[2 * tier] + out - 0.9 * turn));
    return ms;
  }

  // Its producer, and what that needs and is not there at that step of the timeline.
  double rebuild_cost(int32_t v, int32_t when) const {
    double ms = 0;
    int32_t left = 12;
    add_rebuild(v, when, ms, left, 1.0);
    return ms;
  }
  void add_rebuild(int32_t v, int32_t when, double& ms, int32_t& left, double weight) const {
    if (--left < 0) return;
    const TimelineStep& step = timeline_.steps[timeline_.values[v].producer];
    ms += weight * step.ms;
    for (int32_t w : step.recompute_inputs) {
      const TimelineValue& input = timeline_.values[w];
      if (!input.recomputable) continue;
      const int32_t g =
          static_cast<int32_t>(std::lower_bound(input.uses.begin(), input.uses.end(), when) - input.uses.begin());
      if (decisions_.gaps[input.first_gap + g] == kDrop) {
        // Where it is wanted soon for itself, it is rebuilt anyway.
        add_rebuild(w, when, ms, left, g < static_cast<int32_t>(input.uses.size()) ? 0.25 * weight : weight);
      }
    }
  }

  void keep_point() {
    trial_ = schedule_;
    const double ms = spread_in_turn(timeline_, tiers_, schedule_.peak, trial_);
    points_.push_back({decisions_, schedule_.peak, ms, !schedule_.moves.empty()});
  }

  const ValueTimeline& timeline_;
  const std::vector<TierInfo>& tiers_;
  const TradeoffOptions& options_;
  Decisions decisions_;
  Scheduler scheduler_;
  Schedule schedule_, trial_;
  std::optional<TierRoom> room_;
  size_t effort_ = 0;
  std::vector<TradeoffPoint> points_;
  std::vector<Change>* changes_ = nullptr;        // that are listed
  std::array<std::vector<uint32_t>, 3> blocked_;  // by kind and index: a bit a choice
  std::vector<int32_t> repeats_;                  // by value: its class (repeats.h); empty: not looked at
  std::map<Repeated, int> failures_;              // below the target
  std::map<Repeated, PutOff> put_off_;
  std::vector<Undo> undo_;
  std::vector<int32_t> above_;          // how many of the steps before this one are above the target
  std::vector<double> start_ms_;        // by step
  std::vector<int32_t> timeline_step_;  // by step: the last step of the timeline that has begun
  std::vector<double> copy_ms_;         // by engine: how long it is busy
  std::vector<int32_t> used_at_;        // by residence: its last use so far
};

}  // namespace

std::vector<TradeoffPoint> find_tradeoff(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers,
                                         const Decisions& start, const TradeoffOptions& options) {
  return Descent(timeline, tiers, start, options).run();
}

}  // namespace plimsoll
