// Optimizers. They run over the storage as it lies, padding included: it stays zero.
#include "device/cuda/kernels_lookups.h"
#include "ops/move.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

int64_t stored(const Graph& graph, const Op& op) {
  const Tensor& w = graph.tensor(op.inputs[0]);
  require_one_layout(graph, op, w);
  return storage_elements(w.shape, w.layout);
}

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

// An update by a gradient that is there whole (Base is CudaKernel), or by that of an embedding's lookups (LookupsKernel).
template <class Base>
class UpdateKernel : public Base {
 public:
  UpdateKernel(const Context& context, const Graph& graph, const Op& op)
      : Base(context, graph, op),
        has_settings_(!graph.tensor(op.inputs[2]).shape.empty()),
        scaled_(op.attributes.integer("scaled", 0) != 0),
        count_(stored(graph, op)) {}

 protected:
  template <class Body>
  void update(const Body& body) const {
    if constexpr (std::is_same_v<Base, LookupsKernel>) {
      this->launch(ByLookups<Body>{.update = body, .g = this->gradient()}, count_);
    } else {
      this->launch(body, count_);
    }
  }
  const float* scale(size_t input) const { return scaled_ ? this->input(input) : nullptr; }
  bool has_settings_;

 private:
  bool scaled_;
  int64_t count_;
};

template <class Base>
class SgdKernel final : public UpdateKernel<Base> {
 public:
  SgdKernel(const Context& context, const Graph& graph, const Op& op)
      : UpdateKernel<Base>(context, graph, op), settings_(op.attributes) {}

 private:
  void work() override {
    const bool has_momentum = this->has_output(1);
    this->update(Sgd{.w_next = this->output(0),
                     .m_next = has_momentum ? this->output(1) : nullptr,
                     .w = this->input(0),
                     .g = this->input(1),
                     .m = has_momentum ? this->input(3) : nullptr,
                     .learning_rate = this->input(2),
                     .scale = this->scale(has_momentum ? 4 : 3),
                     .weight_decay = static_cast<float>(settings_.weight_decay),
                     .momentum = static_cast<float>(settings_.momentum),
                     .has_settings = this->has_settings_,
                     .nesterov = settings_.nesterov});
  }

  SgdSettings settings_;
};

template <class Base>
class AdamKernel final : public UpdateKernel<Base> {
 public:
  AdamKernel(const Context& context, const Graph& graph, const Op& op)
      : UpdateKernel<Base>(context, graph, op), settings_(op.attributes) {
    this->workspace_bytes_ = workspace_for(graph, op);
  }
  static Bytes workspace_for(const Graph& graph, const Op& op) {
    if constexpr (std::is_same_v<Base, LookupsKernel>) return LookupsKernel::workspace_for(graph, op);
    return {AdamFactors::kCount * static_cast<int64_t>(sizeof(float))};
  }

 private:
  void work() override {
    float* const factors = this->template scratch<float>();
    this->launch(AdamFactors{.factors = factors,
                             .learning_rate = this->input(2),
                             .step_number = this->template input<int64_t>(3),
                             .weight_decay = settings_.weight_decay,
                             .rest1 = settings_.rest1,
                             .rest2 = settings_.rest2,
                             .epsilon = settings_.epsilon,
                             .has_settings = this->has_settings_,
                             .decoupled = settings_.decoupled},
                 1);
    this->update(Adam{.w_next = this->output(0),
                      .m_next = this->output(1),
                      .v_next = this->output(2),
                      .w = this->input(0),
                      .g = this->input(1),
                      .m = this->input(4),
                      .v = this->input(5),
                      .factors = factors,
                      .scale = this->scale(6)});
  }

  AdamSettings settings_;
};

// To a sum over batches, or to another gradient.
class AddLookupsKernel final : public LookupsKernel {
 public:
  AddLookupsKernel(const Context& context, const Graph& graph, const Op& op)
      : LookupsKernel(context, graph, op),
        over_batches_(op.type->name == "EmbeddingAccumulateGradient"),
        count_(stored(graph, op)) {}

 private:
  void work() override {
    launch(AddLookups{.y = output(0),
                      .x = input(over_batches_ ? 2 : 0),
                      .count = over_batches_ ? input<int64_t>(3) : nullptr,
                      .g = gradient()},
           count_);
  }

  bool over_batches_;
  int64_t count_;
};

}  // namespace

std::vector<NamedFactory> update_kernels() {
  return {
      {"AccumulateGradient", {own_specs_any_layout, make_own<AccumulateKernel>}},
      {"Assign", {own_specs_any_layout, make_own<AssignKernel>}},
      {"SgdUpdate", {own_specs_any_layout, make_own<SgdKernel<CudaKernel>>}},
      {"AdamUpdate", {own_specs_with_workspace<AdamKernel<CudaKernel>>, make_own<AdamKernel<CudaKernel>>}},
      {"EmbeddingAccumulateGradient", {row_major_specs_with_workspace<LookupsKernel>, make_own<AddLookupsKernel>}},
      {"EmbeddingAddGradient", {row_major_specs_with_workspace<LookupsKernel>, make_own<AddLookupsKernel>}},
      {"EmbeddingSgdUpdate", {row_major_specs_with_workspace<LookupsKernel>, make_own<SgdKernel<LookupsKernel>>}},
      {"EmbeddingAdamUpdate", {row_major_specs_with_workspace<LookupsKernel>, make_own<AdamKernel<LookupsKernel>>}}};
}

}  // namespace plimsoll::cuda
