// What a training step reads, made up: labels, images and hyperparameters that differ from step to step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plimsoll/execute.h"
#include "plimsoll/graph.h"

namespace plimsoll {

inline void write_inputs(Executor& executor, const Graph& graph, int64_t step, float hyperparameter = 0.05F) {
  for (int32_t i = 0; i < graph.tensor_count(); ++i) {
    const Tensor& t = graph.tensor({i});
    if (t.producer.valid() || (t.role != Role::input && t.role != Role::hyperparameter)) continue;
    const int64_t count = element_count(t.shape);
    if (t.dtype == DType::i32) {
      std::vector<int32_t> labels;
      for (int64_t k = 0; k < count; ++k) labels.push_back(static_cast<int32_t>((k + step) % 10));
      executor.write({i}, std::as_bytes(std::span(labels)));
    } else if (t.dtype == DType::i64) {
      const std::vector<int64_t> values(count, step);
      executor.write({i}, std::as_bytes(std::span(values)));
    } else {
      std::vector<float> values;
      for (int64_t k = 0; k < count; ++k) {
        values.push_back(t.role == Role::hyperparameter ? hyperparameter
                                                        : static_cast<float>((k * 37 + step * 11) % 101) / 50 - 1);
      }
      executor.write({i}, std::as_bytes(std::span(values)));
    }
  }
}

}  // namespace plimsoll
