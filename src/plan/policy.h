// A policy makes a Plan from a graph with layouts and kernels chosen, its costs, and a budget. It only decides; the
// verifier, the simulator and the executor know nothing of policies.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "plan/placement/placement.h"
#include "plan/route.h"
#include "plimsoll/plan.h"

namespace plimsoll {

inline constexpr double kAnyTime = 1e300;  // ms of a step

struct ValueTimeline;
struct Descents;

struct PolicyInput {
  const Graph& graph;
  const Route& route;
  const std::vector<KernelChoice>& kernels;
  const CostTable& costs;
  DeviceInfo device;
  Bytes budget{INT64_MAX};
  std::string placement = "offline";
  int64_t effort = 20'000'000;       // of a placement that searches, as in PlacementOptions
  int64_t run_effort = 4'000'000;    // of auto's search over what runs again (remat/search.h)
  bool search_least = false;         // with least_memory: by that search as well
  double enough_ms = 0;              // no plan takes less: one that takes no more ends that search
  double faster_than_ms = kAnyTime;  // a plan that is not predicted to be faster is of no use and need not be placed
  bool first_that_fits = false;      // the question is whether a plan exists, not which is fast
  // Of auto alone: the plan that needs the least arena of all that are found, whether it fits the budget or not; one
  // that fits will do.
  bool least_memory = false;
  Bytes less_than{INT64_MAX};  // with least_memory: a plan that needs no less is of no use and need not be placed
  // Offsets within the budget will do: who asks has many plans to choose among, and places the one that it takes once
  // more (place_again).
  bool only_to_fit = false;
  bool placed_well = false;  // with all of `effort`, where else a plan of many gets a part of it
  // Every buffer lies above all others: a sketch, of which times and live bytes are of use. It counts as what is live.
  bool unplaced = false;
  bool explain = true;  // false: an answer that does not fit says no more than `minimum`, its live bytes, not placed
  // By index of graph.states: the tier where it lies between steps, -1 the arena; empty: the policy decides. An
  // evaluation finds the states where the training leaves them. Only liveness (all in the arena) and auto heed it.
  std::vector<int8_t> state_homes = {};
  std::map<std::string, std::string> options =
      {};  // of the policy: "superneurons:recompute=speed" has {recompute, speed}

  // What make_timeline gives for this graph and route, these kernels and costs, where it is known: asked often, and slow.
  std::shared_ptr<const ValueTimeline> timeline = {};

  // Of auto alone: a plan of this graph, route and kernels that copies nothing, from which the search over runs may start.
  const Plan* start = nullptr;

  // Of auto alone: gives the ways down from keeping everything that were found for this graph with other kernels, from
  // whose points auto then starts. Empty: it goes down itself.
  std::function<std::shared_ptr<const Descents>()> descents = {};

  // Nothing where no kernels are chosen: planning by shapes alone.
  KernelChoice kernel_of(OpId op) const { return op.index < std::ssize(kernels) ? kernels[op.index] : KernelChoice{}; }
};

using PlanOrInfeasible = std::variant<Plan, Infeasible>;

struct Policy {
  std::string_view name;
  std::string_view description;  // one line, with the paper
  PlanOrInfeasible (*plan)(const PolicyInput&);
  std::string_view options =
      {};  // "offload=checkpoints|conv|none recompute=...": what may follow the name, the default first
  bool uses_tiers = true;
};

// The ways down that auto finds for inputs of the same graph with different kernels, whatever their budgets.
std::shared_ptr<const Descents> find_descents(const std::vector<PolicyInput>& inputs);

// baseline: every tensor its own memory. liveness: a tensor's bytes are free after its last reader. auto: the best
// there is.
std::vector<Policy> policies();
// The policy of a spec "name" or "name:option=value,option=value"; throws Error(invalid_input) with the nearest known
// name.
const Policy& find_policy(std::string_view spec);
// The options of a spec; throws Error(invalid_input) on one that the policy does not have, and on a value that it does
// not know.
std::map<std::string, std::string> policy_options(std::string_view spec);

}  // namespace plimsoll
