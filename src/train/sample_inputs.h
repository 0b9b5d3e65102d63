// What a step reads from outside, for who only wants to know how long it takes: pixels between -1 and 1, all else zero.
// Written before every step, since in it other tensors take these bytes over: labels would be whatever lay there last.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "plimsoll/execute.h"
#include "plimsoll/graph.h"

namespace plimsoll {

class SampleInputs {
 public:
  explicit SampleInputs(const Graph& graph);
  void write(Executor& executor) const;

 private:
  std::vector<std::pair<TensorId, std::vector<std::byte>>> values_;
};

}  // namespace plimsoll
