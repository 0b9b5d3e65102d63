// Runs plans: takes the arena once, makes and binds every kernel once, then each step is a walk over ready kernels.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plimsoll/device.h"
#include "plimsoll/error.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

class RemoteMemory;

inline constexpr int kRunsBeforeCapture = 2;  // of steps: the device keeps the next

// How to run a plan; what to run, and on how many cores, the plan says.
struct ExecuteOptions {
  // What the plan calls free is filled with NaN, and a kernel that writes what is not its own, or reads what is not
  // there, is found by name (slow, and takes the arena twice: for tests). Where the device computes beside the host it
  // is filled only.
  bool check_memory = false;
  bool record_times = false;  // take the time of every step and copy
  // From the third training step on ask for each as a whole, where the device can (CUDA graphs). Times are then of the
  // second, or, where `time_captured` says so, of each: without what the host takes to ask for op after op, but with what
  // it takes the device to tell the times.
  bool capture = true;
  bool time_captured = false;
  // False: collectives are left out, for one rank that tries a plan without the others; states mean nothing then.
  bool messages = true;
  std::filesystem::path spill;                // the folder of the disk tier, for plans that use one
  std::string peer;                           // the device whose memory is the peer tier, likewise
  std::shared_ptr<RemoteMemory> remote = {};  // what the remote tier is, likewise
  bool pin = true;  // threads to cores, for plans that share them (Plan::cores) and where the process has no others
};

// What a plan's bytes lie in. What is not given is taken: an evaluation shares the training's arena, and its tiers by
// name.
struct Memory {
  Memory() = default;
  Memory(std::shared_ptr<Arena> a, std::vector<std::shared_ptr<Tier>> t = {})
      : arena(std::move(a)), tiers(std::move(t)) {}
  std::shared_ptr<Arena> arena;
  std::vector<std::shared_ptr<Tier>> tiers;
};

// A device offered a kernel, and refuses to run it. Names the op and the kernel.
class KernelRefused : public Error {
 public:
  KernelRefused(std::string op, std::string kernel, const std::string& why)
      : Error(ErrorCode::device_failure,
              "op '" + op + "': kernel '" + kernel + "' was offered, but does not run: " + why),
        op_(std::move(op)),
        kernel_(std::move(kernel)) {}
  const std::string& op() const { return op_; }
  const std::string& kernel() const { return kernel_; }

 private:
  std::string op_, kernel_;
};

struct StepRecord {     // of the last step whose times were taken
  double start_ms = 0;  // since the start of the training step
  double end_ms = 0;
  int32_t core =
      0;  // the first of those that it ran on, where steps run side by side; on second hardware threads, cores + it
  bool together = false;  // it was one launch with others, and this is its share of that by the bytes that they read
};

class Executor {
 public:
  // Verifies the plan (throws Error(internal)), takes the memory that is not given, prepares. Throws
  // Error(invalid_input) where the plan was made for cores that the machine does not have. The graph, plan and device
  // must outlive it.
  Executor(const Graph& graph, const Plan& plan, const Device& device, const ExecuteOptions& options = {},
           Memory memory = {});
  ~Executor();

  // Sources and outputs, as row-major elements in the tensor's dtype; converts layouts. Sizes must match.
  void write(TensorId tensor, std::span<const std::byte> elements);
  void read(TensorId tensor, std::span<std::byte> elements) const;
  // Elements that lie in `layout`: as they are where the tensor lies so too, which costs one copy and nothing else.
  void write(TensorId tensor, const Layout& layout, std::span<const std::byte> elements);
  // The same as the first two for the elements from number `first` on, so that a large tensor is saved and loaded without a copy of it.
  void write(TensorId tensor, int64_t first, std::span<const std::byte> elements);
  void read(TensorId tensor, int64_t first, std::span<std::byte> elements) const;
  // A state's own bytes between steps, where they are row-major in memory that the host can address; else nothing.
  // During a step other things may lie there.
  std::span<std::byte> bytes_at_rest(TensorId state);
  // Fills parameters, optimizer states and statistics from their initializers: depends on seed and names only,
  // and not on how a state is split.
  void initialize(uint64_t seed);

  // When a copy to or from a tier fails, throws Error(device_failure) that names tensor, tier and place; the states are
  // lost then, and every further step throws the same. When a kernel refuses to run, throws KernelRefused.
  void run_step();
  // The same in two: where a device computes beside the host, what is asked for when `start_step` returns is done when
  // `finish_step` does.
  void start_step();
  void finish_step();
  // Where the plan has second buffers (Plan::feeding): elements of an input, in `layout`, for the step that is started next.
  // They come beside the one that runs. The copy is complete on return. Throws Error(internal) where there is no such buffer.
  void write_next(TensorId input, const Layout& layout, std::span<const std::byte> elements);
  // Where an input's elements go before a step, and in a second buffer, in the tensor's own layout: for who writes there by means
  // of the device, and is done before the step is started. Null where the input has a home in a tier.
  std::byte* place_of(TensorId input);
  std::byte* next_place_of(TensorId input);
  bool has_next() const;                                   // something was written so, and no step was started since
  std::vector<std::byte> read_next(TensorId input) const;  // what was, in the tensor's own layout
  // Runs the step on whatever lies there, without the other ranks, leaves out kernels that refuse to run, and returns
  // these. States mean nothing afterwards.
  std::vector<KernelRefused> rehearse();

  // The most bytes in use at once in the training steps run: by the addresses that kernels and copies were given, from
  // the access that writes a value to the last that reads it. Not more than Prediction::peak, and the same where no
  // stay is longer than its tensor is used.
  Bytes measured_peak() const;
  Bytes arena_bytes() const;
  // What the last step took by the clock of a device that computes beside the host: what the host and the loader take is
  // not in it. Nothing where the host computes.
  std::optional<double> device_ms() const;
  bool is_captured() const;  // training steps are asked for as a whole (ExecuteOptions::capture)
  const Memory& memory() const;
  std::span<const StepRecord> records() const;   // one a plan step; empty without record_times
  std::span<const StepRecord> copies() const;    // one a move
  std::span<const StepRecord> messages() const;  // one a collective

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plimsoll
