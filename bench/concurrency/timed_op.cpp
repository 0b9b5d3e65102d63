#include "bench/concurrency/timed_op.h"

#include <algorithm>

#include "base/statistics.h"
#include "cost/bench.h"

namespace plimsoll::bench {
namespace {
constexpr double kSeconds = 0.1;
constexpr int kMostRuns = 25;
constexpr int64_t kBeyondCaches = int64_t{96} << 20;  // bytes that pass between two uses of the same buffers
}  // namespace

double time_op(const Device& device, const Graph& graph, const Op& op, const KernelSpec& kernel, int threads,
               Counters* counters, Row* features) {
  OpBench bench(device, isolate(graph, op, kernel), threads);
  const int sets =
      static_cast<int>(std::clamp<int64_t>(kBeyondCaches / std::max<int64_t>(bench.set_bytes().count, 1) + 1, 1, 64));
  const auto arena = device.take_arena(bench.bytes(sets));
  bench.place(arena->base(), sets);
  bench.run();
  std::vector<double> times;
  double total_ms = 0;
  if (features != nullptr) counters->start();
  while (times.size() < 3 || (times.size() < kMostRuns && total_ms < kSeconds * 1000)) {
    times.push_back(bench.run());
    total_ms += times.back();
  }
  if (features != nullptr) {
    const auto values = counters->stop();
    const double instructions = std::max(values[0], 1.0);
    for (size_t i = 1; i < values.size(); ++i) features->push_back(values[i] / instructions);
    features->push_back(median(times));
  }
  return median(times);
}

}  // namespace plimsoll::bench
