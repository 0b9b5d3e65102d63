// Runs one step's kernel; one that refuses is named.
#pragma once

#include "plimsoll/error.h"
#include "plimsoll/execute.h"
#include "plimsoll/plan.h"

namespace plimsoll {

inline void run_kernel(const Graph& graph, const Step& step, Kernel& kernel) {
  try {
    kernel.run();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    throw KernelRefused(graph.op(step.op).name, step.kernel, error.what());
  }
}

}  // namespace plimsoll
