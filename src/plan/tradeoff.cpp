#include "plan/tradeoff.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <optional>
#include <span>
#include <utility>

#include "plan/bounds.h"
#include "plan/simulate.h"

namespace plimsoll {
namespace {

constexpr size_t kStepsAChange = 150;  // so many changes are tried at once, for deep networks
constexpr size_t kMostRunsOfAll = 8;   // no more steps are scheduled than so many times those of the timeline,
constexpr size_t kFewSteps = 4000;     // or than so many

// Where a value lies when it is not in the arena; -1: nowhere, or in the slot of the state that it replaces.
int8_t tier_of(const ValueTimeline& timeline, const Decisions& decisions, size_t v) {
  const TimelineValue& value = timeline.values[v];
  if (value.before >= 0 && decisions.home[value.before] >= 0) return -1;
  if (decisions.home[v] >= 0) return decisions.home[v];
  for (int32_t g = 0; g < value.gap_count(); ++g) {
    const Choice choice = decisions.gaps[value.first_gap + g];
    if (choice >= kOffload) return static_cast<int8_t>(choice - kOffload);
  }
  return -1;
}

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
      : timeline_(timeline), tiers_(tiers), options_(options), decisions_(start), scheduler_(timeline) {}

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
    for (std::vector<uint32_t>& blocked : blocked_)
      blocked.assign(std::max(decisions_.gaps.size(), timeline_.values.size()), 0);
    std::vector<Change> all, changes;
    for (bool applied = true; schedule_.peak > target;) {
      if (effort_ > options_.effort) return false;
      if (applied) list_changes(target, all);
      if (all.empty()) return false;
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
  void block(const Change& change) {
    blocked_[static_cast<size_t>(change.kind)][change.index] |= uint32_t{1} << change.choice;
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
    spread_copies(timeline_, tiers_, schedule_.peak, trial_);
    points_.push_back(
        {decisions_, schedule_.peak, time_of(timeline_, tiers_, trial_).total_ms, !schedule_.moves.empty()});
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
  std::vector<Undo> undo_;
  std::vector<int32_t> above_;          // how many of the steps before this one are above the target
  std::vector<double> start_ms_;        // by step
  std::vector<int32_t> timeline_step_;  // by step: the last step of the timeline that has begun
  std::vector<double> copy_ms_;         // by engine: how long it is busy
  std::vector<int32_t> used_at_;        // by residence: its last use so far
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
    spread_copies(timeline_, tiers_, limit, schedule_);
    const double ms = time_of(timeline_, tiers_, schedule_).total_ms;
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
      spread_copies(timeline_, tiers_, INT64_MAX, schedule_);
      least_ms_[i] = time_of(timeline_, tiers_, schedule_).total_ms;
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
      std::vector<int64_t> filled = live;
      Decisions trial = best_.decisions;
      for (const Stretch& stretch : stretches) {
        const std::span<int64_t> between(filled.data() + stretch.from + 1,
                                         filled.data() + std::max(stretch.to, stretch.from + 1));
        if (!between.empty() && *std::ranges::max_element(between) + stretch.bytes > most) continue;
        for (int64_t& bytes : between) bytes += stretch.bytes;
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

TierRoom::TierRoom(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, const Decisions& decisions) {
  for (const TierInfo& tier : tiers) {
    if (tier.capacity.count > tiers[largest_].capacity.count) largest_ = static_cast<int8_t>(left_.size());
    left_.push_back(tier.capacity.count);
  }
  if (tiers.empty()) return;
  for (size_t v = 0; v < timeline.values.size(); ++v) {
    if (const int8_t tier = tier_of(timeline, decisions, v); tier >= 0) take(tier, timeline.values[v].bytes);
  }
}

int8_t TierRoom::first(int64_t bytes) const {
  for (int8_t t = 0; t < static_cast<int8_t>(left_.size()); ++t) {
    if (has(t, bytes)) return t;
  }
  return largest_;
}

bool TierRoom::overfull() const {
  return std::any_of(left_.begin(), left_.end(), [](int64_t left) { return left < 0; });
}

int64_t TierRoom::slot_bytes(int64_t bytes) { return align_up(Bytes{bytes}, kSlotAlignment).count; }

std::vector<LimitedPoint> improve_tradeoff(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers,
                                           const std::vector<TradeoffPoint>& points, const std::vector<int64_t>& limits,
                                           int tries, bool within_room, bool many_at_once) {
  return Ascent(timeline, tiers, points, within_room, many_at_once).run(limits, tries);
}

std::vector<TradeoffPoint> find_tradeoff(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers,
                                         const Decisions& start, const TradeoffOptions& options) {
  return Descent(timeline, tiers, start, options).run();
}

}  // namespace plimsoll
