// Puts into a plan what is decided outside of it about how it shares the cores.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "cores/side_by_side.h"

namespace plimsoll {

inline void put_sharing(CoreSharing& cores, const Sharing& sharing, const DeviceInfo& device) {
  if (!sharing.choose && sharing.inter_op < 2) return;
  cores.cores = std::min(sharing.cores, device.cores.cores);
  cores.hardware_threads = sharing.hardware_threads;
}

inline std::vector<std::pair<OpId, OpId>> conflicting_ops(const Program& program, const CostTable& costs, const OpPairs& conflicts = {}) {
  const Plan& plan = program.plan;
  std::set<std::pair<int32_t, int32_t>> ops;
  for (const auto& [a, b] : conflicting_steps(program, costs, conflicts)) {
    ops.insert(std::minmax(plan.steps[static_cast<size_t>(a)].op.index, plan.steps[static_cast<size_t>(b)].op.index));
  }
  std::vector<std::pair<OpId, OpId>> pairs;
  for (const auto& [a, b] : ops) pairs.emplace_back(OpId{a}, OpId{b});
  return pairs;
}

}  // namespace plimsoll
