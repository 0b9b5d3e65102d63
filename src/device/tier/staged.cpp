#include "device/tier/staged.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace plimsoll {
namespace {

constexpr int64_t kPieces = 4;  // in the buffer of a channel
constexpr size_t kPage = 4096;

class StagedChannel final : public Channel {
 public:
  StagedChannel(const Device& device, std::unique_ptr<Channel> inner)
      : device_(device),
        inner_(std::move(inner)),
        buffer_(static_cast<std::byte*>(std::aligned_alloc(kPage, kPieces * kTierPiece))) {
    if (!buffer_) throw std::bad_alloc();
    pinned_ = device.pin({buffer_.get(), static_cast<size_t>(kPieces * kTierPiece)});
  }

 protected:
  void write_pieces(Slot& slot, int64_t first, int64_t count, const std::byte* from) override {
    for (int64_t done = 0; done < count; done += kPieces) {
      const std::span<std::byte> part = part_of(slot, first + done, std::min(kPieces, count - done));
      device_.read(part, from + done * kTierPiece);
      inner_->write(slot, (first + done) * kTierPiece, part);
    }
  }
  void read_pieces(const Slot& slot, int64_t first, int64_t count, std::byte* to) override {
    for (int64_t done = 0; done < count; done += kPieces) {
      const std::span<std::byte> part = part_of(slot, first + done, std::min(kPieces, count - done));
      inner_->read(slot, (first + done) * kTierPiece, part);
      device_.write(to + done * kTierPiece, part);
    }
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::span<std::byte> part_of(const Slot& slot, int64_t piece, int64_t count) {
    const int64_t end = std::min(slot.bytes, (piece + count) * kTierPiece);
    return {buffer_.get(), static_cast<size_t>(end - piece * kTierPiece)};
  }

  const Device& device_;
  std::unique_ptr<Channel> inner_;
  std::unique_ptr<std::byte, Free> buffer_;
  std::shared_ptr<void> pinned_;  // goes before the buffer
};

class StagedTier final : public Tier {
 public:
  StagedTier(const Device& device, Tier& tier) : Tier(tier.name(), tier.capacity()), device_(device), tier_(tier) {}
  std::string where() const override { return tier_.where(); }
  std::string how() const override { return tier_.how() + ", through pinned buffers"; }
  void reserve(Bytes bytes) override { tier_.reserve(bytes); }
  std::unique_ptr<Channel> open_channel(int threads) override {
    return std::make_unique<StagedChannel>(device_, tier_.open_channel(threads));
  }

 private:
  const Device& device_;
  Tier& tier_;
};

}  // namespace

std::shared_ptr<Tier> stage(const Device& device, Tier& tier) { return std::make_shared<StagedTier>(device, tier); }

}  // namespace plimsoll
