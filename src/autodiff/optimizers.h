// What can be wrong with the settings of an optimizer.
#pragma once

#include "plimsoll/autodiff.h"

namespace plimsoll {

// Throws Error(invalid_input) on a name that is not known, with the nearest, and on settings that contradict each other.
void check(const OptimizerOptions& options);

}  // namespace plimsoll
