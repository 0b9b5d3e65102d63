// A driver runs the steps and copies of a plan that was made ready. There are three, and make_driver takes the one that
// a plan and its device need:
//
//   serial      one step after another; copies run beside, and are started and waited for between two steps
//   concurrent  steps and copies start as soon as they are ready: what they depend on is done, and their cores are free
//   queued      for a device that computes beside the host: all is asked for at once, and waited for at the end
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "device/tier/tier.h"
#include "execute/bindings.h"
#include "execute/boundaries.h"
#include "execute/peak_meter.h"
#include "plimsoll/execute.h"

namespace plimsoll {

// A plan in its memory, with its kernels bound. Everything that it refers to outlives it.
struct ReadyPlan {
  const Graph& graph;
  const Plan& plan;
  const Device& device;
  ExecuteOptions options;
  std::vector<std::shared_ptr<Tier>> tiers;          // in the plan's order
  std::vector<std::unique_ptr<Kernel>> kernels;      // by step; null for a view, and for what a collective runs
  std::vector<std::unique_ptr<Kernel>> collectives;  // by collective
  Bindings bindings;
  BoundaryTable boundaries;
  // By step, by move and by collective; empty where no times are taken.
  std::vector<StepRecord> records, copy_records, message_records;

  size_t steps() const { return kernels.size(); }
};

class Driver {
 public:
  virtual ~Driver() = default;
  // A training step: `start` asks for it, and all of it is done when `finish` returns. Where no device computes beside the
  // host, that is when `start` does. Both throw what a kernel, a copy or a check threw; kernels that refuse to run are left
  // out where somebody wants to know them.
  virtual void start(std::vector<KernelRefused>* refused) = 0;
  virtual void finish() {}
  // Between two steps: copies what came to the second buffers to where the step finds it. The buffers may be written again
  // when `await_taken` returns, beside the step that `start` asked for.
  virtual void take_next() {
    for (const Bindings::Next& next : ready_plan_.bindings.next)
      std::memcpy(next.place.at, next.buffer.at, next.place.bytes.count);
  }
  virtual void await_taken() {}
  virtual void rest() noexcept = 0;  // after a failure: until nothing runs any more
  virtual bool is_captured() const { return false; }
  // What the last step took by the clock of a device that computes beside the host.
  virtual std::optional<double> device_ms() const { return std::nullopt; }
  Bytes peak() const { return meter_.peak(); }

 protected:
  explicit Driver(const ReadyPlan& ready)
      : meter_(ready.bindings, ready.plan, nodes_in_order(ready.plan)), ready_plan_(ready) {}
  PeakMeter meter_;

 private:
  const ReadyPlan& ready_plan_;
};

// What is ready must outlive the driver.
std::unique_ptr<Driver> make_driver(ReadyPlan& ready);

std::unique_ptr<Driver> make_serial_driver(ReadyPlan& ready);
std::unique_ptr<Driver> make_concurrent_driver(ReadyPlan& ready);
std::unique_ptr<Driver> make_queued_driver(ReadyPlan& ready, std::unique_ptr<Queues> queues);

}  // namespace plimsoll
