// Measuring: every kernel alone, on buffers that are cold in the cache. In a training step hundreds of megabytes pass
// between two uses of the same weights, so a kernel that is run again and again on one set of buffers would look too
// fast: it runs on several sets in turn, together larger than the last-level cache.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/statistics.h"
#include "cost/bench.h"
#include "cost/load.h"
#include "cost/measure.h"
#include "cost/signature.h"
#include "ops/micro_op.h"
#include "plimsoll/cost.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr int kMostSets = 64;
constexpr int kMostRuns = 40;
constexpr double kSpreadGoal = 0.02;      // half interquartile distance by median: then more runs tell nothing new
constexpr double kOutOfTheRunning = 1.5;  // times the op's best kernel so far: three runs are enough
constexpr double kRefusedMs = 1e6;        // in place of a time
constexpr double kHopeless = 6;           // times the best: the first run was enough
constexpr double kNoTime = 1e300;
constexpr double kLookMs = 500;  // between two looks at how busy the machine is

struct Job {
  const Graph* graph = nullptr;
  const Op* op = nullptr;
  double tolerance_ms = 0;
  int64_t rows = 0;  // of the batch, where it is a part; 0: the op as it is
  int group = 0;     // kernels of one op, batch and thread count are compared on the way
  KernelSpec spec;
  CostKey key;
};
struct Jobs {
  std::deque<MicroOp> parts;  // what jobs point to
  std::vector<Job> list;
};

std::string text_of(const Job& job) {
  const std::string rows = job.rows > 0 ? fmt::format(", {} rows", job.rows) : "";
  const std::string threads = job.key.threads > 0 ? fmt::format(", {} threads", job.key.threads) : "";
  return fmt::format("{} by {}{}{}", job.op->name, job.spec.name, rows, threads);
}

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
    tolerance_ = options.tolerance;
  }

  Jobs run(const Graph& graph) {
    std::map<std::string, double> times;  // that an op is there
    for (const Op& op : graph.ops()) {
      if (!op.type->is_view) ++times[name_of(graph, op)];
    }
    double graph_ms = 0;  // estimated
    for (const Op& op : graph.ops()) {
      if (op.type->is_view) continue;
      const std::string name = name_of(graph, op);
      if (!ops_seen_.insert(name).second) continue;
      times_ = times[name];
      best_ms_ = kNoTime;
      const bool worth_dividing = add(graph, op, 0);
      graph_ms += best_ms_ < kNoTime ? times_ * best_ms_ : 0;
      const int64_t batch = divisible_batch(graph, op);
      if (!worth_dividing || batch < 2 || batches_ == BatchSizes::undivided) continue;
      for (int64_t rows : micro_batch_sizes(batches_, batch)) {
        const bool wanted = rows % every_ == 0 || (rows & (rows - 1)) == 0;
        if (rows >= batch || !wanted) continue;
        const MicroOp& part = jobs_.parts.emplace_back(micro_op(graph, op, rows));
        const Op& small = part.graph.op(part.op);
        times_ = times[name] * static_cast<double>(batch) / static_cast<double>(rows);
        if (ops_seen_.insert(signature_without_layouts(part.graph, small)).second) add(part.graph, small, rows);
      }
    }
    for (Job& job : jobs_.list) job.tolerance_ms *= graph_ms;
    return std::move(jobs_);
  }

 private:
  static std::string name_of(const Graph& graph, const Op& op) {
    return op.type->name == "Reorder" ? op_signature(graph, op) : signature_without_layouts(graph, op);
  }

  // Whether any kernel has a workspace, or none is fast.
  bool add(const Graph& graph, const Op& op, int64_t rows) {
    bool has_workspaces = false;
    const bool reorder = op.type->name == "Reorder";
    std::vector<KernelSpec> all;
    for (LayoutFamily family : {LayoutFamily::blocked, LayoutFamily::channels_last, LayoutFamily::plain}) {
      try {
        for (KernelSpec& spec : device_.kernels(graph, op, family)) {
          if (!spec.estimate.ms) all.push_back(std::move(spec));
        }
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
      }
      if (reorder) break;
    }
    for (int threads : threads_) {
      ++group_;
      for (const KernelSpec& spec : all) {
        has_workspaces = has_workspaces || spec.workspace.count > 0;
        if (threads == 0) best_ms_ = std::min(best_ms_, table_.cost(graph, op, spec).time_ms);
        CostKey key{op_signature(graph, op, spec), spec.name, threads};
        std::optional<Cost> known = table_.find(key);
        if (known && known->source != Cost::Source::estimated) {
          if (known->workspace.count < 0 && threads == 0) {
            known->workspace = spec.workspace;
            table_.put(key, *known);
          }
          continue;
        }
        if (keys_.insert(key).second) {
          jobs_.list.push_back({&graph, &op, tolerance_ / times_, rows, group_, spec, std::move(key)});
        }
      }
    }
    return has_workspaces || (!all.empty() && std::all_of(all.begin(), all.end(),
                                                          [](const KernelSpec& spec) { return spec.last_resort; }));
  }

  const Device& device_;
  CostTable& table_;
  BatchSizes batches_ = BatchSizes::undivided;
  int64_t every_ = 1;
  std::vector<int> threads_;
  Jobs jobs_;
  int group_ = 0;
  double tolerance_ = 0;            // of the graph's time
  double times_ = 1, best_ms_ = 0;  // of the op now
  std::set<std::string> ops_seen_;
  std::set<CostKey> keys_;
};

