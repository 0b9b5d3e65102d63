// The door to the system for tiers, where tests make calls fail. Copies run in threads of their own, so a fault strikes
// in whichever thread comes to it.
#pragma once

#include <cstdint>

namespace plimsoll {

enum class TierOperation : uint8_t {
  map,         // host memory is taken
  open,        // the spill file is made
  allocate,    // room in it
  ring,        // io_uring is set up
  write,       // a piece goes out
  read,        // a piece comes in
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
