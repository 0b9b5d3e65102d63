// A training step of a network as tasks of a simulated machine.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cores/strategies.h"
#include "papers/scaling.h"
#include "plimsoll/models.h"

namespace plimsoll {

struct SimulatedCores {
  CoMachine machine;
  ScalingLaw law;
};
// The Xeon Phi 7250 of the concurrency paper: 68 cores of four hardware threads, pairs of which share a cache. Its
// rates are fitted to the times and speedups of the paper's Table I; they are those of TensorFlow 1.9 on it, not of the
// bare machine.
SimulatedCores knights_landing();
// 16 cores of a server of today, by round figures.
SimulatedCores sixteen_cores();

struct StepOp {
  std::string type;
  Work work;
  std::vector<int32_t> after;
};
// The ops of a training step without views, each after those that it takes its inputs from.
std::vector<StepOp> training_step(std::string_view model, const ModelInput& input, const std::string& optimizer);
// With curves by the law, for up to `most` threads; 0: every hardware thread.
std::vector<CoTask> co_tasks(std::span<const StepOp> ops, const SimulatedCores& on, int most = 0);

}  // namespace plimsoll
