// What of the host's memory stands between a batch and a device with memory of its own.
#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "plimsoll/device.h"

namespace plimsoll::python {

// The dimensions of a tensor from the outermost to the innermost as they lie; nothing where some are cut into blocks.
std::optional<std::vector<size_t>> order_of(const Tensor& tensor);

// Pinned memory for one input at a time: the next one may come when the last has been copied.
class Staging {
 public:
  std::span<std::byte> room(const Device& device, size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t bytes_ = 0;
  std::shared_ptr<void> pinned_;  // goes before the memory
};

}  // namespace plimsoll::python
