// Recurrent layers: a product with the weights and the gates for every step, one after the other.
#include "device/cuda/kernels.h"
#include "ops/recurrent.h"
#include "plimsoll/error.h"

namespace plimsoll::cuda {
namespace {

constexpr Bytes kMostStepWorkspace = 4_MiB;

RecurrentCell cell_of(Cell cell) {
  switch (cell) {
    case Cell::lstm: return RecurrentCell::lstm;
    case Cell::gru: return RecurrentCell::gru;
    case Cell::tanh: return RecurrentCell::tanh;
    case Cell::relu: return RecurrentCell::relu;
  }
  return RecurrentCell::lstm;
}

Recurrence recurrence_of(const Graph& graph, const Op& op) {
  return recurrence_of(op.attributes, graph.tensor(op.inputs[0]).shape, graph.tensor(op.inputs[1]).shape);
}

// The product of one step: of h with the weights' transpose, or of the gates' gradients with the weights, added.
Product product_of(const Recurrence& r, bool backward) {
  const int64_t gates = r.gates() * r.width;
  return {.m = r.rows,
          .n = backward ? r.width : gates,
          .k = backward ? gates : r.width,
          .transpose_b = !backward,
          .adds = backward};
}

struct StepProduct {
  std::unique_ptr<Prepared> product;
  int64_t scratch_at = 0;  // behind the gates of a step
  Bytes workspace;
};
StepProduct step_product(const Context& context, const Op& op, const Recurrence& r, bool backward) {
  StepProduct step{.product = context.door->prepare(product_of(r, backward), kMostStepWorkspace)};
  if (!step.product) throw_no_kernel(op, "own");
  const int64_t gates = r.rows * r.gates() * r.width * static_cast<int64_t>(sizeof(float));
  step.scratch_at = backward ? 0 : (gates + 255) / 256 * 256;
  step.workspace = {step.scratch_at + step.product->workspace().count};
  return step;
}

class RecurrentKernel : public CudaKernel {
 public:
  RecurrentKernel(const Context& context, const Graph& graph, const Op& op, bool backward)
      : CudaKernel(context, graph, op),
        r_(recurrence_of(graph, op)),
        gates_(r_.gates() * r_.width),
        step_(r_.rows * r_.width),
        cell_(cell_of(r_.cell)),
        product_(step_product(context, op, r_, backward)) {
    require_row_major(graph, op);
    workspace_bytes_ = product_.workspace;
  }

 protected:
  void multiply(const float* a, float* out) const {
    product_.product->run(a, input(1), nullptr, out, scratch<std::byte>(product_.scratch_at));
  }
  // Where the i-th step in time has its h among those of all.
  int64_t at(int64_t i) const { return r_.place(i) * step_; }

  Recurrence r_;
  int64_t gates_, step_;
  RecurrentCell cell_;

 private:
  StepProduct product_;
};

class RecurrentForwardKernel final : public RecurrentKernel {
 public:
  RecurrentForwardKernel(const Context& context, const Graph& graph, const Op& op)
      : RecurrentKernel(context, graph, op, false) {}

 private:
  void work() override {
    const bool lstm = r_.cell == Cell::lstm;
    const size_t bias = lstm ? 4 : 3, kept = lstm ? 2 : 1;
    float* const s = scratch<float>();
    for (int64_t i = 0; i < r_.steps; ++i) {
      const float* const h_before = i > 0 ? output(0) + at(i - 1) : input(2);
      multiply(h_before, s);
      launch(RecurrentStep{.x = input(0) + r_.place(i) * r_.rows * gates_,
                           .s = s,
                           .bias = has_input(bias) ? input(bias) : nullptr,
                           .h_before = h_before,
                           .c_before = !lstm   ? nullptr
                                       : i > 0 ? output(1) + at(i - 1)
                                               : input(3),
                           .h = output(0) + at(i),
                           .c = lstm ? output(1) + at(i) : nullptr,
                           .kept = r_.kept() > 0 ? output(kept) + 4 * at(i) : nullptr,
                           .width = r_.width,
                           .cell = cell_},
             step_);
    }
  }
};

class RecurrentBackwardKernel final : public RecurrentKernel {
 public:
  RecurrentBackwardKernel(const Context& context, const Graph& graph, const Op& op)
      : RecurrentKernel(context, graph, op, true), at_(backward_inputs(r_.cell, op.inputs.size())) {}

 private:
  // The gradients of h and c before the first step are those that have come all the way: they are summed up in place.
  void work() override {
    const bool lstm = r_.cell == Cell::lstm;
    float *const dh = output(1), *const dc = lstm ? output(2) : nullptr;
    launch(Constant{.y = dh, .value = 0}, step_);
    if (lstm) launch(Constant{.y = dc, .value = 0}, step_);
    for (int64_t i = r_.steps; i-- > 0;) {
      const auto now = [&](size_t all) { return all > 0 ? input(all) + at(i) : nullptr; };
      const auto before = [&](size_t all, size_t first) {
        return i > 0 ? (all > 0 ? input(all) + at(i - 1) : nullptr) : (first > 0 ? input(first) : nullptr);
      };
      float* const dx = output(0) + r_.place(i) * r_.rows * gates_;
      float* const ds = r_.cell == Cell::gru ? output(2) + r_.place(i) * r_.rows * gates_ : dx;
      launch(RecurrentStepBackward{.dy = input(0) + at(i),
                                   .given_dc = now(at_.dc),
                                   .h = now(at_.y),
                                   .h_before = before(at_.y, at_.h0),
                                   .c = now(at_.c),
                                   .c_before = before(at_.c, at_.c0),
                                   .kept = at_.kept > 0 ? input(at_.kept) + 4 * at(i) : nullptr,
                                   .dx = dx,
                                   .ds = ds,
                                   .dh = dh,
                                   .dc = dc,
                                   .width = r_.width,
                                   .cell = cell_},
             step_);
      multiply(ds, dh);
    }
  }

  BackwardInputs at_;
};

std::vector<KernelSpec> recurrent_specs(const Context& context, const Graph& graph, const Op& op, LayoutFamily family) {
  std::vector<KernelSpec> specs = own_specs_row_major(context, graph, op, family);
  const bool backward = op.type->name == "RecurrentBackward";
  specs[0].workspace = step_product(context, op, recurrence_of(graph, op), backward).workspace;
  return specs;
}

}  // namespace

std::vector<NamedFactory> recurrent_kernels() {
  return {{"RecurrentForward", {recurrent_specs, make_own<RecurrentForwardKernel>}},
          {"RecurrentBackward", {recurrent_specs, make_own<RecurrentBackwardKernel>}}};
}

}  // namespace plimsoll::cuda
