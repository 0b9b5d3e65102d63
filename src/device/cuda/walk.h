// Loops of the ops as the bodies take them.
#pragma once

#include <fmt/format.h>

#include "device/cuda/bodies/move.h"
#include "ops/move.h"

namespace plimsoll::cuda {

inline void require_dimensions(const Op& op, size_t count) {
  if (count <= kMostDimensions) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("op '{}' ({}): {} dimensions are left, CUDA's kernels walk through {}", op.name,
                          op.type->name, count, kMostDimensions));
}
// Through the source, or the target, of such loops.
inline Walk walk_of(const Op& op, const std::vector<MoveLoop>& loops, int64_t MoveLoop::*side) {
  require_dimensions(op, loops.size());
  Walk walk{.rank = static_cast<int32_t>(loops.size())};
  for (size_t d = 0; d < loops.size(); ++d) {
    walk.size[d] = loops[d].size;
    walk.step[d] = loops[d].*side;
  }
  return walk;
}

}  // namespace plimsoll::cuda
