// What a device's library refuses is known only when it is asked: before the first step rather than in it.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/execute.h"

namespace plimsoll {

using Refusals = std::set<std::pair<std::string, std::string>>;  // of ops, by name, and their kernels

// Asks the device for every kernel of the executor's plan and gives those that it refuses, which it will offer no more;
// none: the plan runs. `known` has those of the plans before. Throws KernelRefused for one that is offered all the same.
std::vector<KernelRefused> rehearse(Executor& executor, Refusals& known);

// Of the memory of an executor whose plan was refused, what the next plan's takes over: the host's, which takes long to be
// touched and pinned. What lies elsewhere is as large as its plan says.
Memory kept_memory(const Executor& executor);

}  // namespace plimsoll
