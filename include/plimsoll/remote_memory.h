// Memory of other processes, on other machines, that `plimsoll serve-memory` gives to the ranks of a training. The ranks
// put and get by themselves (MPI's one-sided operations); a server only lets its network library work.
//
//   rank 0   [ its 64 MiB                 ]            byte ranges of one address space a rank,
//               |            |                         in the order in which they were given
//   server 2 [ 40 MiB ]   server 3 [ 24 MiB | rank 1's ... ]
//
// What is under way lies in buffers of its own: where a rank ends early, late bytes land in no memory that is gone.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plimsoll/bytes.h"
#include "plimsoll/communicator.h"

namespace plimsoll {

// Of a server's memory, for one rank.
struct RemoteRange {
  int server = 0;     // as the communicator numbers it
  int64_t first = 0;  // byte of it
  Bytes bytes;
};

inline constexpr int64_t kRemotePiece = 1 << 20;  // the most that one copy moves
// Pieces under way: of one direction at a time, and of all together.
inline constexpr int kRemoteDepth = 4;
inline constexpr int kRemoteBuffers = 2 * kRemoteDepth;
inline constexpr Bytes kLeastRemoteMemory = 8_MiB;

// What each rank gets where they ask for `wanted` of servers that have `served`; nothing where that is too little. Ranks
// choose in their order, each the server that has most left; no range but the last of a rank's is shorter than a piece.
std::optional<std::vector<std::vector<RemoteRange>>> share_remote_memory(std::span<const Bytes> wanted,
                                                                         std::span<const Bytes> served,
                                                                         int first_server);

class RemoteMemory {
 public:
  RemoteMemory(Communicator& communicator, std::vector<RemoteRange> ranges);
  ~RemoteMemory();
  RemoteMemory(const RemoteMemory&) = delete;
  RemoteMemory& operator=(const RemoteMemory&) = delete;

  Bytes capacity() const { return capacity_; }
  std::string where() const;            // "memory of rank 1 (node7)"
  std::string where(int64_t at) const;  // whose memory has this byte
  std::string hosts() const;            // "node7, node8"
  std::string library() const;          // "Open MPI 4.1.4"
  std::string network() const;          // what its speed depends on: hosts, library, and what the library was told
  const std::vector<RemoteRange>& ranges() const { return ranges_; }

  // There is one user at a time: a second would write over what the first one has there.
  void acquire();  // throws Error(internal)
  void release() { used_ = false; }

  // A piece on its way, in a buffer.
  struct Flight {
    std::byte* buffer = nullptr;  // kRemotePiece bytes
    int parts = 0;
    std::array<Transport::Ticket, 2> tickets{};  // a piece meets no more than two ranges
    std::array<int, 2> servers{};
  };
  // A buffer for it; false where all are in use, unless `waits`. Several threads may have flights.
  bool take_buffer(Flight& flight, bool waits);
  void give_back(Flight& flight);
  void begin_write(Flight& flight, int64_t at, size_t bytes);
  void begin_read(Flight& flight, int64_t at, size_t bytes);
  // Waits as Communicator does, and throws what it throws; then the buffer stays in use.
  void wait(Flight& flight);
  void flush(int64_t at, int64_t bytes);  // what was written to these bytes is there

 private:
  template <class Begin>
  void for_each_part(int64_t at, int64_t bytes, Begin begin) const;

  Communicator& communicator_;
  std::vector<RemoteRange> ranges_;
  Bytes capacity_;
  std::byte* buffers_ = nullptr;
  std::atomic<uint32_t> free_{(uint32_t{1} << kRemoteBuffers) - 1};  // a bit each
  std::atomic<bool> used_ = false;
};

}  // namespace plimsoll
