#pragma once

#include <vector>

#include "plimsoll/plan.h"

namespace plimsoll {

// Bytes of stays alive at every step, counted as live_peak counts them.
std::vector<Bytes> live_bytes(const Plan& plan);

}  // namespace plimsoll
