#include "execute/message_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "base/no_signals.h"
#include "device/tier/turns.h"
#include "plimsoll/error.h"

namespace plimsoll {

MessageEngine::MessageEngine(ReadyPlan& ready)
    : ready_(ready), begins_(ready.steps() + 1, 0), ends_(ready.steps() + 1, 0) {
  const std::vector<Collective>& collectives = ready.plan.collectives;
  for (size_t c = 0; c < collectives.size(); ++c) {
    begins_[collectives[c].steps.back()] = static_cast<int32_t>(c) + 1;
    int32_t& end = ends_[collectives[c].before];
    end = std::max(end, static_cast<int32_t>(c) + 1);
  }
  if (collectives.empty()) return;
  const NoSignals quiet;
  try {
    thread_ = std::thread([this] { loop(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::device_failure,
                fmt::format("cannot start a thread that sends messages to the other ranks: {}", error.what()));
  }
}

MessageEngine::~MessageEngine() {
  if (!thread_.joinable()) return;
  rest();
  stop_.store(true);
  released_.fetch_add(1);  // any change wakes it
  released_.notify_one();
  thread_.join();
}

void MessageEngine::begin(Clock::time_point origin) {
  round_ = released_.load(std::memory_order_relaxed);
  origin_ = origin;
}

void MessageEngine::reached(StepIndex step) {
  if (begins_[step] == 0) return;
  released_.store(round_ + static_cast<uint32_t>(begins_[step]), std::memory_order_release);
  released_.notify_one();
}

void MessageEngine::wait(uint32_t target) {
  for (uint32_t done = done_.load(std::memory_order_acquire); static_cast<int32_t>(target - done) > 0;
       done = done_.load(std::memory_order_acquire)) {
    done_.wait(done, std::memory_order_acquire);
  }
}

void MessageEngine::wait_before(StepIndex step) {
  if (ends_[step] == 0) return;
  wait(round_ + static_cast<uint32_t>(ends_[step]));
  if (failed_.load(std::memory_order_acquire)) std::rethrow_exception(failure_);
}

void MessageEngine::rest() noexcept { wait(released_.load(std::memory_order_relaxed)); }

// After a failure collectives are only counted, so that whoever waits for them wakes and sees it.
void MessageEngine::loop() {
  take_short_turns();  // each message is a few moments of work and a wait; compute may sit on this very core
  const std::vector<Collective>& collectives = ready_.plan.collectives;
  for (uint32_t next = 0;;) {
    const uint32_t released = released_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    if (next == released) {
      released_.wait(released, std::memory_order_acquire);
      continue;
    }
    const size_t c = next++ % collectives.size();
    if (!failed_.load(std::memory_order_relaxed)) {
      try {
        const Clock::time_point start = Clock::now();
        if (ready_.collectives[c]) ready_.collectives[c]->run();
        if (!ready_.records.empty()) {
          const auto since = [this](Clock::time_point t) {
            return std::chrono::duration<double, std::milli>(t - origin_).count();
          };
          ready_.message_records[c] = {since(start), since(Clock::now())};
        }
      } catch (...) {
        failure_ = std::current_exception();
        failed_.store(true, std::memory_order_release);
      }
    }
    done_.fetch_add(1, std::memory_order_release);
    done_.notify_one();
  }
}

}  // namespace plimsoll
