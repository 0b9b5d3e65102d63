// A training step on paper where several steps run at once, as the concurrent driver runs them (execute/concurrent.h):
// of the ready steps the first of the plan's order starts when there are cores for it and nothing that it conflicts with
// runs. What overtakes a step that waits for cores, or runs beside others on second hardware threads, must end no later
// than what runs.
//
//   core 0 |  conv1/dw    |  conv2/dw    |     a step holds its cores; steps that run at once share the memory's rate,
//   core 1 |  conv1/dx         | update |      and on a core with two of them the speed of its hardware threads
//   disk >        |=======|                    copies run on engines of their own, in the order in which they may start
#pragma once

#include <span>
#include <vector>

#include "plan/engines.h"
#include "plimsoll/plan.h"

namespace plimsoll {

// Slows those down that together ask for more memory than there is: who asks for less than an equal share gets it, what
// is left is shared by the others. `bytes_per_ms` is what each asks for at its full rate; `rates` are multiples of
// that, and are changed.
void share_memory(std::span<const double> bytes_per_ms, double memory_gb_per_s, std::span<double> rates);

// The cores that a plan's steps share, where it does not say: as many as inter_op steps of the most threads take.
int cores_of(const Plan& plan);
// The cores that a step holds: all of them where it does not say.
int cores_of(const Plan& plan, const Step& step);

// A span for every step and every move goes to the timeline. The plan must be valid, and have its times.
EngineTimes run_on_cores(const Graph& graph, const Plan& plan, std::vector<EngineSpan>& timeline);

// No order in which these steps run, with these kernels and thread counts, takes less: neither the longest chain of ops
// that read each other's results, nor all their work on the cores. What runs again does not count.
double least_ms_on_cores(const Graph& graph, const Plan& plan);

}  // namespace plimsoll
