// Losses.
#include <algorithm>

#include "device/cuda/kernels_loss.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

class SoftmaxForwardKernel final : public CrossEntropyKernel {
 public:
  SoftmaxForwardKernel(const Context& context, const Graph& graph, const Op& op)
      : CrossEntropyKernel(context, graph, op, 1, graph.tensor(op.inputs[0]).shape[1]) {
    workspace_bytes_ = workspace_for(graph, op);
  }
  static Bytes workspace_for(const Graph& graph, const Op& op) {
    return {graph.tensor(op.inputs[0]).shape[0] * static_cast<int64_t>(sizeof(SoftmaxRow))};
  }

 private:
  void work() override {
    SoftmaxRow* const rows = scratch<SoftmaxRow>();
    launch(SoftmaxSums{.rows = rows,
                       .logits = input(0),
                       .labels = labels(),
                       .classes = classes_,
                       .stride = classes_,
                       .smoothing = smoothing_,
                       .fours = classes_ % 4 == 0 && lie_by_four(input(0))},
           rows_);
    launch(SoftmaxProbabilities{.probabilities = output(1), .logits = input(0), .rows = rows, .classes = classes_},
           rows_ * classes_);
    launch(SoftmaxTotal{.loss = output(0), .correct = output(2), .rows = rows, .count = rows_, .reduction = reduction_},
           1);
  }
};

class SoftmaxBackwardKernel final : public CrossEntropyKernel {
 public:
  SoftmaxBackwardKernel(const Context& context, const Graph& graph, const Op& op)
      : CrossEntropyKernel(context, graph, op, 1, graph.tensor(op.inputs[0]).shape[1]) {
    workspace_bytes_ = workspace_for(graph, op);
  }
  static Bytes workspace_for(const Graph&, const Op&) { return {static_cast<int64_t>(sizeof(float))}; }

 private:
  void work() override {
    float* const scale = scratch<float>();
    launch(LossScale{.scale = scale, .dloss = input(2), .labels = labels(), .count = rows_, .reduction = reduction_},
           1);
    launch(SoftmaxBackward{.dlogits = output(0),
                           .probabilities = input(0),
                           .labels = labels(),
                           .scale = scale,
                           .classes = classes_,
                           .smoothing = static_cast<float>(smoothing_)},
           rows_ * classes_);
  }
};

// A mean over all elements, cut into pieces by their number alone.
class MeanLoss : public CudaKernel {
 public:
  MeanLoss(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), elements_(element_count(graph.tensor(op.inputs[0]).shape)) {
    const int64_t pieces = pieces_for(elements_);
    length_ = (elements_ + pieces - 1) / pieces;
    pieces_ = (elements_ + length_ - 1) / length_;
    workspace_bytes_ = workspace_for(graph, op);
    if (op.inputs.size() > 1) require_one_layout(graph, op, graph.tensor(op.inputs[0]));
  }
  static Bytes workspace_for(const Graph& graph, const Op& op) {
    return {pieces_for(element_count(graph.tensor(op.inputs[0]).shape)) * static_cast<int64_t>(sizeof(double))};
  }

 protected:
  template <class Term>
  void mean(const Term& term) {
    launch(SumAll<Term>{.of = term, .sums = scratch<double>(), .elements = elements_, .length = length_}, pieces_);
    launch(MeanTotal{.loss = output(0), .sums = scratch<double>(), .count = pieces_, .elements = elements_}, 1);
  }

 private:
  static int64_t pieces_for(int64_t elements) { return std::clamp<int64_t>(elements / 4096, 1, 1024); }
  int64_t elements_, length_ = 1, pieces_ = 1;
};

class SquaredErrorKernel final : public MeanLoss {
 public:
  using MeanLoss::MeanLoss;

 private:
  void work() override { mean(SquaredError{.x = input(0), .target = input(1)}); }
};

class SigmoidErrorKernel final : public MeanLoss {
 public:
  SigmoidErrorKernel(const Context& context, const Graph& graph, const Op& op)
      : MeanLoss(context, graph, op), target_(op.attributes.real("target")) {}

 private:
  void work() override { mean(SigmoidError{.logits = input(0), .target = target_}); }
  double target_;
};

class SquaredErrorBackwardKernel final : public CudaKernel {
 public:
  SquaredErrorBackwardKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), elements_(element_count(graph.tensor(op.inputs[0]).shape)) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]));
  }

 private:
  void work() override {
    launch(SquaredErrorBackward{.dx = output(0),
                                .x = input(0),
                                .target = input(1),
                                .dloss = input(2),
                                .two_by_n = static_cast<float>(2.0 / static_cast<double>(elements_))},
           elements_);
  }
  int64_t elements_;
};

class SigmoidErrorBackwardKernel final : public CudaKernel {
 public:
  SigmoidErrorBackwardKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        elements_(element_count(graph.tensor(op.inputs[0]).shape)),
        target_(static_cast<float>(op.attributes.real("target"))) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]));
  }

 private:
  void work() override {
    launch(SigmoidErrorBackward{.dlogits = output(0),
                                .logits = input(0),
                                .dloss = input(1),
                                .target = target_,
                                .one_by_n = static_cast<float>(1.0 / static_cast<double>(elements_))},
           elements_);
  }
  int64_t elements_;
  float target_;
};

}  // namespace

std::vector<NamedFactory> loss_kernels() {
  return {
      {"SoftmaxCrossEntropyForward", {own_specs_with_workspace<SoftmaxForwardKernel>, make_own<SoftmaxForwardKernel>}},
      {"SoftmaxCrossEntropyBackward",
       {own_specs_with_workspace<SoftmaxBackwardKernel>, make_own<SoftmaxBackwardKernel>}},
      {"MeanSquaredErrorForward", {own_specs_with_workspace<SquaredErrorKernel>, make_own<SquaredErrorKernel>}},
      {"MeanSquaredErrorBackward", {own_specs, make_own<SquaredErrorBackwardKernel>}},
      {"SigmoidCrossEntropyForward", {own_specs_with_workspace<SigmoidErrorKernel>, make_own<SigmoidErrorKernel>}},
      {"SigmoidCrossEntropyBackward", {own_specs, make_own<SigmoidErrorBackwardKernel>}}};
}

}  // namespace plimsoll::cuda
