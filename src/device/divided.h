// Kernels by configuration, made of a device's own kernels: the batch in parts that run one after the other (mu-cuDNN).
//
//        x  [ rows 0..15 | rows 16..31 | rows 32..39 ]        "a@16*2+b@8": kernel a made for 16 rows, kernel b for 8,
//               | a          | a           | b                each bound where its rows begin
//        y  [            |             |             ]
//
// What is a sum over the batch (a weight gradient) the first part writes; the others write beside it, and are added. So
// it differs from the undivided one by rounding; what belongs to rows is made as a network of that batch makes it.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "plimsoll/device.h"
#include "plimsoll/graph.h"

namespace plimsoll {

// Whether rows of the batch lie one after the other in such a layout, so that a part has an address.
bool is_divisible(const Layout& layout);
// Why the op cannot run in parts with the layouts that its tensors have; empty where it can.
std::string why_not_divisible(const Graph& graph, const Op& op);

// Whether this row of the batch begins at a multiple of `alignment` bytes in every divided tensor
// (Device::row_alignment). `layouts`: those that the tensors will have; absent: as they are.
bool is_aligned_at(const Graph& graph, const Op& op, int64_t row, int64_t alignment,
                   const KernelSpec* layouts = nullptr);

// Workspace of a configuration beside its largest part's: where later parts put their sums.
// `outputs`: the layouts that the outputs will have; empty: as they are.
Bytes summing_workspace(const Graph& graph, const Op& op, std::span<const Layout> outputs = {});
// What a part's own workspace takes in that of a configuration.
Bytes part_workspace(Bytes own);

}  // namespace plimsoll
