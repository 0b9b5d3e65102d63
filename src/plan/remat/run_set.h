// Which steps of a training step run again, and where: all else follows.
//
//   stage t: the reruns before step t runs the first time, in the order of the route, then step t itself; the last stage
//   has reruns alone, of what must be there at the end
//
//     step 0   step 1   step 2 | again 0, again 1, step 3 | step 4
//                              '------ stage 3 ----------'
//
// A value is in memory from a run of its producer to the last use before the next run, so its bytes are free between:
// what runs again is what was let go. That is Checkmate's form of a schedule (Jain et al. 2020) with the retention
// intervals of MOCCASIN (Bartan et al. 2023). A step may run again in as many stages as it is worth, once in each.
//
// Changes are told by the difference that they make: a few values get other spans, all other bytes stay as they were.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "plan/value_timeline.h"

namespace plimsoll {

// Steps in the order in which they run: the first time, or again.
using Sequence = std::vector<int32_t>;

// Collectives of several ranks are left out.
bool may_run_again(const ValueTimeline& timeline, int32_t step);

class RunSet {
 public:
  RunSet(const ValueTimeline& timeline, int64_t budget);

  int32_t steps() const { return steps_; }
  // The bytes that a stage may have: the budget, where no less was set.
  int64_t limit(int32_t stage) const { return limits_[stage]; }
  void set_limits(std::span<const int64_t> limits);

  // Whether the step may run again in that stage: what it reads can still be had.
  bool may_run(int32_t step, int32_t stage) const { return step < stage && stage <= last_stage_[step]; }
  bool runs(int32_t step, int32_t stage) const;
  // Lets the step run again there, or no longer. What follows is known after settle().
  void toggle(int32_t step, int32_t stage);
  void settle();
  void clear();
  // The runs of a sequence, each of a stage once; settled.
  void take(const Sequence& sequence);

  double again_ms() const { return again_ms_; }
  int64_t excess() const { return excess_; }  // bytes above the limits, summed over the stages
  int64_t most(int32_t stage) const { return carried_[stage] + beside_[stage]; }  // bytes at its fullest
  int64_t peak() const;

  size_t rerun_count() const { return rerun_count_; }
  const std::vector<int32_t>& stages_of(int32_t step) const { return stages_[step]; }  // where it runs again
  const std::vector<int32_t>& reruns_in(int32_t stage) const { return reruns_[stage]; }

  // A run of a step: its stage and itself, in the order in which they run. Of what is there from the start: -1.
  using Run = int64_t;
  Run run_of(int32_t step, int32_t stage) const { return int64_t{stage} * (steps_ + 1) + step; }
  int32_t stage_of(Run run) const { return run < 0 ? -1 : static_cast<int32_t>(run / (steps_ + 1)); }
  int32_t step_of(Run run) const { return static_cast<int32_t>(run % (steps_ + 1)); }
  // In memory from one run to another, both included.
  struct Span {
    Run first = 0, last = 0;
    friend bool operator==(const Span&, const Span&) = default;
  };
  const std::vector<Span>& spans_of(int32_t value) const { return spans_[value]; }
  bool is_there(int32_t value, Run run) const;  // before that run begins, and during it
  // The uses of a value in order, the end of the step (stage steps()) among them.
  const std::vector<Run>& uses_of(int32_t value) const { return uses_[value]; }

  Sequence sequence() const;
  int64_t work() const { return work_; }  // so far: things looked at

 private:
  void find_spans(int32_t value, std::vector<Span>& spans);
  void update_value(int32_t value);
  void update_stage(int32_t stage);
  void add_bytes(int32_t first_stage, int32_t last_stage, int64_t bytes);
  void touch_value(int32_t value);
  void touch_stage(int32_t stage);
  bool ends_at(int32_t value, Run run) const;
  int64_t above(int32_t stage) const {
    const int64_t over = carried_[stage] + beside_[stage] - limits_[stage];
    return over > 0 ? over : 0;
  }

  const ValueTimeline& timeline_;
  const int32_t steps_;
  std::vector<int64_t> limits_;               // by stage
  std::vector<int32_t> last_stage_;           // by step: the last in which it may run again; -1: it may not
  std::vector<std::vector<int32_t>> stages_;  // by step, ascending
  std::vector<std::vector<int32_t>> reruns_;  // by stage, ascending
  std::vector<std::vector<Span>> spans_;      // by value
  std::vector<int64_t> carried_;              // by stage: bytes that are there when it begins
  std::vector<int64_t> beside_;               // by stage: what its fullest run has beside them
  double again_ms_ = 0;
  int64_t excess_ = 0, work_ = 0;
  size_t rerun_count_ = 0;
  std::vector<int32_t> touched_values_, touched_stages_;
  std::vector<uint8_t> value_touched_, stage_touched_;
  std::vector<Span> fresh_;
  std::vector<std::vector<Run>> uses_;  // by value
};

}  // namespace plimsoll
