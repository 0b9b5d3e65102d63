// How much a process will take beside its arena, and what that leaves for the arena (--memory-is process).
#pragma once

#include <optional>
#include <string>

#include "device/tier/tier.h"
#include "plimsoll/compile.h"
#include "plimsoll/data.h"
#include "plimsoll/models.h"
#include "plimsoll/plan.h"
#include "plimsoll/process_memory.h"

namespace plimsoll {

// What the kinds depend on.
struct ProcessUse {
  MemoryIs memory_is = MemoryIs::arena;
  bool training = true;  // else a forward pass alone
  bool evaluates = true;
  int threads = 1;   // that compute
  int workers = 1;   // that prepare batches
  Bytes data;        // that the data set holds
  int decoders = 0;  // threads that decode image files
  int ranks = 1;
  TierOptions tiers;
};

// `network`: the forward network, as build_model makes it. Where --memory is of the process, two threads plan from now
// on, as many as are counted, whatever the machine has.
ProcessMemory process_memory(const Network& network, const ProcessUse& use);

// ProcessMemory::program, which depends on nothing.
Bytes program_memory();

// That a data set holds, with the order of its samples in two epochs.
Bytes data_bytes(const DataSet& data);

// The same, as far as a plan uses the tier in host memory.
ProcessMemory with_plan(ProcessMemory memory, const Plan& plan);

// What is left for the arena in a process of so many bytes. Where these are less than planning takes, what would be left
// if they were enough for that: see refused_by_planning.
Bytes arena_within(const ProcessMemory& memory, Bytes process);

// Says the same of the whole process: budget, minimum, bound, and what to do.
Infeasible of_process(Infeasible infeasible, const ProcessMemory& memory, Bytes process);

// The answer to a budget of the process in which the program's plan could be run but not made.
std::optional<Infeasible> refused_by_planning(const Program& program, const ProcessMemory& memory, Bytes process);

// "program 40 MiB, batches 14.4 MiB, ..."
std::string to_text(const ProcessMemory& memory);

// Throws Error(invalid_input) where the flags cannot mean the process.
void check_memory_is_process(std::string_view device, bool memory_given);

// The largest resident size that the process has had, by the kernel's account (VmHWM).
Bytes process_peak();

// Gives the system what was freed but kept: by the allocator, and by oneDNN for kernels that may come again.
void give_memory_back();

}  // namespace plimsoll
