// The machine's rates, by the device's own kernels: a matrix product, a long streaming op, and an op of nothing.
#include "cost/probe.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "cost/bench.h"
#include "device/simulated/simulated.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr double kRunsMs = 20;  // of one size: as many runs as fit, at least two
constexpr int kProbeRuns = 5;
constexpr double kSizesMs = 150;  // spent on the sizes so far: a slow device gets no larger ones
constexpr int kLaunches = 50;
constexpr double kWaitsMs[] = {5, 20, 80, 200};  // before each further try
// An op of nothing takes several threads a little longer than one: they have to be woken.
constexpr double kLaunchByThreads = 20;
constexpr double kCacheByMemory = 4;  // one thread in its cache, by several out of it

struct Shortest {
  double ms = 0;
  double spent_ms = 0;  // without the first run, which may load what it needs for long
};

Shortest shortest(const TimedRun& run, int most_runs) {
  Shortest result{.ms = std::max(run(), 1e-6)};  // warms up, too
  for (int i = 0; i < most_runs && (i == 0 || result.spent_ms < kRunsMs); ++i) {
    const double ms = std::max(run(), 1e-6);
    result.ms = std::min(result.ms, ms);
    result.spent_ms += ms;
  }
  return result;
}

// `roughly`: only to compare with, by small sizes.
double gflops(const ProbeRuns& runs, int threads, bool roughly, Bytes) {
  double rate = 0, spent_ms = 0;
  const int64_t largest = roughly ? 256 : 1024;
  for (int64_t n = 64; n <= largest && spent_ms < kSizesMs; n *= 2) {
    const Shortest time = shortest(runs.product(n, threads), kProbeRuns);
    rate = std::max(rate, 2.0 * static_cast<double>(n * n * n) / (time.ms * 1e6));
    spent_ms += time.spent_ms;
    if (8 * time.ms > kSizesMs) break;
  }
  return rate;
}

double memory_gb_per_s(const ProbeRuns& runs, int threads, bool roughly, Bytes room) {
  constexpr int64_t kBytesAnElement = 8;  // read and written
  double rate = 0, spent_ms = 0;
  const int64_t largest = std::max<int64_t>(roughly ? 1 << 20 : room.count / kBytesAnElement, 256);
  for (int64_t elements = largest / 256; elements <= largest; elements *= 16) {
    const Shortest time = shortest(runs.relu(elements, threads), kProbeRuns);
    rate = 8.0 * static_cast<double>(elements) / (time.ms * 1e6);  // the last is out of the caches
    spent_ms += time.spent_ms;
    if (16 * time.ms > kSizesMs || spent_ms >= kSizesMs) break;
  }
  return rate;
}

double launches_per_us(const ProbeRuns& runs, int threads, bool, Bytes) {
  const double relu_ms = shortest(runs.relu(16, threads), kLaunches).ms;
  return 1 / (1000 * std::max(relu_ms, shortest(runs.product(16, threads), kLaunches).ms));
}

// The best of `rate` with all threads, tried until it is no less than `least` times that of one thread.
template <class Rate>
double believable(const ProbeRuns& runs, int threads, double least, Rate rate, Bytes room) {
  if (threads <= 1) return rate(runs, 1, false, room);
  const double floor = least * rate(runs, 1, true, room);
  double best = rate(runs, threads, false, room);
  for (double wait_ms : kWaitsMs) {
    if (best >= floor) break;
    runs.wait(wait_ms);
    best = std::max(best, rate(runs, threads, false, room));
  }
  return std::max(best, floor);
}

TimedRun timed(const Device& device, const Graph& graph, OpId op, int threads) {
  const std::vector<KernelSpec> specs = device.kernels(graph, graph.op(op), LayoutFamily::plain);
  const auto exact = std::find_if(specs.begin(), specs.end(), [](const KernelSpec& spec) { return spec.exact; });
  const KernelSpec& spec = exact == specs.end() ? specs.at(0) : *exact;  // the others by KernelEstimate
  const auto bench = std::make_shared<OpBench>(device, isolate(graph, graph.op(op), spec), threads);
  const std::shared_ptr<Arena> arena = device.take_arena(bench->bytes(1));
  bench->place(arena->base(), 1);
  return [bench, arena] { return bench->run(); };
}

}  // namespace

ProbeRuns runs_on(const Device& device) {
  ProbeRuns runs;
  runs.product = [&device](int64_t n, int threads) {
    Graph graph;
    const TensorId x = graph.add_source("x", {n, n}, DType::f32, Role::activation);
    const TensorId w = graph.add_source("w", {n, n}, DType::f32, Role::activation);
    return timed(device, graph, graph.add_op("FullyConnectedForward", "product", "product", {x, w}), threads);
  };
  runs.relu = [&device](int64_t elements, int threads) {
    Graph graph;
    const TensorId x = graph.add_source("x", {elements}, DType::f32, Role::activation);
    return timed(device, graph, graph.add_op("ReluForward", "relu", "relu", {x}), threads);
  };
  runs.wait = [](double ms) { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms)); };
  return runs;
}

MachineRates probe_rates(const ProbeRuns& runs, int threads, Bytes room) {
  MachineRates rates;
  auto probe = [](double& field, auto measure) {
    try {
      if (const double value = measure(); value > 0) field = value;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::device_failure) throw;
    }
  };
  probe(rates.gflops, [&] { return believable(runs, threads, 1, gflops, room); });
  probe(rates.memory_gb_per_s, [&] { return believable(runs, threads, 1 / kCacheByMemory, memory_gb_per_s, room); });
  probe(rates.launch_us, [&] { return 1 / believable(runs, threads, 1 / kLaunchByThreads, launches_per_us, room); });
  return rates;
}

MachineRates probe_rates(const Device& device) {
  return probe_rates(device, device.info().own_memory ? kProbeRoom * 2 : kProbeRoom);
}

MachineRates probe_rates(const Device& device, Bytes room) {
  return device.info().simulated ? simulated::rates(device.info().name)
                                 : probe_rates(runs_on(device), device.info().threads, room);
}

}  // namespace plimsoll
