// Other processes' memory as a tier: pieces of a MiB, several on their way, each in a buffer that its checksum is taken
// with.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "device/tier/checksum.h"
#include "device/tier/fault.h"
#include "device/tier/tier.h"
#include "plimsoll/error.h"
#include "plimsoll/plan.h"
#include "plimsoll/remote_memory.h"

namespace plimsoll {
namespace {

static_assert(kRemotePiece == kTierPiece);

class RemoteChannel final : public Channel {
 public:
  explicit RemoteChannel(RemoteMemory& memory) : memory_(memory) {}

 protected:
  void write_pieces(Slot& slot, int64_t first, int64_t count, const std::byte* from) override {
    run(
        true, slot, first, count,
        [&](Piece& piece) {
          const std::byte* const source = from + (piece.number - first) * kTierPiece;
          slot.sums[piece.number] = copy_with_checksum(piece.flight.buffer, source, piece.bytes);
          memory_.begin_write(piece.flight, at(slot, piece), piece.bytes);
        },
        [](Piece&) {});
    memory_.flush(slot.offset + first * kTierPiece, end_of(slot, first, count) - first * kTierPiece);
    std::fill_n(slot.known.begin() + first, count, uint8_t{1});
  }

  void read_pieces(const Slot& slot, int64_t first, int64_t count, std::byte* to) override {
    run(
        false, slot, first, count,
        [&](Piece& piece) { memory_.begin_read(piece.flight, at(slot, piece), piece.bytes); },
        [&](Piece& piece) {
          if (injected(TierOperation::corrupt) != 0) piece.flight.buffer[piece.bytes / 2] ^= std::byte{1};
          std::byte* const target = to + (piece.number - first) * kTierPiece;
          const uint64_t found = copy_with_checksum(target, piece.flight.buffer, piece.bytes);
          const uint64_t expected = slot.sums[piece.number];
          if (slot.known[piece.number] != 0 && found != expected)
            throw_wrong_checksum(memory_.where(at(slot, piece)), at(slot, piece), expected, found);
        });
  }

 private:
  struct Piece {
    int64_t number = 0;  // of the slot
    size_t bytes = 0;
    RemoteMemory::Flight flight;
  };
  static int64_t at(const Slot& slot, const Piece& piece) { return slot.offset + piece.number * kTierPiece; }
  static int64_t end_of(const Slot& slot, int64_t first, int64_t count) {
    return std::min(slot.bytes, (first + count) * kTierPiece);
  }

  // A rank that has failed says so itself; the buffers of its pieces stay in use.
  template <class Call>
  void told(bool write, const Slot& slot, const Piece& piece, TierOperation operation, Call&& call) const {
    std::string why;
    try {
      const int error = injected(operation);
      if (error == 0) return call();
      why = std::strerror(error);
    } catch (const RankFailed&) {
      throw;
    } catch (const Error& error) {
      why = error.what();
    }
    throw Error(ErrorCode::device_failure,
                fmt::format("{}: {} {} at byte {}: {}", memory_.where(at(slot, piece)), write ? "writing" : "reading",
                            to_string(Bytes{static_cast<int64_t>(piece.bytes)}), at(slot, piece), why));
  }

  // `begin` sends a piece on its way, in its buffer; `finish` takes it when it has come. They leave in their order.
  template <class Begin, class Finish>
  void run(bool write, const Slot& slot, int64_t first, int64_t count, Begin&& begin, Finish&& finish) {
    int64_t sent = 0, landed = 0;
    try {
      while (landed < count) {
        Piece& next = pieces_[sent % kRemoteDepth];
        // Where every buffer is in use, one is waited for only by who holds none.
        if (sent < count && sent - landed < kRemoteDepth && memory_.take_buffer(next.flight, sent == landed)) {
          next.number = first + sent++;
          next.bytes = static_cast<size_t>(end_of(slot, next.number, 1) - next.number * kTierPiece);
          told(write, slot, next, write ? TierOperation::write : TierOperation::read, [&] { begin(next); });
          continue;
        }
        Piece& oldest = pieces_[landed % kRemoteDepth];
        told(write, slot, oldest, TierOperation::wait, [&] { memory_.wait(oldest.flight); });
        ++landed;
        finish(oldest);
        memory_.give_back(oldest.flight);
      }
    } catch (const RankFailed&) {
      throw;
    } catch (...) {
      drain();
      throw;
    }
  }

  // What is on its way must land before somebody else has its buffer.
  void drain() {
    for (Piece& piece : pieces_) {
      if (piece.flight.buffer == nullptr) continue;
      try {
        memory_.wait(piece.flight);
      } catch (const Error&) {
        continue;  // it may still come
      }
      memory_.give_back(piece.flight);
    }
  }

  RemoteMemory& memory_;
  std::array<Piece, kRemoteDepth> pieces_;
};

class RemoteTier final : public Tier {
 public:
  explicit RemoteTier(std::shared_ptr<RemoteMemory> memory)
      : Tier("remote", memory->capacity()), memory_(std::move(memory)) {
    memory_->acquire();
  }
  ~RemoteTier() override { memory_->release(); }
  RemoteTier(const RemoteTier&) = delete;
  RemoteTier& operator=(const RemoteTier&) = delete;

  std::string where() const override { return memory_->where(); }
  std::string how() const override { return memory_->library() + ", one-sided"; }

  // The servers have taken it already.
  void reserve(Bytes bytes) override {
    if (bytes <= capacity()) return;
    throw Error(ErrorCode::device_failure, fmt::format("the plan needs {} of {} but --remote-memory is {}; raise it",
                                                       to_string(bytes), where(), to_string(capacity())));
  }

  std::unique_ptr<Channel> open_channel(int) override { return std::make_unique<RemoteChannel>(*memory_); }

 private:
  std::shared_ptr<RemoteMemory> memory_;
};

}  // namespace

std::shared_ptr<Tier> open_remote_tier(std::shared_ptr<RemoteMemory> memory) {
  return std::make_shared<RemoteTier>(std::move(memory));
}

}  // namespace plimsoll
