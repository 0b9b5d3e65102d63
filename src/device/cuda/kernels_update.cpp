// Optimizers. They run over the storage as it lies, padding included: it stays zero.
#include <optional>
#include <tuple>

#include "device/cuda/kernels_lookups.h"
#include "device/joinable.h"
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

constexpr int64_t kMostTogether = int64_t{1} << 28;  // elements of a launch that is addressed by 32 bits

// Several updates as one launch.
template <class Body>
class JoinedUpdates final : public Kernel {
 public:
  JoinedUpdates(std::shared_ptr<Door> door, std::optional<AdamFactors> factors)
      : door_(std::move(door)), factors_(factors) {}

  // False where there is no more room.
  bool add(const Body& body, int64_t count) {
    const int64_t places = (count + 3) / 4 * 4;
    if (joined_.count == Joined<Body>::kMost || end_ + places > kMostTogether) return false;
    joined_.parts[joined_.count] = body;
    joined_.begins[joined_.count] = static_cast<int32_t>(end_);
    joined_.sizes[joined_.count++] = static_cast<int32_t>(count);
    end_ += places;
    return true;
  }
  std::vector<Touch> reads, writes;

  Bytes workspace() const override { return {}; }
  void bind(std::span<void* const>, std::span<void* const>, void*) override {}
  void run() override {
    if (door_->records()) door_->touches(reads, writes);
    if (factors_) door_->launch(Queue::compute, Bodies::number<AdamFactors>(), &*factors_, AdamFactors::kThreads);
    door_->launch(Queue::compute, Bodies::number<Joined<Body>>(), &joined_, end_);
  }

 private:
  const std::shared_ptr<Door> door_;
  const std::optional<AdamFactors> factors_;
  Joined<Body> joined_{};
  int64_t end_ = 0;
};

// As many of the kernels, of which `first` is the first, as are of its kind and go with it.
template <class K>
JoinedKernel join_updates(const K& first, std::span<Kernel* const> kernels) {
  using Body = typename decltype(first.body_beside(first))::value_type;
  const std::optional<AdamFactors> factors = first.factors();
  auto together = std::make_unique<JoinedUpdates<Body>>(first.shared_door(), factors);
  if (factors) together->writes.push_back({factors->factors, AdamFactors::kCount * sizeof(float)});
  size_t count = 0;
  for (; count < kernels.size(); ++count) {
    const auto* const kernel = dynamic_cast<const K*>(kernels[count]);
    const std::optional<Body> body = kernel != nullptr ? kernel->body_beside(first) : std::nullopt;
    if (!body || !together->add(*body, kernel->count())) break;
    kernel->add_touches(together->reads, together->writes);
  }
  if (count < 2) return {};
  return {std::move(together), count};
}

class AccumulateKernel final : public CudaKernel, public Joinable {
 public:
  AccumulateKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), count_(stored(graph, op)) {}
  JoinedKernel join(std::span<Kernel* const> kernels) const override { return join_updates(*this, kernels); }
  std::optional<Accumulate> body_beside(const AccumulateKernel&) const { return body(); }
  std::optional<AdamFactors> factors() const { return std::nullopt; }
  int64_t count() const { return count_; }

 private:
  Accumulate body() const {
    return {.sum_next = output(0), .sum = input(2), .g = input(1), .count = input<int64_t>(3)};
  }
  void work() override { launch(body(), count_); }

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

// What updates do, by a gradient that is there whole (Base is CudaKernel), or by that of an embedding's lookups (LookupsKernel).
template <class Base>
class SgdOf : public Base {
 protected:
  SgdOf(const Context& context, const Graph& graph, const Op& op)
      : Base(context, graph, op),
        settings_(op.attributes),
        has_settings_(has_settings(graph, op)),
        scaled_(is_scaled(op)),
        count_(stored(graph, op)) {}

  Sgd body() const {
    const bool has_momentum = this->has_output(1);
    return {.w_next = this->output(0),
            .m_next = has_momentum ? this->output(1) : nullptr,
            .w = this->input(0),
            .g = this->input(1),
            .m = has_momentum ? this->input(3) : nullptr,
            .learning_rate = this->input(2),
            .scale = scaled_ ? this->input(has_momentum ? 4 : 3) : nullptr,
            .weight_decay = static_cast<float>(settings_.weight_decay),
            .momentum = static_cast<float>(settings_.momentum),
            .has_settings = has_settings_,
            .nesterov = settings_.nesterov};
  }

  SgdSettings settings_;
  bool has_settings_, scaled_;
  int64_t count_;
};

class SgdKernel final : public SgdOf<CudaKernel>, public Joinable {
 public:
  SgdKernel(const Context& context, const Graph& graph, const Op& op) : SgdOf(context, graph, op) {}

