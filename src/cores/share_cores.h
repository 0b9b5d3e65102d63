// The stage that shares the cores of a CPU among the steps of a plan. A plan and costs go in, a whole plan comes out:
// how many steps run at once, with how many threads each, on which cores, in which order, which pairs do not meet, and
// offsets with which they wait less for each other's bytes. The states lie at the same offsets in all of these plans.
//
//   plan ──> relax_reuse ──> relaxed ──> uniform          as many steps at once as the user says
//     │                         │
//     └──> serial               └──────> choose_threads   by measured times, or serial where nothing is
//                                                         predicted to be faster
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cores/conflicts.h"
#include "cores/core_options.h"
#include "plimsoll/cost.h"
#include "plimsoll/device.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

// What the stage knows besides the plan. All but the options must outlive it.
struct CoreInput {
  const Graph& graph;
  const Device& device;
  const CostTable& costs;
  CoreOptions options;
};

// One step after another, each with all threads.
Plan serial(const CoreInput& input, const Plan& plan);

// The same, each with so many threads; with all where its kernel cannot be made for so many.
Plan serial_with(const CoreInput& input, const Plan& plan, int threads);

// The plan with bytes taken over later (relax_reuse.h), within its budget, where steps that run at once are predicted
// to gain by it; else the plan as it is.
struct RelaxedPlan {
  Plan plan;
  std::string notice;  // for the user, where the budget is in the way; empty: nothing to say
};
RelaxedPlan relax(const CoreInput& input, const Plan& plan);

// So many steps at once with so many threads each, as the options say; the plan as it is where they say one after
// another.
Plan uniform(const CoreInput& input, const Plan& plan);

// By the papers' strategies over what has been measured: serial where that is predicted to be as fast. `relaxed` has
// the offsets for steps that run at once. Pairs of ops in `conflicts` do not meet, nor those that the costs know as
// conflicts.
struct ChosenThreads {
  Plan plan;
  double serial_ms = 0;   // predicted for one step after another
  int narrowed = 0;       // ops with fewer threads than all
  int smt = 0;            // of them, on second hardware threads
  bool measured = false;  // whether times with fewer threads are known at all
};
ChosenThreads choose_threads(const CoreInput& input, const Plan& plan, const Plan& relaxed,
                             const OpPairs& conflicts = {});
std::string to_text(const ChosenThreads& chosen);  // a line for the user

// The whole stage, as the options say.
struct SharedCores {
  Plan plan;
  std::vector<std::string> notices;  // for the user
};
SharedCores share_cores(const CoreInput& input, const Plan& plan);

// Whether it runs otherwise than one op after another with all threads.
bool shares_cores(const Plan& plan);

// Whether an op's kernel can be made for so many threads, and its workspace has room in the plan's.
bool fits(const Graph& graph, const Device& device, const Step& step, int threads);

}  // namespace plimsoll
