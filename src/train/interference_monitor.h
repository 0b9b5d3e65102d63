// Looks on while a training runs steps side by side, and takes back what was chosen where measured times say otherwise.
// Ops that took longer together than they would have one after another with all threads become conflicts, and the
// threads are chosen anew; when the whole step is slower than that, nothing runs side by side any more.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "cores/share_cores.h"
#include "plimsoll/execute.h"
#include "train/plan_change.h"

namespace plimsoll {

// The plans that the cores stage starts from, as it made them.
struct CorePlans {
  CheckedPlan serial, relaxed;
};

class InterferenceMonitor {
 public:
  // The training runs by `chosen` now.
  InterferenceMonitor(CoreInput input, CorePlans plans, CheckedPlan chosen);

  // After a step, with when its steps ran: the plan to go on with, where that is another.
  std::optional<PlanChange> after_step(std::span<const StepRecord> records);
  bool over() const { return over_; }  // nothing more is to be corrected
  // All pairs found so far, by signature.
  std::set<CostTable::OpPair> found() const;

 private:
  double serial_ms(size_t step) const { return serial_ms_[step]; }
  OpPairs slow_pairs(std::span<const StepRecord> records) const;
  PlanChange correct(int fresh, double usual_ms, double all_serial_ms);

  const CoreInput input_;
  const CorePlans plans_;
  CheckedPlan plan_;               // that the training runs by
  std::vector<double> serial_ms_;  // of each step with all threads, as the costs have it
  std::vector<double> times_;      // of the training steps with this plan
  std::map<OpPair, int> slow_;     // in how many of them
  OpPairs conflicts_;
  int steps_ = 0, corrections_ = 0;
  bool over_ = false;
};

}  // namespace plimsoll
