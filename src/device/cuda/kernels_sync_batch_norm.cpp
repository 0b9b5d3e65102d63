// Batch norm by the statistics of all ranks: what each of them does between the collectives (ops/sync_batch_norm.cpp).
#include "device/cuda/kernels.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

class SyncBatchNorm : public CudaKernel {
 public:
  SyncBatchNorm(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        pieces_(pieces_of(image_of(op, graph.tensor(op.inputs[0])))),
        elements_(element_count(graph.tensor(op.inputs[0]).shape)),
        whole_elements_(static_cast<double>(pieces_.elements * op.attributes.integer("ranks", 1))),
        epsilon_(op.attributes.real("epsilon", 1e-5)),
        relu_(op.attributes.text("activation", "none") == "relu") {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]));
  }

 protected:
  // One over the standard deviation of each channel, and in a forward pass the running statistics.
  void take_statistics(float* inv_std, WholeStatistics running, const float* mean, const float* squares) const {
    running.inv_std = inv_std;
    running.mean = mean;
    running.squares = squares;
    running.elements = whole_elements_;
    running.epsilon = epsilon_;
    launch(running, pieces_.image.c);
  }

  Pieces pieces_;
  int64_t elements_;
  double whole_elements_;  // of a channel, of all ranks
  double epsilon_;
  bool relu_;
};

// Where each channel's number lies in the workspace, behind the sums, if there are some.
Bytes channels_of(const Pieces& pieces) { return {pieces.image.c * kFloatBytes}; }

class BatchMomentsKernel final : public SyncBatchNorm {
 public:
  BatchMomentsKernel(const Context& context, const Graph& graph, const Op& op) : SyncBatchNorm(context, graph, op) {
    workspace_bytes_ = workspace_for(pieces_);
  }
  static Bytes workspace_for(const Pieces& pieces) { return room_for(pieces); }

 private:
  void work() override {
    sum_channels(Moments{input(0)}, pieces_, scratch<SumPair>());
    launch(ChannelMoments{.mean = output(0),
                          .squares = output(1),
                          .sums = scratch<SumPair>(),
                          .pieces = pieces_.pieces,
                          .elements = pieces_.elements},
           pieces_.image.c);
  }
};

class SyncForwardKernel final : public SyncBatchNorm {
 public:
  SyncForwardKernel(const Context& context, const Graph& graph, const Op& op)
      : SyncBatchNorm(context, graph, op), momentum_(op.attributes.real("momentum", 0.1)) {
    workspace_bytes_ = workspace_for(pieces_);
  }
  static Bytes workspace_for(const Pieces& pieces) { return channels_of(pieces); }

 private:
  void work() override {
    float* const inv_std = scratch<float>();
    const bool advances = has_output(1) && has_output(2);
    take_statistics(inv_std,
                    {.next_mean = advances ? output(1) : nullptr,
                     .next_variance = advances ? output(2) : nullptr,
                     .running_mean = input(3),
                     .running_variance = input(4),
                     .momentum = momentum_},
                    input(5), input(6));
    launch(Normalize{.y = output(0),
                     .mask = has_output(3) ? output<uint8_t>(3) : nullptr,
                     .x = input(0),
                     .residual = has_input(7) ? input(7) : nullptr,
                     .gamma = input(1),
                     .beta = input(2),
                     .mean = input(5),
                     .inv_std = inv_std,
                     .variance = nullptr,
                     .epsilon = static_cast<float>(epsilon_),
                     .image = pieces_.image,
                     .elements = elements_,
                     .relu = relu_,
                     .fours = channels_lie_by_four(pieces_.image, input(1), input(2), input(5), inv_std)},
           (elements_ + kMaskGroup - 1) / kMaskGroup);
  }

  double momentum_;
};

class GradientSumsKernel final : public SyncBatchNorm {
 public:
  GradientSumsKernel(const Context& context, const Graph& graph, const Op& op) : SyncBatchNorm(context, graph, op) {
    workspace_bytes_ = workspace_for(pieces_);
  }
  static Bytes workspace_for(const Pieces& pieces) { return room_for(pieces) + channels_of(pieces); }

 private:
  void work() override {
    float* const inv_std = scratch<float>(room_for(pieces_).count);
    take_statistics(inv_std, {}, input(2), input(3));
    sum_channels(Gradients{.x = input(0),
                           .dy = input(1),
                           .mean = input(2),
                           .inv_std = inv_std,
                           .mask = relu_ ? input<uint8_t>(4) : nullptr},
                 pieces_, scratch<SumPair>());
    launch(ChannelTotals{.first = output(1), .second = output(0), .sums = scratch<SumPair>(), .pieces = pieces_.pieces},
           pieces_.image.c);
  }
};

class SyncBackwardKernel final : public SyncBatchNorm {
 public:
  SyncBackwardKernel(const Context& context, const Graph& graph, const Op& op) : SyncBatchNorm(context, graph, op) {
    workspace_bytes_ = workspace_for(pieces_);
  }
  static Bytes workspace_for(const Pieces& pieces) { return channels_of(pieces); }

 private:
  void work() override {
    float* const inv_std = scratch<float>();
    take_statistics(inv_std, {}, input(3), input(4));
    launch(NormalizeBackward{.dx = output(0),
                             .dresidual = has_output(1) ? output(1) : nullptr,
                             .x = input(0),
                             .dy = input(1),
                             .gamma = input(2),
                             .mean = input(3),
                             .inv_std = inv_std,
                             .dgamma = input(5),
                             .dbeta = input(6),
                             .mask = relu_ ? input<uint8_t>(7) : nullptr,
                             .image = pieces_.image,
                             .one_by_n = static_cast<float>(1.0 / whole_elements_),
                             .fours =
                                 channels_lie_by_four(pieces_.image, input(2), input(3), inv_std, input(5), input(6))},
           elements_);
  }
};

template <class K>
std::vector<KernelSpec> sync_batch_norm_specs(const Context& context, const Graph& graph, const Op& op,
                                              LayoutFamily family) {
  std::vector<KernelSpec> list = own_specs(context, graph, op, family);
  Tensor x = graph.tensor(op.inputs[0]);
  x.layout = list[0].inputs[0];
  list[0].workspace = K::workspace_for(pieces_of(image_of(op, x)));
  return list;
}

template <class K>
KernelFactory sync_batch_norm_factory() {
  return {sync_batch_norm_specs<K>, make_own<K>};
}

}  // namespace

std::vector<NamedFactory> sync_batch_norm_kernels() {
  return {{"BatchMoments", sync_batch_norm_factory<BatchMomentsKernel>()},
          {"SyncBatchNormForward", sync_batch_norm_factory<SyncForwardKernel>()},
          {"BatchNormGradientSums", sync_batch_norm_factory<GradientSumsKernel>()},
          {"SyncBatchNormBackward", sync_batch_norm_factory<SyncBackwardKernel>()}};
}

}  // namespace plimsoll::cuda
