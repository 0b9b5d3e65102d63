// The learning rate of every step: constant, steps, cosine, each after an optional warm-up; names as in timm.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace plimsoll {

struct ScheduleOptions {
  std::string name = "constant";  // constant, step, cosine
  double lr = 0.1;                // after the warm-up
  double min_lr = 0;              // cosine ends here
  double decay_rate = 0.1;        // step: factor at each decay
  int64_t decay_epochs = 30;      // step: epochs between decays
  int64_t warmup_epochs = 0;      // linear from warmup_lr to lr
  double warmup_lr = 0;
};
std::vector<std::string> schedule_names();
// Throws Error(invalid_input) on a name that is not known, with the nearest.
void check(const ScheduleOptions& options);

// The rate at training step `step` (from 0) of a run of `total_steps`.
double learning_rate(const ScheduleOptions& options, int64_t step, int64_t steps_per_epoch, int64_t total_steps);

}  // namespace plimsoll
