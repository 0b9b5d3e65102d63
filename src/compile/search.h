// The best that is found for a graph that nothing rewrites any more: over kernels, layouts, parts of the batch, and orders of
// the steps.
#pragma once

#include <variant>

#include "base/clock.h"
#include "compile/attempt.h"
#include "plimsoll/compile.h"

namespace plimsoll {

// By the device's times. The plan that is taken is placed with more effort than those that it was chosen among. With `bound`, what no plan
// of its steps is below may come with it.
Attempt search(const Network& network, const Device& device, const CostTable& costs, const CompileOptions& options,
               bool bound);

// The attempt that was taken; its plan is checked, whoever made it. `watch`: since planning began.
Program program_of(Network network, Attempt found, const CompileOptions& options, const Stopwatch& watch);

// No plan has a smaller arena: each op has room there, and all states that the tiers have no room for.
Bytes least_arena(const Graph& graph, const Device& device, const CompileOptions& options);

// The program of a network whose graph is all that is run; `lower_bound`: its least_arena. `watch`: since planning began.
std::variant<Program, Infeasible> compile_rewritten(Network network, Bytes lower_bound, const Device& device,
                                                    const CostTable& costs, const CompileOptions& options,
                                                    const Stopwatch& watch);

}  // namespace plimsoll
