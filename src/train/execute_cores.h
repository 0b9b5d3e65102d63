// How a plan's steps share the cores, as the executor's options.
#pragma once

#include <map>
#include <vector>

#include "plimsoll/execute.h"
#include "plimsoll/plan.h"

namespace plimsoll {

inline ExecuteOptions with_cores(ExecuteOptions options, const Plan& plan) {
  options.cores = plan.cores.cores;
  options.hardware_threads = plan.cores.hardware_threads;
  options.teams = plan.cores.cores > 0;
  options.conflicts.clear();
  std::map<OpId, std::vector<StepIndex>> steps_of;
  for (size_t s = 0; s < plan.steps.size(); ++s) steps_of[plan.steps[s].op].push_back(static_cast<StepIndex>(s));
  for (const auto& [a, b] : plan.cores.conflicts) {
    for (StepIndex s : steps_of[a]) {
      for (StepIndex t : steps_of[b]) options.conflicts.emplace_back(s, t);
    }
  }
  return options;
}

}  // namespace plimsoll
