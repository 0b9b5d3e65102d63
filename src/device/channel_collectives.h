// The collectives of synchronised batch norm (ops/sync_batch_norm.cpp): a few thousand numbers, which all wait for. So
// every rank sends all it has to all others at once, one message each, and all of them add up the same numbers in the
// order of the ranks, in doubles. With many ranks that moves more bytes than pieces and sums would (device/collectives.h),
// but waits for the link's latency once.
//
//   rank 0   [mean squares | mean squares | mean squares]      what each rank has, one behind the other, is what all
//   rank 1   [mean squares | mean squares | mean squares]      have after one spread
#pragma once

#include <memory>
#include <span>

#include "plimsoll/communicator.h"
#include "plimsoll/device.h"

namespace plimsoll {

// Whether the op is one of these.
bool is_of_channels(const Op& op);

// Their one kernel, "gathered".
KernelSpec channel_collective_spec(const Graph& graph, const Op& op, const LinkInfo& link);

// `ops`: of one type. `buffer` is used while it runs: at least two numbers a rank; what does not fit goes in several rounds.
std::unique_ptr<Kernel> make_channel_collective(const Graph& graph, std::span<const OpId> ops,
                                                Communicator& communicator, std::span<float> buffer);

}  // namespace plimsoll
