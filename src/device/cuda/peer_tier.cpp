#include "device/cuda/peer_tier.h"

#include <fmt/format.h>

#include <algorithm>

#include "plimsoll/error.h"
#include "plimsoll/plan.h"

namespace plimsoll::cuda {
namespace {

// What the host writes and reads of it: states that rest there between steps.
class PeerChannel final : public Channel {
 public:
  PeerChannel(Door& peer, std::byte* base) : peer_(peer), base_(base) {}

 protected:
  void write_pieces(Slot& slot, int64_t first, int64_t count, const std::byte* from) override {
    const auto [at, bytes] = range(slot, first, count);
    touch(from, at, bytes);
    transfer(peer_, at, from, bytes, Direction::to_device);
    std::fill_n(slot.known.begin() + first, count, Slot::kWithoutSum);
  }
  void read_pieces(const Slot& slot, int64_t first, int64_t count, std::byte* to) override {
    const auto [at, bytes] = range(slot, first, count);
    touch(at, to, bytes);
    transfer(peer_, to, at, bytes, Direction::to_host);
  }

 private:
  struct Range {
    std::byte* at;
    size_t bytes;
  };
  Range range(const Slot& slot, int64_t first, int64_t count) const {
    const int64_t begin = first * kTierPiece, end = std::min(slot.bytes, (first + count) * kTierPiece);
    return {base_ + slot.offset + begin, static_cast<size_t>(end - begin)};
  }
  void touch(const std::byte* from, std::byte* to, size_t bytes) {
    if (!peer_.records()) return;
    const Touch read[] = {{from, bytes}}, written[] = {{to, bytes}};
    peer_.touches(read, written);
  }

  Door& peer_;
  std::byte* base_;
};

class PeerTier final : public Tier {
 public:
  PeerTier(std::shared_ptr<Door> peer, Bytes capacity)
      : Tier("peer", capacity), peer_(std::move(peer)), where_(fmt::format("cuda:{}", peer_->device())) {}
  ~PeerTier() override {
    if (memory_ != nullptr) peer_->release(memory_);
  }
  PeerTier(const PeerTier&) = delete;
  PeerTier& operator=(const PeerTier&) = delete;

  std::string where() const override { return where_; }
  std::string how() const override { return "copied by the GPU"; }

  // Addresses that a plan uses must stay, so what is there cannot grow.
  void reserve(Bytes bytes) override {
    bytes = align_up(bytes, kSlotAlignment);
    if (bytes <= reserved_) return;
    if (memory_ != nullptr || bytes > align_up(capacity(), kSlotAlignment)) {
      throw Error(ErrorCode::device_failure,
                  fmt::format("the plan needs {} of {}'s memory but it has {} for it; raise the size in --peer",
                              to_string(bytes), where_, to_string(memory_ != nullptr ? reserved_ : capacity())));
    }
    memory_ = peer_->allocate(bytes.count);
    reserved_ = bytes;
  }

  std::unique_ptr<Channel> open_channel(int) override {
    return std::make_unique<PeerChannel>(*peer_, static_cast<std::byte*>(memory_));
  }
  std::span<std::byte> memory() override {
    return {static_cast<std::byte*>(memory_), static_cast<size_t>(reserved_.count)};
  }
  bool is_host_memory() const override { return false; }

 private:
  std::shared_ptr<Door> peer_;
  std::string where_;
  void* memory_ = nullptr;
  Bytes reserved_;
};

}  // namespace

Bytes available(const Facts& facts) {
  const Bytes reserve = std::max<Bytes>(1_GiB, Bytes{facts.total.count / 32});
  return std::max(facts.free - reserve, Bytes{facts.free.count / 2});
}

std::shared_ptr<Tier> open_peer_tier(std::shared_ptr<Door> peer, std::optional<Bytes> size) {
  const Bytes room = size.value_or(available(peer->facts()));
  return std::make_shared<PeerTier>(std::move(peer), room);
}

}  // namespace plimsoll::cuda
