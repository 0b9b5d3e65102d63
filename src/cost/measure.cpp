// Measuring: every kernel alone, on buffers that are cold in the cache. In a training step hundreds of megabytes pass
// between two uses of the same weights, so a kernel that is run again and again on one set of buffers would look too
// fast: it runs on several sets in turn, together larger than the last-level cache.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
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
  const Graph* graph = nullptr;
  const Op* op = nullptr;
  int64_t rows = 0;   // of the batch, where it is a part; 0: the op as it is
  int group = 0;      // kernels of one op, batch and thread count are compared on the way
  KernelSpec spec;
  CostKey key;
};
struct Jobs {
  std::deque<MicroOp> parts;  // what jobs point to
  std::vector<Job> list;
};

Bytes cache_bytes() {
  long size = -1;
#ifdef _SC_LEVEL3_CACHE_SIZE
  size = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
  // A share of a server's cache is what a small virtual machine has of it.
  return {std::clamp<int64_t>(size, int64_t{16} << 20, int64_t{48} << 20)};
}

// Lists what the table lacks. Jobs that are compared stand together.
class Lister {
 public:
  Lister(const Device& device, CostTable& table, const MeasureOptions& options) : device_(device), table_(table) {
    for (int threads : options.threads.empty() ? std::vector<int>{0} : options.threads) {
      threads_.push_back(threads == device.info().threads ? 0 : threads);
    }
    batches_ = options.batches;
    every_ = std::max<int64_t>(options.every, 1);
  }

  Jobs run(const Graph& graph) {
    for (const Op& op : graph.ops()) {
      if (op.type->is_view) continue;
      const bool reorder = op.type->name == "Reorder";
      if (!ops_seen_.insert(reorder ? op_signature(graph, op) : signature_without_layouts(graph, op)).second) continue;
      const bool has_workspaces = add(graph, op, 0);
      const int64_t batch = divisible_batch(graph, op);
      if (!has_workspaces || batch < 2 || batches_ == BatchSizes::undivided) continue;
      for (int64_t rows : micro_batch_sizes(batches_, batch)) {
        const bool wanted = rows % every_ == 0 || (rows & (rows - 1)) == 0;
        if (rows >= batch || !wanted) continue;
        const MicroOp& part = jobs_.parts.emplace_back(micro_op(graph, op, rows));
        const Op& small = part.graph.op(part.op);
        if (ops_seen_.insert(signature_without_layouts(part.graph, small)).second) add(part.graph, small, rows);
      }
    }
    return std::move(jobs_);
  }

 private:
  // Whether any kernel has a workspace.
  bool add(const Graph& graph, const Op& op, int64_t rows) {
    bool has_workspaces = false;
    const bool reorder = op.type->name == "Reorder";
    std::vector<KernelSpec> all;
    for (LayoutFamily family : {LayoutFamily::blocked, LayoutFamily::channels_last, LayoutFamily::plain}) {
      try {
        for (KernelSpec& spec : device_.kernels(graph, op, family)) all.push_back(std::move(spec));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
      }
      if (reorder) break;
    }
    for (int threads : threads_) {
      ++group_;
      for (const KernelSpec& spec : all) {
        has_workspaces = has_workspaces || spec.workspace.count > 0;
        CostKey key{op_signature(graph, op, spec), spec.name, threads};
        std::optional<Cost> known = table_.find(key);
        if (known && known->source != Cost::Source::estimated) {
          if (known->workspace.count < 0 && threads == 0) {
            known->workspace = spec.workspace;
            table_.put(key, *known);
          }
          continue;
        }
        if (keys_.insert(key).second) jobs_.list.push_back({&graph, &op, rows, group_, spec, std::move(key)});
      }
    }
    return has_workspaces;
  }

  const Device& device_;
  CostTable& table_;
  BatchSizes batches_ = BatchSizes::undivided;
  int64_t every_ = 1;
  std::vector<int> threads_;
  Jobs jobs_;
  int group_ = 0;
  std::set<std::string> ops_seen_;
  std::set<CostKey> keys_;
};

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
  const Jobs all = Lister(device, table, options).run(graph);
  const std::vector<Job>& jobs = all.list;
  const Bytes limit = std::min(options.memory, Bytes{device.info().memory_available.count / 10 * 8});
  const Bytes cache = cache_bytes();
  std::unique_ptr<Arena> arena;
  int done = 0, measured = 0;
  int group = 0;
  double best_ms = 0;
  for (const Job& job : jobs) {
    if (options.stop && options.stop()) break;
    if (options.progress) {
      const std::string rows = job.rows > 0 ? fmt::format(", {} rows", job.rows) : "";
      const std::string threads = job.key.threads > 0 ? fmt::format(", {} threads", job.key.threads) : "";
      options.progress(done, static_cast<int>(jobs.size()), fmt::format("{} by {}{}{}", job.op->name, job.spec.name, rows, threads));
    }
    ++done;
    if (job.group != group) {
      group = job.group;
      best_ms = 0;
    }
    try {
      OpBench bench(device, isolate(*job.graph, *job.op, job.spec), job.key.threads);
      if (bench.bytes(1) > limit) continue;
      const int sets = sets_for(bench, cache, limit);
      if (!arena || arena->bytes() < bench.bytes(sets)) {
        arena.reset();
        arena = device.take_arena(bench.bytes(sets));
      }
      bench.place(arena->base(), sets);
      Cost cost = time_kernel(bench, options.seconds_per_kernel, best_ms);
      cost.workspace = bench.kernel_workspace();
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
