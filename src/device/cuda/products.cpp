#include "device/cuda/products.h"

#include <fmt/format.h>

#include <algorithm>

#include "device/cuda/product_library.h"
#include "plimsoll/error.h"

namespace plimsoll::cuda {
namespace {

constexpr std::string_view kBest = "cublaslt", kLean = "cublaslt:no_workspace", kByName = "cublaslt:";
constexpr double kBestEfficiency = 0.8, kFurtherEfficiency = 0.75;

// Whether the result is added to makes no difference to an algorithm.
std::string key_of(const Product& p) {
  return fmt::format("{} {} {} {} {} {} {} {}", p.m, p.n, p.k, p.transpose_a, p.transpose_b, p.bias, p.relu, p.tf32) +
         fmt::format(" {} {} {} {} {} {} {}", p.batch, p.to_a, p.to_b, p.to_out, p.row_a(), p.row_b(), p.row_out());
}

ProductWays ask_for_ways(Door& door, const Product& product) {
  ProductWays ways;
  const auto best = door.prepare(product, kMostProductWorkspace);
  if (best) ways.best = best->workspace();
  const bool is_lean = best && best->workspace() == Bytes{};
  if (const auto lean = is_lean ? nullptr : door.prepare(product, Bytes{})) ways.without_workspace = lean->workspace();
  if (best) ways.further = door.product_algorithms(product, kMostProductWorkspace);
  return ways;
}

ProductWays ways_of(const Context& context, const Product& product) {
  const std::lock_guard lock(context.mutex);
  const std::string key = key_of(product);
  if (const auto known = context.products.find(key); known != context.products.end()) return known->second;
  return context.products.emplace(key, ask_for_ways(*context.door, product)).first->second;
}

// What cuBLASLt offered and then refused to run is not offered again.
void forget(const Context& context, const Product& product, const std::string& name) {
  const std::lock_guard lock(context.mutex);
  const auto known = context.products.find(key_of(product));
  if (known == context.products.end()) return;
  std::erase_if(known->second.further, [&](const ProductAlgorithm& a) { return a.name == name; });
}

}  // namespace

bool is_product(std::string_view kernel) { return kernel.starts_with(kBest); }

std::vector<ProductChoice> choices_of(const Context& context, const Product& product, const ProductChoices& options) {
  std::vector<ProductChoice> list;
  for (const bool tf32 : {true, false}) {
    if (tf32 && !context.tf32) continue;
    Product one = product;
    one.tf32 = tf32;
    const auto add = [&](std::string_view name, Bytes workspace, double efficiency) {
      list.push_back({.name = std::string(name) + std::string(tf32 ? kTf32 : ""),
                      .tf32 = tf32,
                      .workspace = workspace,
                      .efficiency = tf32 ? kTf32Speed * efficiency : efficiency});
    };
    const ProductWays ways = ways_of(context, one);
    if (ways.best) add(kBest, *ways.best, kBestEfficiency);
    if (options.without_workspace && ways.without_workspace) add(kLean, *ways.without_workspace, kBestEfficiency);
    size_t undivided = 0;
    for (const ProductAlgorithm& a : ways.further) {
      const auto configuration = parse_product_algorithm(a.name);
      if (configuration && configuration->split_k <= 1 && undivided++ >= options.further) continue;
      add(std::string(kByName) + a.name, a.workspace, kFurtherEfficiency);
      list.back().is_further = true;
    }
  }
  return list;
}

std::optional<Bytes> workspace_of(const Context& context, const Product& product) {
  return ways_of(context, product).best;
}

KernelSpec spec_of(const ProductChoice& choice, KernelSpec spec) {
  spec.name = choice.name;
  spec.workspace = std::max(spec.workspace, choice.workspace);
  spec.exact = !choice.tf32;
  spec.algorithm = Algorithm::gemm;
  spec.estimate = {.efficiency = choice.efficiency};
  return spec;
}

NamedProduct::NamedProduct(const Context& context, const Op& op, std::string_view kernel, Product product)
    : context_(context), product_(product) {
  std::string_view name = kernel;
  product_.tf32 = name.ends_with(kTf32);
  if (product_.tf32) name.remove_suffix(kTf32.size());
  if (product_.tf32 && !context.tf32) throw_no_kernel(op, kernel);
  if (name == kBest || name == kLean) {
    prepared_ = context.door->prepare(product_, name == kLean ? Bytes{} : kMostProductWorkspace);
    if (!prepared_) throw_no_kernel(op, kernel);
    return;
  }
  if (!name.starts_with(kByName)) throw_no_kernel(op, kernel);
  name.remove_prefix(kByName.size());
  if (!parse_product_algorithm(name)) throw_no_kernel(op, kernel);
  algorithm_ = {.name = std::string(name), .workspace = kMostProductWorkspace};
  try {
    prepared_ = context.door->prepare(product_, algorithm_);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    refusal_ = error.what();
    algorithm_.workspace = {};
  }
}

void NamedProduct::run(const void* a, const void* b, const void* bias, void* out, void* workspace) {
  try {
    if (!prepared_) throw Error(ErrorCode::unsupported, refusal_);
    prepared_->run(a, b, bias, out, workspace);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unsupported && !algorithm_.name.empty()) forget(context_, product_, algorithm_.name);
    throw;
  }
}

}  // namespace plimsoll::cuda