int sets_for(const OpBench& bench, Bytes cache, Bytes limit) {
  const int64_t set = std::max<int64_t>(bench.set_bytes().count, 1);
  const int64_t wanted = bench.flushes() ? 1 : 2 * cache.count / set + 1;
  const int64_t possible = (limit.count - bench.workspace().count) / set;
  return static_cast<int>(std::clamp<int64_t>(std::min(wanted, possible), 1, kMostSets));
}

Bytes memory_for(const Device& device, const MeasureOptions& options) {
  return std::min(options.memory, Bytes{device.info().memory_available.count / 10 * 8});
}

// An arena for as many sets of buffers as it takes to be cold; grows. Returns how many; 0: there is no room for one.
int take_sets(OpBench& bench, const Device& device, Bytes cache, Bytes limit, std::unique_ptr<Arena>& arena) {
  bench.keep_within(limit);
  if (bench.bytes(1) > limit) return 0;
  const int sets = sets_for(bench, cache, limit);
  if (!arena || arena->bytes() < bench.bytes(sets)) {
    arena.reset();
    arena = device.take_arena(bench.bytes(sets));
  }
  return sets;
}

// Whether a device runs anything after a kernel has failed: some failures end all that a process does with it.
bool still_works(const Device& device) {
  try {
    if (const auto queues = device.open_queues()) queues->synchronize();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The shortest of the runs and the one that comes next: two that agree are no accident. Of one run alone, and the one
// that warmed up.
std::pair<double, double> least_two(std::vector<double> times, double warm_up_ms) {
  if (times.size() == 1) times.push_back(warm_up_ms);
  std::partial_sort(times.begin(), times.begin() + 2, times.end());
  return {times[0], times[1]};
}

// Devices of one kind take the next group from one list, so that kernels that are compared run on one device.
class Measuring {
 public:
  Measuring(const std::vector<Job>& jobs, CostTable& table, const MeasureOptions& options)
      : jobs_(jobs), table_(table), options_(options), busy_(options.busy) {}

  void run(const Device& device) {
    const Bytes limit = memory_for(device, options_);
    std::unique_ptr<Arena> arena;
    for (;;) {
      const std::span<const Job> group = next_group();
      double best_ms = 0;
      for (const Job& job : group) {
        if (!begin(job)) return;
        if (std::optional<Cost> cost = measure(device, job, limit, arena, best_ms)) put(job, *cost);
      }
      if (group.empty()) return;
    }
  }
  // When all have run.
  int finish() {
    look();
    return measured_;
  }

 private:
  std::span<const Job> next_group() {
    const std::lock_guard lock(mutex_);
    const size_t first = next_;
    while (next_ < jobs_.size() && jobs_[next_].group == jobs_[first].group) ++next_;
    return {jobs_.data() + first, next_ - first};
  }

  // The user has had enough. Under the lock.
  bool is_stopped() {
    stopped_ = stopped_ || (options_.stop && options_.stop());
    return stopped_;
  }

  // Tells the progress. False: no more.
  bool begin(const Job& job) {
    const std::lock_guard lock(mutex_);
    if (is_stopped()) return false;
    if (options_.progress) options_.progress(done_, static_cast<int>(jobs_.size()), text_of(job));
    ++done_;
    return true;
  }

  void put(const Job& job, const Cost& cost) {
    const std::lock_guard lock(mutex_);
    since_look_.emplace_back(&job.key, cost);
    ++measured_;
    if (watch_.ms() >= kLookMs) look();
  }

  // Only now it is known how busy the machine was while they were measured.
  void look() {
    const bool busy = busy_();
    for (auto& [key, cost] : since_look_) {
      cost.busy = busy;
      table_.put(*key, cost);
    }
    since_look_.clear();
    watch_ = Stopwatch();
  }

  struct Stopped {};  // between two runs of a kernel, which may take seconds each

  std::optional<Cost> measure(const Device& device, const Job& job, Bytes limit, std::unique_ptr<Arena>& arena,
                              double& best_ms) {
    bool placed = false;  // from here on it is the kernel that fails
    try {
      OpBench bench(device, isolate(*job.graph, *job.op, job.spec), job.key.threads);
      const int sets = take_sets(bench, device, cache_, limit, arena);
      if (sets == 0) return std::nullopt;
      placed = true;
      bench.place(arena->base(), sets);
      Cost cost = time_runs(
          [&] {
            if (const std::lock_guard lock(mutex_); is_stopped()) throw Stopped();
            return bench.run();
          },
          {.seconds = options_.seconds_per_kernel, .best_ms = best_ms, .tolerance_ms = job.tolerance_ms});
      cost.workspace = bench.kernel_workspace();
      if (best_ms <= 0 || cost.time_ms < best_ms) best_ms = cost.time_ms;
      return cost;
    } catch (const Stopped&) {
      return std::nullopt;
    } catch (const Error& error) {
      // A kernel or buffers that this machine has not: the estimate stands. One that it does not run is never to be
      // chosen.
      if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::device_failure) throw;
      if (!placed) return std::nullopt;
      if (error.code() == ErrorCode::device_failure && !still_works(device)) throw;
      return Cost{.source = Cost::Source::measured, .time_ms = kRefusedMs, .runs = 1, .workspace = job.spec.workspace};
    }
  }

  const std::vector<Job>& jobs_;
  CostTable& table_;
  const MeasureOptions& options_;
  const Bytes cache_ = cache_bytes();
  const std::function<bool()> busy_;
  std::mutex mutex_;
  std::vector<std::pair<const CostKey*, Cost>> since_look_;  // keys of jobs
  Stopwatch watch_;
  size_t next_ = 0;
  int done_ = 0, measured_ = 0;
  bool stopped_ = false;
};

}  // namespace

