// Runs plans: takes the arena once, makes and binds every kernel once, then each step is a walk over ready kernels.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/tier/tier.h"
#include "plimsoll/device.h"
#include "plimsoll/error.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

struct ExecuteOptions {
  bool check_memory = false;  // fill bytes with NaN when their stay ends: whoever reads them is found (slow, for tests)
  bool record_times = false;  // take the time of every step and copy
  bool capture = true;  // from the third training step on ask for each as a whole, where the device can (CUDA graphs); times are then of the second
  std::filesystem::path spill;  // the folder of the disk tier, for plans that use one
  std::string peer;             // the device whose memory is the peer tier, likewise
  // For plans whose steps run side by side (Plan::inter_op).
  int cores = 0;      // to be shared by them; 0: as many as the device has threads
  bool pin = true;    // threads to cores, where the process has no others
  int hardware_threads = 1;  // of a core that steps may use: with 2, steps whose affinity are second ones may run beside others on a core
  bool teams = false;  // for steps one after another, too, where they have different thread counts: each count has threads of its own
  std::vector<std::pair<StepIndex, StepIndex>> conflicts;  // steps that never run at the same time: they were slower together
  std::vector<int32_t> priority;  // by step: of the ready ones that with the least number first; empty: as the plan predicts
};

// What a plan's bytes lie in. What is not given is taken: an evaluation shares the training's arena, and its tiers by name.
struct Memory {
  Memory() = default;
  Memory(std::shared_ptr<Arena> a, std::vector<std::shared_ptr<Tier>> t = {}) : arena(std::move(a)), tiers(std::move(t)) {}
  std::shared_ptr<Arena> arena;
  std::vector<std::shared_ptr<Tier>> tiers;
};

// A device offered a kernel, and refuses to run it. Names the op and the kernel.
class KernelRefused : public Error {
 public:
  KernelRefused(std::string op, std::string kernel, const std::string& why)
      : Error(ErrorCode::device_failure, "op '" + op + "': kernel '" + kernel + "' was offered, but does not run: " + why),
        op_(std::move(op)),
        kernel_(std::move(kernel)) {}
  const std::string& op() const { return op_; }
  const std::string& kernel() const { return kernel_; }

 private:
  std::string op_, kernel_;
};

struct StepRecord {           // of the last step whose times were taken
  double start_ms = 0;        // since the start of the training step
  double end_ms = 0;
  int32_t core = 0;           // the first of those that it ran on, where steps run side by side; on second hardware threads, cores + it
};

class Executor {
 public:
  // Verifies the plan (throws Error(internal)), takes the memory that is not given, prepares. The graph, plan and device must
  // outlive it.
  Executor(const Graph& graph, const Plan& plan, const Device& device, const ExecuteOptions& options = {}, Memory memory = {});
  ~Executor();

  // Sources and outputs, as row-major elements in the tensor's dtype; converts layouts. Sizes must match.
  void write(TensorId tensor, std::span<const std::byte> elements);
  void read(TensorId tensor, std::span<std::byte> elements) const;
  // The same for the elements from number `first` on, so that a large tensor is saved and loaded without a copy of it.
  void write(TensorId tensor, int64_t first, std::span<const std::byte> elements);
  void read(TensorId tensor, int64_t first, std::span<std::byte> elements) const;
  // Fills parameters, optimizer states and statistics from their initializers: depends on seed and names only,
  // and not on how a state is split.
  void initialize(uint64_t seed);

  // When a copy to or from a tier fails, throws Error(device_failure) that names tensor, tier and place; the states are lost then,
  // and every further step throws the same. When a kernel refuses to run, throws KernelRefused.
  void run_step();
  // Runs the step on whatever lies there, leaves out kernels that refuse to run, and returns these. States mean nothing afterwards.
  std::vector<KernelRefused> rehearse();

  Bytes measured_peak() const;     // the largest sum of bytes that kernels had bound or tensors held at once, over the steps run
  Bytes arena_bytes() const;
  bool is_captured() const;        // training steps are asked for as a whole (ExecuteOptions::capture)
  const Memory& memory() const;
  std::span<const StepRecord> records() const;   // one a plan step; empty without record_times
  std::span<const StepRecord> copies() const;    // one a move

 private:
  struct Impl;
  void run(std::vector<KernelRefused>* refused);
  std::unique_ptr<Impl> impl_;
};

}  // namespace plimsoll
