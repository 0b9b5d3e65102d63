// Which steps must be done before which, in any order of a step's ops.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/value_timeline.h"

namespace plimsoll {

// Those that make what it reads, and, of one that must overwrite, all other readers.
class OrderConstraints {
 public:
  OrderConstraints(const Graph& graph, const ValueTimeline& timeline);
  int32_t count() const { return static_cast<int32_t>(before_.size()); }
  const std::vector<int32_t>& before(int32_t step) const { return before_[step]; }
  const std::vector<int32_t>& after(int32_t step) const { return after_[step]; }
  bool waits(int32_t step, int32_t for_step) const;

 private:
  std::vector<std::vector<int32_t>> before_, after_;
};

}  // namespace plimsoll
