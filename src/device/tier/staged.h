// A tier as seen from an arena that the host cannot address: every copy goes piece by piece through pinned host memory.
#pragma once

#include <memory>

#include "device/tier/tier.h"
#include "plimsoll/device.h"

namespace plimsoll {

// Slots are those of `tier`. Both must outlive it.
std::shared_ptr<Tier> stage(const Device& device, Tier& tier);

}  // namespace plimsoll
