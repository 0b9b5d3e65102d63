// What tests of passes ask: how many ops of a type a network has, and what one training step by the reference kernels makes of its states.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "plimsoll/models.h"
#include "tests/support/interpreter.h"

namespace plimsoll::testing {

inline int count_ops(const Network& network, std::string_view type) {
  return static_cast<int>(
      std::ranges::count_if(network.graph.ops(), [&](const Op& op) { return op.type->name == type; }));
}

// All elements of all states after the step, one state after the other. Sources are drawn by seed 1, the learning rate is 0.1.
inline std::vector<double> trained_values(const Network& training) {
  const Graph& graph = training.graph;
  Values values(graph);
  fill_sources(graph, values, 1);
  if (const TensorId rate = graph.find_tensor("learning_rate"); rate.valid()) values[rate].set(0, 0.1);
  interpret(graph, values);
  std::vector<double> result;
  for (const State& state : graph.states) {
    for (int64_t i = 0; i < values[state.after].size(); ++i) result.push_back(values[state.after].at(i));
  }
  return result;
}

}  // namespace plimsoll::testing
