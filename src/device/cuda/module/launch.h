// Launches of our own kernels, by number.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace plimsoll::cuda {

int body_count();
cudaError_t launch_body(int number, const void* parameters, int64_t count, cudaStream_t stream);

}  // namespace plimsoll::cuda
