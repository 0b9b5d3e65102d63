// The steps of a plan as the tasks that co_run schedules: those that run something, with the steps that they wait for.
// Copies stand between them as edges alone.
#pragma once

#include <vector>

#include "cores/strategies.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

struct Tasks {
  std::vector<CoTask> tasks;     // without their curves
  std::vector<StepIndex> steps;  // by task
};
Tasks tasks_of(const Graph& graph, const Plan& plan);

}  // namespace plimsoll
