// Another GPU's memory as a tier: copies go from GPU to GPU, beside compute.
#pragma once

#include <memory>
#include <optional>

#include "device/cuda/door.h"
#include "device/tier/tier.h"

namespace plimsoll::cuda {

// What a GPU has free, less what the driver wants, and kernels that are loaded when first used.
Bytes available(const Facts& facts);

// `size` absent: what is free there.
std::shared_ptr<Tier> open_peer_tier(std::shared_ptr<Door> peer, std::optional<Bytes> size);

}  // namespace plimsoll::cuda
