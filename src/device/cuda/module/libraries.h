// cuDNN's convolutions and cuBLASLt's products as prepared operations.
#pragma once

#include <algorithm>

#include "device/cuda/convolution_library.h"
#include "device/cuda/module/check.h"
#include "device/cuda/product_library.h"

namespace plimsoll::cuda {

// Workspaces of libraries begin at a multiple of 256 bytes, as if cudaMalloc had given them; those in the arena, at one
// of 64. So we ask for some more, and begin where it suits them.
inline constexpr size_t kWorkspaceAlignment = 256, kWorkspaceSlack = kWorkspaceAlignment - 64;
inline size_t with_slack(size_t bytes) { return bytes == 0 ? 0 : bytes + std::min(kWorkspaceSlack, SIZE_MAX - bytes); }
inline size_t without_slack(size_t bytes) { return bytes > kWorkspaceSlack ? bytes - kWorkspaceSlack : 0; }
inline void* aligned_workspace(void* workspace) {
  const auto address = reinterpret_cast<uintptr_t>(workspace);
  return reinterpret_cast<void*>((address + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment);
}

// With cuDNN's numbers, the call that failed, and what cuDNN says of it.
inline Answer answer_of(cudnnStatus_t status, std::string_view call) {
  if (status == CUDNN_STATUS_SUCCESS) return {};
  return {static_cast<int>(status), std::string(call) + ": " + reason_of(status)};
}
// Returns the answer of a call that is not done.
#define PLIMSOLL_ASK(call)                                                                        \
  do {                                                                                            \
    constexpr std::string_view text = #call;                                                      \
    const cudnnStatus_t status = call;                                                            \
    if (status != CUDNN_STATUS_SUCCESS) return answer_of(status, text.substr(0, text.find('('))); \
  } while (false)

// Throws Error(unsupported) where cuDNN's parts are not all of one version.
void require_one_cudnn();
std::string cudnn_version(size_t number);  // 91900 is "9.19.0"
// The handle's stream is where convolutions run.
std::unique_ptr<ConvolutionLibrary> open_cudnn(cudnnHandle_t handle, cudaStream_t stream);
// By its best guess; null where there is none.
std::unique_ptr<Prepared> prepare_product(cublasLtHandle_t handle, cudaStream_t stream, const Product& product,
                                          Bytes workspace);
std::unique_ptr<ProductLibrary> open_cublas(cublasLtHandle_t handle, cudaStream_t stream, int processors);

}  // namespace plimsoll::cuda
