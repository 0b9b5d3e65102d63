// Kernels chosen again in a graph whose layouts stand: within what is free at each op, or within one total for the
// network.
#pragma once

#include <functional>

#include "kernels/layout.h"
#include "kernels/layout_search.h"
#include "plimsoll/plan.h"

namespace plimsoll {

// What may run the op instead: kernels and configurations with the layouts that it has. Empty where nothing of it has a
// workspace.
std::vector<const KernelCandidates::Item*> interchangeable(const Graph& graph, OpId op, KernelCandidates& candidates,
                                                           LayoutFamily family, bool divide);

// Gives each op the fastest kernel whose workspace is at most room(op), if it is faster than what the op has or this
// has not that room. Returns how many ops changed.
int choose_within(const Graph& graph, KernelCandidates& candidates, LayoutResult& layouts, bool divide,
                  const std::function<Bytes(OpId)>& room);

// Gives each op the kernel for which its time and `ms_of_byte` for each byte of its workspace are least together, of those with
// at most `each`.
void choose_by_price(const Graph& graph, KernelCandidates& candidates, LayoutResult& layouts, bool divide,
                     double ms_of_byte, Bytes each);
// The prices from which on one op or another has a kernel with less workspace, ascending, each once.
std::vector<double> workspace_prices(const Graph& graph, KernelCandidates& candidates, const LayoutResult& layouts,
                                     bool divide, Bytes each);

// The workspaces of kernels that no other of their op beats in time and workspace, descending, each once.
std::vector<Bytes> workspaces_worth_having(const Graph& graph, KernelCandidates& candidates,
                                           const LayoutResult& layouts, bool divide, Bytes each);

// Whether --workspace-total is for this op: convolutions and fully connected layers, in every pass.
bool counts_in_total(const Op& op);
// An equal part for each of them.
Bytes share_of_total(const Graph& graph, Bytes total);

// The fastest kernels of those ops whose workspaces add up to at most `total` (mu-cuDNN's WD), none of them above
// `each` but where an op has no smaller one. False, and nothing changes, where not even the smallest do.
bool divide_total(const Graph& graph, KernelCandidates& candidates, LayoutResult& layouts, bool divide, Bytes total,
                  Bytes each);

}  // namespace plimsoll
