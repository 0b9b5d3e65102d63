// A device as one of the ranks of a training: its own kernels, and for collectives (OpType::is_collective) those that
// send and receive, by the wire that its memory has (wire.h).
//
// They are "ordered". An AllReduce takes message_bytes of the tensors at a time, sends every rank its piece of them, adds the
// pieces that it got in the order of the ranks, and sends the sum to all. A ReduceScatter is the first half, an AllGather the
// second, of pieces that are the ranks' own. The bits do not depend on how tensors are taken together, nor on which of these
// does the sum. Where a library has collectives of its own, as NCCL, these are offered too; --exact takes those of them that
// add nothing. Buffers lie beside the arena (plimsoll/process_memory.h): one collective runs at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "device/wire.h"
#include "plimsoll/communicator.h"
#include "plimsoll/device.h"

namespace plimsoll {

// `wire` may be null: then the device only plans. `link`: what estimates of collectives are made of.
std::unique_ptr<Device> with_wire(std::unique_ptr<Device> device, const LinkInfo& link, std::shared_ptr<Wire> wire);
// The same with the communicator's own, which is opened: all ranks call it at the same time.
std::unique_ptr<Device> with_ranks(std::unique_ptr<Device> device, const LinkInfo& link,
                                   std::shared_ptr<Communicator> communicator);

// Takes the mean over the ranks of so many elements, as an AllReduce of them is run: what a link is measured with. Returns
// when it is done.
std::function<void()> mean_over_ranks(Wire& wire, int64_t elements);

// What a collective's buffers take at most, beside the arena.
Bytes message_buffers(int ranks);

}  // namespace plimsoll