struct KernelLoad::Impl {
  Graph graph;
  const Device& device;
  MeasureOptions options;
  CostTable nothing;  // is known here
  Jobs jobs;
  std::unique_ptr<Arena> arena;
};

KernelLoad::KernelLoad(Graph graph, const Device& device, const MeasureOptions& options)
    : impl_(new Impl{std::move(graph), device, options, CostTable(), {}, {}}) {
  impl_->jobs = Lister(device, impl_->nothing, options).run(impl_->graph);
}

KernelLoad::~KernelLoad() = default;

void KernelLoad::run(const std::string& what, const std::function<bool()>& is_over) {
  const Device& device = impl_->device;
  const std::vector<Job>& jobs = impl_->jobs.list;
  const auto job = std::ranges::find_if(jobs, [&](const Job& one) { return text_of(one) == what; });
  if (job == jobs.end()) return;
  try {
    OpBench bench(device, isolate(*job->graph, *job->op, job->spec), job->key.threads);
    const int sets = take_sets(bench, device, cache_bytes(), memory_for(device, impl_->options), impl_->arena);
    if (sets == 0) return;
    bench.place(impl_->arena->base(), sets);
    while (!is_over()) bench.run();
  } catch (const Error& error) {  // neither does the other
    if (error.code() != ErrorCode::unsupported && error.code() != ErrorCode::device_failure) throw;
  }
}

