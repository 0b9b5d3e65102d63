// Costs as a file, from one machine to others of its kind: what one has measured the others need not.
#pragma once

#include <string>
#include <string_view>

#include "plimsoll/cost.h"
#include "plimsoll/device.h"

namespace plimsoll {

std::string costs_to_json(const CostTable& table, const DeviceInfo& device);
// `file` is named in errors. Throws Error(corrupt_file) with the place and what was expected; Error(invalid_input) that
// names both where the costs are of another device than `device`.
CostTable costs_from_json(std::string_view json, const std::string& file, const DeviceInfo& device);

// Adds what `into` lacks, or has from a busy machine only: else what was measured here stays. Returns how many were
// added.
int merge_costs(const CostTable& from, CostTable& into);

}  // namespace plimsoll
