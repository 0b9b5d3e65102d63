// The states of a training divided among its ranks.
#pragma once

#include <variant>

#include "plimsoll/compile.h"

namespace plimsoll {

// The program of a training step of `network`, with its states divided among the ranks as options.optimizer or options.zero
// says, or, where neither does, as costs least of what fits.
std::variant<Program, Infeasible> compile_step(const Network& network, const Device& device, const CostTable& costs,
                                               const CompileOptions& options);

}  // namespace plimsoll
