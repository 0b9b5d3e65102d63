// cuDNN's convolutions and cuBLASLt's products as prepared operations.
#pragma once

#include "device/cuda/door.h"
#include "device/cuda/module/check.h"

namespace plimsoll::cuda {

std::vector<ConvolutionAlgorithm> convolution_algorithms(cudnnHandle_t handle, const Convolution& convolution,
                                                         bool tf32);
// The handle's stream is where it runs.
std::unique_ptr<Prepared> prepare_convolution(cudnnHandle_t handle, const Convolution& convolution,
                                              const ConvolutionAlgorithm& algorithm);
std::unique_ptr<Prepared> prepare_product(cublasLtHandle_t handle, cudaStream_t stream, const Product& product,
                                          Bytes workspace);

}  // namespace plimsoll::cuda
