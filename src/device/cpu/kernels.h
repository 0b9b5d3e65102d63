// The CPU device's kernels: each op family's file offers a factory per op type; device.cpp looks them up here.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plimsoll/device.h"

namespace plimsoll::cpu {

struct KernelFactory {
  // As Device::kernels and Device::make_kernel. `threads` is never 0 here.
  std::vector<KernelSpec> (*specs)(const Graph&, const Op&, LayoutFamily, int threads);
  std::unique_ptr<Kernel> (*make)(const Graph&, const Op&, std::string_view kernel, int threads);
  std::string_view name = {};  // the one kernel that it has, where an op type has several factories of ours
};
using NamedFactory = std::pair<std::string_view, KernelFactory>;  // op type, its factory

// oneDNN (dnnl_*.cpp)
std::vector<NamedFactory> dnnl_convolution_kernels();  // ConvForward, ConvBackwardData, ConvBackwardWeights, transposed
std::vector<NamedFactory> dnnl_fully_connected_kernels();
std::vector<NamedFactory> dnnl_matmul_kernels();
std::vector<NamedFactory> dnnl_pool_kernels();
std::vector<NamedFactory> reorder_kernels();

// Ours (own_*.cpp), all of them: compiled for the instructions that this processor has
std::vector<NamedFactory> own_kernels();
std::vector<NamedFactory> amx_kernels();  // fully connected layers and convolutions of one tap, on processors with AMX
std::vector<NamedFactory> attention_kernels();
std::vector<NamedFactory> batch_norm_kernels();
std::vector<NamedFactory> cumulative_sum_kernels();
std::vector<NamedFactory> depthwise_kernels();    // ConvBackwardWeights, beside oneDNN's
std::vector<NamedFactory> elementwise_kernels();  // activations, Add, Bias, Constant
std::vector<NamedFactory> lrn_kernels();
std::vector<NamedFactory> concat_kernels();  // Concat, Slice
std::vector<NamedFactory> linear_cross_entropy_kernels();
std::vector<NamedFactory> loss_kernels();
std::vector<NamedFactory> norm_kernels();  // LayerNorm, RmsNorm, GroupNorm
std::vector<NamedFactory> pad_kernels();
std::vector<NamedFactory> permute_kernels();
std::vector<NamedFactory> pointwise_kernels();  // Cast, Expand, Pointwise
std::vector<NamedFactory> pointwise_linear_kernels();
std::vector<NamedFactory> random_kernels();  // Dropout, Bernoulli, RandomNormal
std::vector<NamedFactory> recurrent_kernels();
std::vector<NamedFactory> reduce_kernels();
std::vector<NamedFactory> resize_kernels();  // and adaptive pooling
std::vector<NamedFactory> rotary_kernels();
std::vector<NamedFactory> softmax_kernels();
std::vector<NamedFactory> sort_kernels();      // Sort, TopK
std::vector<NamedFactory> take_kernels();      // Embedding, IndexSelect, Index, Gather
std::vector<NamedFactory> update_kernels();    // SGD, Adam, sums of gradients
std::vector<NamedFactory> winograd_kernels();  // convolutions of 3x3 to 5x5, beside oneDNN's

// The layout of a 4-D image tensor in a family: row-major (""), "acdb", "aBcd16b"; row-major for every other rank.
Layout family_layout(LayoutFamily family, size_t rank);

}  // namespace plimsoll::cpu
