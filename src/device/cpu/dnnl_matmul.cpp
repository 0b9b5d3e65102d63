// Products of matrices by oneDNN's matmul: one primitive for a row of matrices that lie at equal distances, run once for
// each such row; a second one adds to what the first has left where products are summed.
#include <fmt/format.h>

#include <algorithm>

#include "device/cpu/dnnl.h"
#include "device/cpu/product.h"
#include "ops/matmul.h"

namespace plimsoll::cpu {
namespace {

struct Products {
  MatrixProducts matrices;
  MatrixProducts::Dimension together;  // what one primitive runs at once; size 1: a single product
  std::vector<MatrixOffsets> offsets;  // of the others
  bool adds = false;
};

Products read_products(const Graph& graph, const Op& op) {
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (TensorId id : *list) {
      const Tensor& tensor = graph.tensor(id);
      if (tensor.dtype == DType::f32 && tensor.layout.is_plain()) continue;
      throw Error(ErrorCode::unsupported,
                  fmt::format("op '{}' (MatMul): '{}' is {} in layout '{}'; the CPU multiplies row-major f32", op.name,
                              tensor.name, to_string(tensor.dtype), tensor.layout.tag));
    }
  }
  Products p;
  p.matrices = matrix_products(op.attributes, graph.tensor(op.inputs[0]), graph.tensor(op.inputs[1]));
  std::vector<MatrixProducts::Dimension> others = p.matrices.batch;
  const auto apart =
      std::find_if(others.rbegin(), others.rend(), [](const auto& d) { return d.y != 0 && d.a != 0 && d.b != 0; });
  if (apart != others.rend()) {
    p.together = *apart;
    others.erase(std::next(apart).base());
  }
  p.offsets = matrix_offsets(others);
  p.adds = p.matrices.sums();
  return p;
}

// Rows and columns of `batch` matrices that lie `distance` apart; the one stored row by row may be turned over.
dnnl_memory_desc_t describe_matrices(int64_t batch, int64_t distance, int64_t rows, int64_t columns, bool transposed) {
  const dnnl_dims_t sizes = {batch, rows, columns};
  const dnnl_dims_t strides = {distance, transposed ? 1 : columns, transposed ? rows : 1};
  dnnl_memory_desc_t result;
  const int first = batch > 1 ? 0 : 1;  // a single product has two dimensions
  PLIMSOLL_DNNL(dnnl_memory_desc_init_by_strides(&result, 3 - first, sizes + first, dnnl_f32, strides + first));
  return result;
}

dnnl_matmul_desc_t describe_products(const Products& p) {
  const MatrixProducts& m = p.matrices;
  const dnnl_memory_desc_t a = describe_matrices(p.together.size, p.together.a, m.m, m.k, m.transpose_a);
  const dnnl_memory_desc_t b = describe_matrices(p.together.size, p.together.b, m.k, m.n, m.transpose_b);
  const dnnl_memory_desc_t y = describe_matrices(p.together.size, p.together.y, m.m, m.n, false);
  dnnl_matmul_desc_t result;
  PLIMSOLL_DNNL(dnnl_matmul_desc_init(&result, &a, &b, nullptr, &y));
  return result;
}

std::unique_ptr<Kernel> make_products(const Op& op, const Implementation& one, int threads) {
  return make_dnnl_kernel(op, one,
                          {{DNNL_ARG_SRC, input(0), one.memory(dnnl_query_src_md)},
                           {DNNL_ARG_WEIGHTS, input(1), one.memory(dnnl_query_weights_md)},
                           {DNNL_ARG_DST, output(0), one.memory(dnnl_query_dst_md)}},
                          threads);
}

class MatMulKernel final : public Kernel {
 public:
  MatMulKernel(const Op& op, std::vector<MatrixOffsets> offsets, const Implementation& first,
               const Implementation* further, int threads)
      : offsets_(std::move(offsets)), first_(make_products(op, first, threads)) {
    workspace_ = first_->workspace();
    if (further == nullptr) return;
    further_ = make_products(op, *further, threads);
    workspace_ = std::max(workspace_, further_->workspace());
  }

  Bytes workspace() const override { return workspace_; }

  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void* workspace) override {
    a_ = static_cast<float*>(inputs[0]);
    b_ = static_cast<float*>(inputs[1]);
    y_ = static_cast<float*>(outputs[0]);
    scratch_ = workspace;
    if (offsets_.size() == 1) place(*first_, offsets_[0]);
  }

  void run() override {
    if (offsets_.size() == 1) return first_->run();
    for (const MatrixOffsets& at : offsets_) {
      Kernel& kernel = at.adds ? *further_ : *first_;
      place(kernel, at);
      kernel.run();
    }
  }

