// What a training is asked for: by flags, by a checkpoint, or by a saved plan.
#pragma once

#include <cstdint>
#include <string>

#include "cli/commands.h"
#include "plimsoll/train.h"

namespace plimsoll::cli {

struct TrainFlags : CommonFlags {
  std::string data;
  int64_t epochs = 0, steps = 0;
  double lr = 0;
  ScheduleOptions schedule;
  uint64_t seed = 0;
  bool no_augment = false;
  int workers = 1;
  int64_t evaluate_every = 1, checkpoint_every = 0;
  std::string checkpoint, resume, weights, plan, log_csv, tensorboard, trace, report, costs = "measured";
  bool check_memory = false;
  double timeout = static_cast<double>(kDefaultTimeout.count());
};

// Flags that were not given come from the checkpoint or the plan; those that a plan cannot obey are refused by name.
TrainOptions options_from(TrainFlags& flags, const CLI::App& command);

}  // namespace plimsoll::cli
