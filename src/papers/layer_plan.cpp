#include "papers/layer_plan.h"

#include <memory>
#include <set>

#include "plan/policy.h"
#include "plan/simulate.h"
#include "plimsoll/compile.h"
#include "plimsoll/cost.h"
#include "plimsoll/device.h"
#include "plimsoll/models.h"

namespace plimsoll {

int LayerPlan::peak_step() const {
  int step = 1;
  for (StepIndex s = 0; s < plan.predicted.peak_step; ++s) step += plan.steps[s].recompute ? 0 : 1;
  return step;
}

int LayerPlan::tensors_at_peak() const {
  std::set<Bytes> places;
  for (const Stay* stay : live_at(plan, plan.predicted.peak_step)) places.insert(stay->offset);
  return static_cast<int>(places.size());
}

Bytes LayerPlan::host_bytes() const {
  Bytes sum;
  for (const TierUse& use : plan.tiers) sum += use.used;
  return sum;
}

std::optional<LayerPlan> plan_layers(const LayerPlanRequest& request) {
  const Network network =
      build_model(request.model, {.batch = request.batch, .height = request.size, .width = request.size});
  LayerPlan result;
  result.graph = lower_to_layers(network, request.layer_model);
  const Route route = make_route(result.graph);
  const std::vector<KernelChoice> kernels = layer_kernels(result.graph);
  const std::unique_ptr<Device> device = request.device.empty() ? nullptr : open_device(request.device);
  const CostTable costs = device ? CostTable(probe_rates(*device)) : CostTable();
  PolicyInput input{.graph = result.graph,
                    .route = route,
                    .kernels = kernels,
                    .costs = costs,
                    .device = device ? device->info() : DeviceInfo{.name = "layers", .key = "simulated layers"},
                    .budget = request.budget,
                    .first_that_fits = request.first_that_fits,
                    .options = policy_options(request.policy)};
  if (!device) input.device.tiers = {{.name = "host"}};
  input.device.tiers.at(0).capacity = request.host;
  if (request.states_stay) input.state_homes.assign(result.graph.states.size(), -1);
  PlanOrInfeasible answer = find_policy(request.policy).plan(input);
  Plan* plan = std::get_if<Plan>(&answer);
  if (plan == nullptr) return std::nullopt;
  predict(result.graph, *plan, costs);
  result.plan = check_plan(result.graph, std::move(*plan));
  return result;
}

}  // namespace plimsoll
