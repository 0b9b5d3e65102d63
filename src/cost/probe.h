// The rules by which a machine's rates are found, apart from the machine: what is run and how long it took come from
// outside.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "device/tier/tier.h"
#include "device/wire.h"
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
// `room`: memory for it. With less than kProbeRoom the memory's rate may be that of a cache.
inline constexpr Bytes kProbeRoom = 64_MiB;
MachineRates probe_rates(const ProbeRuns& runs, int threads, Bytes room = kProbeRoom);
MachineRates probe_rates(const Device& device, Bytes room);

// The device's own kernels, timed.
ProbeRuns runs_on(const Device& device);

// Rates of a tier that was just opened: each direction while the device computes, since copies are for that; the
// latency of a small copy; and what computing loses meanwhile. A fraction of a second; takes up to 32 MiB of the tier,
// and as much beside it: both together no more than `room`.
TierInfo probe_tier(const Device& device, Tier& tier, Bytes room = kProbeRoom);
// Whether a thread of its own copies. Where a computing thread sits on every core it would take the place of one, and
// all the others would wait for that one.
bool copies_beside_compute(const Device& device, const Tier& tier);

// What one pass of an exchange of so many bytes takes: an AllReduce has two.
struct PassTime {
  Bytes bytes;
  double ms = 0;
};
// The latency of a message's round and the rate behind it, so that these times, of rising sizes, are off by as small a share
// as can be. Where larger ones take no longer, as on a busy machine, the least time is all latency and the largest all rate.
LinkInfo fit_link(std::span<const PassTime> times, int ranks);

// The link between ranks, by all of them together: what an AllReduce takes by its size, and what computing loses while one is
// under way beside it on all ranks, which has no cores of its own. A second or so; takes no more than `room`.
LinkInfo probe_link(const Device& device, Wire& wire, Bytes room);

}  // namespace plimsoll
