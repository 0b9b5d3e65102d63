// NVIDIA GPUs: one cudaMalloc as arena, cuDNN's and cuBLASLt's kernels and our own, queues that copy beside compute.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/door.h"
#include "device/tensor_heap.h"
#include "plimsoll/device.h"

namespace plimsoll::cuda {

// "cuda", "cuda:1", "cuda:0+tf32" (kernels on tensor cores with inputs rounded to TF32 are offered too); nullptr for a
// name that is no CUDA device's. Throws Error(unsupported) with the reason why there is no such device.
std::unique_ptr<Device> open(std::string_view name);
std::vector<DeviceListing> list();

// Of several ranks on a machine, for that with this number: where `device` names no GPU ("cuda", "cuda+tf32"), each takes
// the next of those that its process sees, and the first again behind the last. Else the same name.
std::string device_of_rank(std::string_view device, int place);

// cudaMalloc, cudaMallocAsync; none of another device.
std::vector<std::unique_ptr<TensorHeap>> tensor_heaps(const Device& device);

// The same behind another door, for tests, with doors to its peers.
using DoorTo = std::function<std::shared_ptr<Door>(int device)>;
std::unique_ptr<Device> open_behind(std::shared_ptr<Door> door, std::string name, bool tf32, DoorTo peers = {});

}  // namespace plimsoll::cuda
