// One op of a graph by one kernel, alone and cold in the cache: its median time with so many threads.
#pragma once

#include <string>

#include "bench/concurrency/counters.h"
#include "bench/concurrency/regression.h"
#include "plimsoll/device.h"

namespace plimsoll::bench {

// With `features`, appends what the counters say of a run, by instructions, and the time.
double time_op(const Device& device, const Graph& graph, const Op& op, const KernelSpec& kernel, int threads,
               Counters* counters = nullptr, Row* features = nullptr);

}  // namespace plimsoll::bench
