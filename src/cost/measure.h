// Measuring on several devices of one kind at once, and how often a kernel is run.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "cost/probe.h"
#include "plimsoll/cost.h"

namespace plimsoll {

// Between kernels of one op that are compared.
struct TimingGoal {
  double seconds = 0.15;    // at most
  double best_ms = 0;       // of the kernels before this one; 0: it is the first
  double tolerance_ms = 0;  // a time need be no closer; 0: as close as the seconds allow
};
// Runs a kernel until its time is close enough, or it is out of the running: the median of its runs but the first,
// which warms up.
Cost time_runs(const TimedRun& run, const TimingGoal& goal);

// measure_costs (cost.h) with the kernels dealt out among devices that are alike, one thread a device: the table and
// the progress are those of all together. Throws Error(invalid_input) that names two devices whose keys differ.
int measure_costs(const Graph& graph, std::span<const Device* const> devices, CostTable& table,
                  const MeasureOptions& options);

// Runs what another process measures, for as long as it does.
class KernelLoad {
 public:
  // As measure_costs, of a graph that the other has as well.
  KernelLoad(Graph graph, const Device& device, const MeasureOptions& options);
  ~KernelLoad();
  // The kernel that MeasureOptions::progress names so, over and over until it `is_over`. What cannot be run here is not.
  void run(const std::string& what, const std::function<bool()>& is_over);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plimsoll
