// What a process takes beside its arena, by kind: known before anything is planned, and the same on every run.
//
//   before the first step    | program | probing, planning       |
//   while steps run          | program | kernels | threads | batches | data | copies | messages | host |  arena  |
//
// The arena is planned to the byte. These kinds are bounds: some follow from sizes (batches, data, copies, host), and
// some are figures of this build, found by measuring many networks and rounded up (program, kernels, threads,
// planning). src/train/process_memory.cpp has them all. What lies in the system's page cache (files that were read or
// written) is not the process's.
#pragma once

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "plimsoll/bytes.h"

namespace plimsoll {

// What --memory counts.
enum class MemoryIs : uint8_t { arena, process };

// For buffers while kernels are timed, where --memory is of the arena and smaller.
inline constexpr Bytes kMeasuringRoom = 64_MiB;

struct ProcessMemory {
  Bytes program;   // its code, its libraries, and what they hold whatever is run
  Bytes kernels;   // code that oneDNN generates, its books, and matrices that it packs while it runs
  Bytes threads;   // stacks, and what each thread's allocator keeps
  Bytes batches;   // that the loaders prepare
  Bytes data;      // that the data set holds, and images that are being decoded
  Bytes copies;    // buffers of copies to the disk, and states that are converted on their way to a tier
  Bytes messages;  // buffers of what the ranks send each other, and their library's
  Bytes host;      // the tier in host memory
  Bytes planning;  // before the arena is taken; given back then
  Bytes probing;   // likewise, where the machine's speed is not known yet; 0: it makes do with what is left

  Bytes beside() const {
    return program + kernels + threads + batches + data + copies + messages + host;
  }                                                                               // while steps run
  Bytes before() const { return program + std::max(planning, probing); }          // the first step
  Bytes with(Bytes arena) const { return std::max(arena + beside(), before()); }  // the whole process
  std::vector<std::pair<std::string_view, Bytes>> kinds() const;                  // by name
};

}  // namespace plimsoll
