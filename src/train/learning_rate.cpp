#include "plimsoll/train.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/names.h"
#include "plimsoll/error.h"

namespace plimsoll {

std::vector<std::string> schedule_names() { return {"constant", "step", "cosine"}; }

void check(const ScheduleOptions& options) {
  const auto known = schedule_names();
  if (std::find(known.begin(), known.end(), options.name) == known.end()) {
    throw Error(ErrorCode::invalid_input, unknown_name("learning-rate schedule", options.name, known));
  }
}

double learning_rate(const ScheduleOptions& options, int64_t step, int64_t steps_per_epoch, int64_t total_steps) {
  steps_per_epoch = std::max<int64_t>(1, steps_per_epoch);
  const int64_t warmup = options.warmup_epochs * steps_per_epoch;
  if (step < warmup) {
    return options.warmup_lr +
           (options.lr - options.warmup_lr) * static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  if (options.name == "step") {
    const int64_t decays = step / steps_per_epoch / std::max<int64_t>(1, options.decay_epochs);
    return options.lr * std::pow(options.decay_rate, static_cast<double>(decays));
  }
  if (options.name == "cosine") {
    const double span = static_cast<double>(std::max<int64_t>(1, total_steps - warmup));
    const double at = std::min(1.0, static_cast<double>(step - warmup) / span);
    return options.min_lr + (options.lr - options.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * at));
  }
  return options.lr;
}

}  // namespace plimsoll
