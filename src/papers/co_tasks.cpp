#include "papers/co_tasks.h"

#include <map>
#include <set>

#include "base/by_id.h"
#include "plimsoll/autodiff.h"
#include "plimsoll/ops.h"

namespace plimsoll {

SimulatedCores knights_landing() {
  // Least squares of the logarithms of Table I's 16 speedups and two times. Only the throughput of two hardware threads
  // is from Table III (1.03).
  constexpr double kMemory = 113.5;
  return {.machine = {.cores = {.cores = 68, .cores_a_cache = 2, .hardware_threads = 4},
                      .memory_gb_per_s = kMemory,
                      .throughput = {1, 1.03, 0.83, 0.64},
                      .turns = 1,
                      .waiting = 1},
          .law = {.gflops_a_core = 2.85,
                  .gb_per_s_a_core = 4.27,
                  .memory_gb_per_s = kMemory,
                  .serial_share = 0.117,
                  .thread_ms = 0.0042,
                  .start_ms = 0.022}};
}

SimulatedCores sixteen_cores() {
  constexpr double kMemory = 150;
  return {.machine = {.cores = {.cores = 16, .cores_a_cache = 16, .hardware_threads = 2},
                      .memory_gb_per_s = kMemory,
                      .throughput = {1, 1.15},
                      .turns = 0.5,
                      .waiting = 1},
          .law = {.gflops_a_core = 100,
                  .gb_per_s_a_core = 12,
                  .memory_gb_per_s = kMemory,
                  .serial_share = 0.01,
                  .thread_ms = 0.001,
                  .start_ms = 0.003}};
}

std::vector<StepOp> training_step(std::string_view model, const ModelInput& input, const std::string& optimizer) {
  OptimizerOptions how;
  how.name = optimizer;
  const Network network = make_training_network(build_model(model, input), how);
  const Graph& graph = network.graph;
  ById<TensorId, int32_t> made_by(graph.tensor_count(), -1);  // what the tensor, or what it views, comes from
  std::vector<StepOp> ops;
  for (const Op& op : graph.ops()) {
    std::set<int32_t> after;
    for (TensorId t : op.inputs) {
      if (const int32_t from = made_by[t]; from >= 0) after.insert(from);
    }
    int32_t self = static_cast<int32_t>(ops.size());
    if (op.type->is_view) {
      self = made_by[op.inputs[0]];
    } else {
      ops.push_back({op.type->name, op.type->work ? op.type->work(graph, op) : Work{}, {after.begin(), after.end()}});
    }
    for (TensorId t : op.outputs) made_by[t] = self;
  }
  return ops;
}

std::vector<CoTask> co_tasks(std::span<const StepOp> ops, const SimulatedCores& on, int most) {
  const CoreShape& cores = on.machine.cores;
  if (most == 0) most = cores.cores * cores.hardware_threads;
  std::map<std::string, int32_t> types;
  std::vector<CoTask> tasks;
  tasks.reserve(ops.size());
  for (const StepOp& op : ops) {
    tasks.push_back({.type = types.try_emplace(op.type, static_cast<int32_t>(types.size())).first->second,
                     .curve = scaled_curve(op.work, on.law, most),
                     .bytes = op.work.bytes,
                     .after = op.after});
  }
  return tasks;
}

}  // namespace plimsoll
