#include "device/tier/tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "device/tier/fault.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr int kNone = -1;
std::atomic<int> fault_operation{kNone}, fault_remaining{0}, fault_error{0};
std::atomic<bool> fault_struck{false};

int64_t piece_count(int64_t bytes) { return (bytes + kTierPiece - 1) / kTierPiece; }
int64_t piece_bytes(const Slot& slot, int64_t piece) { return std::min(kTierPiece, slot.bytes - piece * kTierPiece); }

// As many as there are in `bytes` from the start of a piece on; the last of the slot may be short.
int64_t whole_pieces(const Slot& slot, int64_t first, size_t bytes) {
  const auto count = static_cast<int64_t>(bytes);
  return first + count == slot.bytes ? piece_count(count) : count / kTierPiece;
}

void check_part(const Slot& slot, int64_t first, size_t bytes) {
  if (first < 0 || first + static_cast<int64_t>(bytes) > slot.bytes) {
    throw Error(ErrorCode::internal, fmt::format("bytes {} to {} of a slot of {} do not exist", first,
                                                 first + static_cast<int64_t>(bytes), slot.bytes));
  }
}

}  // namespace

TierFault::TierFault(TierOperation operation, int nth, int error) {
  fault_struck = false;
  fault_error = error;
  fault_remaining = nth;
  fault_operation = static_cast<int>(operation);
}
TierFault::~TierFault() { fault_operation = kNone; }
bool TierFault::struck() const { return fault_struck; }

int injected(TierOperation operation) {
  if (fault_operation.load(std::memory_order_relaxed) != static_cast<int>(operation)) return 0;
  if (fault_remaining.fetch_sub(1) != 1) return 0;
  fault_struck = true;
  return fault_error;
}

Slot& Tier::slot(Bytes offset, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Slot>& slot = slots_[{offset.count, bytes.count}];
  if (!slot) {
    slot = std::make_unique<Slot>(Slot{.offset = offset.count, .bytes = bytes.count, .sums = {}, .known = {}});
    slot->sums.resize(piece_count(bytes.count));
    slot->known.resize(slot->sums.size());
  }
  return *slot;
}

void Tier::pin(const Device& device) {
  const std::lock_guard lock(mutex_);
  const std::span<std::byte> memory = this->memory();
  if (memory.size() <= pinned_bytes_ || !is_host_memory()) return;
  pinned_.reset();
  pinned_bytes_ = 0;
  pinned_ = device.pin(memory);
  pinned_bytes_ = memory.size();
}

void Channel::write(Slot& slot, const std::byte* from) {
  slot.retired = false;
  if (slot.bytes > 0) write_pieces(slot, 0, piece_count(slot.bytes), from);
}

void Channel::read(const Slot& slot, std::byte* to) {
  if (slot.retired) throw Error(ErrorCode::internal, "it is read after the last copy that needs it");
  if (slot.bytes > 0) read_pieces(slot, 0, piece_count(slot.bytes), to);
}

void Channel::write(Slot& slot, int64_t first, std::span<const std::byte> from) {
  check_part(slot, first, from.size());
  slot.retired = false;
  while (!from.empty()) {
    const int64_t piece = first / kTierPiece, within = first % kTierPiece;
    if (within == 0) {
      if (const int64_t whole = whole_pieces(slot, first, from.size()); whole > 0) {
        write_pieces(slot, piece, whole, from.data());
        const size_t done = std::min<size_t>(from.size(), whole * kTierPiece);
        from = from.subspan(done);
        first += static_cast<int64_t>(done);
        continue;
      }
    }
    const int64_t bytes = piece_bytes(slot, piece);
    const size_t count = std::min<size_t>(from.size(), bytes - within);
    part_.resize(kTierPiece);
    if (slot.known[piece] != 0) {
      read_pieces(slot, piece, 1, part_.data());
    } else {
      std::memset(part_.data(), 0, bytes);
    }
    std::memcpy(part_.data() + within, from.data(), count);
    write_pieces(slot, piece, 1, part_.data());
    from = from.subspan(count);
    first += static_cast<int64_t>(count);
  }
}

void Channel::read(const Slot& slot, int64_t first, std::span<std::byte> to) {
  check_part(slot, first, to.size());
  while (!to.empty()) {
    const int64_t piece = first / kTierPiece, within = first % kTierPiece;
    const int64_t bytes = piece_bytes(slot, piece);
    size_t count = std::min<size_t>(to.size(), bytes - within);
    if (const int64_t whole = within == 0 ? whole_pieces(slot, first, to.size()) : 0; whole > 0) {
      read_pieces(slot, piece, whole, to.data());
      count = std::min<size_t>(to.size(), whole * kTierPiece);
    } else {
      part_.resize(kTierPiece);
      read_pieces(slot, piece, 1, part_.data());
      std::memcpy(to.data(), part_.data() + within, count);
    }
    to = to.subspan(count);
    first += static_cast<int64_t>(count);
  }
}

}  // namespace plimsoll
