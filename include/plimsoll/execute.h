// Runs plans: takes the arena once, makes and binds every kernel once, then each step is a walk over ready kernels.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "plimsoll/device.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

struct ExecuteOptions {
  bool check_memory = false;  // fill bytes with NaN when their stay ends: whoever reads them is found (slow, for tests)
  bool record_times = false;  // take the time of every step
};

struct StepRecord {           // of the last step that ran
  double start_ms = 0;        // since the start of the training step
  double end_ms = 0;
};

class Executor {
 public:
  // Verifies the plan (throws Error(internal)), takes the arena, prepares. The graph and device must outlive it.
  // `arena`: use this one instead of taking one (an evaluation shares the training's).
  Executor(const Graph& graph, const Plan& plan, const Device& device, const ExecuteOptions& options = {},
           std::shared_ptr<Arena> arena = nullptr);
  ~Executor();

  // Sources and outputs, as row-major elements in the tensor's dtype; converts layouts. Sizes must match.
  void write(TensorId tensor, std::span<const std::byte> elements);
  void read(TensorId tensor, std::span<std::byte> elements) const;
  // The same for the elements from number `first` on, so that a large tensor is saved and loaded without a copy of it.
  void write(TensorId tensor, int64_t first, std::span<const std::byte> elements);
  void read(TensorId tensor, int64_t first, std::span<std::byte> elements) const;
  // Fills parameters, optimizer states and statistics from their initializers: depends on seed and names only.
  void initialize(uint64_t seed);

  void run_step();

  Bytes measured_peak() const;     // the largest sum of bytes that kernels had bound or tensors held at once, over the steps run
  Bytes arena_bytes() const;
  std::shared_ptr<Arena> arena() const;
  std::span<const StepRecord> records() const;   // one a plan step; empty without record_times

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plimsoll
