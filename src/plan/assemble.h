// From lifetimes to a plan: what all policies have in common, whether they decide lifetimes only (`assemble`) or more
// (make_plan.h).
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "plan/liveness.h"
#include "plan/policy.h"

namespace plimsoll {

constexpr int64_t kEffortOfMany = 3'000'000;  // of a placement where policies make many

struct AssembleOptions {
  bool keep_everything = false;  // every buffer and workspace stays its own during the whole step
};

// Lays out the states first, from offset 0 upward in the order of graph.states, so that every plan of a graph with
// these states agrees on where they lie; everything else above them by the input's placement. Infeasible when that is
// higher than the budget.
PlanOrInfeasible assemble(const PolicyInput& input, std::string_view policy, const Liveness& liveness,
                          const AssembleOptions& options = {});

// A plan by this policy that has no steps yet.
Plan begin_plan(const PolicyInput& input, std::string_view policy);
Step make_step(const PolicyInput& input, OpId op, bool recompute = false);

// Bytes of the arena during steps: what takes each other's place lies in one region.
struct ArenaRegion {
  LiveRange steps;
  Bytes bytes;
  TensorId tensor;              // the first in it
  std::optional<Bytes> offset;  // given for states
};
using Placer = std::function<Placement(const PlacementMethod&, const std::vector<Buffer>&)>;

// Gives the other regions, and the workspaces of the plan's steps, offsets from `bottom` up; adds the workspaces' stays.
// `whole_step`: a workspace stays its own during the whole training step.
Placement place_regions(const PolicyInput& input, Bytes bottom, const Placer& place, bool whole_step,
                        std::vector<ArenaRegion>& regions, Plan& plan);

// Times and prediction of a plan that was made of this input.
void predict(const PolicyInput& input, Plan& plan);

// Looks for lower offsets, with as much effort as a plan is worth that is taken: the same steps, stays and moves, and
// the states where they are. Of use for what was placed `only_to_fit`.
void place_again(const PolicyInput& input, Plan& plan);

// The height at which a placement in the arena above `bottom` is low enough to end: the budget where nothing else is
// asked; 0: none, it is to be as low as it can. `live`: bytes alive above `bottom`.
Bytes enough_height(const PolicyInput& input, Bytes bottom, Bytes live);

void sort_stays(std::vector<Stay>& stays);  // as a plan has them
// When all stays and tiers are known: the order of the stays, the lower bound and the peak.
void finish_stays(const Graph& graph, Plan& plan);

// The answer for a plan that is larger than its budget: what is live at its peak.
Infeasible explain_infeasible(const PolicyInput& input, const Plan& plan, bool proven);

// The method of this name; throws Error(invalid_input) with the nearest known one.
PlacementMethod find_placement(std::string_view name);
// All the same for a method that does not look at it.
ById<TensorId, Mobility> mobility_for(const PlacementMethod& method, const Graph& graph, std::span<const Step> steps);

}  // namespace plimsoll
