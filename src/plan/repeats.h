// Repeated blocks of a training step. Deep networks repeat a block of ops many times, and what holds for a value of one
// block holds for the same value of the others.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/value_timeline.h"

namespace plimsoll {

// By value: its class. Values of one class are of one size, are made by steps that take as long, read and write as
// many bytes, and are used by such steps, in the same order.
std::vector<int32_t> repeated_values(const ValueTimeline& timeline);

}  // namespace plimsoll
