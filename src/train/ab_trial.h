// Runs a training's steps in turns by two plans, and goes on with the one that was faster: what is measured in the
// training itself has the last word over what was predicted.
//
//   first w f f f f | second w s s s s | first ... | second ... | first ... | second ...     w warms up, does not count
#pragma once

#include <optional>
#include <vector>

#include "train/plan_change.h"

namespace plimsoll {

class AbTrial {
 public:
  // The training runs by `first` now. So many turns in all, an even number.
  AbTrial(CheckedPlan first, CheckedPlan second, int turns = 6)
      : first_(std::move(first)), second_(std::move(second)), turns_(turns) {}

  // After a step, with its time: the plan to go on with, where it is the other one's turn; at the end the faster one.
  std::optional<PlanChange> after_step(double step_ms);
  bool over() const { return over_; }
  bool second_won() const { return over_ && second_now_; }
  double first_ms() const;  // median of its steps
  double second_ms() const;

 private:
  CheckedPlan first_, second_;
  int turns_;
  std::vector<double> first_times_, second_times_;
  bool second_now_ = false, over_ = false;
  int turn_ = 0, in_turn_ = 0;
};

}  // namespace plimsoll
