// Products of matrices as kernels have them in their names: cuBLASLt's best guess, the best without workspace, and further
// configurations of its algorithms (product_library.h).
//
//   "cublaslt"   "cublaslt:no_workspace"   "cublaslt:algo21_tile18_stages15"   each with ":tf32" behind it, or without
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/kernels.h"

namespace plimsoll::cuda {

inline constexpr Bytes kMostProductWorkspace = 32_MiB;

bool is_product(std::string_view kernel);

struct ProductChoice {
  std::string name;
  bool tf32 = false;
  Bytes workspace;
  double efficiency = 0;  // as an estimate has it: without measurements the best guess comes first
  bool is_further = false;
};
struct ProductChoices {
  bool without_workspace = false;  // the best without it, where the best guess has some
  size_t further = SIZE_MAX;       // at most so many configurations that do not divide K
};
// The best guess first; none where cuBLASLt has none.
std::vector<ProductChoice> choices_of(const Context& context, const Product& product, const ProductChoices& options);
// Of the best guess; none where cuBLASLt has none.
std::optional<Bytes> workspace_of(const Context& context, const Product& product);
// A spec with these, in the layouts of `spec`, and room for what else the kernel needs.
KernelSpec spec_of(const ProductChoice& choice, KernelSpec spec);

class NamedProduct {
 public:
  // Of a kernel's name. Throws Error(unsupported) that names the op where that is none of these. What cuBLASLt does not make
  // again is refused when it is run.
  NamedProduct(const Context& context, const Op& op, std::string_view kernel, Product product);
  Bytes workspace() const { return prepared_ ? prepared_->workspace() : algorithm_.workspace; }
  // As Prepared::run. Throws Error(unsupported) where it is refused: then it is not offered again.
  void run(const void* a, const void* b, const void* bias, void* out, void* workspace);

 private:
  const Context& context_;  // the device's, which outlives its kernels
  Product product_;
  ProductAlgorithm algorithm_;  // no name: the best guess
  std::unique_ptr<Prepared> prepared_;
  std::string refusal_;
};

}  // namespace plimsoll::cuda
