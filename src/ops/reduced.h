// What Reduce's attributes say, for its kernels.
#pragma once

#include <limits>
#include <vector>

#include "plimsoll/ops.h"

namespace plimsoll {

enum class ReduceFunction : uint8_t { sum, mean, max, min, mean_of_squares };
ReduceFunction reduce_function(const Attributes& attributes);
inline double reduce_start(ReduceFunction function) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return function == ReduceFunction::max ? -infinity : function == ReduceFunction::min ? infinity : 0;
}
inline bool is_mean(ReduceFunction f) { return f == ReduceFunction::mean || f == ReduceFunction::mean_of_squares; }
// By dimension of `shape`; without "dims" all of them. Throws Error(invalid_input) on one that is not there.
std::vector<bool> reduced_dimensions(const Attributes& attributes, const Shape& shape);

}  // namespace plimsoll
