// Products of matrices by cuBLASLt: batched where the matrices lie at equal distances, one such batch after the other.
#include <algorithm>

#include "device/cuda/kernels.h"
#include "device/cuda/products.h"
#include "ops/matmul.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

struct MatMulPlan {
  Product product;
  std::vector<MatrixOffsets> offsets;
};

MatMulPlan matmul_plan(const Graph& graph, const Op& op) {
  const MatrixProducts p = matrix_products(op.attributes, graph.tensor(op.inputs[0]), graph.tensor(op.inputs[1]));
  MatMulPlan plan;
  plan.product = {.m = p.m, .n = p.n, .k = p.k, .transpose_a = p.transpose_a, .transpose_b = p.transpose_b};
  std::vector<MatrixProducts::Dimension> others = p.batch;
  const auto apart = std::find_if(others.rbegin(), others.rend(), [](const auto& d) { return d.y != 0; });
  if (apart != others.rend()) {
    plan.product.batch = apart->size;
    plan.product.to_a = apart->a, plan.product.to_b = apart->b, plan.product.to_out = apart->y;
    others.erase(std::next(apart).base());
  }
  plan.offsets = matrix_offsets(others);
  return plan;
}

class MatMulKernel final : public CudaKernel {
 public:
  MatMulKernel(const Context& context, const Graph& graph, const Op& op, std::string_view kernel)
      : CudaKernel(context, graph, op),
        plan_(matmul_plan(graph, op)),
        first_(context, op, kernel, plan_.product),
        further_(context, op, kernel, added_to(plan_.product)) {
    require_row_major(graph, op);
    workspace_bytes_ = std::max(first_.workspace(), further_.workspace());
  }

 private:
  static Product added_to(Product product) {
    product.adds = true;
    return product;
  }
  void work() override {
    for (const MatrixOffsets& at : plan_.offsets) {
      NamedProduct& product = at.adds ? further_ : first_;
      product.run(input(0) + at.a, input(1) + at.b, nullptr, output(0) + at.y, scratch<void>());
    }
  }

  MatMulPlan plan_;
  NamedProduct first_, further_;
};

std::vector<KernelSpec> matmul_specs(const Context& context, const Graph& graph, const Op& op, LayoutFamily) {
  std::vector<KernelSpec> list;
  for (const ProductChoice& choice : choices_of(context, matmul_plan(graph, op).product, {}))
    list.push_back(spec_of(choice, family_spec(graph, op, LayoutFamily::plain, "", {})));
  return list;
}

std::unique_ptr<Kernel> make_matmul(const Context& context, const Graph& graph, const Op& op, std::string_view kernel) {
  require_f32(graph, op);
  return std::make_unique<MatMulKernel>(context, graph, op, kernel);
}

}  // namespace

std::vector<NamedFactory> matmul_kernels() { return {{"MatMul", {matmul_specs, make_matmul}}}; }

}  // namespace plimsoll::cuda
