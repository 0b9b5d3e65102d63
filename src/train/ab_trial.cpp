#include "train/ab_trial.h"

#include <fmt/format.h>

#include "base/statistics.h"
#include "base/texts.h"

namespace plimsoll {
namespace {

constexpr int kBlocks = 6;        // three of each
constexpr int kStepsOfBlock = 5;  // the first warms up

}  // namespace

std::optional<PlanChange> AbTrial::after_step(double step_ms) {
  if (over_) return std::nullopt;
  if (in_block_++ > 0) (serial_now_ ? serial_ms_ : chosen_ms_).push_back(step_ms);
  if (in_block_ < kStepsOfBlock) return std::nullopt;
  in_block_ = 0;
  over_ = ++block_ == kBlocks;
  const double chosen_ms = median(chosen_ms_), serial_ms = median(serial_ms_);
  serial_now_ = over_ ? serial_ms < chosen_ms : !serial_now_;
  PlanChange change{serial_now_ ? serial_ : chosen_, {}};
  if (over_ && serial_now_) {
    change.notice = fmt::format(
        "--inter-op auto: as chosen a step took {}, one op after another with all threads {}: it goes on so",
        time_text(chosen_ms, 4), time_text(serial_ms, 4));
  }
  return change;
}

}  // namespace plimsoll
