#include "train/ab_trial.h"

#include <fmt/format.h>

#include <algorithm>

#include "cores/side_by_side.h"

namespace plimsoll {
namespace {

constexpr int kBlocks = 6;        // three of each
constexpr int kStepsOfBlock = 5;  // the first warms up

}  // namespace

AbTrial::AbTrial(Program& program, const CostTable& costs)
    : program_(program), costs_(costs), inter_op_(program.plan.cores.inter_op), predicted_(program.plan.predicted) {
  for (const Step& step : program.plan.steps) chosen_.push_back({step.threads, step.affinity});
}

bool AbTrial::sees(double step_ms) {
  if (over_) return false;
  if (in_block_++ > 0) (serial_now_ ? serial_ms_ : chosen_ms_).push_back(step_ms);
  return in_block_ == kStepsOfBlock;
}

std::string AbTrial::turn() {
  in_block_ = 0;
  over_ = ++block_ == kBlocks;
  const double chosen_ms = median_ms(true), serial_ms = median_ms(false);
  serial_now_ = over_ ? serial_ms < chosen_ms : !serial_now_;
  if (serial_now_) {
    run_serially(program_, costs_);
  } else {
    run_as_chosen();
  }
  if (!over_ || !serial_now_) return {};
  return fmt::format("--inter-op auto: as chosen a step took {:.4g} ms, one op after another with all threads {:.4g}: it goes on so", chosen_ms,
                     serial_ms);
}

void AbTrial::run_as_chosen() {
  for (size_t s = 0; s < chosen_.size(); ++s) {
    program_.plan.steps[s].threads = chosen_[s].threads;
    program_.plan.steps[s].affinity = chosen_[s].affinity;
  }
  use_stays(program_, inter_op_ > 1);
  program_.plan.cores.inter_op = inter_op_;
  program_.plan.predicted = predicted_;
}

double AbTrial::median_ms(bool chosen) const {
  std::vector<double> times = chosen ? chosen_ms_ : serial_ms_;
  if (times.empty()) return 0;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace plimsoll
