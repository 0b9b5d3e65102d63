// The settings of checkpoints up to format version 2, which were texts.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>

#include "plimsoll/checkpoint.h"

namespace plimsoll {

// Puts the settings of an old training state as they stand in today's, and gives the cores that its run chose, which
// stood among them in the oldest. Throws Error(corrupt_file) that names the setting that is not known or not possible.
std::optional<SavedCores> upgrade_settings(nlohmann::json& state);

}  // namespace plimsoll
