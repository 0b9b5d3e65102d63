// A policy makes a Plan from a graph with layouts and kernels chosen, its costs, and a budget. It only decides; the verifier,
// the simulator and the executor know nothing of policies.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "plimsoll/plan.h"
#include "plimsoll/placement.h"
#include "plimsoll/route.h"

namespace plimsoll {

// The kernel of every op of a graph, by the index of the op; made by passes.h.
struct KernelChoice {
  std::string kernel;
  Bytes workspace;
};

struct PolicyInput {
  const Graph& graph;
  const Route& route;
  const std::vector<KernelChoice>& kernels;
  const CostTable& costs;
  DeviceInfo device;
  Bytes budget{INT64_MAX};
  std::string placement = "offline";
  double seconds = 10;  // for policies and placements that search
};

using PlanOrInfeasible = std::variant<Plan, Infeasible>;

struct Policy {
  std::string_view name;
  std::string_view description;  // one line, with the paper
  PlanOrInfeasible (*plan)(const PolicyInput&);
};

// baseline: every tensor its own memory. liveness: a tensor's bytes are free after its last reader.
std::vector<Policy> policies();
// Throws Error(invalid_input) with the nearest known name.
const Policy& find_policy(std::string_view name);

}  // namespace plimsoll
