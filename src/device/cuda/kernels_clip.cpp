// Clipping by the norm of all gradients, over the storage as it lies: padding is zero.
#include <algorithm>

#include "device/cuda/kernels.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

int64_t stored_elements(const Graph& graph, const Op& op) {
  const Tensor& tensor = graph.tensor(op.inputs[0]);
  return storage_elements(tensor.shape, tensor.layout);
}

// Cut into pieces by the number of elements alone, so that a sum is the same every time, and the workspace in every
// layout: that is chosen after the workspace was asked.
class GradientNormKernel final : public CudaKernel {
 public:
  GradientNormKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), elements_(stored_elements(graph, op)) {
    const int64_t pieces = pieces_of(graph, op);
    length_ = (elements_ + pieces - 1) / pieces;
    pieces_ = (elements_ + length_ - 1) / length_;
    workspace_bytes_ = workspace_for(graph, op);
  }
  static Bytes workspace_for(const Graph& graph, const Op& op) {
    return {pieces_of(graph, op) * static_cast<int64_t>(sizeof(double))};
  }

 private:
  static int64_t pieces_of(const Graph& graph, const Op& op) {
    return std::clamp<int64_t>(element_count(graph.tensor(op.inputs[0]).shape) / 4096, 1, 1024);
  }
  void work() override {
    launch(SumAll<Squared>{.of = {.x = input(0)}, .sums = scratch<double>(), .elements = elements_, .length = length_},
           pieces_);
    launch(NormTotal{.norm = output(0), .sums = scratch<double>(), .count = pieces_}, 1);
  }

  int64_t elements_, length_ = 1, pieces_ = 1;
};

std::vector<KernelSpec> norm_specs(const Context& context, const Graph& graph, const Op& op, LayoutFamily family) {
  std::vector<KernelSpec> specs = own_specs_any_layout(context, graph, op, family);
  specs[0].workspace = GradientNormKernel::workspace_for(graph, op);
  return specs;
}

class ClipScaleKernel final : public CudaKernel {
 public:
  ClipScaleKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        scaled_(op.attributes.integer("scaled", 0) != 0),
        norms_(std::ssize(op.inputs) - (scaled_ ? 1 : 0)),
        max_norm_(op.attributes.real("max_norm")) {
    workspace_bytes_ = workspace_for(graph, op);
  }
  static Bytes workspace_for(const Graph&, const Op& op) {
    return {std::ssize(op.inputs) * static_cast<int64_t>(sizeof(double))};
  }

 private:
  void work() override {
    double* const squares = scratch<double>();
    for (int64_t i = 0; i < norms_; ++i) launch(SquareNorm{.square = squares + i, .norm = input(i)}, 1);
    launch(ClipTotal{.scale = output(0),
                     .total = output(1),
                     .squares = squares,
                     .factor = scaled_ ? input(norms_) : nullptr,
                     .count = norms_,
                     .max_norm = max_norm_},
           1);
  }

  bool scaled_;
  int64_t norms_;
  double max_norm_;
};

class ScaleGradientKernel final : public CudaKernel {
 public:
  ScaleGradientKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), count_(stored_elements(graph, op)) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]));
  }

 private:
  void work() override { launch(ScaleBy{.y = output(0), .x = input(0), .scale = input(1)}, count_); }

  int64_t count_;
};

}  // namespace

std::vector<NamedFactory> clip_kernels() {
  return {{"GradientNorm", {norm_specs, make_own<GradientNormKernel>}},
          {"ClipScale", {own_specs_with_workspace<ClipScaleKernel>, make_own<ClipScaleKernel>}},
          {"ScaleGradient", {own_specs_any_layout, make_own<ScaleGradientKernel>}}};
}

}  // namespace plimsoll::cuda
