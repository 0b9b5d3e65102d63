// The machine's rates, by the device's own kernels: a matrix product, a long streaming op, and an op of nothing.
#include <algorithm>

#include "cost/bench.h"
#include "plimsoll/cost.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

// The shortest of `runs` runs of the op's first kernel, in ms.
double shortest_ms(const Device& device, const Graph& graph, OpId op, int runs) {
  const KernelSpec spec = device.kernels(graph, graph.op(op), LayoutFamily::plain).at(0);
  OpBench bench(device, isolate(graph, graph.op(op), spec));
  const std::unique_ptr<Arena> arena = device.take_arena(bench.bytes(1));
  bench.place(arena->base(), 1);
  double least = bench.run();
  for (int i = 0; i < runs; ++i) least = std::min(least, bench.run());
  return least;
}

// Sizes grow until the shortest run takes this long: long against a thread's start and against being interrupted, and
// reached by a slow device too.
constexpr double kLongEnoughMs = 20;

double product_ms(const Device& device, int64_t n, int runs) {
  Graph graph;
  const TensorId x = graph.add_source("x", {n, n}, DType::f32, Role::activation);
  const TensorId w = graph.add_source("w", {n, n}, DType::f32, Role::activation);
  return shortest_ms(device, graph, graph.add_op("FullyConnectedForward", "product", "product", {x, w}), runs);
}

double probe_gflops(const Device& device) {
  double rate = 0;
  for (int64_t n = 64; n <= 1024; n *= 2) {
    const double ms = product_ms(device, n, 4);
    rate = std::max(rate, 2.0 * static_cast<double>(n * n * n) / (std::max(ms, 1e-6) * 1e6));
    if (ms > kLongEnoughMs) break;
  }
  return rate;
}

double relu_ms(const Device& device, int64_t elements, int runs) {
  Graph graph;
  const TensorId x = graph.add_source("x", {elements}, DType::f32, Role::activation);
  return shortest_ms(device, graph, graph.add_op("ReluForward", "relu", "relu", {x}), runs);
}

double probe_memory_gb_per_s(const Device& device) {
  double rate = 0;
  for (int64_t elements = int64_t{1} << 16; elements <= int64_t{1} << 24; elements *= 16) {
    const double ms = relu_ms(device, elements, 4);
    rate = 8.0 * static_cast<double>(elements) / (std::max(ms, 1e-6) * 1e6);  // the last is out of the caches
    if (ms > kLongEnoughMs) break;
  }
  return rate;
}

}  // namespace

MachineRates probe_rates(const Device& device) {
  MachineRates rates;
  if (device.info().simulated) return rates;
  auto probe = [](double& field, auto measure) {
    try {
      if (const double value = measure(); value > 0) field = value;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::device_failure) throw;
    }
  };
  probe(rates.gflops, [&] { return probe_gflops(device); });
  probe(rates.memory_gb_per_s, [&] { return probe_memory_gb_per_s(device); });
  probe(rates.launch_us, [&] { return 1000 * std::max(relu_ms(device, 16, 50), product_ms(device, 16, 50)); });
  return rates;
}

}  // namespace plimsoll
