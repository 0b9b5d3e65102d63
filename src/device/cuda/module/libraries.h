// cuDNN's convolutions and cuBLASLt's products as prepared operations.
#pragma once

#include "device/cuda/door.h"
#include "device/cuda/module/check.h"

namespace plimsoll::cuda {

// Workspaces of libraries begin at a multiple of 256 bytes, as if cudaMalloc had given them; those in the arena, at one
// of
// 64. So we ask for some more, and begin where it suits them.
inline constexpr size_t kWorkspaceAlignment = 256, kWorkspaceSlack = kWorkspaceAlignment - 64;
inline Bytes with_slack(size_t bytes) { return {static_cast<int64_t>(bytes > 0 ? bytes + kWorkspaceSlack : 0)}; }
inline void* aligned_workspace(void* workspace) {
  const auto address = reinterpret_cast<uintptr_t>(workspace);
  return reinterpret_cast<void*>((address + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment);
}

std::vector<ConvolutionAlgorithm> convolution_algorithms(cudnnHandle_t handle, const Convolution& convolution,
                                                         bool tf32);
// The handle's stream is where it runs.
std::unique_ptr<Prepared> prepare_convolution(cudnnHandle_t handle, const Convolution& convolution,
                                              const ConvolutionAlgorithm& algorithm);
std::unique_ptr<Prepared> prepare_product(cublasLtHandle_t handle, cudaStream_t stream, const Product& product,
                                          Bytes workspace);

}  // namespace plimsoll::cuda
