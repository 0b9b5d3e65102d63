// auto's plans by the trade-off curve between memory and time (plan/tradeoff.h). The whole curve is found first, without
// regard to the budget, which then chooses the fastest point that fits. So more memory is never predicted slower.
#pragma once

#include <memory>
#include <optional>

#include "plan/policy.h"
#include "plan/tradeoff.h"

namespace plimsoll {

inline constexpr size_t kManySteps = 20'000;   // a search over them would take minutes
inline constexpr double kRounding = 1 - 1e-9;  // of sums in another order
// Whether a plan that takes at least `bound_ms` may take less than `ms`.
inline bool may_be_faster(double bound_ms, double ms) { return bound_ms < kAnyTime && bound_ms * kRounding < ms; }
inline Bytes more_than(Bytes bytes) { return {bytes.count == INT64_MAX ? bytes.count : bytes.count + 1}; }

// Of one network and budget. `input` outlives it.
class CurvePlanner {
 public:
  explicit CurvePlanner(const PolicyInput& input);
  ~CurvePlanner();
  // The fastest plan that is found within the budget; else the smallest.
  PlanOrInfeasible plan();
  // After plan(): the smallest, whether it fits or not.
  PlanOrInfeasible smallest(const PolicyInput& input);
  // The plan that needs the least arena of those that need less than `below`; nothing: there is none.
  std::optional<Plan> least(Bytes below);
  // Copies in place of some of what runs again in `sequence`, steps of the timeline that run without copies.
  std::optional<Plan> with_copies(const std::vector<int32_t>& sequence);
  // The ways down, for whatever budget.
  Descents descents();

 private:
  class Search;
  std::unique_ptr<Search> search_;
};

}  // namespace plimsoll
