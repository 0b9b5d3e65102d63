#include "plan/remat/changes.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr int32_t kMostTries = 4;
constexpr int32_t kReach = 64;  // stages around a change that are looked at
constexpr int32_t kAgain = 60;  // of 100 steps whose results are read and not there
constexpr int kRepairs = 6;     // of what was taken back

}  // namespace

RunChanges::RunChanges(const ValueTimeline& timeline, RunSet& set) : timeline_(timeline), set_(set) {
  for (int32_t v = 0; v < static_cast<int32_t>(timeline.values.size()); ++v) {
    const TimelineValue& value = timeline.values[v];
    if (value.recomputable && may_run_again(timeline, value.producer) && value.bytes > 0 &&
        (!value.uses.empty() || value.at_end))
      candidates_.push_back(v);
  }
}

void RunChanges::begin(double most_ms) {
  changes_.clear();
  applied_ = 0;
  ++proposed_;
  most_ms_ = most_ms;
  more_ms_ = 0;
}

void RunChanges::apply() {
  for (; applied_ < changes_.size(); ++applied_) set_.toggle(changes_[applied_].step, changes_[applied_].stage);
  set_.settle();
}
void RunChanges::take_back() {
  if (applied_ == 0) return;
  for (size_t i = 0; i < applied_; ++i) set_.toggle(changes_[i].step, changes_[i].stage);
  set_.settle();
}

// Takes reruns back, and lets other values go where there is too much then.
void RunChanges::propose_exchange() {
  const int64_t before_excess = set_.excess();
  const int32_t stage = propose_removal();
  if (stage < 0) return;
  if (draws_.below(3) == 0) propose_removal_near(stage);
  apply();
  for (int i = 0; i < kRepairs && set_.excess() > before_excess; ++i) {
    const int32_t full = fullest(stage);
    if (full < 0) break;
    const size_t count = changes_.size();
    propose_drop(full);
    if (changes_.size() == count) continue;
    if (too_dear()) return;
    apply();
  }
}
int32_t RunChanges::fullest(int32_t near) {
  int32_t best = -1;
  int64_t most = 0;
  for (int32_t t = std::max(0, near - 4 * kReach); t <= std::min(set_.steps(), near + kReach); ++t) {
    const int64_t over = set_.most(t) - set_.limit(t);
    if (over <= most) continue;
    most = over;
    best = t;
  }
  proposed_ += kReach / 4;
  return best;
}
void RunChanges::propose_removal_near(int32_t stage) {
  for (int i = 0; i < 8; ++i) {
    const int32_t t = stage + draws_.below(17) - 8;
    if (t < 0 || t > set_.steps() || set_.reruns_in(t).empty()) continue;
    const std::vector<int32_t>& list = set_.reruns_in(t);
    remove(list[static_cast<size_t>(draws_.below(std::ssize(list)))], t, 0);
    return;
  }
}

bool RunChanges::changed(int32_t step, int32_t stage) const {
  return std::any_of(changes_.begin(), changes_.end(),
                     [&](const Rerun& c) { return c.step == step && c.stage == stage; });
}
void RunChanges::change(int32_t step, int32_t stage) {
  const double ms = timeline_.steps[step].ms;
  more_ms_ += set_.runs(step, stage) ? -ms : ms;
  changes_.push_back({step, stage});
}

