// What a checkpoint keeps of a training's options, both ways.
#pragma once

#include <filesystem>
#include <optional>

#include "cores/share_cores.h"
#include "plimsoll/checkpoint.h"
#include "plimsoll/compile.h"
#include "plimsoll/train.h"

namespace plimsoll {

// What was asked for and what was compiled from it; where the training is, is the caller's to add. How the
// cores are shared is left out where it is tried out and not chosen yet: who resumes chooses anew.
TrainingState state_to_save(const TrainOptions& options, const Program& program, std::string_view device_key,
                            bool has_chosen = true);

// The options of the training that this state is of.
TrainOptions saved_options(const TrainingState& state);

// What must be the same for a resumed run to be the continuation of the saved one; throws Error(invalid_input).
void check_resumable(const TrainOptions& options, const TrainingState& saved, const std::filesystem::path& file);

// For the user, when a checkpoint of the device with that key goes on with another, or with other threads for an op.
std::string other_device_text(std::string_view saved_key, const DeviceInfo& device);

// The saved place exists in an epoch of so many batches; throws Error(invalid_input): other data, or a damaged file.
void check_place(const TrainingState& saved, int64_t batches_per_epoch, const std::filesystem::path& file);

// Lets a compilation repeat what the checkpoint's run was compiled to.
void pin(CompileOptions& compile, const TrainingState& saved);
// The plan with the threads and cores of the checkpoint's run; nothing where that chose none, or chose them for ops that
// this graph does not have. `plan` runs one step after another, `relaxed` has the offsets for steps that run at once. An
// order of other steps is left out: they are taken up in the plan's order.
std::optional<Plan> saved_cores(const CoreInput& input, const Plan& plan, const Plan& relaxed,
                                const TrainingState& saved);

}  // namespace plimsoll
