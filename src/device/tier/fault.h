// The door to the system for memory, tiers and the threads that copy, where tests make calls fail. Copies run in
// threads of their own, so a fault strikes in whichever thread comes to it.
#pragma once

#include <cstdint>

namespace plimsoll {

enum class TierOperation : uint8_t {
  arena,       // a device's memory is taken
  map,         // host memory is taken
  open,        // the spill file is made
  unnamed,     // it needs no name: where that fails it gets one
  allocate,    // room in it
  ring,        // io_uring is set up: where that fails pread and pwrite do
  buffers,     // memory for copies in flight is taken
  thread,      // a thread that copies is started
  write,       // a piece goes out
  read,        // a piece comes in
  wait,        // it is waited for what was asked of the disk
  short_read,  // the file ends early
  corrupt,     // a bit of a piece that comes in is wrong
};

// While one lives, the nth (from 1) operation of this kind fails with this errno. One at a time.
class TierFault {
 public:
  TierFault(TierOperation operation, int nth, int error);
  ~TierFault();
  TierFault(const TierFault&) = delete;
  TierFault& operator=(const TierFault&) = delete;
  bool struck() const;
};

// The error that a test asked for at this operation, else 0.
int injected(TierOperation operation);

}  // namespace plimsoll
