// Engines side by side: one that computes, and for each tier one that copies out and one that copies in. The rules are
// those of Move (plan.h). What simulate.h tells of a plan, and what a planner asks of a schedule that has no offsets
// yet.
#pragma once

#include <span>
#include <vector>

#include "plimsoll/plan.h"

namespace plimsoll {

inline constexpr double kLeastComputeSpeed = 0.05;  // however many copies run beside it, on engines of their own

struct EngineMove {
  bool out = false;
  int32_t tier = 0;
  int64_t bytes = 0;
  int32_t after = -1, before = 0;
};

// Collectives, in order.
struct EngineCollective {
  int32_t last = 0, before = 0;  // steps
  double ms = 0;
};

struct EngineTimes {
  double total_ms = 0, stall_ms = 0, copy_ms = 0, communication_ms = 0, communication_stall_ms = 0;
};

// With a timeline: a span for every step, every move and every collective. `share`: of compute's speed that messages take.
EngineTimes run_engines(std::span<const double> step_ms, std::span<const EngineMove> moves,
                        std::span<const TierInfo> tiers, std::vector<EngineSpan>* timeline = nullptr,
                        std::span<const EngineCollective> collectives = {}, double share = 0);

}  // namespace plimsoll
