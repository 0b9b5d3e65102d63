// The text that identifies what an op costs, from the graph or from its parts.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "plimsoll/cost.h"
#include "plimsoll/device.h"
#include "plimsoll/graph.h"
#include "plimsoll/kernels.h"

namespace plimsoll {

bool same_layout(const Layout& a, const Layout& b);  // row-major is row-major however written

// The same for all layouts: what Device::kernels may depend on.
std::string signature_without_layouts(const Graph& graph, const Op& op);

// The signature of the op's part of that many rows, with the layouts that a kernel wants: that of micro_op's op.
std::string part_signature(const Graph& graph, const Op& op, const KernelSpec& kernel, int64_t rows);

// What running an op in parts costs beside the parts.
DivisionCost division_cost(const Graph& graph, const Op& op, const MachineRates& rates,
                           std::span<const Layout> outputs = {});

// The signature of a Reorder, also where the graph has none yet.
std::string reorder_signature(const Shape& shape, DType dtype, const Layout& from, const Layout& to);

// Whether the specs of an op leave open the layout of the tensor at `position`, which counts inputs, then outputs: it
// says kAnyLayout, or the op is a state update, the tensor has the parameter's shape, and nothing is stretched over it.
bool layout_is_open(const Graph& graph, const Op& op, const KernelSpec& spec, size_t position);

}  // namespace plimsoll
