// Judges a saved plan: the plan itself (verify.h), and what the file claims besides. It is as it was saved; the graph
// is that of the network, the optimizer and the input that were asked for, and the plan keeps to the memory that was;
// what is predicted is what the plan comes to when it is run on paper.
#pragma once

#include <vector>

#include "compile/plan_file.h"
#include "plimsoll/device.h"
#include "plimsoll/verify.h"

namespace plimsoll {

// Every violation found, those that say most first: an edited file usually breaks another rule, too. Stops after
// `limit`.
std::vector<Violation> verify_file(const SavedPlan& saved, size_t limit = 20);

// What the device's kernels say to the plan, which must be valid: each step's kernel can be made, and needs as much
// workspace as its step has.
std::vector<Violation> verify_workspaces(const Graph& graph, const Plan& plan, const Device& device, size_t limit = 20);

}  // namespace plimsoll
