// The collectives of synchronised batch norm (ops/sync_batch_norm.cpp): a few thousand numbers, which all wait for. So
// every rank sends all it has to all others at once, one message each, and all of them add up the same numbers in the
// order of the ranks, in doubles. With many ranks that moves more bytes than pieces and sums would (device/collectives.h),
// but waits for the link's latency once.
//
//   rank 0   [mean squares | mean squares | mean squares]      what each rank has, one behind the other, is what all
//   rank 1   [mean squares | mean squares | mean squares]      have after one spread
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "device/wire.h"
#include "plimsoll/device.h"

namespace plimsoll {

// Whether the op is one of these.
bool is_of_channels(const Op& op);

// Their one kernel, "gathered".
KernelSpec channel_collective_spec(const Graph& graph, const Op& op, const LinkInfo& link);

// What one channel has of one rank, and of all: a mean and squares around it, or two sums.
struct ChannelPair {
  double first = 0, second = 0;
};
// Wire::combine, of channel c.
ChannelPair combine_channel(const float* gathered, int64_t channels, int ranks, std::optional<double> count, int64_t c);

// `ops`: of one type. `buffer`, of so many elements, is used while it runs: at least two numbers a rank; what does not fit
// goes in several rounds.
std::unique_ptr<Kernel> make_channel_collective(const Graph& graph, std::span<const OpId> ops, Wire& wire,
                                                float* buffer, int64_t elements);

}  // namespace plimsoll
