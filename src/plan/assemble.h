// From lifetimes to a plan: what every policy that only decides lifetimes has in common.
#pragma once

#include "plan/liveness.h"
#include "plan/policy.h"

namespace plimsoll {

struct AssembleOptions {
  bool keep_everything = false;  // every buffer and workspace stays its own during the whole step
};

// Lays out the states first, from offset 0 upward in the order of graph.states, so that every plan of a graph with
// these states agrees on where they lie; everything else above them by the input's placement. Infeasible when that is
// higher than the budget.
PlanOrInfeasible assemble(const PolicyInput& input, std::string_view policy, const Liveness& liveness,
                          const AssembleOptions& options = {});

// The answer for a plan that is larger than its budget: what is live at its peak.
Infeasible explain_infeasible(const PolicyInput& input, const Plan& plan, bool proven);

// The method of this name; throws Error(invalid_input) with the nearest known one.
PlacementMethod find_placement(std::string_view name);
// By tensor; all the same for a method that does not look at it.
std::vector<Mobility> mobility_for(const PlacementMethod& method, const Graph& graph, std::span<const Step> steps);

}  // namespace plimsoll
