#include "plan/tradeoff.h"

#include <algorithm>
#include <cmath>

#include "plimsoll/simulate.h"

namespace plimsoll {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

// One change of the decisions.
struct Change {
  enum class Kind : uint8_t { gap, retain, home } kind = Kind::gap;
  int32_t index = 0;       // gap or value
  Choice choice = kDrop;   // of a gap; of a home: the tier
  double score = 0;        // cost a byte and step, the less the better
};

class Descent {
 public:
  Descent(const Frame& frame, const std::vector<TierInfo>& tiers, const Decisions& start, const TradeoffOptions& options)
      : frame_(frame), tiers_(tiers), options_(options), decisions_(start), scheduler_(frame) {}

  std::vector<TradeoffPoint> run() {
    scheduler_.run(decisions_, schedule_);
    if (schedule_.blame >= 0) return {};
    keep_point();
    const double fraction = frame_.steps.size() > 4000 ? 0.93 : frame_.steps.size() > 1000 ? 0.97 : 0.985;
    double target = static_cast<double>(schedule_.peak);
    while (true) {
      target = std::min(target, static_cast<double>(schedule_.peak)) * fraction;
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
  // Lets values go until no step has more than `target` bytes alive; false when that cannot be.
  bool reach(int64_t target) {
    blocked_.clear();
    while (schedule_.peak > target) {
      std::vector<Change> changes = list_changes(target);
      if (changes.empty()) return false;
      // Several at once where there is much to do: those that fit side by side are taken in order of their score.
      const size_t batch = std::max<size_t>(1, std::min<size_t>(changes.size(), frame_.steps.size() / 1500));
      const size_t n = std::min(batch, changes.size());
      std::partial_sort(changes.begin(), changes.begin() + static_cast<std::ptrdiff_t>(n), changes.end(),
                        [](const Change& a, const Change& b) { return a.score < b.score; });
      changes.resize(n);
      if (!apply(changes, target) && n > 1) apply({changes[0]}, target);
    }
    return true;
  }

  // Keeps the changes when they lessen what lies above the target; otherwise takes them back and remembers.
  bool apply(const std::vector<Change>& changes, int64_t target) {
    const double excess = excess_above(target);
    const int64_t peak = schedule_.peak;
    undo_.clear();
    for (const Change& change : changes) set(change);
    scheduler_.run(decisions_, trial_);
    bool good = trial_.blame < 0;
    if (good) {
      std::swap(schedule_, trial_);
      good = schedule_.peak <= peak && excess_above(target) < excess;
      if (!good) std::swap(schedule_, trial_);
    }
    if (good) return true;
    for (size_t i = undo_.size(); i-- > 0;) take_back(undo_[i]);
    if (changes.size() == 1) blocked_.push_back(changes[0]);
    return false;
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
        undo_.push_back({change, decisions_.gaps[at(change.index)]});
        decisions_.gaps[at(change.index)] = change.choice;
        break;
      case Change::Kind::retain:
        undo_.push_back({change, decisions_.retain[at(change.index)]});
        decisions_.retain[at(change.index)] = false;
        break;
      case Change::Kind::home: {
        const FrameValue& value = frame_.values[at(change.index)];
        undo_.push_back({change, decisions_.home[at(change.index)]});
        decisions_.home[at(change.index)] = change.choice;
        // It lies outside from the start, so every gap may let it go without a copy.
        for (int32_t g = 0; g < value.gap_count(); ++g) {
          const int32_t gap = value.first_gap + g;
          undo_.push_back({{Change::Kind::gap, gap}, decisions_.gaps[at(gap)]});
          decisions_.gaps[at(gap)] = kDrop;
        }
        break;
      }
    }
  }
  void take_back(const Undo& undo) {
    switch (undo.change.kind) {
      case Change::Kind::gap: decisions_.gaps[at(undo.change.index)] = static_cast<Choice>(undo.before); break;
      case Change::Kind::retain: decisions_.retain[at(undo.change.index)] = undo.before != 0; break;
      case Change::Kind::home: decisions_.home[at(undo.change.index)] = static_cast<int8_t>(undo.before); break;
    }
  }

  bool is_blocked(Change::Kind kind, int32_t index, Choice choice) const {
    return std::any_of(blocked_.begin(), blocked_.end(), [&](const Change& c) {
      return c.kind == kind && c.index == index && c.choice == choice;
    });
  }

  bool tier_allowed(size_t t) const { return options_.tiers.empty() || (t < options_.tiers.size() && options_.tiers[t]); }

  // Every idle stretch of a residence across steps that are above the target, with the ways to end it.
  std::vector<Change> list_changes(int64_t target) {
    const int32_t steps = static_cast<int32_t>(schedule_.steps.size());
    above_.assign(at(steps) + 1, 0);
    for (int32_t d = 0; d < steps; ++d) above_[at(d + 1)] = above_[at(d)] + (schedule_.live[at(d)] > target ? 1 : 0);
    start_ms_.assign(at(steps) + 1, 0);
    for (int32_t d = 0; d < steps; ++d) start_ms_[at(d + 1)] = start_ms_[at(d)] + frame_.steps[at(schedule_.steps[at(d)].step)].ms;
    frame_step_.assign(at(steps), 0);
    for (int32_t d = 0, now = -1; d < steps; ++d) {
      if (!schedule_.steps[at(d)].recompute) now = schedule_.steps[at(d)].step;
      frame_step_[at(d)] = now;
    }
    copy_ms_.assign(2 * tiers_.size(), 0);
    for (const ScheduledMove& move : schedule_.moves) {
      const int64_t bytes = frame_.values[at(schedule_.residences[at(move.residence)].value)].bytes;
      copy_ms_[2 * at(move.tier) + (move.out ? 0 : 1)] += one_copy_ms(move.tier, move.out, bytes);
    }
    used_at_.assign(schedule_.residences.size(), -1);
    changes_.clear();
    for (size_t r = 0; r < schedule_.residences.size(); ++r) {
      const Residence& residence = schedule_.residences[r];
      used_at_[r] = residence.written >= 0 ? residence.written : residence.written < 0 && residence.in < 0 ? -1 : residence.first;
    }
    for (int32_t d = 0; d < steps; ++d) {
      const ScheduledStep& scheduled = schedule_.steps[at(d)];
      const FrameStep& step = frame_.steps[at(scheduled.step)];
      const size_t count = scheduled.recompute ? step.recompute_inputs.size() : step.inputs.size();
      for (size_t i = 0; i < count; ++i) {
        const int32_t r = schedule_.inputs[at(scheduled.first_input) + i];
        consider(r, used_at_[at(r)], d);
        used_at_[at(r)] = d;
      }
    }
    // To the end: only what must be there then, and may have a home.
    for (size_t r = 0; r < schedule_.residences.size(); ++r) {
      if (schedule_.residences[r].last > used_at_[r]) consider(static_cast<int32_t>(r), used_at_[r], steps);
    }
    return std::move(changes_);
  }

  double one_copy_ms(int8_t tier, bool out, int64_t bytes) const {
    return copy_ms(tiers_[at(tier)], out ? Move::Direction::out : Move::Direction::in, {bytes});
  }

  // Between steps `from` and `to` the residence only waits.
  void consider(int32_t r, int32_t from, int32_t to) {
    if (to - from < 2) return;
    const int32_t over = above_[at(to)] - above_[at(from + 1)];
    if (over <= 0) return;
    const Residence& residence = schedule_.residences[at(r)];
    const FrameValue& value = frame_.values[at(residence.value)];
    if (value.bytes == 0) return;
    const double freed = static_cast<double>(value.bytes) * over;
    if (value.state >= 0 || (value.producer < 0 && decisions_.home[at(residence.value)] < 0)) {
      consider_home(residence.value, freed, to - from);
      return;
    }
    if (value.at_end && to == static_cast<int32_t>(schedule_.steps.size())) return;
    // The gap of the frame that this stretch lies in.
    const int32_t seen = from < 0 ? -1 : frame_step_[at(from)];
    const int32_t g = static_cast<int32_t>(std::upper_bound(value.uses.begin(), value.uses.end(), seen) - value.uses.begin());
    const int32_t gap = value.first_gap + g;
    const Choice now = decisions_.gaps[at(gap)];
    const bool fetched_before = schedule_.residences[at(r)].in >= 0;
    if (now != kKeep) {
      // It was rebuilt or fetched early and waits for its own use.
      if (decisions_.retain[at(residence.value)] && !is_blocked(Change::Kind::retain, residence.value, 0)) {
        const double ms = value.recomputable && !fetched_before ? frame_.steps[at(value.producer)].ms : 0.2;
        changes_.push_back({Change::Kind::retain, residence.value, 0, (ms + 1e-6) * 4 / freed});
      }
      return;
    }
    const double idle = start_ms_[at(to)] - start_ms_[at(from + 1)];
    if (fetched_before || decisions_.home[at(residence.value)] >= 0) {
      // A tier has it: it can be let go at no cost but a copy in.
      offer(gap, kDrop, copy_cost(schedule_.moves[at(std::max(residence.in, 0))].tier, value.bytes, false, idle), freed);
    } else if (options_.recompute && value.recomputable) {
      offer(gap, kDrop, rebuild_cost(residence.value, frame_step_[at(std::min(to, static_cast<int32_t>(frame_step_.size()) - 1))]), freed);
    }
    for (size_t t = 0; t < tiers_.size(); ++t) {
      if (!tier_allowed(t) || fetched_before) continue;
      offer(gap, static_cast<Choice>(kOffload + static_cast<int>(t)), copy_cost(static_cast<int8_t>(t), value.bytes, true, idle), freed);
    }
  }

  void consider_home(int32_t v, double freed, int32_t steps) {
    const FrameValue& value = frame_.values[at(v)];
    const int32_t owner = value.before >= 0 ? value.before : v;
    if (decisions_.home[at(owner)] >= 0 || steps < 2) {
      // It has a home and is kept from one use to the next.
      return;
    }
    for (size_t t = 0; t < tiers_.size(); ++t) {
      if (!tier_allowed(t) || is_blocked(Change::Kind::home, owner, static_cast<Choice>(t))) continue;
      const double uses = static_cast<double>(frame_.values[at(owner)].uses.size());
      const double ms = uses * copy_cost(static_cast<int8_t>(t), value.bytes, true, start_ms_.back() / std::max(uses, 1.0));
      changes_.push_back({Change::Kind::home, owner, static_cast<Choice>(t), (ms + 1e-6) / freed});
    }
  }

  void offer(int32_t gap, Choice choice, double ms, double freed) {
    if (!is_blocked(Change::Kind::gap, gap, choice)) changes_.push_back({Change::Kind::gap, gap, choice, (ms + 1e-6) / freed});
  }

  // What a copy out and in costs: what it takes from compute, what does not fit the gap, and what the engine has no time for.
  double copy_cost(int8_t tier, int64_t bytes, bool also_out, double idle) const {
    const double in = one_copy_ms(tier, false, bytes), out = also_out ? one_copy_ms(tier, true, bytes) : 0;
    const double total = start_ms_.back();
    double ms = tiers_[at(tier)].compute_share * (in + out) + 0.02 * (in + out);
    ms += std::max(0.0, in + out - idle);
    ms += std::min(in, std::max(0.0, copy_ms_[2 * at(tier) + 1] + in - 0.45 * total));
    ms += std::min(out, std::max(0.0, copy_ms_[2 * at(tier)] + out - 0.45 * total));
    return ms;
  }

  // Its producer, and what that needs and is not there at that step of the frame.
  double rebuild_cost(int32_t v, int32_t when) const {
    double ms = 0;
    int32_t left = 12;
    add_rebuild(v, when, ms, left, 1.0);
    return ms;
  }
  void add_rebuild(int32_t v, int32_t when, double& ms, int32_t& left, double weight) const {
    if (--left < 0) return;
    const FrameStep& step = frame_.steps[at(frame_.values[at(v)].producer)];
    ms += weight * step.ms;
    for (int32_t w : step.recompute_inputs) {
      const FrameValue& input = frame_.values[at(w)];
      if (!input.recomputable) continue;
      const int32_t g = static_cast<int32_t>(std::lower_bound(input.uses.begin(), input.uses.end(), when) - input.uses.begin());
      if (decisions_.gaps[at(input.first_gap + g)] == kDrop) {
        // Where it is wanted soon for itself, it is rebuilt anyway.
        add_rebuild(w, when, ms, left, g < static_cast<int32_t>(input.uses.size()) ? 0.25 * weight : weight);
      }
    }
  }

  void keep_point() {
    trial_ = schedule_;
    spread_copies(frame_, tiers_, schedule_.peak, trial_);
    points_.push_back({decisions_, schedule_.peak, time_of(frame_, tiers_, trial_).total_ms, !schedule_.moves.empty()});
  }

  const Frame& frame_;
  const std::vector<TierInfo>& tiers_;
  const TradeoffOptions& options_;
  Decisions decisions_;
  Scheduler scheduler_;
  Schedule schedule_, trial_;
  std::vector<TradeoffPoint> points_;
  std::vector<Change> changes_, blocked_;
  std::vector<Undo> undo_;
  std::vector<int32_t> above_;       // how many of the steps before this one are above the target
  std::vector<double> start_ms_;     // by step
  std::vector<int32_t> frame_step_;  // by step: the last step of the frame that has begun
  std::vector<double> copy_ms_;      // by engine: how long it is busy
  std::vector<int32_t> used_at_;     // by residence: its last use so far
};

}  // namespace

std::vector<TradeoffPoint> find_tradeoff(const Frame& frame, const std::vector<TierInfo>& tiers, const Decisions& start,
                                         const TradeoffOptions& options) {
  return Descent(frame, tiers, start, options).run();
}

}  // namespace plimsoll