// Lets a value go in a gap; `near`: across that stage, -1: anywhere, where too much is there first of all.
void RunChanges::propose_drop(int32_t near) {
  if (candidates_.empty()) return;
  int32_t stage = near;
  if (stage < 0 && set_.excess() > 0 && draws_.below(10) < 8) {
    stage = draws_.below(set_.steps());
    for (int32_t i = 0; i < set_.steps() && set_.most(stage) <= set_.limit(stage); ++i)
      stage = stage + 1 == set_.steps() ? 0 : stage + 1;
    proposed_ += 2;
  }
  if (stage < 0) {
    drop(candidates_[static_cast<size_t>(draws_.below(std::ssize(candidates_)))], -1);
    return;
  }
  // Of a few, the one that costs the least for the bytes that it frees.
  const size_t begin = changes_.size();
  const double begin_ms = more_ms_;
  const double over = static_cast<double>(std::max<int64_t>(set_.most(stage) - set_.limit(stage), 1));
  double best = 0;
  chosen_.clear();
  for (int32_t tries = 1 + draws_.below(kMostTries); tries > 0; --tries) {
    const int32_t v = idle_across(stage);
    if (v < 0) break;
    drop(v, stage);
    if (changes_.size() == begin) continue;
    const double score = (more_ms_ - begin_ms) / std::min(static_cast<double>(timeline_.values[v].bytes), over);
    if (chosen_.empty() || score < best) {
      best = score;
      chosen_.assign(changes_.begin() + static_cast<std::ptrdiff_t>(begin), changes_.end());
    }
    changes_.resize(begin);
    more_ms_ = begin_ms;
  }
  for (const Rerun& each : chosen_) change(each.step, each.stage);
}
int32_t RunChanges::idle_across(int32_t stage) {
  const size_t count = candidates_.size();
  if (count == 0) return -1;
  size_t at = static_cast<size_t>(draws_.below(static_cast<int64_t>(count)));
  for (size_t i = 0; i < count; ++i, at = at + 1 == count ? 0 : at + 1) {
    if (!idles_across(candidates_[at], stage)) continue;
    proposed_ += static_cast<int64_t>(i / 8);
    return candidates_[at];
  }
  proposed_ += static_cast<int64_t>(count / 8);
  return -1;
}
bool RunChanges::idles_across(int32_t v, int32_t stage) const {
  for (const RunSet::Span& span : set_.spans_of(v)) {
    if (set_.stage_of(span.first) < stage && stage <= set_.stage_of(span.last)) return true;
  }
  return false;
}
void RunChanges::drop(int32_t v, int32_t stage) {
  if (!timeline_.values[v].recomputable) return;
  const std::vector<RunSet::Run>& uses = set_.uses_of(v);
  proposed_ += static_cast<int64_t>(uses.size());
  // Gaps: from a run or use to the next use of the same span.
  gaps_.clear();
  for (const RunSet::Span& span : set_.spans_of(v)) {
    RunSet::Run from = span.first;
    for (auto use = std::upper_bound(uses.begin(), uses.end(), span.first); use != uses.end() && *use <= span.last;
         ++use) {
      const int32_t a = set_.stage_of(from), b = set_.stage_of(*use);
      if (b > a && (stage < 0 || (a <= stage && stage <= b))) gaps_.emplace_back(from, *use);
      from = *use;
    }
  }
  if (gaps_.empty()) return;
  const auto [from, to] = gaps_[static_cast<size_t>(draws_.below(static_cast<int64_t>(gaps_.size())))];
  int32_t s = set_.stage_of(to);
  if (draws_.below(8) == 0) s -= draws_.below(s - set_.stage_of(from));
  add(timeline_.values[v].producer, s, 0);
}

// Runs the step again in the stage, with what it reads and is not there, or that stays for it.
void RunChanges::add(int32_t step, int32_t stage, int depth) {
  if (depth > 60 || more_ms_ > most_ms_ || !set_.may_run(step, stage) || set_.runs(step, stage) || changed(step, stage))
    return;
  change(step, stage);
  const RunSet::Run run = set_.run_of(step, stage);
  const auto is_absent = [&](int32_t w) { return timeline_.values[w].recomputable && !set_.is_there(w, run); };
  // No more than one is expected to run again for another: chains that branch would soon be all of the graph.
  const std::span<const int32_t> inputs = timeline_.steps[step].recompute_inputs;
  const auto absent = std::max<int64_t>(std::ranges::count_if(inputs, is_absent), 1);
  for (int32_t w : inputs) {
    if (is_absent(w) && draws_.below(100) < kAgain / absent) add(timeline_.values[w].producer, stage, depth + 1);
  }
}

