// LeNet's training step for a device, with all memory: convolutions and products enough for tests of what is chosen for them.
#pragma once

#include "plimsoll/compile.h"
#include "plimsoll/models.h"

namespace plimsoll::testing {

inline Program lenet(const Device& device, const CostTable& costs = CostTable(), bool exact = true) {
  const ModelInput input{.batch = 2, .channels = 3, .height = 32, .width = 32, .classes = 10, .training = true};
  auto result = compile_training(build_model("lenet", input), device, costs, {.policy = "liveness", .exact = exact});
  return std::get<Program>(std::move(result));
}

}  // namespace plimsoll::testing