  JoinedKernel join(std::span<Kernel* const> kernels) const override { return join_updates(*this, kernels); }
  std::optional<Sgd> body_beside(const SgdKernel&) const { return body(); }
  std::optional<AdamFactors> factors() const { return std::nullopt; }
  int64_t count() const { return count_; }

 private:
  void work() override { launch(body(), count_); }
};

class LookupsSgdKernel final : public SgdOf<LookupsKernel> {
 public:
  LookupsSgdKernel(const Context& context, const Graph& graph, const Op& op) : SgdOf(context, graph, op) {}

 private:
  void work() override { launch(ByLookups<Sgd>{.update = body(), .g = gradient()}, count_); }
};

template <class Base>
class AdamOf : public Base {
 protected:
  AdamOf(const Context& context, const Graph& graph, const Op& op)
      : Base(context, graph, op),
        settings_(op.attributes),
        has_settings_(has_settings(graph, op)),
        scaled_(is_scaled(op)),
        count_(stored(graph, op)) {}

  AdamFactors made_factors() const {
    return {.factors = this->template scratch<float>(),
            .learning_rate = this->input(2),
            .step_number = this->template input<int64_t>(3),
            .weight_decay = settings_.weight_decay,
            .rest1 = settings_.rest1,
            .rest2 = settings_.rest2,
            .epsilon = settings_.epsilon,
            .has_settings = has_settings_,
            .decoupled = settings_.decoupled};
  }
  Adam body(const float* factors) const {
    return {.w_next = this->output(0),
            .m_next = this->output(1),
            .v_next = this->output(2),
            .w = this->input(0),
            .g = this->input(1),
            .m = this->input(4),
            .v = this->input(5),
            .factors = factors,
            .scale = scaled_ ? this->input(6) : nullptr};
  }

  AdamSettings settings_;
  bool has_settings_, scaled_;
  int64_t count_;
};

class AdamKernel final : public AdamOf<CudaKernel>, public Joinable {
 public:
  AdamKernel(const Context& context, const Graph& graph, const Op& op) : AdamOf(context, graph, op) {
    workspace_bytes_ = workspace_for(graph, op);
  }
  static Bytes workspace_for(const Graph&, const Op&) {
    return {AdamFactors::kCount * static_cast<int64_t>(sizeof(float))};
  }

  JoinedKernel join(std::span<Kernel* const> kernels) const override { return join_updates(*this, kernels); }
  // With the factors of the first, where its own would be the same.
  std::optional<Adam> body_beside(const AdamKernel& first) const {
    const auto made_of = [](const AdamKernel& k) {
      return std::tuple(k.input(2), k.input(3), k.settings_.weight_decay, k.settings_.rest1, k.settings_.rest2,
                        k.settings_.epsilon, k.has_settings_, k.settings_.decoupled);
    };
    if (made_of(*this) != made_of(first)) return std::nullopt;
    return body(first.scratch<float>());
  }
  std::optional<AdamFactors> factors() const { return made_factors(); }
  int64_t count() const { return count_; }

 private:
  void work() override {
    launch(made_factors(), AdamFactors::kThreads);
    launch(body(scratch<float>()), count_);
  }
};

class LookupsAdamKernel final : public AdamOf<LookupsKernel> {
 public:
  LookupsAdamKernel(const Context& context, const Graph& graph, const Op& op) : AdamOf(context, graph, op) {}

 private:
  void work() override {
    launch(made_factors(), AdamFactors::kThreads);
    launch(ByLookups<Adam>{.update = body(scratch<float>()), .g = gradient()}, count_);
  }
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
  return {{"AccumulateGradient", {own_specs_any_layout, make_own<AccumulateKernel>}},
          {"Assign", {own_specs_any_layout, make_own<AssignKernel>}},
          {"SgdUpdate", {own_specs_any_layout, make_own<SgdKernel>}},
          {"AdamUpdate", {own_specs_with_workspace<AdamKernel>, make_own<AdamKernel>}},
          {"EmbeddingAccumulateGradient", {row_major_specs_with_workspace<LookupsKernel>, make_own<AddLookupsKernel>}},
          {"EmbeddingAddGradient", {row_major_specs_with_workspace<LookupsKernel>, make_own<AddLookupsKernel>}},
          {"EmbeddingSgdUpdate", {row_major_specs_with_workspace<LookupsKernel>, make_own<LookupsSgdKernel>}},
          {"EmbeddingAdamUpdate", {row_major_specs_with_workspace<LookupsKernel>, make_own<LookupsAdamKernel>}}};
}

}  // namespace plimsoll::cuda