// Takes a rerun back, and those that only served it. Its stage, -1: there is none.
int32_t RunChanges::propose_removal() {
  if (reruns_.empty()) return -1;
  const Rerun rerun = reruns_[static_cast<size_t>(draws_.below(static_cast<int64_t>(reruns_.size())))];
  remove(rerun.step, rerun.stage, 0);
  return rerun.stage;
}
void RunChanges::remove(int32_t step, int32_t stage, int depth) {
  if (changed(step, stage)) return;
  change(step, stage);
  if (depth > 60 || draws_.below(100) < 20) return;
  for (int32_t w : timeline_.steps[step].recompute_inputs) {
    const int32_t producer = timeline_.values[w].producer;
    if (producer >= 0 && set_.runs(producer, stage) && serves_only(producer, stage, set_.run_of(step, stage)))
      remove(producer, stage, depth + 1);
  }
}
// Whether what a rerun makes is read by that one run and by no other.
bool RunChanges::serves_only(int32_t step, int32_t stage, RunSet::Run reader) {
  const RunSet::Run run = set_.run_of(step, stage);
  for (int32_t v : timeline_.steps[step].recompute_outputs) {
    for (const RunSet::Span& span : set_.spans_of(v)) {
      if (span.first != run || span.last == run) continue;
      if (span.last != reader) return false;
      const std::vector<RunSet::Run>& uses = set_.uses_of(v);
      const auto first = std::upper_bound(uses.begin(), uses.end(), run);
      if (first == uses.end() || *first != reader) return false;
    }
  }
  return true;
}

void RunChanges::propose_shift() {
  if (reruns_.empty()) return;
  const Rerun rerun = reruns_[static_cast<size_t>(draws_.below(static_cast<int64_t>(reruns_.size())))];
  int32_t to = rerun.stage;
  const int32_t kind = draws_.below(3);
  if (kind == 0) {
    to += draws_.below(7) - 3;
  } else {  // to where another runs again
    const Rerun other = reruns_[static_cast<size_t>(draws_.below(static_cast<int64_t>(reruns_.size())))];
    to = kind == 1 ? other.stage : rerun.step + 1 + draws_.below(set_.steps() - rerun.step);
  }
  if (to == rerun.stage || to < 0 || to > set_.steps() || !set_.may_run(rerun.step, to) || set_.runs(rerun.step, to))
    return;
  if (draws_.below(2) == 0) {
    change(rerun.step, rerun.stage);
    add(rerun.step, to, 0);
    return;
  }
  remove(rerun.step, rerun.stage, 0);
  const std::vector<Rerun> moved = changes_;
  for (const Rerun& each : moved) {
    if (set_.may_run(each.step, to) && !set_.runs(each.step, to)) change(each.step, to);
  }
}

void RunChanges::list_reruns() {
  reruns_.clear();
  for (int32_t t = 0; t <= set_.steps(); ++t) {
    for (int32_t s : set_.reruns_in(t)) reruns_.push_back({s, t});
  }
}
void RunChanges::accept() {
  for (const Rerun& change : changes_) {
    if (set_.runs(change.step, change.stage)) {
      reruns_.push_back(change);
      continue;
    }
    const auto found = std::find_if(reruns_.begin(), reruns_.end(),
                                    [&](const Rerun& r) { return r.step == change.step && r.stage == change.stage; });
    if (found == reruns_.end()) continue;
    *found = reruns_.back();
    reruns_.pop_back();
  }
}
void RunChanges::restore(std::vector<Rerun> reruns) {
  set_.clear();
  for (const Rerun& rerun : reruns) set_.toggle(rerun.step, rerun.stage);
  set_.settle();
  reruns_ = std::move(reruns);
}

}  // namespace plimsoll
