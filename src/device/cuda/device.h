// NVIDIA GPUs: one cudaMalloc as arena, cuDNN's and cuBLASLt's kernels and our own, queues that copy beside compute.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "device/cuda/door.h"
#include "plimsoll/device.h"

namespace plimsoll::cuda {

// "cuda", "cuda:1", "cuda:0+tf32" (kernels on tensor cores with inputs rounded to TF32 are offered too); nullptr for a
// name that is no CUDA device's. Throws Error(unsupported) with the reason why there is no such device.
std::unique_ptr<Device> open(std::string_view name);
std::vector<DeviceListing> list();

// The same behind another door, for tests.
std::unique_ptr<Device> open_behind(std::shared_ptr<Door> door, std::string name, bool tf32);

}  // namespace plimsoll::cuda
