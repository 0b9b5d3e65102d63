// The rules by which a machine's rates are found, apart from the machine: what is run and how long it took come from
// outside.
#pragma once

#include <cstdint>
#include <functional>

#include "plimsoll/cost.h"

namespace plimsoll {

using TimedRun = std::function<double()>;  // runs once; returns the milliseconds

struct ProbeRuns {
  std::function<TimedRun(int64_t n, int threads)> product;      // of n x n by n x n matrices
  std::function<TimedRun(int64_t elements, int threads)> relu;  // reads and writes so many floats
  std::function<void(double ms)> wait;
};

// Threads wait for each other at the end of every op, so one that the system has put aside makes all of them late, by
// milliseconds where microseconds were due, and does so again for as long as another program wants its core. The
// shortest of many runs is taken, of every size; and several threads that seem slower than one alone are tried again
// later. If they still do, what one thread tells is believed. A rate that cannot be had stays MachineRates' default.
MachineRates probe_rates(const ProbeRuns& runs, int threads);

// The device's own kernels, timed.
ProbeRuns runs_on(const Device& device);

}  // namespace plimsoll
