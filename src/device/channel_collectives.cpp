#include "device/channel_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr std::string_view kCombineMoments = "CombineMoments", kSumOverRanks = "SumOverRanks";

// What one channel has of one rank, and of all: a mean and squares around it, or two sums.
struct Pair {
  double first = 0, second = 0;
};

// `of_rank(r)`: what rank r found. The means of equally many elements each are averaged; what lies between them and the
// mean of all comes to the squares.
template <class OfRank>
Pair combine_moments(int ranks, double count, const OfRank& of_rank) {
  Pair all;
  for (int r = 0; r < ranks; ++r) all.first += of_rank(r).first;
  all.first /= ranks;
  for (int r = 0; r < ranks; ++r) {
    const Pair part = of_rank(r);
    const double off = part.first - all.first;
    all.second += part.second + count * off * off;
  }
  return all;
}

template <class OfRank>
Pair sum_over_ranks(int ranks, const OfRank& of_rank) {
  Pair all;
  for (int r = 0; r < ranks; ++r) {
    const Pair part = of_rank(r);
    all.first += part.first;
    all.second += part.second;
  }
  return all;
}

class GatheredChannels final : public Kernel {
 public:
  GatheredChannels(const Graph& graph, std::span<const OpId> ops, Communicator& communicator, std::span<float> buffer)
      : communicator_(communicator),
        buffer_(buffer),
        most_(static_cast<int64_t>(buffer.size()) / (2 * communicator.size())),
        sizes_(communicator.size()),
        combines_moments_(graph.op(ops[0]).type->name == kCombineMoments) {
    for (const OpId id : ops) {
      const Op& op = graph.op(id);
      layers_.push_back({.channels = element_count(graph.tensor(op.inputs[0]).shape),
                         .count = combines_moments_ ? static_cast<double>(op.attributes.integer("count")) : 0});
    }
  }

  Bytes workspace() const override { return {}; }

  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void*) override {
    for (size_t i = 0; i < layers_.size(); ++i) {
      for (size_t k = 0; k < 2; ++k) {
        layers_[i].in[k] = static_cast<const float*>(inputs[2 * i + k]);
        layers_[i].out[k] = static_cast<float*>(outputs[2 * i + k]);
      }
    }
  }

  void run() override {
    for (const Layer& layer : layers_) {
      for (int64_t at = 0; at < layer.channels; at += most_) gather(layer, at, std::min(most_, layer.channels - at));
    }
  }

 private:
  struct Layer {
    int64_t channels = 0;
    double count = 0;  // elements of a channel in the batch of one rank
    const float* in[2] = {};
    float* out[2] = {};
  };

  // Channels [at, at + n).
  void gather(const Layer& layer, int64_t at, int64_t n) {
    const int ranks = communicator_.size();
    float* const mine = buffer_.data() + 2 * n * communicator_.rank();
    for (size_t k = 0; k < 2; ++k) std::copy_n(layer.in[k] + at, n, mine + static_cast<int64_t>(k) * n);
    std::fill(sizes_.begin(), sizes_.end(), 2 * n);
    communicator_.spread(buffer_.first(2 * n * ranks), sizes_);
    for (int64_t c = 0; c < n; ++c) {
      const auto of_rank = [&](int64_t r) {
        const float* const part = buffer_.data() + 2 * n * r + c;
        return Pair{part[0], part[n]};
      };
      const Pair all =
          combines_moments_ ? combine_moments(ranks, layer.count, of_rank) : sum_over_ranks(ranks, of_rank);
      layer.out[0][at + c] = static_cast<float>(all.first);
      layer.out[1][at + c] = static_cast<float>(all.second);
    }
  }

  Communicator& communicator_;
  const std::span<float> buffer_;
  const int64_t most_;  // channels of a round
  std::vector<int64_t> sizes_;
  const bool combines_moments_;
  std::vector<Layer> layers_;
};

}  // namespace

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

std::unique_ptr<Kernel> make_channel_collective(const Graph& graph, std::span<const OpId> ops,
                                                Communicator& communicator, std::span<float> buffer) {
  return std::make_unique<GatheredChannels>(graph, ops, communicator, buffer);
}

}  // namespace plimsoll
