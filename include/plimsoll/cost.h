// What it costs to run an op by a kernel on a device: time and workspace. Each cost says where it is from.
//
//   measure_costs(graph, device, table)         times every kernel that the graph could use and the table lacks
//   CostTable      find, predict, cost          costs in memory; what was not measured is estimated
//   CostDatabase   load, save                   the same on disk, by device, from one run to the next
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/device.h"
#include "plimsoll/graph.h"

namespace plimsoll {

// What identifies a cost. Ops with equal keys cost the same on one device.
struct CostKey {
  std::string signature;  // of the op: type, attributes, shapes, dtypes and layouts of inputs and outputs; no names
  std::string kernel;
  int threads = 0;      // 0: all of the device's
  bool spread = false;  // with fewer threads than the device has: on cores that share no cache
  friend auto operator<=>(const CostKey&, const CostKey&) = default;
};
// The signature of an op with the layouts that its tensors have in the graph.
std::string op_signature(const Graph& graph, const Op& op);
// The same, with the layouts that a kernel wants.
std::string op_signature(const Graph& graph, const Op& op, const KernelSpec& kernel);

struct Cost {
  enum class Source : uint8_t {
    estimated,  // from FLOPs, bytes and the machine's speed
    measured,   // the kernel alone, run repeatedly
    in_step,    // the kernel inside a training step: the best predictor
  } source = Source::estimated;
  double time_ms = 0;    // median
  double spread_ms = 0;  // half the distance between the quartiles
  int runs = 0;
  Bytes workspace{-1};  // of the kernel; negative where it was not noted
  bool busy = false;    // taken while others kept the machine busy: used only where no quiet time is known
};

// Rates for estimates; probed once on a device, stated for a simulated one.
struct MachineRates {
  double gflops = 100;          // dense single precision, all threads
  double memory_gb_per_s = 10;  // streaming
  double launch_us = 5;         // fixed cost of an op
  bool busy = false;            // other processes kept the machine busy meanwhile: good for now, and not kept
};
MachineRates probe_rates(const Device& device);  // a fraction of a second

// What dividing costs beside the parts themselves, with more than one part only: a divided weight gradient is made in
// parts that are added up.
struct DivisionCost {
  Bytes workspace;       // beside that of the parts
  double ms_a_part = 0;  // for every part after the first
};

class OfferedKernels;  // cost/offered.h: what devices told of the kernels that a table was asked about

// Costs in memory. They come from the database or from measuring; what is neither known nor measured is estimated when
// asked for. Asking never measures and never waits.
class CostTable {
 public:
  explicit CostTable(MachineRates rates = {});
  const MachineRates& rates() const { return rates_; }
  // A table without costs that knows the same kernels.
  CostTable unmeasured(MachineRates rates = {}) const;

  // A kernel may have two costs: alone, and inside a training step. Kernels are compared by the first, since only
  // chosen kernels have the second. Steps are predicted by the second. A time of a busy machine does not replace one of a
  // quiet machine.
  void put(const CostKey& key, const Cost& cost);
  std::optional<Cost> find(const CostKey& key) const;  // of the kernel alone
  std::optional<Cost> find_in_step(const CostKey& key) const;
  const std::map<CostKey, Cost>& in_step_entries() const { return in_step_; }
  const std::map<CostKey, Cost>& entries() const { return entries_; }
  // Takes out all times of a busy machine, so that they are measured anew; returns what they were of.
  std::vector<CostKey> forget_busy();

  // Pairs of ops, by signature, that training found slower at the same time than one after another. The lesser
  // signature first.
  using OpPair = std::pair<std::string, std::string>;
  void add_conflict(std::string a, std::string b) {
    conflicts_.insert(a < b ? OpPair(std::move(a), std::move(b)) : OpPair(std::move(b), std::move(a)));
  }
  const std::set<OpPair>& conflicts() const { return conflicts_; }

