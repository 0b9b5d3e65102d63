#include "train/ab_trial.h"

#include "base/statistics.h"

namespace plimsoll {
namespace {

constexpr int kStepsOfTurn = 5;  // the first warms up

}  // namespace

double AbTrial::first_ms() const { return median(first_times_); }
double AbTrial::second_ms() const { return median(second_times_); }

std::optional<PlanChange> AbTrial::after_step(double step_ms) {
  if (over_) return std::nullopt;
  if (in_turn_++ > 0) (second_now_ ? second_times_ : first_times_).push_back(step_ms);
  if (in_turn_ < kStepsOfTurn) return std::nullopt;
  in_turn_ = 0;
  over_ = ++turn_ == turns_;
  second_now_ = over_ ? second_ms() < first_ms() : !second_now_;
  return PlanChange{second_now_ ? second_ : first_, {}};
}

}  // namespace plimsoll
