// One kernel on memory of a device's, with inputs that are the same for every kernel.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "plimsoll/device.h"
#include "plimsoll/graph.h"

namespace plimsoll::testing {

inline float input_value(int64_t i) { return static_cast<float>(i * 37 % 101) / 50 - 1; }

// All outputs, one after the other.
inline std::vector<float> run_kernel(const Device& device, const Graph& graph, const Op& op, Kernel& kernel) {
  const auto count = [&](TensorId id) { return static_cast<size_t>(element_count(graph.tensor(id).shape)); };
  const auto size = [&](TensorId id) { return align_up(graph.tensor(id).bytes(), 64); };
  Bytes bytes = kernel.workspace();
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (const TensorId id : *list) bytes += size(id);
  }
  const auto arena = device.take_arena(bytes);
  std::byte* at = arena->base();
  std::vector<void*> inputs, outputs;
  for (const TensorId id : op.inputs) {
    std::vector<float> values(count(id));
    for (size_t i = 0; i < values.size(); ++i) values[i] = input_value(static_cast<int64_t>(i));
    device.write(at, std::as_bytes(std::span(values)));
    inputs.push_back(std::exchange(at, at + size(id).count));
  }
  for (const TensorId id : op.outputs) outputs.push_back(std::exchange(at, at + size(id).count));
  kernel.bind(inputs, outputs, at);
  kernel.run();
  if (const auto queues = device.open_queues()) queues->synchronize();
  std::vector<float> all;
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::vector<float> result(count(op.outputs[i]));
    device.read(std::as_writable_bytes(std::span(result)), static_cast<std::byte*>(outputs[i]));
    all.insert(all.end(), result.begin(), result.end());
  }
  return all;
}

}  // namespace plimsoll::testing
