// Measuring: every kernel alone, on buffers that are cold in the cache. In a training step hundreds of megabytes pass
// between two uses of the same weights, so a kernel that is run again and again on one set of buffers would look too
// fast: it runs on several sets in turn, together larger than the last-level cache.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "cost/bench.h"
#include "cost/signature.h"
#include "plimsoll/cost.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr int kMostSets = 64;
constexpr int kMostRuns = 40;
constexpr double kSpreadGoal = 0.02;      // half interquartile distance by median: then more runs tell nothing new
constexpr double kOutOfTheRunning = 1.5;  // times the op's best kernel so far: three runs are enough
constexpr double kHopeless = 6;           // times the best: the first run was enough

struct Job {
  const Op* op = nullptr;
  KernelSpec spec;
  CostKey key;
};

Bytes cache_bytes() {
  long size = -1;
#ifdef _SC_LEVEL3_CACHE_SIZE
  size = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
  // A share of a server's cache is what a small virtual machine has of it.
  return {std::clamp<int64_t>(size, int64_t{16} << 20, int64_t{48} << 20)};
}

// Jobs of one op stand together, so that its kernels can be compared on the way.
std::vector<Job> list_jobs(const Graph& graph, const Device& device, const CostTable& table) {
  std::vector<Job> jobs;
  std::set<std::string> ops_seen;
  std::set<CostKey> keys;
  for (const Op& op : graph.ops()) {
    if (op.type->is_view) continue;
    const bool reorder = op.type->name == "Reorder";
    if (!ops_seen.insert(reorder ? op_signature(graph, op) : signature_without_layouts(graph, op)).second) continue;
    for (LayoutFamily family : {LayoutFamily::blocked, LayoutFamily::channels_last, LayoutFamily::plain}) {
      std::vector<KernelSpec> specs;
      try {
        specs = device.kernels(graph, op, family);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
      }
      for (KernelSpec& spec : specs) {
        CostKey key{op_signature(graph, op, spec), spec.name, 0};
        const std::optional<Cost> known = table.find(key);
        if (known && known->source != Cost::Source::estimated) continue;
        if (keys.insert(key).second) jobs.push_back({&op, std::move(spec), std::move(key)});
      }
      if (reorder) break;
    }
  }
  return jobs;
}

int sets_for(const OpBench& bench, Bytes cache, Bytes limit) {
  const int64_t set = std::max<int64_t>(bench.set_bytes().count, 1);
  const int64_t wanted = 2 * cache.count / set + 1;
  const int64_t possible = (limit.count - bench.workspace().count) / set;
  return static_cast<int>(std::clamp<int64_t>(std::min(wanted, possible), 1, kMostSets));
}

Cost time_kernel(OpBench& bench, double seconds, double best_ms) {
  const double first_ms = bench.run();
  const bool alone = best_ms <= 0;
  if (!alone && first_ms > kHopeless * best_ms && first_ms > 1) {
    return {.source = Cost::Source::measured, .time_ms = first_ms, .spread_ms = 0, .runs = 1};
  }
  std::vector<double> times;
  double total_ms = 0;
  while (static_cast<int>(times.size()) < kMostRuns) {
    times.push_back(bench.run());
    total_ms += times.back();
    if (times.size() < 3) continue;
    if (total_ms > seconds * 1000) break;
    const double middle = median(times);
    if (!alone && middle > kOutOfTheRunning * best_ms) break;
    if (times.size() >= 5 && half_interquartile_distance(times) < kSpreadGoal * middle) break;
  }
  return {.source = Cost::Source::measured,
          .time_ms = median(times),
          .spread_ms = half_interquartile_distance(times),
          .runs = static_cast<int>(times.size())};
}

}  // namespace

int measure_costs(const Graph& graph, const Device& device, CostTable& table, const MeasureOptions& options) {
  if (device.info().simulated) return 0;
  const std::vector<Job> jobs = list_jobs(graph, device, table);
  const Bytes limit = std::min(options.memory, Bytes{device.info().memory_available.count / 10 * 8});
  const Bytes cache = cache_bytes();
  std::unique_ptr<Arena> arena;
  int done = 0, measured = 0;
  const Op* current = nullptr;
  double best_ms = 0;
  for (const Job& job : jobs) {
    if (options.stop && options.stop()) break;
    if (options.progress) {
      options.progress(done, static_cast<int>(jobs.size()), fmt::format("{} by {}", job.op->name, job.spec.name));
    }
    ++done;
    if (job.op != current) {
      current = job.op;
      best_ms = 0;
    }
    try {
      OpBench bench(device, isolate(graph, *job.op, job.spec));
      if (bench.bytes(1) > limit) continue;
      const int sets = sets_for(bench, cache, limit);
      if (!arena || arena->bytes() < bench.bytes(sets)) {
        arena.reset();
        arena = device.take_arena(bench.bytes(sets));
      }
      bench.place(arena->base(), sets);
      const Cost cost = time_kernel(bench, options.seconds_per_kernel, best_ms);
      if (best_ms <= 0 || cost.time_ms < best_ms) best_ms = cost.time_ms;
      table.put(job.key, cost);
      ++measured;
    } catch (const Error& error) {
      // A kernel that this machine refuses after all, or buffers that it has not: the estimate stands.
      if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::device_failure) throw;
    }
  }
  return measured;
}

}  // namespace plimsoll
