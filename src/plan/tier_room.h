// What is left of the tiers beside given decisions.
#pragma once

#include "plan/schedule.h"

namespace plimsoll {

// A slot is counted as if it were its value's own for the whole step.
class TierRoom {
 public:
  TierRoom(const ValueTimeline& timeline, const std::vector<TierInfo>& tiers, const Decisions& decisions);
  bool has(int8_t tier, int64_t bytes) const { return slot_bytes(bytes) <= left_[tier]; }
  void take(int8_t tier, int64_t bytes) { left_[tier] -= slot_bytes(bytes); }
  // The first tier that has room; the largest when none has.
  int8_t first(int64_t bytes) const;
  bool overfull() const;

 private:
  static int64_t slot_bytes(int64_t bytes);
  std::vector<int64_t> left_;
  int8_t largest_ = 0;
};

}  // namespace plimsoll
