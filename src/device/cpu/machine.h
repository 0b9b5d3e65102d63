// What the process may use of the machine: memory, processors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/bytes.h"
#include "plimsoll/device.h"

namespace plimsoll::cpu {

struct MachineMemory {
  Bytes total;                      // of the machine, or of the control group or the process's limits when that is less
  Bytes available;                  // now: what can be taken without anything being pushed out, killed or refused
  bool limited_by_process = false;  // `available` is what ulimit -v or ulimit -d leaves
};
// `root` stands in for "/" in tests.
MachineMemory machine_memory(const std::string& root = "");

// Processors that the process may run on, by affinity and by the control group's quota.
int usable_processors(const std::string& root = "");

// Seconds since some moment: two of these say what happened between them. What the system does not tell stays 0.
struct ProcessorTimes {
  double wall = 0;
  double all = 0;        // of the processors that the process may run on, together
  double busy = 0;       // of these, that anybody computed
  double own = 0;        // that this process computed, all of its threads together, and those of count_as_own
  double waiting = 0;    // that its threads were ready to run and had no processor
  double throttled = 0;  // that the control group's CPU quota kept them waiting
};
ProcessorTimes processor_times(const std::string& root = "");
// Processes that do the same work as this one, on the same processors, are no others: from now on these.
void count_as_own(std::span<const int64_t> processes);

// Throws Error(device_failure) where so many threads are no use here, or more than the system lets the process start:
// OpenMP would end the process then.
void require_threads(int threads);

// The cores that the process may run on, as hwloc sees them: those that share a last-level cache stand together.
struct Topology {
  CoreShape shape;
  std::vector<std::vector<int>> processors;  // by core: its hardware threads, as the operating system numbers them
};
// `synthetic` stands in for the machine in tests, in hwloc's words: "l2:34 core:2 pu:4".
Topology machine_topology(const std::string& synthetic = "");

// By the system's numbers, the processors that are the places of `cores` cores: the first hardware thread of each,
// neighbours in caches side by side; and with `smt`, after them the second of each. Nothing where the process has
// not just so many.
std::vector<int> processors_of_cores(int cores, bool smt = false, const std::string& synthetic = "");

std::string processor_name(const std::string& root = "");  // "Intel(R) Xeon(R) Platinum 8481C"

}  // namespace plimsoll::cpu
