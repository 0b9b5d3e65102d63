// GPUs of several ranks, each of which has one, by NCCL. Everything is asked of the queue of messages:
//
//   compute    [ gradient ]m                      [ update ]
//   messages               m[ copies, NCCL, sum ]d             the driver makes it wait for m, and compute for d
//
// What NCCL has under way is given up as soon as another rank ends, so that no queue waits for ever.
#pragma once

#include <memory>

#include "device/cuda/door.h"
#include "device/wire.h"

namespace plimsoll::cuda {

// All ranks call it at the same time. Throws Error(unsupported) where NCCL is not there, Error(invalid_input) where two ranks
// have the same GPU, or GPUs of different kinds.
std::shared_ptr<Wire> open_nccl_wire(std::shared_ptr<Door> door, std::shared_ptr<Communicator> communicator);

}  // namespace plimsoll::cuda
