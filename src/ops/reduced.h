// What Reduce's attributes say, for its kernels.
#pragma once

#include <limits>
#include <vector>

#include "plimsoll/ops.h"

namespace plimsoll {

enum class ReduceFunction : uint8_t { sum, mean, max, min };
ReduceFunction reduce_function(const Attributes& attributes);
inline double reduce_start(ReduceFunction function) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return function == ReduceFunction::max ? -infinity : function == ReduceFunction::min ? infinity : 0;
}
// By dimension of `shape`; without "dims" all of them. Throws Error(invalid_input) on one that is not there.
std::vector<bool> reduced_dimensions(const Attributes& attributes, const Shape& shape);

}  // namespace plimsoll
