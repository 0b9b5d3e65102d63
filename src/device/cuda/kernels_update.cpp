// Optimizers. They run over the storage as it lies, padding included: it stays zero.
#include "device/cuda/kernels.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

int64_t stored(const Graph& graph, const Op& op) {
  const Tensor& w = graph.tensor(op.inputs[0]);
  require_one_layout(graph, op, w);
  return storage_elements(w.shape, w.layout);
}

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

class SgdKernel final : public CudaKernel {
 public:
  SgdKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), attributes_(op.attributes), scaled_(is_scaled(op)), count_(stored(graph, op)) {}

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
               .momentum = static_cast<float>(attributes_.real("momentum", 0)),
               .weight_decay = static_cast<float>(attributes_.real("weight_decay", 0)),
               .nesterov = attributes_.integer("nesterov", 0) != 0},
           count_);
  }

  Attributes attributes_;
  bool scaled_;
  int64_t count_;
};

class AdamKernel final : public CudaKernel {
 public:
  AdamKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), scaled_(is_scaled(op)), count_(stored(graph, op)) {
    workspace_bytes_ = workspace_for(graph, op);
    const Attributes& a = op.attributes;
    const double beta1 = a.real("beta1", 0.9), beta2 = a.real("beta2", 0.999), decay = a.real("weight_decay", 0);
    const bool decoupled = a.integer("decoupled", 0) != 0;
    factors_ = {.factors = nullptr,
                .learning_rate = nullptr,
                .step_number = nullptr,
                .beta1 = beta1,
                .beta2 = beta2,
                .weight_decay = decay,
                .decoupled = decoupled};
    body_.decay = static_cast<float>(decoupled ? 0 : decay);
    body_.epsilon = static_cast<float>(a.real("epsilon", 1e-8));
    body_.b2 = static_cast<float>(beta2);
    body_.c1 = static_cast<float>(1 - beta1);
    body_.c2 = static_cast<float>(1 - beta2);
  }
  static Bytes workspace_for(const Graph&, const Op&) { return {3 * static_cast<int64_t>(sizeof(float))}; }

 private:
  void work() override {
    AdamFactors factors = factors_;
    factors.factors = scratch<float>();
    factors.learning_rate = input(2);
    factors.step_number = input<int64_t>(3);
    launch(factors, 1);
    Adam body = body_;
    body.w_next = output(0), body.m_next = output(1), body.v_next = output(2);
    body.w = input(0), body.g = input(1), body.m = input(4), body.v = input(5);
    body.factors = scratch<float>();
    body.scale = scaled_ ? input(6) : nullptr;
    launch(body, count_);
  }

  AdamFactors factors_{};
  Adam body_{};
  bool scaled_;
  int64_t count_;
};

}  // namespace

std::vector<NamedFactory> update_kernels() {
  return {{"AccumulateGradient", {own_specs_any_layout, make_own<AccumulateKernel>}},
          {"SgdUpdate", {own_specs_any_layout, make_own<SgdKernel>}},
          {"AdamUpdate", {own_specs_with_workspace<AdamKernel>, make_own<AdamKernel>}}};
}

}  // namespace plimsoll::cuda
