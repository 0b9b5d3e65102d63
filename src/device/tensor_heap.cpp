#include "device/tensor_heap.h"

#include <cstdlib>
#include <new>

#include "device/cuda/device.h"

namespace plimsoll {
namespace {

class HostHeap final : public TensorHeap {
 public:
  std::string_view name() const override { return "malloc"; }
  void* take(size_t bytes) override {
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }
  void give_back(void* memory, size_t) override { std::free(memory); }
};

}  // namespace

std::vector<std::unique_ptr<TensorHeap>> tensor_heaps(const Device& device) {
  std::vector<std::unique_ptr<TensorHeap>> heaps = cuda::tensor_heaps(device);
  if (device.host_addressable()) heaps.push_back(std::make_unique<HostHeap>());
  return heaps;
}

}  // namespace plimsoll
