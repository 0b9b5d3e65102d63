// A device as one of the ranks of a training: its own kernels, and for collectives (OpType::is_collective) those that
// send and receive. The arena must be addressable by the host.
//
// "ordered:SIZE" takes SIZE of a tensor at a time, sends every rank its piece of it, adds the pieces that it got in the
// order of the ranks, and sends the sum to all. Its workspace is that of the pieces; the bits do not depend on SIZE.
#pragma once

#include <memory>

#include "plimsoll/communicator.h"
#include "plimsoll/device.h"

namespace plimsoll {

// `communicator` may be null: then the device only plans. `link`: what estimates of collectives are made of.
std::unique_ptr<Device> with_ranks(std::unique_ptr<Device> device, const LinkInfo& link,
                                   std::shared_ptr<Communicator> communicator);

// Measures the link, all ranks together: a fraction of a second.
LinkInfo probe_link(Communicator& communicator);

// What an AllReduce of so many bytes takes, `chunk` of them at a time.
double all_reduce_ms(const LinkInfo& link, Bytes bytes, Bytes chunk);

}  // namespace plimsoll
