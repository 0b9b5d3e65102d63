// Optimizers. They run over the storage as it lies, padding included: it stays zero.
#include "device/cuda/kernels.h"
#include "ops/move.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

int64_t stored(const Graph& graph, const Op& op) {
  const Tensor& w = graph.tensor(op.inputs[0]);
  require_one_layout(graph, op, w);
  return storage_elements(w.shape, w.layout);
}

bool has_settings(const Graph& graph, const Op& op) { return !graph.tensor(op.inputs[2]).shape.empty(); }

bool is_scaled(const Op& op) { return op.attributes.integer("scaled", 0) != 0; }

class AccumulateKernel final : public CudaKernel {
 public:
  AccumulateKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), count_(stored(graph, op)) {}

 private:
  void work() override {
    launch(Accumulate{.sum_next = output(0), .sum = input(2), .g = input(1), .count = input<int64_t>(3)}, count_);
  }

  int64_t count_;
};

class AssignKernel final : public CudaKernel {
 public:
  AssignKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), count_(stored(graph, op)), width_(element_width(graph.tensor(op.inputs[0]))) {}

 private:
  void work() override {
    with_width(width_, [&](auto zero) {
      using T = decltype(zero);
      launch(CopyElements<T>{.to = output<T>(0), .from = input<T>(1)}, count_);
    });
  }

  int64_t count_, width_;
};

class SgdKernel final : public CudaKernel {
 public:
  SgdKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        settings_(op.attributes),
        has_settings_(has_settings(graph, op)),
        scaled_(is_scaled(op)),
        count_(stored(graph, op)) {}

 private:
  void work() override {
    const bool has_momentum = has_output(1);
    launch(Sgd{.w_next = output(0),
               .m_next = has_momentum ? output(1) : nullptr,
               .w = input(0),
               .g = input(1),
               .m = has_momentum ? input(3) : nullptr,
               .learning_rate = input(2),
               .scale = scaled_ ? input(has_momentum ? 4 : 3) : nullptr,
               .weight_decay = static_cast<float>(settings_.weight_decay),
               .momentum = static_cast<float>(settings_.momentum),
               .has_settings = has_settings_,
               .nesterov = settings_.nesterov},
           count_);
  }

  SgdSettings settings_;
  bool has_settings_, scaled_;
  int64_t count_;
};

class AdamKernel final : public CudaKernel {
 public:
  AdamKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        settings_(op.attributes),
        has_settings_(has_settings(graph, op)),
        scaled_(is_scaled(op)),
        count_(stored(graph, op)) {
    workspace_bytes_ = workspace_for(graph, op);
  }
  static Bytes workspace_for(const Graph&, const Op&) {
    return {AdamFactors::kCount * static_cast<int64_t>(sizeof(float))};
  }

 private:
  void work() override {
    launch(AdamFactors{.factors = scratch<float>(),
                       .learning_rate = input(2),
                       .step_number = input<int64_t>(3),
                       .weight_decay = settings_.weight_decay,
                       .rest1 = settings_.rest1,
                       .rest2 = settings_.rest2,
                       .epsilon = settings_.epsilon,
                       .has_settings = has_settings_,
                       .decoupled = settings_.decoupled},
           1);
    launch(Adam{.w_next = output(0),
                .m_next = output(1),
                .v_next = output(2),
                .w = input(0),
                .g = input(1),
                .m = input(4),
                .v = input(5),
                .factors = scratch<float>(),
                .scale = scaled_ ? input(6) : nullptr},
           count_);
  }

  AdamSettings settings_;
  bool has_settings_, scaled_;
  int64_t count_;
};

}  // namespace

std::vector<NamedFactory> update_kernels() {
  return {{"AccumulateGradient", {own_specs_any_layout, make_own<AccumulateKernel>}},
          {"Assign", {own_specs_any_layout, make_own<AssignKernel>}},
          {"SgdUpdate", {own_specs_any_layout, make_own<SgdKernel>}},
          {"AdamUpdate", {own_specs_with_workspace<AdamKernel>, make_own<AdamKernel>}}};
}

}  // namespace plimsoll::cuda
