// A command as one of several ranks, where mpirun or srun started several.
#pragma once

#include <functional>
#include <memory>

#include "plimsoll/communicator.h"
#include "plimsoll/train.h"

namespace plimsoll::cli {

// Runs it with the others, or with null where there are none. What ends it by an error ends all of them: they tell it
// once, and return the same exit code. `timeout`: seconds that a rank may leave the others waiting.
int as_rank(double timeout, const std::function<int(const std::shared_ptr<Communicator>&)>& run);

// Takes --remote-memory of the processes that serve it, for this rank; all ranks call it together. `by_checkpoint`: the size
// is that of a checkpoint, whose training goes on without where nobody serves now, and says so. Throws
// Error(invalid_input) where somebody asks for it otherwise.
void take_remote_memory(TrainOptions& options, const std::shared_ptr<Communicator>& ranks, bool by_checkpoint);

}  // namespace plimsoll::cli
