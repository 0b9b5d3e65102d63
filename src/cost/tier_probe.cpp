// How fast a tier is, and what it costs the computing beside it.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/statistics.h"
#include "cost/probe.h"
#include "device/tier/staged.h"
#include "device/tier/turns.h"
#include "plimsoll/error.h"
#include "plimsoll/plan.h"

namespace plimsoll {
namespace {

constexpr int64_t kCopyBytes = 4 << 20;
constexpr int64_t kCopies = 8;  // places that the copies go round, so that they come from memory and not from a cache
constexpr int kRounds = 5;      // of computing alone, beside copies out, and beside copies in, in turn
constexpr double kWindowMs = 25;
constexpr int64_t kSmallBytes = kSlotAlignment;
constexpr int64_t kProductSize = 512;  // about a millisecond of dense work, as a step's convolutions are
constexpr double kMostShare = 0.95;

// GB/s of copies that took `ms` each, of which a copy of next to nothing takes `small_ms`. On a machine that others keep busy
// the small ones may seem to take as long: half of the time at least is left to the bytes.
double rate_of(int64_t bytes, double ms, double small_ms) {
  return static_cast<double>(bytes) / (std::max(ms - std::min(small_ms, ms / 2), 1e-6) * 1e6);
}

// Mean milliseconds of a run, over a time of `ms` or until `done`.
double mean_ms(const TimedRun& run, double ms) {
  const Stopwatch watch;
  int runs = 0;
  for (double spent = 0; spent < ms || runs < 2; spent = watch.ms()) {
    run();
    ++runs;
  }
  return watch.ms() / runs;
}

// Copies in one direction, over and over, in a thread of its own as long as it lives.
class Copying {
 public:
  Copying(Channel& channel, std::span<Slot* const> slots, std::byte* memory, bool out)
      : thread_([this, &channel, slots, memory, out] {
          take_short_turns();
          try {
            for (size_t i = 0; !stop_; i = (i + 1) % slots.size()) {
              std::byte* at = memory + static_cast<int64_t>(i) * slots[i]->bytes;
              const Stopwatch watch;
              out ? channel.write(*slots[i], at) : channel.read(*slots[i], at);
              times_.push_back(watch.ms());
              busy_ms_ += times_.back();
            }
            timespec used{};
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
            processor_ms_ = static_cast<double>(used.tv_sec) * 1e3 + static_cast<double>(used.tv_nsec) * 1e-6;
          } catch (...) {
            failure_ = std::current_exception();
          }
        }) {}
  ~Copying() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  Copying(const Copying&) = delete;
  Copying& operator=(const Copying&) = delete;

  void finish() {
    stop_ = true;
    thread_.join();
    if (failure_) std::rethrow_exception(failure_);
  }
  const std::vector<double>& times() const { return times_; }
  double processor_share() const { return busy_ms_ > 0 ? processor_ms_ / busy_ms_ : 0; }

 private:
  std::atomic<bool> stop_{false};
  std::vector<double> times_;
  double busy_ms_ = 0, processor_ms_ = 0;
  std::exception_ptr failure_;
  std::thread thread_;
};

// Copies that the device makes by itself, by its own clock.
class QueuedProbe {
 public:
  QueuedProbe(const Device& device, std::byte* arena, std::span<std::byte> host)
      : queues_(device.open_queues()),
        arena_(arena),
        host_(host),
        begin_(queues_->make_mark(true)),
        end_(queues_->make_mark(true)) {}

  // Asks for copies of `bytes` each, one after the other.
  void ask(bool out, int64_t bytes, int64_t copies) {
    const Queues::Queue queue = out ? Queues::Queue::out : Queues::Queue::in;
    queues_->mark(queue, begin_);
    for (int64_t i = 0; i < copies; ++i) {
      const int64_t at = i * bytes % (static_cast<int64_t>(host_.size()) - bytes + 1);
      if (out) {
        queues_->copy_out(host_.data() + at, arena_ + at, bytes);
      } else {
        queues_->copy_in(arena_ + at, host_.data() + at, bytes);
      }
    }
    queues_->mark(queue, end_);
  }
  double wait_ms() {
    queues_->synchronize(end_);
    return queues_->ms_between(begin_, end_);
  }

