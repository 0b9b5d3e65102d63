// Turns the errors of CUDA, cuDNN and cuBLAS into ours, with the failed call as text.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <string>
#include <string_view>

#include "plimsoll/error.h"

namespace plimsoll::cuda {

// "cudaMalloc(&memory, bytes): out of memory (cudaErrorMemoryAllocation)"; `about` is said after it.
[[noreturn]] void throw_failure(const char* call, const std::string& reason, const std::string& about = {});
inline std::string reason_of(cudaError_t status) {
  return std::string(cudaGetErrorString(status)) + " (" + cudaGetErrorName(status) + ")";
}
// With what cuDNN itself says of its last error, which names the reason.
inline std::string reason_of(cudnnStatus_t status) {
  char said[1024] = {};
  cudnnGetLastErrorString(said, sizeof(said));
  std::string_view text(said);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  const std::string name = cudnnGetErrorString(status);
  return text.empty() ? name : name + " (" + std::string(text) + ")";
}
inline std::string reason_of(cublasStatus_t status) { return cublasLtGetStatusString(status); }

template <class Status>
void check_call(Status status, const char* call) {
  if (status != Status{}) throw_failure(call, reason_of(status));  // success is 0 in all three
}
#define PLIMSOLL_CUDA(call) ::plimsoll::cuda::check_call(call, #call)

}  // namespace plimsoll::cuda
