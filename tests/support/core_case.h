// A small network's plan for tests of how its steps share the cores, with costs that the test says.
#pragma once

#include "cores/share_cores.h"
#include "plimsoll/compile.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"

namespace plimsoll::testing {

inline Program resnet20_program(const Device& device) {
  const ModelInput input{.batch = 2, .channels = 3, .height = 32, .width = 32, .classes = 10, .training = true};
  const CompileOptions options{.policy = "liveness", .exact = true, .family = LayoutFamily::plain};
  return std::get<Program>(compile_training(build_model("resnet20", input), device, CostTable(), options));
}

// Every kernel takes 1 ms with all threads, and so much with one.
inline CostTable costs_of(const Program& program, double one_thread_ms) {
  CostTable costs;
  const Graph& graph = program.network.graph;
  for (const Step& step : program.plan->steps) {
    if (step.kernel.empty()) continue;
    const std::string signature = op_signature(graph, graph.op(step.op));
    costs.put({signature, step.kernel, 0}, {.source = Cost::Source::measured, .time_ms = 1, .runs = 5});
    costs.put({signature, step.kernel, 1}, {.source = Cost::Source::measured, .time_ms = one_thread_ms, .runs = 5});
  }
  return costs;
}

// A program on a CPU of two threads.
struct CoreCase {
  explicit CoreCase(double one_thread_ms) : CoreCase(one_thread_ms, CoreOptions{}) {}
  CoreCase(double one_thread_ms, const CoreOptions& options)
      : device(open_device("cpu", 2)),
        program(resnet20_program(*device)),
        costs(costs_of(program, one_thread_ms)),
        input{program.network.graph, *device, costs, options},
        serial(check_plan(input.graph, plimsoll::serial(input, program.plan))) {}
  CoreCase(const CoreCase&) = delete;

  ChosenThreads choose(const OpPairs& conflicts = {}) const { return choose_threads(input, serial, serial, conflicts); }
  CheckedPlan chosen_plan() const { return check_plan(input.graph, choose().plan); }

  std::unique_ptr<Device> device;
  Program program;
  CostTable costs;
  CoreInput input;
  CheckedPlan serial;
};

}  // namespace plimsoll::testing
