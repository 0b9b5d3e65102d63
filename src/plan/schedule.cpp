#include "plan/schedule.h"

#include <algorithm>

#include "plan/effort.h"

namespace plimsoll {
namespace {
constexpr double kRounding = 1 - 1e-9;  // of sums in another order
// No schedule is longer than so many times the timeline and so many steps.
constexpr size_t kAlwaysTooMany = 100, kAlwaysFew = 10'000;

bool contains(std::span<const int32_t> list, int32_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}
}  // namespace

Decisions keep_everything(const ValueTimeline& timeline) {
  return {.gaps = std::vector<Choice>(timeline.gap_total, kKeep),
          .home = std::vector<int8_t>(timeline.values.size(), -1),
          .retain = std::vector<bool>(timeline.values.size(), true)};
}

void Scheduler::run(const Decisions& decisions, Schedule& schedule, const TensorCache* cache) {
  decisions_ = &decisions;
  out_ = &schedule;
  cache_ = cache;
  live_ = 0;
  start();
  for (now_ = 0; now_ < static_cast<int32_t>(timeline_.steps.size()) && schedule.unrecoverable < 0; ++now_)
    run_step(now_);
  planning_effort().scheduled_steps += static_cast<int64_t>(schedule.steps.size());
  if (schedule.unrecoverable >= 0) return;
  end();
  share_places();
  count_live(schedule);
}

void Scheduler::run_within(const Decisions& decisions, Schedule& schedule, size_t most_steps, double most_ms) {
  most_steps_ = most_steps;
  most_ms_ = most_ms;
  run(decisions, schedule);
  most_steps_ = SIZE_MAX;
  most_ms_ = kAnyTime;
}

void Scheduler::start() {
  out_->steps.clear();
  out_->inputs.clear();
  out_->residences.clear();
  out_->moves.clear();
  out_->compute_ms = recompute_ms_ = 0;
  out_->recomputations = 0;
  out_->unrecoverable = -1;
  out_->given_up = false;
  most_of_all_ = std::min(most_steps_, kAlwaysTooMany * timeline_.steps.size() + kAlwaysFew);
  const size_t values = timeline_.values.size();
  states_.assign(values, {});
  open_.clear();
  place_in_open_.assign(cache_ != nullptr ? values : 0, 0);
  stack_.clear();
  now_ = -1;
  for (int32_t v = 0; v < static_cast<int32_t>(values); ++v) {
    if (timeline_.values[v].producer >= 0) continue;
    states_[v].slot = decisions_->home[v];
    if (states_[v].slot < 0) open(v, -1);
  }
}

void Scheduler::run_step(int32_t s) {
  const TimelineStep& step = timeline_.steps[s];
  for (int32_t v : step.inputs) states_[v].wanted_by = s;
  // The last produced first: what it is rebuilt from may be wanted as well, and then is there.
  for (int32_t v : step.latest_first) bring(v);
  if (out_->unrecoverable >= 0) return;
  const int32_t d = append(s, false);
  for (int32_t v : step.outputs) open(v, d);
  for (int32_t v : step.inputs) {
    ++states_[v].next_use;
    states_[v].transient = false;
  }
  overwrite(step);
  for (int32_t v : step.outputs) {
    const int32_t before = timeline_.values[v].before;
    if (before >= 0 && decisions_->home[before] >= 0) copy_out(v, decisions_->home[before]);
  }
  for (int32_t v : step.inputs) {
    if (states_[v].residence >= 0) begin_gap(v, states_[v].next_use);
  }
  for (int32_t v : step.outputs) begin_gap(v, 0);
}

// What is overwritten is lost, wherever else it lay.
void Scheduler::overwrite(const TimelineStep& step) {
  for (const TimelineInPlace& pair : step.in_place) {
    if (!pair.required) continue;
    states_[pair.input].gone = true;
    close(pair.input);
    states_[pair.input].slot = -1;
  }
}

void Scheduler::follow(const Decisions& decisions, std::span<const int32_t> sequence, Schedule& schedule) {
  decisions_ = &decisions;
  out_ = &schedule;
  cache_ = nullptr;
  live_ = 0;
  start();
  std::vector<bool> ran(timeline_.steps.size(), false);
  for (int32_t s : sequence) {
    const TimelineStep& step = timeline_.steps[s];
    const bool again = ran[s];
    for (int32_t v : again ? step.recompute_inputs : step.inputs) {
      if (states_[v].residence < 0) schedule.unrecoverable = v;
    }
    if (schedule.unrecoverable >= 0) return;
    const int32_t d = append(s, again);
    for (int32_t v : again ? step.recompute_outputs : step.outputs) open(v, d);
    if (!again) overwrite(step);
    ran[s] = true;
  }
  planning_effort().scheduled_steps += static_cast<int64_t>(schedule.steps.size());
  if (schedule.unrecoverable >= 0) return;
  end();
  share_places();
  count_live(schedule);
}

// Decides about an open value after a use, at the start of its gap.
void Scheduler::begin_gap(int32_t v, int32_t gap) {
  const TimelineValue& value = timeline_.values[v];
  if (gap == static_cast<int32_t>(value.uses.size()) && lives_to_the_end(v)) return;
  const Choice choice = decisions_->gaps[value.first_gap + gap];
  if (choice == kKeep) {
    if (cache_ != nullptr && gap == static_cast<int32_t>(value.uses.size())) close(v);  // nobody reads it any more
    return;
  }
  if (choice >= kOffload && states_[v].slot < 0) copy_out(v, static_cast<int8_t>(choice - kOffload));
  close(v);
}

void Scheduler::open(int32_t v, int32_t written) {
  State& state = states_[v];
  const int32_t r = static_cast<int32_t>(out_->residences.size()), previous = state.last_residence;
  state.residence = state.last_residence = r;
  if (previous >= 0) out_->residences[previous].next = r;
  if (cache_ != nullptr) {
    place_in_open_[v] = open_.size();
    open_.push_back(v);
  }
  live_ += timeline_.values[v].bytes;
  const int32_t first = std::max(written, 0);
  out_->residences.push_back(
      {.value = v, .first = first, .last = first, .written = written, .last_written = written, .previous = previous});
}

void Scheduler::close(int32_t v) {
  if (states_[v].residence < 0) return;
  states_[v].residence = -1;
  if (cache_ != nullptr) {
    place_in_open_[open_.back()] = place_in_open_[v];
    open_[place_in_open_[v]] = open_.back();
    open_.pop_back();
  }
  live_ -= timeline_.values[v].bytes;
}

void Scheduler::copy_out(int32_t v, int8_t tier) {
  const int32_t r = states_[v].residence;
  Residence& residence = out_->residences[r];
  residence.out = static_cast<int32_t>(out_->moves.size());
  out_->moves.push_back({.out = true, .tier = tier, .residence = r, .after = residence.last_written});
  states_[v].slot = tier;
}

void Scheduler::fetch(int32_t v) {
  open(v, -1);
  Residence& residence = out_->residences[states_[v].residence];
  residence.in = static_cast<int32_t>(out_->moves.size());
  residence.first = -1;  // known with its user
  out_->moves.push_back({.out = false, .tier = states_[v].slot, .residence = states_[v].residence});
  states_[v].transient = !(decisions_->retain[v] && has_uses_left(v));
}

bool Scheduler::has_uses_left(int32_t v) const {
  return states_[v].next_use < static_cast<int32_t>(timeline_.values[v].uses.size());
}

void Scheduler::bring(int32_t v) {
  if (out_->unrecoverable >= 0 || states_[v].residence >= 0) return;
  if (states_[v].slot >= 0) {
    fetch(v);
  } else if (timeline_.values[v].recomputable && !states_[v].gone) {
    rebuild(v);
  } else {
    out_->unrecoverable = v;
  }
}

// Runs the value's producer again, and before it what its own inputs need, depth first.
void Scheduler::rebuild(int32_t value) {
  stack_.assign(1, {timeline_.values[value].producer, 0});
  while (!stack_.empty() && out_->unrecoverable < 0) {
    const int32_t step = stack_.back().first;
    const std::span<const int32_t> inputs = timeline_.steps[step].recompute_inputs;
    const size_t i = stack_.back().second;
    if (i == inputs.size()) {
      stack_.pop_back();
      rerun(step);
      continue;
    }
    const int32_t v = inputs[i];
    ++stack_.back().second;
    ++states_[v].locks;
    if (states_[v].residence >= 0) continue;
    if (states_[v].slot >= 0) {
      fetch(v);
    } else if (timeline_.values[v].recomputable && !states_[v].gone) {
      stack_.emplace_back(timeline_.values[v].producer, 0);
    } else {
      out_->unrecoverable = v;
    }
  }
}

void Scheduler::rerun(int32_t s) {
  const TimelineStep& step = timeline_.steps[s];
  const int32_t d = append(s, true);
  for (int32_t v : step.recompute_outputs) {
    if (states_[v].residence >= 0) {
      Residence& residence = out_->residences[states_[v].residence];
      if (residence.first < 0) arrive(residence, d);  // a copy brings it for who comes after this step
      residence.last = std::max(residence.last, d);   // written once more, the same
      residence.last_written = d;
      continue;
    }
    open(v, d);
    states_[v].transient = !(decisions_->retain[v] && has_uses_left(v));
    if (states_[v].transient && states_[v].locks == 0 && states_[v].wanted_by != now_) close(v);
  }
  for (int32_t v : step.recompute_inputs) {
    --states_[v].locks;
    if (states_[v].transient && states_[v].locks == 0 && states_[v].wanted_by != now_) close(v);
  }
}

// The copy of it is complete when the step begins.
void Scheduler::arrive(Residence& residence, int32_t d) {
  residence.first = d;
  out_->moves[residence.in].after = d - 1;
  out_->moves[residence.in].before = d;
}

int32_t Scheduler::append(int32_t s, bool recompute) {
  const TimelineStep& step = timeline_.steps[s];
  if (cache_ != nullptr) make_room(s, recompute);
  const int32_t d = static_cast<int32_t>(out_->steps.size());
  out_->steps.push_back({.step = s,
                         .recompute = recompute,
                         .first_input = static_cast<int32_t>(out_->inputs.size()),
                         .first_residence = static_cast<int32_t>(out_->residences.size())});
  out_->compute_ms += step.ms;
  if (recompute) {
    ++out_->recomputations;
    recompute_ms_ += step.ms;
  }
  const bool too_long = (timeline_.compute_ms + recompute_ms_) * kRounding > most_ms_;
  if (too_long || out_->steps.size() > most_of_all_) {
    out_->unrecoverable = 0;
    out_->given_up = true;
  }
  for (int32_t v : recompute ? step.recompute_inputs : step.inputs) {
    Residence& residence = out_->residences[states_[v].residence];
    if (residence.first < 0) arrive(residence, d);
    residence.last = d;
    out_->inputs.push_back(states_[v].residence);
  }
  return d;
}

// What a step writes besides what is open: its outputs that take no dying input's place, and its workspace.
int64_t Scheduler::room_for(const TimelineStep& step, bool recompute) const {
  int64_t bytes = step.workspace;
  for (int32_t v : recompute ? step.recompute_outputs : step.outputs) {
    if (states_[v].residence >= 0) continue;
    const bool takes_place = std::any_of(step.in_place.begin(), step.in_place.end(), [&](const TimelineInPlace& pair) {
      if (pair.output != v) return false;
      const TimelineValue& input = timeline_.values[pair.input];
      return pair.required || (!recompute && input.state < 0 && !input.at_end && !input.uses.empty() &&
                               input.uses.back() == now_ && states_[pair.input].slot < 0);
    });
    if (!takes_place) bytes += timeline_.values[v].bytes;
  }
  return bytes;
}

bool Scheduler::may_leave(int32_t v) const {
  const TimelineValue& value = timeline_.values[v];
  if (states_[v].residence < 0 || states_[v].wanted_by == now_ || states_[v].locks > 0 || value.bytes == 0)
    return false;
  if (value.state >= 0 || (value.producer < 0 && states_[v].slot < 0)) return false;  // their place is the arena
  return !(value.at_end && states_[v].next_use == static_cast<int32_t>(value.uses.size()));
}

void Scheduler::make_room(int32_t s, bool recompute) {
  const int64_t room = room_for(timeline_.steps[s], recompute);
  while (live_ + room > cache_->limit) {
    int32_t victim = -1;
    int64_t rank = 0;
    for (int32_t v : open_) {
      if (!may_leave(v)) continue;
      const TimelineValue& value = timeline_.values[v];
      const int32_t used = states_[v].next_use;
      const int64_t key = cache_->farthest
                              ? (used < static_cast<int32_t>(value.uses.size()) ? value.uses[used] : INT32_MAX)
                              : -static_cast<int64_t>(out_->residences[states_[v].residence].last);
      if (victim < 0 || key > rank || (key == rank && v < victim)) {
        victim = v;
        rank = key;
      }
    }
    if (victim < 0) return;
    if (states_[victim].slot < 0) copy_out(victim, cache_->tier);
    close(victim);
  }
}

// In the arena, and not in a tier. A state's new value lies where the old one did, whatever a tier has of it from a gap.
bool Scheduler::lives_to_the_end(int32_t v) const {
  const TimelineValue& value = timeline_.values[v];
  const int8_t tier = value.before >= 0 ? decisions_->home[value.before] : states_[v].slot;
  return value.at_end && (value.is_output || tier < 0);
}

void Scheduler::end() {
  const int32_t last = std::max<int32_t>(static_cast<int32_t>(out_->steps.size()) - 1, 0);
  for (size_t v = 0; v < states_.size(); ++v) {
    if (states_[v].residence >= 0 && lives_to_the_end(static_cast<int32_t>(v)))
      out_->residences[states_[v].residence].last = last;
  }
  for (ScheduledMove& move : out_->moves) {
    if (move.out) move.before = out_->residences[move.residence].last + 1;
  }
}

// Where an op may write over an input that ends with it, it does.
void Scheduler::share_places() {
  const int32_t count = static_cast<int32_t>(out_->steps.size());
  for (int32_t d = 0; d < count; ++d) {
    const ScheduledStep& scheduled = out_->steps[d];
    const TimelineStep& step = timeline_.steps[scheduled.step];
    if (step.in_place.empty()) continue;
    const std::span<const int32_t> inputs = scheduled.recompute ? step.recompute_inputs : step.inputs;
    const int32_t end =
        d + 1 < count ? out_->steps[d + 1].first_residence : static_cast<int32_t>(out_->residences.size());
    for (const TimelineInPlace& pair : step.in_place) {
      if (scheduled.recompute && !contains(step.recompute_outputs, pair.output)) continue;
      const auto found = std::find(inputs.begin(), inputs.end(), pair.input);
      if (found == inputs.end()) continue;
      const int32_t source = out_->inputs[scheduled.first_input + (found - inputs.begin())];
      Residence& from = out_->residences[source];
      if (from.last != d || from.overwritten) continue;
      const bool last_step = d + 1 == count;
      if (last_step && lives_to_the_end(pair.input) && !pair.required) continue;
      if (from.out >= 0 && !pair.required) continue;  // still being copied
      // The output's residence that begins here, if it does.
      for (int32_t r = scheduled.first_residence; r < end; ++r) {
        Residence& to = out_->residences[r];
        if (to.written != d || to.value != pair.output || to.in_place_of >= 0) continue;
        to.in_place_of = source;
        from.overwritten = true;
        break;
      }
    }
  }
}

void Scheduler::count_live(Schedule& s) {
  s.live.assign(s.steps.size() + 1, 0);  // changes first
  for (const Residence& r : s.residences) {
    const int64_t bytes = timeline_.values[r.value].bytes;
    s.live[r.in_place_of >= 0 ? r.first + 1 : r.first] += bytes;  // in the first step it shares
    s.live[r.last + 1] -= bytes;
  }
  s.peak = 0;
  int64_t sum = 0;
  for (size_t d = 0; d < s.steps.size(); ++d) {
    sum += s.live[d];
    s.live[d] = sum + timeline_.steps[s.steps[d].step].workspace;
    if (s.live[d] > s.peak) {
      s.peak = s.live[d];
      s.peak_step = static_cast<int32_t>(d);
    }
  }
  s.live.resize(s.steps.size());
}

}  // namespace plimsoll
