#include "device/channel_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr std::string_view kCombineMoments = "CombineMoments", kSumOverRanks = "SumOverRanks";

class GatheredChannels final : public Kernel {
 public:
  GatheredChannels(const Graph& graph, std::span<const OpId> ops, Wire& wire, float* buffer, int64_t elements)
      : wire_(wire),
        buffer_(buffer),
        most_(elements / (2 * wire.ranks())),
        sizes_(wire.ranks()),
        combines_moments_(graph.op(ops[0]).type->name == kCombineMoments) {
    for (const OpId id : ops) {
      const Op& op = graph.op(id);
      Layer layer{.channels = element_count(graph.tensor(op.inputs[0]).shape)};
      if (combines_moments_) layer.count = static_cast<double>(op.attributes.integer("count"));
      layers_.push_back(layer);
    }
  }

  Bytes workspace() const override { return {}; }

  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void*) override {
    reads_.clear();
    writes_.clear();
    for (size_t i = 0; i < layers_.size(); ++i) {
      const size_t bytes = layers_[i].channels * sizeof(float);
      for (size_t k = 0; k < 2; ++k) {
        layers_[i].in[k] = static_cast<const float*>(inputs[2 * i + k]);
        layers_[i].out[k] = static_cast<float*>(outputs[2 * i + k]);
        reads_.push_back({static_cast<const std::byte*>(inputs[2 * i + k]), bytes});
        writes_.push_back({static_cast<const std::byte*>(outputs[2 * i + k]), bytes});
      }
    }
  }

  void run() override {
    wire_.begin(reads_, writes_);
    for (const Layer& layer : layers_) {
      for (int64_t at = 0; at < layer.channels; at += most_) gather(layer, at, std::min(most_, layer.channels - at));
    }
    wire_.end();
  }

 private:
  struct Layer {
    int64_t channels = 0;
    std::optional<double> count = {};  // elements of a channel in the batch of one rank
    const float* in[2] = {};
    float* out[2] = {};
  };

  // Channels [at, at + n).
  void gather(const Layer& layer, int64_t at, int64_t n) {
    float* const mine = buffer_ + 2 * n * wire_.rank();
    for (size_t k = 0; k < 2; ++k) wire_.copy(layer.in[k] + at, n, mine + static_cast<int64_t>(k) * n);
    std::fill(sizes_.begin(), sizes_.end(), 2 * n);
    wire_.spread(buffer_, sizes_);
    wire_.combine(buffer_, n, layer.count, layer.out[0] + at, layer.out[1] + at);
  }

  Wire& wire_;
  float* const buffer_;
  const int64_t most_;  // channels of a round
  std::vector<int64_t> sizes_;
  const bool combines_moments_;
  std::vector<Layer> layers_;
  std::vector<Wire::Memory> reads_, writes_;
};

}  // namespace

// The means of equally many elements each are averaged; what lies between them and the mean of all comes to the squares.
ChannelPair combine_channel(const float* gathered, int64_t channels, int ranks, std::optional<double> count,
                            int64_t c) {
  const auto of_rank = [&](int64_t r) {
    const float* const part = gathered + 2 * channels * r + c;
    return ChannelPair{part[0], part[channels]};
  };
  ChannelPair all;
  for (int r = 0; r < ranks; ++r) all.first += of_rank(r).first;
  if (count) all.first /= ranks;
  for (int r = 0; r < ranks; ++r) {
    const ChannelPair part = of_rank(r);
    const double off = count ? part.first - all.first : 0;
    all.second += part.second + count.value_or(0) * off * off;
  }
  return all;
}

bool is_of_channels(const Op& op) { return op.type->name == kCombineMoments || op.type->name == kSumOverRanks; }

KernelSpec channel_collective_spec(const Graph& graph, const Op& op, const LinkInfo& link) {
  for (const TensorId id : op.outputs) {
    const Tensor& tensor = graph.tensor(id);
    if (tensor.dtype != DType::f32)
      throw Error(ErrorCode::unsupported, fmt::format("op '{}': statistics of {} are not combined, only f32", op.name,
                                                      to_string(tensor.dtype)));
  }
  const OpId id = graph.find_op(op.name);
  return {.name = "gathered",
          .inputs = std::vector<Layout>(2),
          .outputs = std::vector<Layout>(2),
          .estimate = {.ms = collective_ms(link, graph, {&id, 1})}};
}

std::unique_ptr<Kernel> make_channel_collective(const Graph& graph, std::span<const OpId> ops, Wire& wire,
                                                float* buffer, int64_t elements) {
  return std::make_unique<GatheredChannels>(graph, ops, wire, buffer, elements);
}

}  // namespace plimsoll
