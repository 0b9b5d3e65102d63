// Memory behind the arena: a bounded region of the host, a file on disk, or what other processes serve. What leaves the arena lies in a slot of a
// tier.
//
//   arena --Channel::write--> slot [offset, offset + bytes)     a checksum of every piece (1 MiB) is kept on the way
//   out
//         <--Channel::read---                                   and compared on the way back
//
// Every failure (full disk, short read, I/O error, wrong checksum) is an Error(device_failure) that names tier, file
// and place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plimsoll/bytes.h"
#include "plimsoll/device.h"

namespace plimsoll {

class RemoteMemory;

inline constexpr int64_t kTierPiece = 1 << 20;

// A place in a tier and what is known of what lies there. Not locked: whoever copies in and out keeps these apart in
// time.
struct Slot {
  int64_t offset = 0;
  int64_t bytes = 0;
  std::vector<uint64_t> sums;  // of each piece
  static constexpr uint8_t kWithoutSum = 2;
  std::vector<uint8_t>
      known;  // by piece: 1 when it was written, so that its sum is right; kWithoutSum when a device wrote it
  bool retired = false;  // nothing may read it before it is written again (memory checks)
};

// Copies between host-addressable memory and a tier; for one thread at a time. Does not allocate.
class Channel {
 public:
  virtual ~Channel() = default;
  void write(Slot& slot, const std::byte* from);
  void read(const Slot& slot, std::byte* to);
  // A part of a slot, at any place; slower.
  void write(Slot& slot, int64_t first, std::span<const std::byte> from);
  void read(const Slot& slot, int64_t first, std::span<std::byte> to);

 protected:
  // Pieces [first, first + count) of the slot, count >= 1.
  virtual void write_pieces(Slot& slot, int64_t first, int64_t count, const std::byte* from) = 0;
  virtual void read_pieces(const Slot& slot, int64_t first, int64_t count, std::byte* to) = 0;

 private:
  std::vector<std::byte> part_;  // of a piece, for copies of parts
};

class Tier {
 public:
  virtual ~Tier() = default;
  const std::string& name() const { return name_; }  // "host", "disk", "peer", "remote"
  Bytes capacity() const { return capacity_; }
  virtual std::string where() const = 0;  // "host memory", "/mnt/fast/plimsoll-12-x.spill"
  virtual std::string how() const = 0;    // "direct I/O, io_uring"
  // Takes the first `bytes` from the system, once; throws Error(device_failure) with the size when it has no such room.
  virtual void reserve(Bytes bytes) = 0;
  // `threads`: as many as may share the work of a copy, those of the caller's OpenMP pool.
  virtual std::unique_ptr<Channel> open_channel(int threads = 1) = 0;
  virtual bool is_memory() const { return false; }  // copies wait for nothing but the processor
  // What is reserved, where it has addresses for a device's queues to copy to and from (the host's memory, a peer's);
  // else empty.
  virtual std::span<std::byte> memory() { return {}; }
  virtual bool is_host_memory() const { return true; }  // of the above
  // Pins that memory for a device; at most what is reserved, and again where more is since.
  void pin(const Device& device);
  // The slot at this place, the same for all who ask; it lives as long as the tier.
  Slot& slot(Bytes offset, Bytes bytes);

 protected:
  Tier(std::string name, Bytes capacity) : name_(std::move(name)), capacity_(capacity) {}
  void unpin() { pinned_.reset(); }  // before the memory goes

 private:
  std::string name_;
  Bytes capacity_;
  std::shared_ptr<void> pinned_;
  size_t pinned_bytes_ = 0;
  std::mutex mutex_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Slot>> slots_;
};

std::shared_ptr<Tier> open_host_tier(Bytes capacity);

// A spill file in `folder` that has no name, or one no longer than it takes to remove it again, so that nothing of it
// outlives the process. Files that killed processes left there are removed.
std::shared_ptr<Tier> open_disk_tier(const std::filesystem::path& folder, Bytes capacity);

// The memory of other processes. There may be one such tier of it at a time.
std::shared_ptr<Tier> open_remote_tier(std::shared_ptr<RemoteMemory> memory);

// What a user gives: none of a tier that is not named.
struct TierOptions {
  std::optional<Bytes> host_memory;            // beside the arena
  std::optional<std::filesystem::path> spill;  // a folder
  std::optional<Bytes> spill_size;             // absent: what is free there, less a tenth
  std::optional<std::string> peer;             // another GPU
  std::optional<Bytes> peer_size;              // absent: what is free there
  std::optional<Bytes> remote_memory;          // of other processes
  std::shared_ptr<RemoteMemory> remote = {};   // these; null: they are only planned for
};

// "DIR" or "DIR:SIZE"; throws Error(invalid_input).
void parse_spill(std::string_view text, TierOptions& options);
// "DEVICE" or "DEVICE=SIZE"; throws Error(invalid_input).
void parse_peer(std::string_view text, TierOptions& options);

// What is free in the file system of a folder, less a tenth. Throws Error(invalid_input) when there is no such folder.
Bytes spill_room(const std::filesystem::path& folder);

}  // namespace plimsoll
