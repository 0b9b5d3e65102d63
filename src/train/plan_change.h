// What looks after the plan of a training orders with it: another plan to go on with.
#pragma once

#include <string>

#include "plimsoll/compile.h"

namespace plimsoll {

struct PlanChange {
  CheckedPlan plan;
  std::string notice;  // for the user; empty: nothing to say
};

}  // namespace plimsoll