  // What a step with this kernel is predicted to take: as measured in a step, else alone, else estimated.
  Cost predict(const Graph& graph, const Op& op, const std::string& kernel, int threads = 0) const;
  // By what plans of different kernels are compared: as measured alone, else as predicted.
  Cost compared(const Graph& graph, const Op& op, const std::string& kernel) const;
  // The cost of the kernel alone where it is known, else an estimate. A configuration without an entry costs what its
  // parts cost, and what dividing costs besides. By name: with the layouts that the graph's tensors have. The estimate
  // follows from what the device told of the kernel, which the table keeps when it is asked by KernelSpec, or told by
  // note(). A kernel that it has never seen counts as an average one.
  Cost cost(const Graph& graph, const Op& op, const std::string& kernel) const;
  Cost cost(const Graph& graph, const Op& op, const KernelSpec& kernel) const;  // layouts as it wants
  void note(const Graph& graph, const Op& op, const KernelSpec& kernel) const;  // for several threads

 private:
  MachineRates rates_;
  std::map<CostKey, Cost> entries_, in_step_;
  std::set<OpPair> conflicts_;
  std::shared_ptr<OfferedKernels> offered_;  // of copies, too: what a device tells of a kernel does not change
};

// Which micro-batches are worth measuring (the paper's batch-size policies): the batch alone; powers of two, and the
// batch; every one. The more, the faster what is found, and the longer the measuring.
enum class BatchSizes : uint8_t { undivided, power_of_two, all };
std::string_view to_string(BatchSizes sizes);         // "undivided", "powerOfTwo", "all"
BatchSizes batch_sizes_named(std::string_view name);  // throws Error(invalid_input) with the nearest name
std::vector<int64_t> micro_batch_sizes(BatchSizes sizes, int64_t batch);  // ascending; throws for a batch below 1

struct MeasureOptions {
  double seconds_per_kernel = 0.15;  // at most, after one warm-up run; at least three runs
  // What an op's time, wherever the graph has it, may be off by, as a share of all ops' times: a kernel that repeats
  // itself so closely is not run more often, however few its runs were. 0: as often as the line above says.
  double tolerance = 0;
  Bytes memory{INT64_MAX};  // for buffers; the device's available memory bounds it too. What needs more is left out
  BatchSizes batches =
      BatchSizes::undivided;       // also at these micro-batches, for ops that run in parts and have workspaces
  int64_t every = 1;               // with `all`: only powers of two and multiples of it
  std::vector<int> threads = {0};  // by each of these counts; 0: all of the device's
  std::function<void(int done, int total, const std::string& what)> progress;
  std::function<bool()> stop;  // asked between kernels
  // Whether others kept the machine busy since it was last asked, which is every half second: what was measured
  // meanwhile is kept as of a busy machine. Empty: asks the system.
  std::function<bool()> busy;
};
// Times every kernel of every family that the graph's ops could use and that the table lacks, on buffers that are cold
// in the cache as they would be in a step. Returns how many were measured.
int measure_costs(const Graph& graph, const Device& device, CostTable& table, const MeasureOptions& options = {});

// The benchmark database: SQLite in the user's cache folder ($PLIMSOLL_CACHE, else $XDG_CACHE_HOME/plimsoll, else
// ~/.cache/plimsoll), keyed by device key. Safe for several processes. A corrupt file is set aside as *.corrupt-<time>,
// a new one is begun, and `notice` says so. Where the folder cannot be written it works in memory and says so.
class CostDatabase {
 public:
  static std::filesystem::path default_path();
  CostDatabase(const std::filesystem::path& path, const DeviceInfo& device);
  ~CostDatabase();
  CostTable load();  // all entries and pairs of this device, and its rates if they were probed
  std::optional<MachineRates> rates();
  // One transaction. The newer of each source stays, but a time of a busy machine never replaces one of a quiet one.
  void save(const CostTable& table);
  void save(const MachineRates& rates);
  // Forgets what training found out about sharing this device's cores: times inside a step with fewer threads, and
  // conflicts. The next training finds it out anew.
  void forget_sharing();
  // The rates of a tier, by a key that says which ("disk 8:1 /mnt/fast"); name and capacity are not kept.
  std::optional<TierInfo> tier_rates(const std::string& key);
  void save(const std::string& key, const TierInfo& tier);
  bool is_kept() const;               // false: in memory, or the last saving failed; `notice` says why
  const std::string& notice() const;  // empty when nothing happened that a user should know
 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plimsoll
