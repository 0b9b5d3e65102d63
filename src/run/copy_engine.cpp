#include "run/copy_engine.h"

#include <fmt/format.h>
#include <signal.h>

#include <cstring>

#include "plimsoll/error.h"

namespace plimsoll {
namespace {

// A thread that begins while this lives handles no signals: they are for the program's own threads.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

CopyEngine::CopyEngine(std::unique_ptr<Channel> channel, std::vector<Copy> copies,
                       std::function<std::string(int32_t)> describe)
    : channel_(std::move(channel)), copies_(std::move(copies)), describe_(std::move(describe)) {
  const NoSignals quiet;
  thread_ = std::thread([this] { loop(); });
}

CopyEngine::~CopyEngine() {
  wait_for_released();
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
  released_.notify_one();
}

void CopyEngine::wait(int32_t count) const {
  const uint32_t target = round_ + static_cast<uint32_t>(count);
  for (uint32_t done = done_.load(std::memory_order_acquire); static_cast<int32_t>(target - done) > 0;
       done = done_.load(std::memory_order_acquire)) {
    done_.wait(done, std::memory_order_acquire);
  }
}

void CopyEngine::wait_for_released() const {
  wait(static_cast<int32_t>(released_.load(std::memory_order_relaxed) - round_));
}

void CopyEngine::loop() {
  size_t next = 0;
  for (uint32_t done = 0;;) {
    uint32_t released = released_.load(std::memory_order_acquire);
    while (released == done) {
      released_.wait(released, std::memory_order_acquire);
      released = released_.load(std::memory_order_acquire);
    }
    if (stop_.load()) return;
    const Copy& copy = copies_[next];
    if (!failed_.load(std::memory_order_relaxed)) {
      try {
        make(copy);
      } catch (const std::exception& error) {
        const auto* known = dynamic_cast<const Error*>(&error);
        failure_ = std::make_exception_ptr(Error(known != nullptr ? known->code() : ErrorCode::device_failure,
                                                 fmt::format("{}: {}", describe_(copy.move), error.what())));
        failed_.store(true, std::memory_order_release);
      }
    }
    next = next + 1 == copies_.size() ? 0 : next + 1;
    done_.store(++done, std::memory_order_release);
    done_.notify_one();
  }
}

void CopyEngine::make(const Copy& copy) {
  const Clock::time_point start = copy.record != nullptr ? Clock::now() : Clock::time_point{};
  if (copy.fill) std::memset(copy.at, 0xff, static_cast<size_t>(copy.slot->bytes));
  if (copy.out) {
    channel_->write(*copy.slot, copy.at);
  } else {
    channel_->read(*copy.slot, copy.at);
  }
  if (copy.retire) copy.slot->retired = true;
  if (copy.record != nullptr) {
    auto since = [this](Clock::time_point t) { return std::chrono::duration<double, std::milli>(t - origin_).count(); };
    *copy.record = {since(start), since(Clock::now())};
  }
}

}  // namespace plimsoll