Cost time_runs(const TimedRun& run, const TimingGoal& goal) {
  const double first_ms = run();
  const bool alone = goal.best_ms <= 0;
  if (!alone && first_ms > kHopeless * goal.best_ms && first_ms > 1) {
    return {.source = Cost::Source::measured, .time_ms = first_ms, .spread_ms = 0, .runs = 1};
  }
  std::vector<double> times;
  double total_ms = 0;
  while (static_cast<int>(times.size()) < kMostRuns) {
    times.push_back(run());
    total_ms += times.back();
    if (goal.tolerance_ms > 0) {
      const auto [least, next] = least_two(times, first_ms);
      if (next - least <= goal.tolerance_ms) break;
      if (!alone && std::min(least, first_ms) > kOutOfTheRunning * goal.best_ms) break;
    }
    if (times.size() < 3) continue;
    if (total_ms > goal.seconds * 1000) break;
    const double middle = median(times);
    if (!alone && middle > kOutOfTheRunning * goal.best_ms) break;
    if (times.size() >= 5 && half_interquartile_distance(times) < kSpreadGoal * middle) break;
  }
  return {.source = Cost::Source::measured,
          .time_ms = median(times),
          .spread_ms = half_interquartile_distance(times),
          .runs = static_cast<int>(times.size())};
}

int measure_costs(const Graph& graph, const Device& device, CostTable& table, const MeasureOptions& options) {
  const Device* alone = &device;
  return measure_costs(graph, std::span(&alone, 1), table, options);
}

int measure_costs(const Graph& graph, std::span<const Device* const> devices, CostTable& table,
                  const MeasureOptions& options) {
  const DeviceInfo& first = devices[0]->info();
  for (const Device* other : devices) {
    if (other->info().key == first.key) continue;
    throw Error(ErrorCode::invalid_input,
                fmt::format("devices '{}' ({}) and '{}' ({}) differ: what one measures says nothing of the other",
                            first.name, first.key, other->info().name, other->info().key));
  }
  if (first.simulated) return 0;
  const Jobs all = Lister(*devices[0], table, options).run(graph);
  MeasureOptions asking = options;
  // A device with a clock of its own does not wait for the host's processors.
  if (!asking.busy) {
    asking.busy = first.asynchronous ? std::function<bool()>([] { return false; }) : asks_whether_busy();
  }
  Measuring measuring(all.list, table, asking);
  std::exception_ptr failure;
  std::mutex failing;
  auto run = [&](const Device& device) {
    try {
      measuring.run(device);
    } catch (...) {
      const std::lock_guard lock(failing);
      failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (const Device* device : devices.subspan(1)) others.emplace_back([&run, device] { run(*device); });
    run(*devices[0]);
  }
  const int measured = measuring.finish();
  if (failure) std::rethrow_exception(failure);
  return measured;
}

}  // namespace plimsoll
