// Activations, sums, biases, constants.
#include <fmt/format.h>

#include "device/cuda/kernels.h"
#include "plimsoll/error.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

int64_t stored(const Graph& graph, TensorId id) {
  return storage_elements(graph.tensor(id).shape, graph.tensor(id).layout);
}

Activation activation_of(std::string_view type) {
  if (type.starts_with("LeakyRelu")) return Activation::leaky_relu;
  if (type.starts_with("Relu")) return Activation::relu;
  if (type.starts_with("Sigmoid")) return Activation::sigmoid;
  return Activation::tanh;
}

class ActivationKernel final : public CudaKernel {
 public:
  ActivationKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        backward_(op.inputs.size() == 2),
        kind_(activation_of(op.type->name)),
        slope_(static_cast<float>(op.attributes.real("slope", 0.01))),
        count_(stored(graph, op.inputs[0])) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]));
  }

 private:
  void work() override {
    if (backward_) {
      launch(ActivateBackward{.dx = output(0), .dy = input(0), .y = input(1), .kind = kind_, .slope = slope_}, count_);
    } else {
      launch(Activate{.y = output(0), .x = input(0), .kind = kind_, .slope = slope_}, count_);
    }
  }

  bool backward_;
  Activation kind_;
  float slope_;
  int64_t count_;
};

class AddKernel final : public CudaKernel {
 public:
  AddKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        terms_(op.inputs.size()),
        relu_(op.attributes.text("activation", "none") == "relu"),
        count_(stored(graph, op.inputs[0])) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]));
    if (terms_ > kMostTerms) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("op '{}': CUDA adds at most {} tensors, not {}", op.name, kMostTerms, terms_));
    }
  }

 private:
  void work() override {
    AddTerms body{.y = output(0), .terms = {}, .count = static_cast<int32_t>(terms_), .relu = relu_};
    for (size_t i = 0; i < terms_; ++i) body.terms[i] = input(i);
    launch(body, count_);
  }

  size_t terms_;
  bool relu_;
  int64_t count_;
};

class BiasKernel final : public CudaKernel {
 public:
  BiasKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        image_(image_of(op, graph.tensor(op.inputs[0]))),
        count_(stored(graph, op.inputs[0])) {
    require_one_layout(graph, op, graph.tensor(op.inputs[0]));
  }

 private:
  void work() override {
    launch(AddBias{.y = output(0), .x = input(0), .bias = input(1), .image = image_, .relu = false}, count_);
  }

  Image image_;
  int64_t count_;
};

class BiasBackwardKernel final : public CudaKernel {
 public:
  BiasBackwardKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op), pieces_(pieces_of_values(image_of(op, graph.tensor(op.inputs[0])))) {
    workspace_bytes_ = room_for(pieces_);
  }

 private:
  void work() override { sum_values(input(0), pieces_, scratch<void>(), output(0)); }

  Pieces pieces_;
};

std::vector<KernelSpec> bias_backward_specs(const Context& context, const Graph& graph, const Op& op,
                                            LayoutFamily family) {
  std::vector<KernelSpec> specs = own_specs(context, graph, op, family);
  Tensor x = graph.tensor(op.inputs[0]);
  x.layout = specs[0].inputs[0];
  specs[0].workspace = room_for(pieces_of_values(image_of(op, x)));
  return specs;
}

class ConstantKernel final : public CudaKernel {
 public:
  ConstantKernel(const Context& context, const Graph& graph, const Op& op)
      : CudaKernel(context, graph, op),
        value_(static_cast<float>(op.attributes.real("value"))),
        count_(element_count(graph.tensor(op.outputs[0]).shape)) {
    image_of(op, graph.tensor(op.outputs[0]));  // no padding
  }

 private:
  void work() override { launch(Constant{.y = output(0), .value = value_}, count_); }

  float value_;
  int64_t count_;
};

}  // namespace

std::vector<NamedFactory> elementwise_kernels() {
  std::vector<NamedFactory> list;
  for (const char* type : {"ReluForward", "ReluBackward", "LeakyReluForward", "LeakyReluBackward", "SigmoidForward",
                           "SigmoidBackward", "TanhForward", "TanhBackward"}) {
    list.push_back({type, {own_specs_any_layout, make_own<ActivationKernel>}});
  }
  list.push_back({"Add", {own_specs_any_layout, make_own<AddKernel>}});
  list.push_back({"BiasForward", {own_specs, make_own<BiasKernel>}});
  list.push_back({"BiasBackward", {bias_backward_specs, make_own<BiasBackwardKernel>}});
  list.push_back({"Constant", {own_specs, make_own<ConstantKernel>}});
  return list;
}

}  // namespace plimsoll::cuda
