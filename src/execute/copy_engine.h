// An engine that copies between the arena and a tier beside compute: a thread with a list of copies, the same every
// training step, taken in order. Nothing is allocated or locked while it runs. Compute raises a number, "so many may
// start"; a copy is claimed by raising another; a third says how many are done; and whoever has nothing to do sleeps.
// Compute that waits for copies which nobody has begun makes them itself: the engine's thread may still be waiting for
// a processor. With `together` threads there is no such thread, and those that compute make every copy when it may
// start.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "device/tier/tier.h"
#include "plimsoll/execute.h"

namespace plimsoll {

struct Copy {
  Slot* slot = nullptr;
  std::byte* at = nullptr;  // in the arena
  bool out = false;
  int32_t move = 0;              // its number in the plan
  StepRecord* record = nullptr;  // where its times go, if anywhere
  bool fill = false;             // memory checks: an arrival finds its place full of NaN
  bool retire = false;           // memory checks: after it nobody may read the slot
};

class CopyEngine {
 public:
  // `describe` says what a copy is about when it fails. `made`, where it is given, is told of every copy that is done
  // or given up.
  CopyEngine(Tier& tier, std::vector<Copy> copies, std::function<std::string(int32_t move)> describe,
             std::function<void(int32_t move)> made = {}, int together = 0);
  ~CopyEngine();
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  void begin_round(Clock::time_point origin);  // a training step: copies count from 0 again; times are since `origin`
  void release(int32_t count);                 // the first `count` copies of the round may run
  void submit(int32_t copy);                   // instead: this one may run next, by its place in the list
  void wait(int32_t count);                    // until so many are done, or given up after a failure
  void wait_for_released();
  // What stopped it, if anything did; the copies after it were not made.
  std::exception_ptr failure() const { return failed_.load(std::memory_order_acquire) ? failure_ : nullptr; }

 private:
  void loop();
  // The next copy, if it is before number `limit`.
  bool claim(uint32_t limit, uint32_t& number);
  void make(uint32_t number, Channel& channel);
  void copy(const Copy& copy, Channel& channel);

  std::unique_ptr<Channel> channel_, helper_;  // of the thread; of who waits
  std::vector<Copy> copies_;
  std::vector<int32_t> order_;  // of the copies in this round
  std::function<std::string(int32_t)> describe_;
  std::function<void(int32_t)> made_;
  // Copies are numbered through all rounds (and around 2^32).
  uint32_t round_ = 0;  // the first of this round
  Clock::time_point origin_;
  std::atomic<uint32_t> released_{0}, claimed_{0}, done_{0};
  std::atomic<bool> stop_{false}, failing_{false}, failed_{false};
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace plimsoll
