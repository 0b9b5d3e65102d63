// Memory for one tensor at a time, as a runtime without a plan gets it: what a plan is compared with, and nothing else.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "plimsoll/device.h"

namespace plimsoll {

class TensorHeap {
 public:
  virtual ~TensorHeap() = default;
  virtual std::string_view name() const = 0;  // the call that it is: "cudaMalloc"
  virtual void* take(size_t bytes) = 0;
  // Kernels that were asked for before may still use it.
  virtual void give_back(void* memory, size_t bytes) = 0;
};

// What the device's own libraries offer.
std::vector<std::unique_ptr<TensorHeap>> tensor_heaps(const Device& device);

}  // namespace plimsoll
