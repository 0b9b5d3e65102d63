#include "execute/copy_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <system_error>

#include "base/no_signals.h"
#include "device/tier/fault.h"
#include "device/tier/turns.h"
#include "plimsoll/error.h"

namespace plimsoll {

CopyEngine::CopyEngine(Tier& tier, std::vector<Copy> copies, std::function<std::string(int32_t)> describe,
                       std::function<void(int32_t)> made, int together)
    : channel_(tier.open_channel()),
      helper_(tier.open_channel(std::max(together, 1))),
      copies_(std::move(copies)),
      order_(copies_.size()),
      describe_(std::move(describe)),
      made_(std::move(made)) {
  std::iota(order_.begin(), order_.end(), 0);
  if (together > 0) return;
  take_short_turns();  // whoever computes waits too, and makes copies then
  const NoSignals quiet;
  try {
    if (const int error = injected(TierOperation::thread)) throw std::system_error(error, std::generic_category());
    thread_ = std::thread([this] { loop(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::device_failure, fmt::format("cannot start a thread that copies to and from the {} tier: {}",
                                                       tier.name(), error.what()));
  }
}

CopyEngine::~CopyEngine() {
  wait_for_released();
  if (!thread_.joinable()) return;
  stop_.store(true);
  released_.fetch_add(1);  // any change wakes it
  released_.notify_one();
  thread_.join();
}

void CopyEngine::begin_round(Clock::time_point origin) {
  round_ = released_.load(std::memory_order_relaxed);
  origin_ = origin;
}

void CopyEngine::release(int32_t count) {
  released_.store(round_ + static_cast<uint32_t>(count), std::memory_order_release);
  if (thread_.joinable()) {
    released_.notify_one();
  } else {
    wait(count);
  }
}

void CopyEngine::submit(int32_t copy) {
  const uint32_t released = released_.load(std::memory_order_relaxed);
  order_[released - round_] = copy;
  released_.store(released + 1, std::memory_order_release);
  released_.notify_one();
}

void CopyEngine::wait(int32_t count) {
  const uint32_t target = round_ + static_cast<uint32_t>(count);
  for (uint32_t done = done_.load(std::memory_order_acquire); static_cast<int32_t>(target - done) > 0;
       done = done_.load(std::memory_order_acquire)) {
    if (uint32_t number = 0; claim(target, number)) {
      make(number, *helper_);
    } else {
      done_.wait(done, std::memory_order_acquire);
    }
  }
}

void CopyEngine::wait_for_released() { wait(static_cast<int32_t>(released_.load(std::memory_order_relaxed) - round_)); }

bool CopyEngine::claim(uint32_t limit, uint32_t& number) {
  number = claimed_.load(std::memory_order_relaxed);
  while (static_cast<int32_t>(limit - number) > 0) {
    if (claimed_.compare_exchange_weak(number, number + 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

void CopyEngine::loop() {
  take_short_turns();
  for (;;) {
    const uint32_t released = released_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    if (uint32_t number = 0; claim(released, number)) {
      make(number, *channel_);
    } else {
      released_.wait(released, std::memory_order_acquire);
    }
  }
}

// After a failure copies are only counted, so that whoever waits for them wakes and sees it.
void CopyEngine::make(uint32_t number, Channel& channel) {
  const Copy& next = copies_[order_[number - round_]];
  if (!failing_.load(std::memory_order_relaxed)) {
    try {
      copy(next, channel);
    } catch (const std::exception& error) {
      if (!failing_.exchange(true)) {
        const auto* known = dynamic_cast<const Error*>(&error);
        failure_ = std::make_exception_ptr(Error(known != nullptr ? known->code() : ErrorCode::device_failure,
                                                 fmt::format("{}: {}", describe_(next.move), error.what())));
        failed_.store(true, std::memory_order_release);
      }
    }
  }
  const int32_t move = next.move;
  done_.fetch_add(1, std::memory_order_release);
  done_.notify_one();
  if (made_) made_(move);
}

void CopyEngine::copy(const Copy& copy, Channel& channel) {
  const Clock::time_point start = copy.record != nullptr ? Clock::now() : Clock::time_point{};
  if (copy.fill) std::memset(copy.at, 0xff, copy.slot->bytes);
  if (copy.out) {
    channel.write(*copy.slot, copy.at);
  } else {
    channel.read(*copy.slot, copy.at);
  }
  if (copy.retire) copy.slot->retired = true;
  if (copy.record != nullptr) {
    auto since = [this](Clock::time_point t) { return std::chrono::duration<double, std::milli>(t - origin_).count(); };
    *copy.record = {since(start), since(Clock::now())};
  }
}

}  // namespace plimsoll
