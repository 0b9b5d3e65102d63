// What a plan saves over getting memory for each tensor when it is made and giving it back after its last use
// (SuperNeurons, table 2): the same steps by the same kernels, with other ways to find a place.
#pragma once

#include <string>
#include <vector>

#include "plimsoll/compile.h"
#include "plimsoll/device.h"

namespace plimsoll {

struct HeapRun {
  std::string heap;         // "cudaMalloc", "cudaMallocAsync", "papers' heap", "plan", "plan, captured"
  double step_time_ms = 0;  // median
  double spread_ms = 0;     // half the distance between the quartiles
  int64_t allocations = 0;  // a step
  Bytes held;               // the most at a time, parameters included
  uint64_t digest = 0;      // of parameters and states when all steps are done: the same for all
};

// Runs `steps` training steps of a plan that moves nothing ("liveness"), after two that are not timed, in each way that
// the device offers. Values are meaningless. Throws Error(invalid_input) for a plan with copies.
std::vector<HeapRun> compare_heaps(const Program& program, const Device& device, int steps);

}  // namespace plimsoll
