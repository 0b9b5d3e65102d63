// A build without liburing.
#include "device/tier/queue.h"

namespace plimsoll {

std::unique_ptr<DiskQueue> open_ring(int) { return nullptr; }

}  // namespace plimsoll
