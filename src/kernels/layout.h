// A layout for every tensor, a kernel for every op, and the Reorder ops between them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/cost.h"
#include "plimsoll/device.h"
#include "plimsoll/plan.h"

namespace plimsoll {

class KernelCandidates;  // kernels/layout_search.h: what the device offers and what that costs, asked once

struct LayoutOptions {
  std::optional<LayoutFamily> family;                 // force one; otherwise the cheapest by the cost table
  std::map<std::string, Layout, std::less<>> pinned;  // layouts of states, by name: an evaluation uses the training's
  TensorId fed;  // comes from outside in whatever layout its readers like best; other inputs are row-major
  std::map<std::string, std::string, std::less<>> pinned_kernels;  // by op name: a resumed run repeats its kernels
  Bytes workspace_limit{
      INT64_MAX};  // per op: a kernel above it is taken only where no other runs the op; not with `exact`
  // As the user asked for it, also with `exact`: a family that keeps it goes before a faster one. An op that has no
  // kernel within it in the family taken gets the smallest, and whoever promised the limit refuses.
  Bytes asked_limit{INT64_MAX};
  // Kernels that run in parts of the batch are considered with parts of these sizes: with nothing, powers of two whose
  // costs are measured; when given, those that are not measured are estimated too.
  std::optional<BatchSizes> batch_sizes;
  bool exact = false;  // choose kernels by rule, not by measured times: the same on every run, whatever the budget
  KernelCandidates* candidates =
      nullptr;  // of this graph, device, costs and batch sizes, for one who chooses again and again
};
struct LayoutResult {
  LayoutFamily family = LayoutFamily::plain;
  std::vector<KernelChoice> kernels;  // by op index of the rewritten graph; "" for views
  double estimated_ms = 0;            // the sum of the chosen kernels' costs
};
// Gives every tensor a layout and every op a kernel, and inserts Reorder ops where a tensor is wanted in another layout
// than it is made in, so that nothing is reordered behind the planner's back.
LayoutResult choose_layouts(Graph& graph, const Device& device, const CostTable& costs,
                            const LayoutOptions& options = {});

}  // namespace plimsoll
