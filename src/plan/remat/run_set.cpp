#include "plan/remat/run_set.h"

#include <algorithm>

namespace plimsoll {
namespace {

bool contains(std::span<const int32_t> list, int32_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

bool may_run_again(const ValueTimeline& timeline, int32_t step) {
  const TimelineStep& what = timeline.steps[step];
  return !what.collective && !what.recompute_outputs.empty() &&
         std::all_of(what.recompute_outputs.begin(), what.recompute_outputs.end(),
                     [&](int32_t v) { return timeline.values[v].recomputable; });
}

RunSet::RunSet(const ValueTimeline& timeline, int64_t budget)
    : timeline_(timeline),
      steps_(static_cast<int32_t>(timeline.steps.size())),
      limits_(steps_ + 1, budget),
      last_stage_(steps_, -1),
      stages_(steps_),
      reruns_(steps_ + 1),
      spans_(timeline.values.size()),
      carried_(steps_ + 1, 0),
      beside_(steps_ + 1, 0),
      value_touched_(timeline.values.size(), 0),
      stage_touched_(steps_ + 1, 0),
      uses_(timeline.values.size()) {
  std::vector<int32_t> lost(timeline.values.size(), steps_);  // by value: the step that overwrites it
  for (int32_t s = 0; s < steps_; ++s) {
    for (const TimelineInPlace& pair : timeline.steps[s].in_place) {
      if (pair.required) lost[pair.input] = s;
    }
  }
  for (int32_t s = 0; s < steps_; ++s) {
    const TimelineStep& step = timeline.steps[s];
    if (!may_run_again(timeline, s)) continue;
    last_stage_[s] = steps_;
    for (int32_t v : step.recompute_inputs) {
      last_stage_[s] = std::min(last_stage_[s], lost[v]);
    }
  }
  clear();
}

void RunSet::set_limits(std::span<const int64_t> limits) {
  limits_.assign(limits.begin(), limits.end());
  excess_ = 0;
  for (int32_t t = 0; t <= steps_; ++t) excess_ += above(t);
}

bool RunSet::runs(int32_t step, int32_t stage) const {
  return std::binary_search(stages_[step].begin(), stages_[step].end(), stage);
}

void RunSet::toggle(int32_t step, int32_t stage) {
  const auto flip = []<class T>(std::vector<T>& list, T number) {
    const auto at = std::lower_bound(list.begin(), list.end(), number);
    if (at != list.end() && *at == number) {
      list.erase(at);
      return false;
    }
    list.insert(at, number);
    return true;
  };
  const bool added = flip(stages_[step], stage);
  flip(reruns_[stage], step);
  const TimelineStep& what = timeline_.steps[step];
  again_ms_ += added ? what.ms : -what.ms;
  rerun_count_ += added ? 1 : -1;
  if (rerun_count_ == 0) again_ms_ = 0;
  touch_stage(stage);
  for (int32_t v : what.recompute_inputs) {
    flip(uses_[v], run_of(step, stage));
    touch_value(v);
  }
  for (int32_t v : what.recompute_outputs) touch_value(v);
}

void RunSet::settle() {
  for (int32_t v : touched_values_) {
    update_value(v);
    value_touched_[v] = 0;
  }
  touched_values_.clear();
  for (int32_t t : touched_stages_) {
    update_stage(t);
    stage_touched_[t] = 0;
  }
  touched_stages_.clear();
}

void RunSet::clear() {
  for (std::vector<int32_t>& list : stages_) list.clear();
  for (std::vector<int32_t>& list : reruns_) list.clear();
  again_ms_ = 0;
  rerun_count_ = 0;
  for (int32_t v = 0; v < static_cast<int32_t>(spans_.size()); ++v) {
    const TimelineValue& value = timeline_.values[v];
    uses_[v].clear();
    for (int32_t use : value.uses) uses_[v].push_back(run_of(use, use));
    if (value.at_end) uses_[v].push_back(run_of(steps_, steps_));
    touch_value(v);
  }
  for (int32_t t = 0; t <= steps_; ++t) touch_stage(t);
  settle();
}

void RunSet::take(const Sequence& sequence) {
  clear();
  std::vector<uint8_t> ran(steps_, 0);
  std::vector<int32_t> waiting;
  const auto run_again = [&](int32_t stage) {
    for (int32_t again : waiting) {
      if (!runs(again, stage) && may_run(again, stage)) toggle(again, stage);
    }
    waiting.clear();
  };
  for (int32_t s : sequence) {
    if (ran[s]) {
      waiting.push_back(s);
    } else {
      ran[s] = 1;
      run_again(s);
    }
  }
  run_again(steps_);
  settle();
}

int64_t RunSet::peak() const {
  int64_t most_of_all = 0;
  for (int32_t t = 0; t <= steps_; ++t) most_of_all = std::max(most_of_all, most(t));
  return most_of_all;
}

bool RunSet::is_there(int32_t value, Run run) const {
  return std::any_of(spans_[value].begin(), spans_[value].end(),
                     [&](const Span& span) { return span.first < run && run <= span.last; });
}

void RunSet::find_spans(int32_t value, std::vector<Span>& spans) {
  spans.clear();
  const int32_t producer = timeline_.values[value].producer;
  const std::vector<Run>& uses = uses_[value];
  work_ += static_cast<int64_t>(uses.size());
  const Run first = producer < 0 ? -1 : run_of(producer, producer);
  spans.push_back(
      {first, producer < 0 ? run_of(0, 0) : first});  // what is there from the start is there in step 0, read or not
  size_t use = 0;
  const auto use_until = [&](Run next) {
    while (use < uses.size() && uses[use] < next) spans.back().last = uses[use++];
  };
  if (producer >= 0 && timeline_.values[value].recomputable) {
    for (int32_t stage : stages_[producer]) {
      const Run run = run_of(producer, stage);
      use_until(run);
      spans.push_back({run, run});
    }
  }
  use_until(INT64_MAX);
}

void RunSet::touch_value(int32_t value) {
  if (value_touched_[value]) return;
  value_touched_[value] = 1;
  touched_values_.push_back(value);
}
void RunSet::touch_stage(int32_t stage) {
  if (stage < 0 || stage_touched_[stage]) return;
  stage_touched_[stage] = 1;
  touched_stages_.push_back(stage);
}

void RunSet::add_bytes(int32_t first_stage, int32_t last_stage, int64_t bytes) {
  int64_t more = 0;
  for (int32_t t = first_stage; t <= last_stage; ++t) {
    const int64_t over = carried_[t] + beside_[t] - limits_[t];
    carried_[t] += bytes;
    more += std::max<int64_t>(0, over + bytes) - std::max<int64_t>(0, over);
  }
  excess_ += more;
  work_ += (last_stage - first_stage) / 8 + 1;
}

void RunSet::update_value(int32_t value) {
  find_spans(value, fresh_);
  std::vector<Span>& old = spans_[value];
  const int64_t bytes = timeline_.values[value].bytes;
  const auto change = [&](const Span& span, int64_t by) {
    add_bytes(stage_of(span.first) + 1, stage_of(span.last), by);
    touch_stage(stage_of(span.first));
    touch_stage(stage_of(span.last));
  };
  size_t i = 0, j = 0;
  while (i < old.size() || j < fresh_.size()) {
    if (j == fresh_.size() || (i < old.size() && old[i].first < fresh_[j].first)) {
      change(old[i++], -bytes);
    } else if (i == old.size() || fresh_[j].first < old[i].first) {
      change(fresh_[j++], bytes);
    } else {
      if (old[i].last != fresh_[j].last) {
        const int32_t from = stage_of(old[i].last), to = stage_of(fresh_[j].last);
        if (to > from) add_bytes(from + 1, to, bytes);
        if (from > to) add_bytes(to + 1, from, -bytes);
        touch_stage(from);
        touch_stage(to);
      }
      ++i;
      ++j;
    }
  }
  std::swap(old, fresh_);
}

bool RunSet::ends_at(int32_t value, Run run) const {
  return std::any_of(spans_[value].begin(), spans_[value].end(), [&](const Span& span) { return span.last == run; });
}

void RunSet::update_stage(int32_t stage) {
  excess_ -= above(stage);
  int64_t now = 0, most = stage == steps_ ? 0 : INT64_MIN;
  const auto walk = [&](int32_t s, bool again) {
    const TimelineStep& step = timeline_.steps[s];
    const Run run = run_of(s, stage);
    const std::span<const int32_t> inputs = again ? step.recompute_inputs : step.inputs;
    const std::span<const int32_t> outputs = again ? step.recompute_outputs : step.outputs;
    int64_t during = now + step.workspace, after = now;
    for (int32_t v : outputs) {
      during += timeline_.values[v].bytes;
      if (!ends_at(v, run)) after += timeline_.values[v].bytes;
    }
    for (int32_t v : inputs) {
      if (ends_at(v, run)) after -= timeline_.values[v].bytes;
    }
    // An output begins in the bytes of an input that ends; each input gives its bytes once, each output takes one's.
    for (size_t i = 0; i < step.in_place.size(); ++i) {
      const TimelineInPlace& pair = step.in_place[i];
      if (!contains(inputs, pair.input) || !contains(outputs, pair.output) || !ends_at(pair.input, run)) continue;
      const bool taken = std::any_of(step.in_place.begin(), step.in_place.begin() + static_cast<std::ptrdiff_t>(i),
                                     [&](const TimelineInPlace& other) {
                                       return (other.input == pair.input || other.output == pair.output) &&
                                              contains(inputs, other.input) && contains(outputs, other.output) &&
                                              ends_at(other.input, run);
                                     });
      if (!taken) during -= timeline_.values[pair.output].bytes;
    }
    most = std::max(most, during);
    now = after;
    work_ += static_cast<int64_t>(inputs.size() + outputs.size());
  };
  for (int32_t s : reruns_[stage]) walk(s, true);
  if (stage < steps_) walk(stage, false);
  beside_[stage] = most;
  excess_ += above(stage);
}

Sequence RunSet::sequence() const {
  Sequence sequence;
  for (int32_t t = 0; t <= steps_; ++t) {
    sequence.insert(sequence.end(), reruns_[t].begin(), reruns_[t].end());
    if (t < steps_) sequence.push_back(t);
  }
  return sequence;
}

}  // namespace plimsoll
