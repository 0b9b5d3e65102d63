// Measuring on several devices of one kind at once.
#pragma once

#include <span>

#include "plimsoll/cost.h"

namespace plimsoll {

// measure_costs (cost.h) with the kernels dealt out among devices that are alike, one thread a device: the table and
// the progress are those of all together. Throws Error(invalid_input) that names two devices whose keys differ.
int measure_costs(const Graph& graph, std::span<const Device* const> devices, CostTable& table,
                  const MeasureOptions& options);

}  // namespace plimsoll
