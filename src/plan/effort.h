// What planning has taken in this process, in things done and not in time: tests hold it low.
#pragma once

#include <atomic>
#include <cstdint>

namespace plimsoll {

struct PlanningEffort {
  std::atomic<int64_t> scheduled_steps = 0;  // over all schedules that were tried
  std::atomic<int64_t> placements = 0;       // by `offline`
  std::atomic<int64_t> placement_looks = 0;  // at items, of their searches
};
inline PlanningEffort& planning_effort() {
  static PlanningEffort effort;
  return effort;
}

}  // namespace plimsoll
