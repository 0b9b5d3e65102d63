// All of our own kernels. Compiled once for each instruction set, this function has another name in each.
#include "device/cpu/kernels.h"

#ifndef PLIMSOLL_OWN_KERNELS
#define PLIMSOLL_OWN_KERNELS own_kernels
#endif

namespace plimsoll::cpu {

std::vector<NamedFactory> PLIMSOLL_OWN_KERNELS() {
  std::vector<NamedFactory> all;
  for (auto family : {attention_kernels,
                      batch_norm_kernels,
                      depthwise_kernels,
                      elementwise_kernels,
                      linear_cross_entropy_kernels,
                      loss_kernels,
                      pointwise_kernels,
                      recurrent_kernels,
                      reduce_kernels,
                      update_kernels,
                      lrn_kernels,
                      norm_kernels,
                      softmax_kernels,
                      random_kernels,
                      concat_kernels,
                      pad_kernels,
                      permute_kernels,
                      resize_kernels,
                      rotary_kernels,
                      take_kernels,
                      sort_kernels,
                      cumulative_sum_kernels,
                      pointwise_linear_kernels,
                      winograd_kernels,
                      amx_kernels}) {
    for (const NamedFactory& factory : family()) all.push_back(factory);
  }
  return all;
}

}  // namespace plimsoll::cpu
