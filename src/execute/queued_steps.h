// Runs a plan on a device that computes beside the host: a training step is asked for at once, kernels and copies in
// three queues that marks order as the plan says, and the host waits at its end. Between two steps first what must
// leave leaves, then what comes in may take its place (plan.h): the compute queue waits where a thread would.
//
// A step is the same every time, so from the third on it is captured: kept by the device and asked for as a whole, which
// spares the host hundreds of calls. The first loads what kernels need, the second tells the times. Where the host itself
// copies, a step cannot be kept.
//
//   tiers in host memory, pinned: the device copies by itself
//   other tiers (disk): threads copy piece by piece through pinned buffers, and the host waits for them at boundaries
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "device/tier/tier.h"
#include "execute/copy_engine.h"
#include "plimsoll/device.h"
#include "plimsoll/execute.h"
#include "plimsoll/plan.h"

namespace plimsoll {

// Bytes that nobody may read after a step (memory checks).
struct DyingBytes {
  StepIndex step = 0;
  std::byte* at = nullptr;
  size_t bytes = 0;
};

class QueuedSteps {
 public:
  // `kernels`: one a step, null for a view. `records`, `copy_records`: one a step and a move, or empty. Everything
  // given must outlive it.
  QueuedSteps(const Graph& graph, const Plan& plan, const Device& device, std::unique_ptr<Queues> queues,
              std::span<const std::shared_ptr<Tier>> tiers, std::byte* arena, std::vector<Kernel*> kernels,
              std::vector<DyingBytes> dying, std::span<StepRecord> records, std::span<StepRecord> copy_records,
              bool check_memory, bool capture);
  ~QueuedSteps();

  // A training step; all of it is done on return. Kernels that refuse to run are left out where somebody wants to know them.
  void run(std::vector<KernelRefused>* refused = nullptr);
  bool is_captured() const { return captured_; }
  void rest() noexcept;  // after a failure: until nothing runs any more

 private:
  using Queue = Queues::Queue;
  struct Transfer {  // a move that the device makes by itself
    Slot* slot = nullptr;
    std::byte* host = nullptr;
    std::byte* at = nullptr;
    bool out = false;
    int32_t move = 0;
    Queues::Mark begin = -1, done = -1;
  };
  struct Signal {  // an engine and a number of its copies
    size_t engine = 0;
    int32_t count = 0;
  };
  struct Pass {
    std::vector<size_t> transfers;  // that may start
    Queues::Mark ready = -1;        // where they, and the engines, start from
    std::vector<Queues::Mark> waits;
    std::vector<Signal> releases, engine_waits;
  };
  struct Boundary {
    Pass out, in;
  };

  void ask(bool timed, std::vector<KernelRefused>* refused = nullptr);
  void run_kernel(size_t step, std::vector<KernelRefused>* refused);
  bool capture();
  void forget_sums();
  void pass(const Pass& pass, Queue queue, bool timed);
  void fill(size_t step);
  void keep_times();

  const Graph& graph_;
  const Plan& plan_;
  std::unique_ptr<Queues> queues_;
  std::vector<Kernel*> kernels_;
  std::vector<std::vector<DyingBytes>> dying_;  // by step
  std::span<StepRecord> records_, copy_records_;
  bool check_memory_;
  bool may_capture_, captured_ = false;
  int runs_ = 0;
  std::vector<Transfer> transfers_;
  std::vector<Boundary> boundaries_;  // by step, and one for the end
  Queues::Mark start_ = -1;
  Queues::Mark fork_ = -1, joins_[2] = {-1, -1};  // of what is captured
  std::vector<Queues::Mark> begins_, ends_;  // of steps, where times are taken
  std::vector<std::shared_ptr<Tier>> staged_;
  std::vector<std::unique_ptr<CopyEngine>> engines_;  // the first to go
};

}  // namespace plimsoll
