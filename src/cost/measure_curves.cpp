// Times of kernels by their threads, measured as measure_costs does: on buffers that are cold in the cache.
#include <algorithm>
#include <set>

#include "cost/bench.h"
#include "cost/signature.h"
#include "plimsoll/concurrency.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr int64_t kColdBytes = int64_t{96} << 20;  // of buffers that are used in turn
constexpr int kMostSets = 64;
constexpr int kMostRuns = 40;

class CurveBench {
 public:
  CurveBench(const Device& device, const MeasureOptions& options) : device_(device), options_(options) {}

  // Nothing when the kernel does not take so many threads, or the machine has not the memory.
  std::optional<Cost> time(const Graph& graph, const Op& op, const std::string& kernel, int threads) {
    try {
      OpBench bench(device_, isolate(graph, op, {.name = kernel, .inputs = {}, .outputs = {}}), threads);
      const int64_t wanted = kColdBytes / std::max<int64_t>(bench.set_bytes().count, 1) + 1;
      const int sets = static_cast<int>(std::clamp<int64_t>(wanted, 1, kMostSets));
      if (bench.bytes(sets) > options_.memory) return std::nullopt;
      if (!arena_ || arena_->bytes() < bench.bytes(sets)) {
        arena_.reset();
        arena_ = device_.take_arena(bench.bytes(sets));
      }
      bench.place(arena_->base(), sets);
      bench.run();
      std::vector<double> times;
      double total_ms = 0;
      while (times.size() < 3 || (times.size() < kMostRuns && total_ms < options_.seconds_per_kernel * 1000)) {
        times.push_back(bench.run());
        total_ms += times.back();
      }
      return Cost{.source = Cost::Source::measured,
                  .time_ms = median(times),
                  .spread_ms = half_interquartile_distance(times),
                  .runs = static_cast<int>(times.size())};
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::device_failure) throw;
      return std::nullopt;
    }
  }

 private:
  const Device& device_;
  const MeasureOptions& options_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace

int measure_curves(const Graph& graph, const Plan& plan, const Device& device, CostTable& table,
                   const ClimbOptions& climb, const MeasureOptions& options) {
  if (device.info().simulated) return 0;
  const int all = device.info().threads;
  CurveBench bench(device, options);
  std::set<std::pair<std::string, std::string>> seen;
  int measured = 0, done = 0;
  for (const Step& step : plan.steps) {
    ++done;
    if (step.kernel.empty() || (options.stop && options.stop())) continue;
    const Op& op = graph.op(step.op);
    const std::string signature = op_signature(graph, op);
    if (!seen.insert({signature, step.kernel}).second) continue;
    if (options.progress) options.progress(done, static_cast<int>(plan.steps.size()), op.name);
    ClimbOptions how = climb;
    how.cores.cores = all;
    HillClimb climber(how);
    while (const auto next = climber.next()) {
      const CostKey key{signature, step.kernel, next->threads == all ? 0 : next->threads};
      auto cost = table.find(key);
      if (!cost) {
        cost = bench.time(graph, op, step.kernel, next->threads);
        if (!cost) break;
        table.put(key, *cost);
        ++measured;
      }
      climber.record(cost->time_ms);
    }
  }
  return measured;
}

std::optional<ThreadCurve> known_curve(const Graph& graph, const Op& op, const std::string& kernel,
                                       const CostTable& table, int all) {
  const std::string signature = op_signature(graph, op);
  ThreadCurve curve;
  int known = 0;
  for (int threads = 1; threads < all; ++threads) {
    if (const auto cost = table.find({signature, kernel, threads})) {
      curve.put({threads, Affinity::together}, cost->time_ms);
      ++known;
    }
  }
  if (known == 0) return std::nullopt;
  if (const auto cost = table.find({signature, kernel, 0})) curve.put({all, Affinity::together}, cost->time_ms);
  return curve;
}

}  // namespace plimsoll
