// A plan that is run as it is: a file's, or the first rank's. What is compiled for it is the graph alone, in which its
// kernels and layouts are pinned; the plan then takes the place of the one that came of that.
#pragma once

#include <string>

#include "compile/plan_file.h"
#include "plimsoll/device.h"
#include "plimsoll/train.h"

namespace plimsoll {

// Where it comes from: the file's name, or the first rank's.
std::string plan_name(const TrainOptions& options);

// Throws Error(invalid_input) where the plan is another device's, Error(infeasible) where it needs more than the memory.
void pin(CompileOptions& compile, const SavedPlan& saved, const TrainOptions& options, const DeviceInfo& device);

// Puts a saved plan in the place of the one just made, if it is for the same graph and safe; else throws
// Error(invalid_input).
void use_plan(Program& program, const SavedPlan& saved, const TrainOptions& options, Bytes budget,
              const Device& device);

}  // namespace plimsoll
