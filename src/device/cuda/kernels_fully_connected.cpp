// Fully connected layers by cuBLASLt.
#include <algorithm>

#include "device/cuda/kernels.h"
#include "device/cuda/products.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

Product product_of(const Graph& graph, const Op& op) {
  const Shape &a = graph.tensor(op.inputs[0]).shape, &b = graph.tensor(op.inputs[1]).shape;
  if (op.type->name == "FullyConnectedForward") {  // y[N,K] = x[N,C] w[K,C]'
    return {.m = a[0],
            .n = b[0],
            .k = a[1],
            .transpose_b = true,
            .bias = op.inputs.size() > 2,
            .relu = op.attributes.text("activation", "none") == "relu"};
  }
  if (op.type->name == "FullyConnectedBackwardData")
    return {.m = a[0], .n = b[1], .k = a[1]};                     // dx[N,C] = dy[N,K] w[K,C]
  return {.m = b[1], .n = a[1], .k = a[0], .transpose_a = true};  // dw[K,C] = dy[N,K]' x[N,C]
}

bool is_weights(const Op& op) { return op.type->name == "FullyConnectedBackwardWeights"; }

Pieces bias_pieces(const Graph& graph, const Op& op) {
  return pieces_of_values(image_of(op, graph.tensor(op.inputs[1])));
}

class FullyConnectedKernel final : public CudaKernel {
 public:
  FullyConnectedKernel(const Context& context, const Graph& graph, const Op& op, std::string_view kernel)
      : CudaKernel(context, graph, op),
        weights_(is_weights(op)),
        bias_summed_(weights_ && op.outputs.size() > 1),
        product_(context, op, kernel, product_of(graph, op)) {
    for (const auto* list : {&op.inputs, &op.outputs}) {
      for (TensorId id : *list) image_of(op, graph.tensor(id));
    }
    workspace_bytes_ = product_.workspace();
    if (bias_summed_) {
      pieces_ = bias_pieces(graph, op);
      workspace_bytes_ = std::max(workspace_bytes_, room_for(pieces_));
    }
  }

 private:
  void work() override {
    // The weights' gradient is dy' x.
    product_.run(input(weights_ ? 1 : 0), input(weights_ ? 0 : 1), has_input(2) ? input(2) : nullptr, output(0),
                 scratch<void>());
    if (!bias_summed_) return;
    sum_values(input(1), pieces_, scratch<void>(), output(1));
  }

  bool weights_, bias_summed_;
  NamedProduct product_;
  Pieces pieces_;
};

std::vector<KernelSpec> fully_connected_specs(const Context& context, const Graph& graph, const Op& op,
                                              LayoutFamily family) {
  std::vector<KernelSpec> list;
  const Bytes bias_room = is_weights(op) && op.outputs.size() > 1 ? room_for(bias_pieces(graph, op)) : Bytes{};
  for (const ProductChoice& choice : choices_of(context, product_of(graph, op), {.without_workspace = true}))
    list.push_back(spec_of(choice, family_spec(graph, op, family, "", bias_room)));
  return list;
}

std::unique_ptr<Kernel> make_fully_connected(const Context& context, const Graph& graph, const Op& op,
                                             std::string_view kernel) {
  require_f32(graph, op);
  return std::make_unique<FullyConnectedKernel>(context, graph, op, kernel);
}

}  // namespace

std::vector<NamedFactory> fully_connected_kernels() {
  return {{"FullyConnectedForward", {fully_connected_specs, make_fully_connected}},
          {"FullyConnectedBackwardData", {fully_connected_specs, make_fully_connected}},
          {"FullyConnectedBackwardWeights", {fully_connected_specs, make_fully_connected}}};
}

}  // namespace plimsoll::cuda
