// Fully connected layers by oneDNN's inner product: y = x w^T + b, and its two backward passes.
#include <fmt/format.h>

#include <algorithm>

#include "device/cpu/dnnl.h"

namespace plimsoll::cpu {
namespace {

struct FullyConnected {
  Pass pass = Pass::forward;
  bool relu = false;
  Slot x, weights, y;
  std::optional<Slot> bias;
};

FullyConnected read_fully_connected(const Op& op) {
  FullyConnected f;
  f.relu = op.attributes.text("activation", "none") == "relu";
  if (op.type->name == "FullyConnectedForward") {
    f.x = input(0), f.weights = input(1), f.y = output(0);
    if (op.inputs.size() > 2) f.bias = input(2);
  } else if (op.type->name == "FullyConnectedBackwardData") {
    f.pass = Pass::backward_data;
    f.y = input(0), f.weights = input(1), f.x = output(0);
  } else {
    f.pass = Pass::backward_weights;
    f.x = input(0), f.y = input(1), f.weights = output(0);
    if (op.outputs.size() > 1) f.bias = output(1);
  }
  return f;
}

dnnl_inner_product_desc_t make_operation(const Graph& graph, const Op& op, const FullyConnected& f,
                                         const std::optional<Layout>& weights) {
  auto memory = [&](Slot slot) {
    const Tensor& tensor = tensor_at(graph, op, slot);
    return describe(tensor.shape, tensor.dtype, {});
  };
  const Tensor& w = tensor_at(graph, op, f.weights);
  const dnnl_memory_desc_t x_memory = memory(f.x), y_memory = memory(f.y);
  const dnnl_memory_desc_t w_memory = weights ? describe(w.shape, w.dtype, *weights) : describe_any(w.shape, w.dtype);
  const dnnl_memory_desc_t bias_memory = f.bias ? memory(*f.bias) : dnnl_memory_desc_t{};
  const dnnl_memory_desc_t* bias = f.bias ? &bias_memory : nullptr;
  dnnl_inner_product_desc_t result;
  switch (f.pass) {
    case Pass::forward:
      PLIMSOLL_DNNL(
          dnnl_inner_product_forward_desc_init(&result, dnnl_forward_training, &x_memory, &w_memory, bias, &y_memory));
      break;
    case Pass::backward_data:
      PLIMSOLL_DNNL(dnnl_inner_product_backward_data_desc_init(&result, &x_memory, &w_memory, &y_memory));
      break;
    case Pass::backward_weights:
      PLIMSOLL_DNNL(dnnl_inner_product_backward_weights_desc_init(&result, &x_memory, &w_memory, bias, &y_memory));
      break;
  }
  return result;
}

PrimitiveAttributes attributes_of(const FullyConnected& f) { return {.relu = f.relu && f.pass == Pass::forward}; }

const dnnl_memory_desc_t& weights_memory(const FullyConnected& f, const Implementation& one) {
  return one.memory(f.pass == Pass::backward_weights ? dnnl_query_diff_weights_md : dnnl_query_weights_md);
}

// The plain product turns row-major weights over on every forward pass, which costs the more the fewer rows use them:
// measured 4 % of the dense rate at 16 rows of 4096 and 20 % at 64. The other products are as fast as the tiled one.
KernelEstimate estimate(const Graph& graph, const Op& op, const FullyConnected& f, const Implementation& one,
                        bool row_major) {
  if (!one.is_gemm()) return {.efficiency = f.pass == Pass::backward_weights ? 0.8 : 0.9};
  if (f.pass != Pass::forward || one.is_tiled_gemm() || !row_major) return {.efficiency = 0.8};
  return {.efficiency = std::min(0.5, 0.003 * static_cast<double>(graph.tensor(op.inputs[0]).shape[0]))};
}

// Row-major weights first: every optimizer and checkpoint has them so. Then what each implementation would rather have.
std::vector<KernelSpec> fully_connected_specs(const Graph& graph, const Op& op, LayoutFamily, int threads) {
  expect_countable(graph, op);
  const ThreadCount scope(threads);
  const FullyConnected f = read_fully_connected(op);
  std::vector<KernelSpec> result;
  for (const std::optional<Layout>& wanted : {std::optional<Layout>(Layout{}), std::optional<Layout>()}) {
    const dnnl_inner_product_desc_t operation = make_operation(graph, op, f, wanted);
    for (const Implementation& one : implementations(&operation, attributes_of(f))) {
      const std::optional<Layout> layout = layout_of(weights_memory(f, one));
      if (!layout) continue;
      std::string name = layout->is_plain() ? one.name : fmt::format("{}@{}", one.name, layout->tag);
      if (std::any_of(result.begin(), result.end(), [&](const KernelSpec& s) { return s.name == name; })) continue;
      KernelSpec spec = make_spec(op, std::move(name), one.workspace());
      layout_at(spec, f.weights) = *layout;
      spec.algorithm = one.is_gemm() ? Algorithm::gemm : Algorithm::direct;
      spec.estimate = estimate(graph, op, f, one, layout->is_plain());
      result.push_back(std::move(spec));
    }
  }
  if (result.empty()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}' ({}): oneDNN has no kernel for this layer", op.name, op.type->name));
  }
  return result;
}

std::unique_ptr<Kernel> make_fully_connected(const Graph& graph, const Op& op, std::string_view kernel, int threads) {
  const ThreadCount scope(threads);
  const FullyConnected f = read_fully_connected(op);
  const Layout& weights = tensor_at(graph, op, f.weights).layout;
  const dnnl_inner_product_desc_t operation = make_operation(graph, op, f, weights);
  const std::string_view name = kernel.substr(0, kernel.find('@'));
  const auto one = find_implementation(&operation, name, attributes_of(f));
  const bool plain = tensor_at(graph, op, f.x).layout.is_plain() && tensor_at(graph, op, f.y).layout.is_plain();
  if (!one || !plain) {
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}' ({}): no kernel '{}' for these layouts (weights '{}'{})", op.name, op.type->name,
                            kernel, weights.tag, plain ? "" : "; the others must be row-major"));
  }
  const bool x_is_made = f.pass == Pass::backward_data, w_is_made = f.pass == Pass::backward_weights;
  const bool y_is_made = f.pass == Pass::forward;
  std::vector<Argument> arguments = {
      {x_is_made ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC, f.x,
       one->memory(x_is_made ? dnnl_query_diff_src_md : dnnl_query_src_md)},
      {w_is_made ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, f.weights, weights_memory(f, *one)},
      {y_is_made ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST, f.y,
       one->memory(y_is_made ? dnnl_query_dst_md : dnnl_query_diff_dst_md)},
  };
  if (f.bias) {
    arguments.push_back({w_is_made ? DNNL_ARG_DIFF_BIAS : DNNL_ARG_BIAS, *f.bias,
                         describe(tensor_at(graph, op, *f.bias).shape, DType::f32, {})});
  }
  return make_dnnl_kernel(op, *one, arguments, threads);
}

}  // namespace

std::vector<NamedFactory> dnnl_fully_connected_kernels() {
  return {{"FullyConnectedForward", {fully_connected_specs, make_fully_connected}},
          {"FullyConnectedBackwardData", {fully_connected_specs, make_fully_connected}},
          {"FullyConnectedBackwardWeights", {fully_connected_specs, make_fully_connected}}};
}

}  // namespace plimsoll::cpu
