// A command as one of several ranks, where mpirun or srun started several.
#pragma once

#include <functional>
#include <memory>

#include "plimsoll/communicator.h"

namespace plimsoll::cli {

// Runs it with the others, or with null where there are none. What ends it by an error ends all of them: they tell it
// once, and return the same exit code. `timeout`: seconds that a rank may leave the others waiting.
int as_rank(double timeout, const std::function<int(const std::shared_ptr<Communicator>&)>& run);

}  // namespace plimsoll::cli
