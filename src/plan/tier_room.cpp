#include "plan/tier_room.h"

#include <algorithm>

namespace plimsoll {
namespace {

// Where a value lies when it is not in the arena; -1: nowhere, or in the slot of the state that it replaces.
int8_t tier_of(const ValueTimeline& timeline, const Decisions& decisions, size_t v) {
  const TimelineValue& value = timeline.values[v];
  if (value.before >= 0 && decisions.home[value.before] >= 0) return -1;
  if (decisions.home[v] >= 0) return decisions.home[v];
  for (int32_t g = 0; g < value.gap_count(); ++g) {
    const Choice choice = decisions.gaps[value.first_gap + g];
    if (choice >= kOffload) return static_cast<int8_t>(choice - kOffload);
  }
  return -1;
}

}  // namespace

TierRoom::TierRoom(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, const Decisions& decisions) {
  for (const TierInfo& tier : tiers) {
    if (tier.capacity.count > tiers[largest_].capacity.count) largest_ = static_cast<int8_t>(left_.size());
    left_.push_back(tier.capacity.count);
  }
  if (tiers.empty()) return;
  for (size_t v = 0; v < timeline.values.size(); ++v) {
    if (const int8_t tier = tier_of(timeline, decisions, v); tier >= 0) take(tier, timeline.values[v].bytes);
  }
}

int8_t TierRoom::first(int64_t bytes) const {
  for (int8_t t = 0; t < static_cast<int8_t>(left_.size()); ++t) {
    if (has(t, bytes)) return t;
  }
  return largest_;
}

bool TierRoom::overfull() const {
  return std::any_of(left_.begin(), left_.end(), [](int64_t left) { return left < 0; });
}

int64_t TierRoom::slot_bytes(int64_t bytes) { return align_up(Bytes{bytes}, kSlotAlignment).count; }

}  // namespace plimsoll