 private:
  std::unique_ptr<Queues> queues_;
  std::byte* arena_;
  std::span<std::byte> host_;
  Queues::Mark begin_, end_;
};

TierInfo probe_queued(const Device& device, Tier& tier, std::byte* arena, int64_t copy, TierInfo info) {
  constexpr int64_t kSmall = 16;
  tier.pin(device);
  QueuedProbe probe(device, arena, tier.memory().first(kCopies * copy));
  const TimedRun product = runs_on(device).product(2 * kProductSize, 1);
  product();
  std::vector<double> lost, copy_ms[2], latency;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> alone;  // by the device's clock, as beside copies
    for (int run = 0; run < kRounds; ++run) alone.push_back(product());
    const double alone_ms = median(std::move(alone));
    for (const bool out : {true, false}) {
      probe.ask(out, kSmallBytes, kSmall);
      latency.push_back(probe.wait_ms() / kSmall);
      probe.ask(out, copy, 2 * kCopies);
      const double beside_ms = product();  // the copies last longer
      copy_ms[out].push_back(probe.wait_ms() / (2 * kCopies));
      lost.push_back(1 - alone_ms / std::max(beside_ms, 1e-6));
    }
  }
  const double small_ms = median(latency);
  info.latency_us = 1000 * small_ms;
  info.out_gb_per_s = rate_of(copy, median(copy_ms[true]), small_ms);
  info.in_gb_per_s = rate_of(copy, median(copy_ms[false]), small_ms);
  info.compute_share = std::clamp(median(lost), 0.0, kMostShare);
  return info;
}

TierInfo probe_together(const Device& device, Tier& tier, std::byte* memory, int64_t copy, TierInfo info) {
  const std::unique_ptr<Channel> channel = tier.open_channel(device.info().threads);
  const auto timed = [&](bool out, int64_t bytes, int64_t place) {
    Slot& slot = tier.slot({place * bytes}, {bytes});
    const Stopwatch watch;
    out ? channel->write(slot, memory + place * bytes) : channel->read(slot, memory + place * bytes);
    return watch.ms();
  };
  std::vector<double> small_ms, copy_ms[2];
  for (int round = 0; round < kRounds; ++round) {
    for (const bool out : {true, false}) {
      for (int64_t i = 0; i < kCopies; ++i) small_ms.push_back(timed(out, kSmallBytes, i));
    }
    for (const bool out : {true, false}) {
      for (int64_t i = 0; i < kCopies; ++i) copy_ms[out].push_back(timed(out, copy, i));
    }
  }
  info.latency_us = 1000 * median(small_ms);
  for (const bool out : {true, false}) {
    (out ? info.out_gb_per_s : info.in_gb_per_s) = rate_of(copy, median(copy_ms[out]), median(small_ms));
  }
  info.compute_share = 1;
  return info;
}

}  // namespace

bool copies_beside_compute(const Device& device, const Tier& tier) {
  return device.info().asynchronous || !tier.is_memory() || device.info().threads < device.info().cores.cores;
}

TierInfo probe_tier(const Device& device, Tier& tier, Bytes room) {
  const auto copy_in = [](Bytes memory) { return memory.count / kCopies / kTierPiece * kTierPiece; };
  const int64_t copy =
      std::min({kCopyBytes, copy_in(tier.capacity()), std::max(copy_in({room.count / 2}), kTierPiece)});
  TierInfo info{.name = tier.name(), .capacity = tier.capacity()};
  if (copy < kTierPiece) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("the tier '{}' has {}, and its speed is measured in 8 MiB at least", tier.name(),
                            to_string(tier.capacity())));
  }
  tier.reserve({kCopies * copy});
  const std::unique_ptr<Arena> arena = device.take_arena({kCopies * copy + kStayAlignment});
  std::byte* const memory = arena->base() + kStayAlignment;  // as tensors lie: not at the start of a page
  if (device.info().asynchronous && !tier.memory().empty()) return probe_queued(device, tier, memory, copy, info);
  if (!copies_beside_compute(device, tier)) return probe_together(device, tier, memory, copy, info);
  const std::shared_ptr<Tier> staged = device.host_addressable() ? nullptr : stage(device, tier);
  const std::unique_ptr<Channel> channel = staged ? staged->open_channel() : tier.open_channel();
  std::vector<Slot*> slots;
  for (int64_t i = 0; i < kCopies; ++i) slots.push_back(&tier.slot({i * copy}, {copy}));
  const TimedRun product = runs_on(device).product(kProductSize, device.info().threads);
  product();
  std::vector<Slot*> small_slots;
  for (int64_t i = 0; i < kCopies; ++i) small_slots.push_back(&tier.slot({i * kSmallBytes}, {kSmallBytes}));
  const auto write_all = [&](std::span<Slot* const> list) {  // small ones and large ones lie in the same place
    for (size_t i = 0; i < list.size(); ++i)
      channel->write(*list[i], memory + static_cast<int64_t>(i) * list[i]->bytes);
  };
  write_all(slots);
  std::vector<double> small_ms, copy_ms[2], lost, processor;
  for (int round = 0; round < kRounds; ++round) {
    const double alone_ms = mean_ms(product, kWindowMs);
    double beside_ms = 0;
    for (const bool out : {true, false}) {
      Copying copying(*channel, slots, memory, out);
      beside_ms += mean_ms(product, kWindowMs) / 2;
      copying.finish();
      copy_ms[out].insert(copy_ms[out].end(), copying.times().begin(), copying.times().end());
      processor.push_back(copying.processor_share());
    }
    lost.push_back(1 - alone_ms / beside_ms);
    write_all(small_slots);
    for (const bool out : {true, false}) {
      Copying copying(*channel, small_slots, memory, out);
      mean_ms(product, kWindowMs / 2);
      copying.finish();
      small_ms.insert(small_ms.end(), copying.times().begin(), copying.times().end());
    }
    write_all(slots);
  }
  // A small copy is short, and long only where it waits for a processor, which its median does not tell.
  const double latency_ms = mean(small_ms);
  info.latency_us = 1000 * latency_ms;
  info.out_gb_per_s = rate_of(copy, median(copy_ms[true]), latency_ms);
  info.in_gb_per_s = rate_of(copy, median(copy_ms[false]), latency_ms);
  // On a busy machine what the copies take is hard to see, but their share of the processors is taken from somebody.
  const double taken = median(processor) / device.info().threads;
  info.compute_share = std::clamp(std::max(median(lost), taken), 0.0, kMostShare);
  return info;
}

}  // namespace plimsoll
