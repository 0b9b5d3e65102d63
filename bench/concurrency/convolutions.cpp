#include "bench/concurrency/convolutions.h"
#include "base/by_id.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/clock.h"
#include "base/statistics.h"
#include "bench/concurrency/timed_op.h"
#include "cost/bench.h"
#include "kernels/layout.h"
#include "plan/policy.h"
#include "plan/route.h"
#include "plimsoll/execute.h"
#include "plimsoll/kernels.h"
#include "plimsoll/ops.h"

namespace plimsoll::bench {
namespace {

// The inputs are the paper's; it does not say which filters. These are Inception-v3's, which has no 17x17x384: that
// takes the first's.
const Convolution kConvolutions[] = {
    {.width = 8,
     .height = 8,
     .channels = 384,
     .batch = 32,
     .filters = 384,
     .kernel_width = 3,
     .kernel_height = 1,
     .pad_width = 1},
    {.width = 17,
     .height = 17,
     .channels = 384,
     .batch = 32,
     .filters = 384,
     .kernel_width = 3,
     .kernel_height = 1,
     .pad_width = 1},
    {.width = 8, .height = 8, .channels = 2048, .batch = 32, .filters = 384, .kernel_width = 1, .kernel_height = 1},
};
constexpr int kRounds = 15;

// The two gradients of a convolution, which do not depend on each other, by their fastest kernels.
struct Pair {
  Graph graph;
  Plan plan;
};

Pair make_pair(const Convolution& convolution, const Device& device, const CostTable& costs) {
  const Graph all = convolution_graph(convolution);
  Graph graph;
  graph.name = "pair";
  ById<TensorId, TensorId> known(all.tensor_count());
  for (ConvolutionPass pass : {ConvolutionPass::backward_weights, ConvolutionPass::backward_data}) {
    const Op& op = all.op(convolution_op(pass));
    std::vector<TensorId> inputs;
    for (TensorId id : op.inputs) {
      TensorId& mine = known[id];
      if (!mine.valid()) {
        const Tensor& tensor = all.tensor(id);
        mine = graph.add_source(tensor.name, tensor.shape, tensor.dtype,
                                Role::parameter);  // what its first reader wants is its layout
      }
      inputs.push_back(mine);
    }
    graph.add_op(op.type->name, std::string(to_string(pass)), op.layer, inputs, op.attributes, op.phase);
  }
  const LayoutResult layouts = choose_layouts(graph, device, costs);
  const Route route = make_route(graph);
  // Every tensor has bytes of its own, so that nothing but the cores stands between the two.
  PlanOrInfeasible found =
      find_policy("baseline")
          .plan({.graph = graph, .route = route, .kernels = layouts.kernels, .costs = costs, .device = device.info()});
  return {std::move(graph), std::get<Plan>(std::move(found))};
}

double step_ms(const Pair& pair, const Device& device, int hardware_threads) {
  Plan plan = pair.plan;
  plan.cores.cores = device.info().cores.cores;
  plan.cores.hardware_threads = hardware_threads;
  Executor executor(pair.graph, plan, device);
  executor.initialize(1);
  std::vector<double> times;
  for (int i = 0; i < kRounds + 3; ++i) {
    const Stopwatch watch;
    executor.run_step();
    if (i >= 3) times.push_back(watch.ms());
  }
  return median(times);
}

}  // namespace

void report_input_sizes(const Device& device, CostTable& costs) {
  measure_convolutions(kConvolutions, device, costs, {});
  for (const Convolution& convolution : kConvolutions) {
    const Graph graph = convolution_graph(convolution);
    for (ConvolutionPass pass : kConvolutionPasses) {
      const auto choice = fastest_convolution(convolution, pass, device, costs, {INT64_MAX}, BatchSizes::undivided);
      if (!choice) continue;
      std::vector<double> ms;
      for (int threads = 1; threads <= device.info().threads; ++threads)
        ms.push_back(time_op(device, graph, graph.op(convolution_op(pass)), choice->kernel, threads));
      const auto best = std::min_element(ms.begin(), ms.end());
      fmt::print(
          "{{\"what\": \"sizes\", \"pass\": \"{}\", \"input\": \"{},{},{},{}\", \"convolution\": \"{}\", \"kernel\": \"{}\", \"best_threads\": {}, \"best_ms\": {:.4f}, "
          "\"all_ms\": {:.4f}, \"one_ms\": {:.4f}}}\n",
          to_string(pass), convolution.batch, convolution.height, convolution.width, convolution.channels,
          to_string(convolution), choice->kernel.name, best - ms.begin() + 1, *best, ms.back(), ms.front());
      std::fflush(stdout);
    }
  }
}

void report_pair(const Device& device, CostTable& costs) {
  const Convolution& convolution = kConvolutions[2];
  const CoreShape cores = device.info().cores;
  Pair pair = make_pair(convolution, device, costs);
  auto report = [&](const char* how, int threads, int hardware_threads) {
    fmt::print("{{\"what\": \"pair\", \"convolution\": \"{}\", \"how\": \"{}\", \"threads\": {}, \"ms\": {:.4f}}}\n",
               to_string(convolution), how, threads, step_ms(pair, device, hardware_threads));
    std::fflush(stdout);
  };
  for (Step& step : pair.plan.steps) step.threads = cores.cores;
  report("one after another", cores.cores, 1);
  pair.plan.cores.inter_op = 2;
  if (cores.hardware_threads > 1) {
    for (Step& step : pair.plan.steps) {
      if (pair.graph.op(step.op).name == to_string(ConvolutionPass::backward_data)) step.affinity = Affinity::smt;
    }
    report("second hardware threads", cores.cores, 2);
    for (Step& step : pair.plan.steps) step.affinity = Affinity::close;
  }
  if (cores.cores < 2) return;
  for (Step& step : pair.plan.steps) step.threads = cores.cores / 2;
  report("half the cores each", cores.cores / 2, 1);
}

}  // namespace plimsoll::bench
