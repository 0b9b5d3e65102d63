// Steps that a device may run as one launch (device/joinable.h), and how the times of these are known: what one of them takes
// there is its share of the launch, by bytes, and no time of that step alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

// By step: whether it is an update that stands next to another by the same kernel, with nothing copied or waited for between
// them. Which of these are one launch, the device decides (StepRecord::together).
std::vector<bool> steps_together(const Graph& graph, const Plan& plan);

// The name under which a kernel's shares of such launches are kept among costs inside a step.
std::string kernel_together(std::string_view kernel);

}  // namespace plimsoll
