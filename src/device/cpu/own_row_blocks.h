// Kernels that run by blocks of rows, what they make of a block lying in their workspace. Each length of a block is a
// kernel, "rows=256", of its own time and workspace.
#pragma once

#include <fmt/format.h>

#include <charconv>

#include "device/cpu/own.h"
#include "device/cpu/product.h"

namespace plimsoll::cpu {

inline constexpr std::string_view kRowsPrefix = "rows=";

// Throws Error(unsupported) on another name.
inline int64_t rows_of_kernel(const Op& op, std::string_view kernel) {
  int64_t rows = 0;
  if (kernel.starts_with(kRowsPrefix)) {
    const char* end = kernel.data() + kernel.size();
    const auto [rest, error] = std::from_chars(kernel.data() + kRowsPrefix.size(), end, rows);
    if (error != std::errc() || rest != end) rows = 0;
  }
  if (rows >= 1) return rows;
  throw Error(ErrorCode::unsupported, fmt::format("op '{}' ({}): no kernel '{}'", op.name, op.type->name, kernel));
}

// The longest of `lengths` (rising) that is at most `most` goes first, or the shortest: the one that --exact takes, since
// blocks of other lengths sum a weight gradient in another order.
inline void put_usual_first(std::vector<int64_t>& lengths, int64_t most) {
  size_t usual = 0;
  while (usual + 1 < lengths.size() && lengths[usual + 1] <= most) ++usual;
  std::rotate(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(usual), lengths.end());
}

// A kernel for each length, all tensors row-major, the first exact. K(graph, op, rows, threads) is the kernel.
template <class K>
std::vector<KernelSpec> specs_by_rows(const Graph& graph, const Op& op, LayoutFamily family, int threads,
                                      const std::vector<int64_t>& lengths) {
  Graph alone;
  std::vector<TensorId> inputs;
  for (TensorId id : op.inputs) {
    const Tensor& t = graph.tensor(id);
    inputs.push_back(alone.add_source(fmt::format("{}", inputs.size()), t.shape, t.dtype, Role::input));
  }
  const OpId id = alone.add_op(op.type->name, op.name, op.layer, inputs, op.attributes);
  std::vector<KernelSpec> specs;
  for (const int64_t rows : lengths) {
    KernelSpec spec = own_specs_row_major(graph, op, family, threads).front();
    spec.name = fmt::format("{}{}", kRowsPrefix, rows);
    spec.workspace = K(alone, alone.op(id), rows, threads).workspace();
    spec.algorithm = Algorithm::gemm;
    spec.exact = specs.empty();
    // Every block walks over the weights, and over their gradient twice.
    spec.estimate = {.efficiency = 0.9 * static_cast<double>(rows) / static_cast<double>(rows + 64)};
    specs.push_back(std::move(spec));
  }
  return specs;
}

// Where parts of a workspace begin.
class WorkspaceLayout {
 public:
  int64_t place(int64_t bytes) {
    const int64_t begin = at_;
    at_ += (bytes + 63) / 64 * 64;
    return begin;
  }
  int64_t place_floats(int64_t count) { return place(count * static_cast<int64_t>(sizeof(float))); }
  Bytes bytes() const { return {at_}; }

 private:
  int64_t at_ = 0;
};

// A kernel for whole blocks and one for the last block, where it is smaller.
class BlockKernel {
 public:
  template <class Make>  // make(rows) -> std::unique_ptr<Kernel>
  void make(int64_t whole, int64_t last, const Make& make) {
    whole_ = make(whole);
    if (last != whole) last_ = make(last);
  }
  int64_t scratch() const {
    return std::max(whole_ ? whole_->workspace().count : 0, last_ ? last_->workspace().count : 0);
  }
  void run(bool last, std::span<const float* const> inputs, float* output, void* scratch) const {
    Kernel& kernel = *(last && last_ ? last_ : whole_);
    void* const to = output;
    kernel.bind(std::span(const_cast<void* const*>(reinterpret_cast<const void* const*>(inputs.data())), inputs.size()),
                std::span(&to, 1), scratch);
    kernel.run();
  }

 private:
  std::unique_ptr<Kernel> whole_, last_;
};

// The same of products.
class BlockProduct : public BlockKernel {
 public:
  template <class Shapes>  // shapes(rows) -> MatrixProducts
  void make(const Op& op, int64_t whole, int64_t last, int threads, const Shapes& shapes, bool adds = false) {
    BlockKernel::make(whole, last, [&](int64_t rows) { return make_product(op, shapes(rows), adds, threads); });
  }
  void run(bool last, const float* a, const float* b, float* y, void* scratch) const {
    const float* const inputs[] = {a, b};
    BlockKernel::run(last, inputs, y, scratch);
  }
};

}  // namespace plimsoll::cpu
