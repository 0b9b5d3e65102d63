// Batch norm with a residual and a ReLU inside: sums by channel, then one pass over the elements.
#include "device/cuda/kernels.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

class BatchNorm : public CudaKernel {
 public:
  BatchNorm(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        pieces_(pieces_of(image_of(op, graph.tensor(op.inputs[0])))),
        elements_(element_count(graph.tensor(op.inputs[0]).shape)),
        relu_(op.attributes.text("activation", "none") == "relu") {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]));
  }

 protected:
  Pieces pieces_;
  int64_t elements_;
  bool relu_;
};

class BatchNormForwardKernel final : public BatchNorm {
 public:
  BatchNormForwardKernel(const Context& context, const Graph& graph, const Op& op)
      : BatchNorm(context, graph, op),
        training_(op.attributes.integer("training", 1) != 0),
        epsilon_(op.attributes.real("epsilon", 1e-5)),
        momentum_(op.attributes.real("momentum", 0.1)) {
    if (training_) workspace_bytes_ = room_for(pieces_);
  }

 private:
  void work() override {
    const float *mean = input(3), *inv_std = nullptr, *variance = input(4);
    if (training_) {
      sum_channels(Moments{input(0)}, pieces_, scratch<SumPair>());
      launch(Statistics{.mean = output(1),
                        .inv_std = output(2),
                        .next_mean = has_output(3) ? output(3) : nullptr,
                        .next_variance = has_output(4) ? output(4) : nullptr,
                        .running_mean = input(3),
                        .running_variance = input(4),
                        .sums = scratch<SumPair>(),
                        .pieces = pieces_.pieces,
                        .elements = pieces_.elements,
                        .epsilon = epsilon_,
                        .momentum = momentum_},
             pieces_.image.c);
      mean = output(1), inv_std = output(2), variance = nullptr;
    }
    launch(Normalize{.y = output(0),
                     .mask = has_output(5) ? output<uint8_t>(5) : nullptr,
                     .x = input(0),
                     .residual = has_input(5) ? input(5) : nullptr,
                     .gamma = input(1),
                     .beta = input(2),
                     .mean = mean,
                     .inv_std = inv_std,
                     .variance = variance,
                     .epsilon = static_cast<float>(epsilon_),
                     .image = pieces_.image,
                     .elements = elements_,
                     .relu = relu_,
                     .fours = channels_lie_by_four(pieces_.image, input(1), input(2), mean, inv_std, variance)},
           (elements_ + kMaskGroup - 1) / kMaskGroup);
  }

  bool training_;
  double epsilon_, momentum_;
};

class BatchNormBackwardKernel final : public BatchNorm {
 public:
  BatchNormBackwardKernel(const Context& context, const Graph& graph, const Op& op) : BatchNorm(context, graph, op) {
    workspace_bytes_ = room_for(pieces_);
  }

 private:
  void work() override {
    const uint8_t* mask = relu_ ? input<uint8_t>(5) : nullptr;
    sum_channels(Gradients{.x = input(0), .dy = input(1), .mean = input(3), .inv_std = input(4), .mask = mask}, pieces_,
                 scratch<SumPair>());
    launch(ChannelTotals{.first = output(2), .second = output(1), .sums = scratch<SumPair>(), .pieces = pieces_.pieces},
           pieces_.image.c);
    launch(NormalizeBackward{.dx = output(0),
                             .dresidual = has_output(3) ? output(3) : nullptr,
                             .x = input(0),
                             .dy = input(1),
                             .gamma = input(2),
                             .mean = input(3),
                             .inv_std = input(4),
                             .dgamma = output(1),
                             .dbeta = output(2),
                             .mask = mask,
                             .image = pieces_.image,
                             .one_by_n = static_cast<float>(1.0 / static_cast<double>(pieces_.elements)),
                             .fours = channels_lie_by_four(pieces_.image, input(2), input(3), input(4), output(1),
                                                           output(2))},
           elements_);
  }
};

template <class K>
std::vector<KernelSpec> batch_norm_specs(const Context& context, const Graph& graph, const Op& op,
                                         LayoutFamily family) {
  std::vector<KernelSpec> list = own_specs(context, graph, op, family);
  Tensor x = graph.tensor(op.inputs[0]);
  x.layout = list[0].inputs[0];
  const bool sums = op.outputs.size() > 1;
  if (sums) list[0].workspace = room_for(pieces_of(image_of(op, x)));
  return list;
}

}  // namespace

std::vector<NamedFactory> batch_norm_kernels() {
  return {{"BatchNormForward", {batch_norm_specs<BatchNormForwardKernel>, make_own<BatchNormForwardKernel>}},
          {"BatchNormBackward", {batch_norm_specs<BatchNormBackwardKernel>, make_own<BatchNormBackwardKernel>}}};
}

}  // namespace plimsoll::cuda
