// What it costs to start a step: training steps of a network whose kernels do nothing, one after another and side by
// side.
//   side_by_side_bench [MODEL]      JSON on standard output; processor time, so that a busy machine shows little
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/statistics.h"
#include "plimsoll/compile.h"
#include "plimsoll/error.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"
#include "tests/support/idle_device.h"

namespace {

using namespace plimsoll;

double processor_us() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  auto us = [](const timeval& t) { return 1e6 * static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec); };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

struct Measured {
  double wall_us = 0, processor_us = 0;  // of one plan step: median, mean
};

Measured measure(const Graph& graph, Plan plan, int cores) {
  const IdleDevice device;
  plan.cores.cores = cores;
  Executor executor(graph, plan, device);
  for (int i = 0; i < 20; ++i) executor.run_step();
  constexpr int kRounds = 500;
  std::vector<double> times;
  const double begun = processor_us();
  for (int i = 0; i < kRounds; ++i) {
    const Stopwatch watch;
    executor.run_step();
    times.push_back(1000 * watch.ms());
  }
  const double steps = static_cast<double>(plan.steps.size());
  const double processor = (processor_us() - begun) / kRounds / steps;
  return {median(std::move(times)) / steps, processor};
}

int run(const std::string& model) {
  const ModelInput input{.batch = 1, .training = true};  // the rest is the network's own
  CompileOptions options{.policy = "liveness", .exact = true, .family = LayoutFamily::plain};
  const auto device = open_reference_device();
  auto compiled = compile_training(build_model(model, input), *device, CostTable(), options);
  const Program program = std::get<Program>(std::move(compiled));
  fmt::print("{{\"model\": \"{}\", \"steps\": {}", model, program.plan->steps.size());
  struct Case {
    const char* name;
    int inter_op, cores;
  };
  for (const Case c : {Case{"serial", 1, 1}, Case{"one_core", 2, 1}, Case{"two_cores", 2, 2}}) {
    Plan plan = program.plan;
    plan.cores.inter_op = c.inter_op;
    const Measured m = measure(program.network.graph, plan, c.cores);
    fmt::print(", \"{}_us\": {:.3f}, \"{}_processor_us\": {:.3f}", c.name, m.wall_us, c.name, m.processor_us);
  }
  fmt::print("}}\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "resnet56");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "side_by_side_bench: %s\n", error.what());
    return 2;
  }
}
