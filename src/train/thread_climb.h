// Measures what the ops of a program take with other thread counts while it trains: the hill climbs of all ops side by
// side, a case of each in a training step (section III-C of the concurrency paper).
//
//   step 1   all with all threads (warms up)
//   step 2   every op with 1 thread               at most 2C/x steps; where fewer cases are to be tried, each is tried
//   step 3   every op with 1 + x, spread          more than once within these, and the shortest time counts
//   step 4   every op with 1 + x, close; ops that are at their optimum stay there
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "cores/strategies.h"
#include "plimsoll/cost.h"
#include "plimsoll/device.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

class ThreadClimb {
 public:
  // `plan`: one step after another. What `costs` knows is not measured again. Threads that are not `pinned` are neither
  // close nor spread. All but the plan must outlive it.
  ThreadClimb(const Graph& graph, const Plan& plan, const Device& device, CostTable& costs, int interval,
              bool pinned = true);

  bool done() const { return profiling_.done(); }
  int open_kinds() const { return open_kinds_; }  // ops that differ, and of which there is something to try
  int most_steps() const { return most_steps_; }  // 2C/x
  int steps() const { return steps_; }            // so far

  // The plan where every step has the threads of its next case.
  Plan next_plan();
  // What each step of that plan took, and whether others kept the machine busy meanwhile. True: the next cases are due,
  // or all is known.
  bool record(std::span<const double> step_ms, bool busy = false);

 private:
  struct Kind {  // ops of one signature with one kernel
    std::string signature, kernel;
    std::vector<size_t> steps;
    double best_ms = 0;  // of the tries of this case
  };
  CostKey key(const Kind& kind, ThreadCase at) const;
  std::optional<double> known(const Kind& kind, ThreadCase at) const;
  void skip_known();

  const Graph& graph_;
  const Plan plan_;
  const Device& device_;
  CostTable& costs_;
  CoreShape cores_;
  std::vector<Kind> kinds_;
  ProfilingSteps profiling_;
  std::vector<ThreadCase> now_;  // by kind
  int most_steps_ = 0, tries_ = 1, tried_ = 0, steps_ = 0, open_kinds_ = 0;
};

}  // namespace plimsoll
