#include "train/ab_trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/core_case.h"

namespace plimsoll {
namespace {

using testing::CoreCase;
// Runs a trial over steps that take so long as chosen and one after another: the plan that it ends with.
PlanChange try_out(const CheckedPlan& chosen, const CheckedPlan& serial, double chosen_ms, double serial_ms) {
  AbTrial trial(chosen, serial);
  PlanChange last{chosen, {}};
  int steps = 0, turns = 0;
  for (; !trial.over() && steps < 200; ++steps) {
    const bool slow_start = steps % 5 == 0;  // the first step after a turn
    const double ms = last.plan->cores.inter_op > 1 ? chosen_ms : serial_ms;
    if (auto change = trial.after_step(slow_start ? 100 * ms : ms)) {
      turns += change->plan->cores.inter_op != last.plan->cores.inter_op;
      last = *change;
    }
  }
  EXPECT_LT(steps, 60);
  EXPECT_GE(turns, 5);
  EXPECT_FALSE(trial.after_step(1));
  EXPECT_EQ(trial.first_ms(), chosen_ms);
  EXPECT_EQ(trial.second_ms(), serial_ms);
  EXPECT_EQ(trial.second_won(), &*last.plan == &*serial);
  return last;
}

TEST(AbTrial, AChoiceThatIsSlowerThanOneAfterAnotherIsGivenUp) {
  const CoreCase c(1.1);
  const CheckedPlan chosen = c.chosen_plan();
  ASSERT_EQ(chosen->cores.inter_op, 2);
  const PlanChange last = try_out(chosen, c.serial, 5.1, 5);
  EXPECT_EQ(&*last.plan, &*c.serial);
}

TEST(AbTrial, HasAsManyTurnsAsItIsGiven) {
  const CoreCase c(1.1);
  AbTrial trial(c.serial, c.serial, 2);
  int steps = 0;
  for (; !trial.over(); ++steps) trial.after_step(1);
  EXPECT_EQ(steps, 10);
}

TEST(AbTrial, AChoiceThatIsFasterIsKept) {
  const CoreCase c(1.1);
  const CheckedPlan chosen = c.chosen_plan();
  const PlanChange last = try_out(chosen, c.serial, 4.9, 5);
  EXPECT_EQ(&*last.plan, &*chosen);
}

}  // namespace
}  // namespace plimsoll
