// How the cores of a CPU are shared: what the user asks for, and what that means on the machine.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cores/strategies.h"
#include "plimsoll/device.h"

namespace plimsoll {

// As on the command line.
struct CoreRequest {
  int threads = 0;                       // cores in all; 0: all that the process may use
  int inter_op = 1;                      // steps at once; 0: chosen, with the threads of every op
  int intra_op = 0;                      // threads of every op; 0: all cores, divided among the steps that run at once
  std::optional<Strategies> strategies;  // that a choice may use; nothing: all that the machine can
  int climb_interval = 0;                // between the thread counts that are measured; 0: a sixteenth of the cores
};

struct CoreOptions {
  int cores = 1;             // that the steps share
  int intra_op = 1;          // threads of an op, unless its step says otherwise: the device is opened with so many
  int inter_op = 1;          // steps at once
  bool choose = false;       // both by measured times
  std::string notice;        // for the user; empty: nothing to say
  Strategies strategies;     // for a choice
  int hardware_threads = 1;  // of a core, that a choice may use
  int climb_interval = 1;
};
// Throws Error(invalid_input) where the settings contradict each other, Error(unsupported) where the device runs one op
// at a time.
CoreOptions core_options(std::string_view device, const CoreRequest& request, bool exact);
CoreOptions core_options(std::string_view device, const CoreRequest& request, bool exact,
                         const CoreShape& machine);  // of a CPU

}  // namespace plimsoll
