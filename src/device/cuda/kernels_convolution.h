// What kernels_convolution.cpp offers beside cuDNN's algorithms.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "device/cuda/kernels.h"

namespace plimsoll::cuda {

// Of a 1 x 1 kernel that goes over all pixels, as products of matrices (kernels_convolution_product.cpp): ConvForward,
// ConvBackwardData and ConvBackwardWeights. None for other convolutions. Layouts and room for sums of the bias are those of `like`.
std::vector<KernelSpec> product_convolution_specs(const Context& context, const Op& op, const Convolution& convolution,
                                                  const KernelSpec& like);
// By the name of one of these. Throws Error(unsupported) that names the op where it has none of this name.
std::unique_ptr<Kernel> make_product_convolution(const Context& context, const Graph& graph, const Op& op,
                                                 const Convolution& convolution, std::string_view kernel);

}  // namespace plimsoll::cuda
