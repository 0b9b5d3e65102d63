// Runs a training's steps in turns by the plan that was chosen and one op after another with all threads, and goes on
// with what was faster: what is measured in the training itself has the last word over what was predicted.
//
//   chosen w c c c c | serial w s s s s | chosen ... | serial ... | chosen ...     w warms up and does not count
#pragma once

#include <optional>
#include <vector>

#include "train/plan_change.h"

namespace plimsoll {

class AbTrial {
 public:
  // The training runs by `chosen` now.
  AbTrial(CheckedPlan chosen, CheckedPlan serial) : chosen_(std::move(chosen)), serial_(std::move(serial)) {}

  // After a step, with its time: the plan to go on with, where it is the other one's turn; at the end the faster one.
  std::optional<PlanChange> after_step(double step_ms);
  bool over() const { return over_; }

 private:
  CheckedPlan chosen_, serial_;
  std::vector<double> chosen_ms_, serial_ms_;
  bool serial_now_ = false, over_ = false;
  int block_ = 0, in_block_ = 0;
};

}  // namespace plimsoll
