// Requests to one file, several in flight where the kernel allows it: io_uring (queue_uring.cpp), or one at a time by
// pread and pwrite. Which of the two files with open_ring is built is CMake's choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace plimsoll {

struct DiskRequest {
  bool write = false;
  std::byte* memory = nullptr;
  size_t bytes = 0;
  int64_t at = 0;  // in the file
};

class DiskQueue {
 public:
  struct Done {
    int tag = 0;
    int64_t result = 0;  // bytes, or minus an errno
  };
  virtual ~DiskQueue() = default;
  virtual int depth() const = 0;  // how many may be in flight
  // Returns 0, or an errno when the request was not taken.
  virtual int submit(int tag, const DiskRequest& request) = 0;
  virtual Done wait() = 0;  // for any of those in flight
};

inline constexpr int kDiskDepth = 4;
// Of pieces, for all channels of a tier: copies out and copies in may each have as many in flight.
inline constexpr int kDiskBuffers = 2 * kDiskDepth;

// Null where the kernel, or this build, has no io_uring.
std::unique_ptr<DiskQueue> open_ring(int file);
std::unique_ptr<DiskQueue> open_plain_queue(int file);

}  // namespace plimsoll
