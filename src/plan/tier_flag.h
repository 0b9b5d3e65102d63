// How a user gives a tier more.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/device.h"

namespace plimsoll {

inline std::string_view tier_flag(std::string_view tier) {
  return tier == "disk"     ? "--spill"
         : tier == "peer"   ? "--peer"
         : tier == "remote" ? "--remote-memory"
                            : "--host-memory";
}

// For the end of a suggestion, where tiers are full.
inline std::string more_of_tiers(const std::vector<TierInfo>& tiers) {
  std::string flags;
  for (const TierInfo& tier : tiers)
    flags += std::string(flags.empty() ? "" : ", ") + std::string(tier_flag(tier.name));
  if (tiers.size() > 1) return ", or give the tiers more (" + flags + ")";
  if (tiers[0].name == "disk") return ", or give the disk more (--spill DIR:SIZE)";
  return ", or give more " + flags;
}

}  // namespace plimsoll
