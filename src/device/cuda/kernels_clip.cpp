// Clipping by the norm of all gradients, over the storage as it lies: padding is zero.
#include <algorithm>

#include "device/cuda/kernels_lookups.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

int64_t stored_elements(const Graph& graph, const Op& op) {
  const Tensor& tensor = graph.tensor(op.inputs[0]);
  return storage_elements(tensor.shape, tensor.layout);
}

// Sums of squares of blocks of kShardUnit elements, as SquareSums has them, so that the norm of pieces is that of the whole
// to the bit. Where padding asks for more blocks they are longer: their number, and so the workspace, is the same in every
// layout, which is chosen after the workspace was asked.
class GradientNormKernel final : public CudaKernel {
 public:
  GradientNormKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), elements_(stored_elements(graph, op)), blocks_(blocks_of(graph, op)) {
    length_ = std::max(kShardUnit, (elements_ + blocks_ - 1) / blocks_);
    workspace_bytes_ = workspace_for(graph, op);
  }
  static Bytes workspace_for(const Graph& graph, const Op& op) {
    return {blocks_of(graph, op) * static_cast<int64_t>(sizeof(double))};
  }

 private:
  static int64_t blocks_of(const Graph& graph, const Op& op) {
    return (element_count(graph.tensor(op.inputs[0]).shape) + kShardUnit - 1) / kShardUnit;
  }
  void work() override {
    launch(SumAll<Squared>{.of = {.x = input(0)}, .sums = scratch<double>(), .elements = elements_, .length = length_},
           blocks_);
    launch(NormTotal{.norm = output(0), .sums = scratch<double>(), .count = blocks_}, 1);
  }

  int64_t elements_, blocks_, length_ = kShardUnit;
};

// With the attribute "row_major" in that order, so that the sum does not depend on a layout.
std::vector<KernelSpec> norm_specs(const Context& context, const Graph& graph, const Op& op, LayoutFamily family) {
  std::vector<KernelSpec> specs = op.attributes.integer("row_major", 0) != 0
                                      ? own_specs_row_major(context, graph, op, family)
                                      : own_specs_any_layout(context, graph, op, family);
  specs[0].workspace = GradientNormKernel::workspace_for(graph, op);
  return specs;
}

// As GradientNorm does, of an embedding's table by its lookups.
class LookupsNormKernel final : public LookupsKernel {
 public:
  LookupsNormKernel(const Context& context, const Graph& graph, const Op& op)
      : LookupsKernel(context, graph, op),
        elements_(elements_of(graph, op)),
        blocks_(blocks_of(elements_)),
        sums_at_(sums_at(graph, op)) {
    workspace_bytes_ = workspace_for(graph, op);
  }
  static Bytes workspace_for(const Graph& graph, const Op& op) {
    return {sums_at(graph, op) + blocks_of(elements_of(graph, op)) * static_cast<int64_t>(sizeof(double))};
  }

 private:
  static int64_t elements_of(const Graph& graph, const Op& op) {
    return op.attributes.integer("rows") * graph.tensor(op.inputs[0]).shape.back();
  }
  static int64_t blocks_of(int64_t elements) { return (elements + kShardUnit - 1) / kShardUnit; }
  static int64_t sums_at(const Graph& graph, const Op& op) {  // at a multiple of a double's size
    return (LookupsKernel::workspace_for(graph, op).count + 7) / 8 * 8;
  }
  void work() override {
    double* const sums = scratch<double>(sums_at_);
    launch(SumAll<SquaredLookups>{.of = {.g = gradient()}, .sums = sums, .elements = elements_, .length = kShardUnit},
           blocks_);
    launch(NormTotal{.norm = output(0), .sums = sums, .count = blocks_}, 1);
  }

  int64_t elements_, blocks_, sums_at_;
};

class SquareSumsKernel final : public CudaKernel {
 public:
  SquareSumsKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), elements_(stored_elements(graph, op)) {
    require_row_major(graph, op);
  }

 private:
  void work() override {
    launch(
        SumAll<Squared>{.of = {.x = input(0)}, .sums = output<double>(0), .elements = elements_, .length = kShardUnit},
        elements_ / kShardUnit);
  }

  int64_t elements_;
};

class NormOfSumsKernel final : public CudaKernel {
 public:
  NormOfSumsKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), count_(stored_elements(graph, op)) {
    require_row_major(graph, op);
  }

 private:
  void work() override { launch(NormTotal{.norm = output(0), .sums = input<double>(0), .count = count_}, 1); }

  int64_t count_;
};

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
          {"EmbeddingGradientNorm", {row_major_specs_with_workspace<LookupsNormKernel>, make_own<LookupsNormKernel>}},
          {"SquareSums", {own_specs_row_major, make_own<SquareSumsKernel>}},
          {"NormOfSums", {own_specs_row_major, make_own<NormOfSumsKernel>}},
          {"ClipScale", {own_specs_with_workspace<ClipScaleKernel>, make_own<ClipScaleKernel>}},
          {"ScaleGradient", {own_specs_any_layout, make_own<ScaleGradientKernel>}}};
}

}  // namespace plimsoll::cuda
