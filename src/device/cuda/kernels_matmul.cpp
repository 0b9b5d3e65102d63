// Products of matrices by cuBLASLt: batched where the matrices lie at equal distances, one such batch after the other.
#include <algorithm>

#include "device/cuda/kernels.h"
#include "ops/matmul.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

constexpr Bytes kMostMatMulWorkspace = 32_MiB;
constexpr std::string_view kMatMul = "cublaslt";

struct MatMulPlan {
  Product product;
  std::vector<MatrixOffsets> offsets;
  bool sums = false;
};

MatMulPlan matmul_plan(const Graph& graph, const Op& op, bool tf32) {
  const MatrixProducts p = matrix_products(op.attributes, graph.tensor(op.inputs[0]), graph.tensor(op.inputs[1]));
  MatMulPlan plan;
  plan.product = {
      .m = p.m, .n = p.n, .k = p.k, .transpose_a = p.transpose_a, .transpose_b = p.transpose_b, .tf32 = tf32};
  std::vector<MatrixProducts::Dimension> others = p.batch;
  const auto apart = std::find_if(others.rbegin(), others.rend(), [](const auto& d) { return d.y != 0; });
  if (apart != others.rend()) {
    plan.product.batch = apart->size;
    plan.product.to_a = apart->a, plan.product.to_b = apart->b, plan.product.to_out = apart->y;
    others.erase(std::next(apart).base());
  }
  plan.offsets = matrix_offsets(others);
  plan.sums = p.sums();
  return plan;
}

struct PreparedMatMul {
  std::unique_ptr<Prepared> first, further;
  Bytes workspace() const { return further ? std::max(first->workspace(), further->workspace()) : first->workspace(); }
  bool ready(const MatMulPlan& plan) const { return first && (further || !plan.sums); }
};

PreparedMatMul prepare_matmul(const Context& context, const MatMulPlan& plan) {
  PreparedMatMul prepared;
  Product product = plan.product;
  prepared.first = context.door->prepare(product, kMostMatMulWorkspace);
  if (!plan.sums) return prepared;
  product.adds = true;
  prepared.further = context.door->prepare(product, kMostMatMulWorkspace);
  return prepared;
}

class MatMulKernel final : public CudaKernel {
 public:
  MatMulKernel(const Context& context, const Graph& graph, const Op& op, std::string_view kernel)
      : CudaKernel(context, graph, op) {
    require_row_major(graph, op);
    std::string_view name = kernel;
    const bool tf32 = name.ends_with(kTf32);
    if (tf32) name.remove_suffix(kTf32.size());
    if (name != kMatMul || (tf32 && !context.tf32)) throw_no_kernel(op, kernel);
    plan_ = matmul_plan(graph, op, tf32);
    prepared_ = prepare_matmul(context, plan_);
    if (!prepared_.ready(plan_)) throw_no_kernel(op, kernel);
    workspace_bytes_ = prepared_.workspace();
  }

 private:
  void work() override {
    for (const MatrixOffsets& at : plan_.offsets) {
      Prepared& product = at.adds ? *prepared_.further : *prepared_.first;
      product.run(input(0) + at.a, input(1) + at.b, nullptr, output(0) + at.y, scratch<void>());
    }
  }

  MatMulPlan plan_;
  PreparedMatMul prepared_;
};

std::vector<KernelSpec> matmul_specs(const Context& context, const Graph& graph, const Op& op, LayoutFamily) {
  std::vector<KernelSpec> list;
  for (const bool tf32 : {true, false}) {
    if (tf32 && !context.tf32) continue;
    const MatMulPlan plan = matmul_plan(graph, op, tf32);
    const PreparedMatMul prepared = prepare_matmul(context, plan);
    if (!prepared.ready(plan)) continue;
    list.push_back(family_spec(graph, op, LayoutFamily::plain, std::string(kMatMul) + std::string(tf32 ? kTf32 : ""),
                               prepared.workspace()));
    list.back().exact = !tf32;
    list.back().algorithm = Algorithm::gemm;
    list.back().estimate = {.efficiency = tf32 ? kTf32Speed * 0.8 : 0.8};
  }
  return list;
}

std::unique_ptr<Kernel> make_matmul(const Context& context, const Graph& graph, const Op& op, std::string_view kernel) {
  require_f32(graph, op);
  return std::make_unique<MatMulKernel>(context, graph, op, kernel);
}

}  // namespace

std::vector<NamedFactory> matmul_kernels() { return {{"MatMul", {matmul_specs, make_matmul}}}; }

}  // namespace plimsoll::cuda
