// The engine that runs a plan's collectives beside compute: a thread that takes them in the plan's order, which is that of
// all ranks. Compute raises a number, "so many may begin"; another says how many are done; who has nothing to do sleeps.
// Nothing is allocated or locked in a step.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "execute/driver.h"

namespace plimsoll {

class MessageEngine {
 public:
  explicit MessageEngine(ReadyPlan& ready);
  ~MessageEngine();  // waits for those that have begun

  void begin(Clock::time_point origin);  // a training step
  // Step number `step` is reached: those that it completes begin.
  void reached(StepIndex step);
  // Waits for those that must be complete before this step (the number of steps: at the end). Throws what stopped it.
  void wait_before(StepIndex step);
  void rest() noexcept;  // after a failure: until none is under way

 private:
  void loop();
  void wait(uint32_t count);

  ReadyPlan& ready_;
  std::vector<int32_t> begins_, ends_;  // by step: so many have begun once it is reached; must be done before it
  uint32_t round_ = 0;                  // collectives of the training steps before this one, around 2^32
  Clock::time_point origin_;
  std::atomic<uint32_t> released_{0}, done_{0};
  std::atomic<bool> stop_{false}, failed_{false};
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace plimsoll
