// Why a plan does what it does with one tensor, op or layer, as text.
#pragma once

#include <string>
#include <string_view>

#include "plimsoll/compile.h"
#include "plimsoll/cost.h"
#include "plimsoll/device.h"

namespace plimsoll {

// Of a tensor: what it is, where it lies, from when to when, and who wants it so. Of an op: its steps, its kernel, and
// the other kernels of the device with their costs. Of a layer (also one that was fused into another): its ops. Throws
// Error(invalid_input) with the nearest name.
std::string explain(const Program& program, const Device& device, const CostTable& costs, std::string_view name);

}  // namespace plimsoll
