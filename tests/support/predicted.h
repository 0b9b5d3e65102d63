// What a plan is predicted to do with costs from a table.
#pragma once

#include "plan/simulate.h"

namespace plimsoll::testing {

inline Prediction predicted(const Graph& graph, Plan plan, const CostTable& costs) {
  predict(graph, plan, costs);
  return std::move(plan.predicted);
}

}  // namespace plimsoll::testing
