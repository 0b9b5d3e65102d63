// Host memory as a tier: one region, reserved whole, taken from the system as far as a plan uses it.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

#include "device/cpu/machine.h"
#include "device/tier/checksum.h"
#include "device/tier/fault.h"
#include "device/tier/tier.h"
#include "plimsoll/error.h"
#include "plimsoll/plan.h"

namespace plimsoll {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr Bytes kWorthThreads = 16_MiB;  // to be touched: less is done before they are awake

class HostChannel final : public Channel {
 public:
  HostChannel(std::byte* base, int threads) : base_(base), threads_(threads) {}

 protected:
  void write_pieces(Slot& slot, int64_t first, int64_t count, const std::byte* from) override {
    each_piece(first, count, [&](int64_t piece) {
      fail_as_asked(TierOperation::write, slot, piece);
      slot.sums[piece] = copy_with_checksum(at(slot, piece), from + (piece - first) * kTierPiece, size(slot, piece));
      slot.known[piece] = 1;
    });
  }
  void read_pieces(const Slot& slot, int64_t first, int64_t count, std::byte* to) override {
    each_piece(first, count, [&](int64_t piece) {
      fail_as_asked(TierOperation::read, slot, piece);
      if (injected(TierOperation::corrupt) != 0) at(slot, piece)[size(slot, piece) / 2] ^= std::byte{1};
      const uint64_t found = copy_with_checksum(to + (piece - first) * kTierPiece, at(slot, piece), size(slot, piece));
      const uint64_t expected = slot.sums[piece];
      if (slot.known[piece] == 1 && found != expected) {
        throw_wrong_checksum("host memory", slot.offset + piece * kTierPiece, expected, found);
      }
    });
  }

 private:
  template <typename Work>
  void each_piece(int64_t first, int64_t count, const Work& work) const {
    if (threads_ == 1 || count == 1) {
      for (int64_t piece = first; piece < first + count; ++piece) work(piece);
      return;
    }
    std::exception_ptr failure;
#pragma omp parallel for schedule(static) num_threads(threads_)
    for (int64_t piece = first; piece < first + count; ++piece) {
      try {
        work(piece);
      } catch (...) {
#pragma omp critical(plimsoll_host_tier_failure)
        if (!failure) failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }
  std::byte* at(const Slot& slot, int64_t piece) const { return base_ + slot.offset + piece * kTierPiece; }
  static size_t size(const Slot& slot, int64_t piece) { return std::min(kTierPiece, slot.bytes - piece * kTierPiece); }
  static void fail_as_asked(TierOperation operation, const Slot& slot, int64_t piece) {
    if (const int error = injected(operation)) {
      throw Error(ErrorCode::device_failure, fmt::format("host memory: {} {} at byte {}: {}",
                                                         operation == TierOperation::write ? "writing" : "reading",
                                                         to_string(Bytes{static_cast<int64_t>(size(slot, piece))}),
                                                         slot.offset + piece * kTierPiece, std::strerror(error)));
    }
  }

  std::byte* base_;
  int threads_;
};

class HostTier final : public Tier {
 public:
  explicit HostTier(Bytes capacity) : Tier("host", capacity) {
    mapped_bytes_ = align_up(capacity, kHugePage).count + kHugePage;
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int error = mapped_ == MAP_FAILED ? errno : 0;
    if (const int asked = injected(TierOperation::map); asked != 0 && error == 0) {
      munmap(mapped_, mapped_bytes_);
      error = asked;
    }
    if (error != 0) {
      throw Error(
          ErrorCode::device_failure,
          fmt::format(
              "the system gives no {} of host memory beside the arena: {}; lower --host-memory, or raise the process's limit (ulimit -v)",
              to_string(capacity), std::strerror(error)));
    }
    const auto address = reinterpret_cast<uintptr_t>(mapped_);
    base_ = reinterpret_cast<std::byte*>((address + kHugePage - 1) / kHugePage * kHugePage);
  }
  ~HostTier() override {
    unpin();
    munmap(mapped_, mapped_bytes_);
  }
  HostTier(const HostTier&) = delete;
  HostTier& operator=(const HostTier&) = delete;

  std::string where() const override { return "host memory"; }
  std::string how() const override { return "copied by threads"; }

  void reserve(Bytes bytes) override {
    bytes = align_up(bytes, kSlotAlignment);
    if (bytes <= reserved_) return;
    if (bytes > align_up(capacity(), kSlotAlignment)) {
      throw Error(ErrorCode::device_failure,
                  fmt::format("the plan needs {} of host memory beside the arena but --host-memory is {}; raise it",
                              to_string(bytes), to_string(capacity())));
    }
    // What the process's own limits allow was asked when the room was mapped.
    if (const cpu::MachineMemory memory = cpu::machine_memory();
        bytes - reserved_ > memory.available && !memory.limited_by_process) {
      throw Error(
          ErrorCode::device_failure,
          fmt::format(
              "the plan needs {} of host memory beside the arena but the machine has {} left; lower --host-memory and plan again",
              to_string(bytes - reserved_), to_string(memory.available)));
    }
    madvise(base_, bytes.count, MADV_HUGEPAGE);  // advice: failure costs only time
#pragma omp parallel for schedule(static) if (bytes - reserved_ > kWorthThreads)
    for (int64_t at = reserved_.count; at < bytes.count; at += kSlotAlignment) base_[at] = std::byte{0};
    reserved_ = bytes;
  }

  std::unique_ptr<Channel> open_channel(int threads) override { return std::make_unique<HostChannel>(base_, threads); }
  bool is_memory() const override { return true; }
  std::span<std::byte> memory() override { return {base_, static_cast<size_t>(reserved_.count)}; }

 private:
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::byte* base_ = nullptr;
  Bytes reserved_;
};

}  // namespace

std::shared_ptr<Tier> open_host_tier(Bytes capacity) { return std::make_shared<HostTier>(capacity); }

}  // namespace plimsoll