 private:
  void place(Kernel& kernel, const MatrixOffsets& at) const {
    void* const inputs[] = {a_ + at.a, b_ + at.b};
    void* const output = y_ + at.y;
    kernel.bind(inputs, std::span(&output, 1), scratch_);
  }

  std::vector<MatrixOffsets> offsets_;
  std::unique_ptr<Kernel> first_, further_;
  Bytes workspace_;
  float *a_ = nullptr, *b_ = nullptr, *y_ = nullptr;
  void* scratch_ = nullptr;
};

constexpr PrimitiveAttributes kAdding{.sum = true};

std::vector<KernelSpec> matmul_specs(const Graph& graph, const Op& op, LayoutFamily, int threads) {
  Graph plain;
  std::vector<TensorId> inputs;
  for (TensorId id : op.inputs) {
    const Tensor& tensor = graph.tensor(id);
    inputs.push_back(plain.add_source(fmt::format("{}", inputs.size()), tensor.shape, tensor.dtype, Role::input));
  }
  const Products p =
      read_products(plain, plain.op(plain.add_op(op.type->name, op.name, op.layer, inputs, op.attributes)));
  const ThreadCount scope(threads);
  const dnnl_matmul_desc_t operation = describe_products(p);
  const std::vector<Implementation> further =
      p.adds ? implementations(&operation, kAdding) : std::vector<Implementation>{};
  std::vector<KernelSpec> result;
  for (const Implementation& one : implementations(&operation)) {
    Bytes workspace = one.workspace();
    if (p.adds) {
      const auto adding =
          std::find_if(further.begin(), further.end(), [&](const auto& other) { return other.name == one.name; });
      if (adding == further.end()) continue;
      workspace = std::max(workspace, adding->workspace());
    }
    KernelSpec spec = make_spec(op, one.name, workspace);
    spec.algorithm = Algorithm::gemm;
    spec.estimate = {.efficiency = 0.8};
    result.push_back(std::move(spec));
  }
  if (result.empty()) {
    throw Error(ErrorCode::unsupported, fmt::format("op '{}' (MatMul): oneDNN has no kernel for products of {}x{} with "
                                                    "{}x{}",
                                                    op.name, p.matrices.m, p.matrices.k, p.matrices.k, p.matrices.n));
  }
  return result;
}

std::unique_ptr<Kernel> make_matmul(const Graph& graph, const Op& op, std::string_view kernel, int threads) {
  const ThreadCount scope(threads);
  Products p = read_products(graph, op);
  const dnnl_matmul_desc_t operation = describe_products(p);
  const auto first = find_implementation(&operation, kernel);
  const auto further = p.adds ? find_implementation(&operation, kernel, kAdding) : std::nullopt;
  if (!first || (p.adds && !further)) {
    throw Error(ErrorCode::unsupported, fmt::format("op '{}' (MatMul): no kernel '{}'", op.name, kernel));
  }
  return std::make_unique<MatMulKernel>(op, std::move(p.offsets), *first, further ? &*further : nullptr, threads);
}

}  // namespace

namespace {

// oneDNN's guess comes first. Of large products it is the tiled one, which copies a b that is not turned over: measured
// 10 to 25 % slower than the other.
const Implementation& best_of(const std::vector<Implementation>& list, const MatrixProducts& product) {
  constexpr int64_t kLarge = int64_t{1} << 26;  // multiply-adds
  if (product.transpose_b || product.m * product.n * product.k < kLarge) return list.front();
  const auto gemm = std::ranges::find_if(list, &Implementation::is_gemm);
  return gemm == list.end() ? list.front() : *gemm;
}

}  // namespace

std::unique_ptr<Kernel> make_product(const Op& op, const MatrixProducts& product, bool adds, int threads) {
  const ThreadCount scope(threads);
  Products p;
  p.matrices = product;
  const dnnl_matmul_desc_t operation = describe_products(p);
  const std::vector<Implementation> list = implementations(&operation, adds ? kAdding : PrimitiveAttributes{});
  if (!list.empty()) return make_products(op, best_of(list, product), threads);
  throw Error(ErrorCode::unsupported, fmt::format("op '{}' ({}): oneDNN has no kernel for products of {}x{} with {}x{}",
                                                  op.name, op.type->name, product.m, product.k, product.k, product.n));
}

std::vector<NamedFactory> dnnl_matmul_kernels() { return {{"MatMul", {matmul_specs, make_matmul}}}; }

}  // namespace plimsoll::cpu
