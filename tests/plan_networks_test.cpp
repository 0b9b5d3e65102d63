// Plans of whole networks: the arena against the largest sum of live bytes, and how long planning takes.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "passes/passes.h"
#include "plan/policy.h"
#include "plimsoll/autodiff.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "plimsoll/verify.h"

namespace plimsoll {
namespace {

struct Planned {
  Graph graph;
  Plan plan;
  double seconds = 0;
};
Planned plan_training(std::string_view model, int64_t batch, std::string_view placement = "offline") {
  Planned result;
  result.graph = make_training_network(build_model(model, {.batch = batch}), {}).graph;
  std::vector<KernelChoice> kernels;
  for (const Op& op : result.graph.ops()) kernels.push_back({op.type->is_view ? "" : "reference", {}});
  const CostTable costs;
  const Stopwatch watch;
  const Route route = make_route(result.graph);
  result.plan = std::get<Plan>(find_policy("liveness")
                                   .plan({.graph = result.graph,
                                          .route = route,
                                          .kernels = kernels,
                                          .costs = costs,
                                          .device = {},
                                          .placement = std::string(placement)}));
  result.seconds = watch.seconds();
  return result;
}

TEST(PlanNetworks, TheArenaIsTheLargestSumOfLiveBytesForTheWholeZoo) {
  for (const ModelListing& model : list_models()) {
    for (int64_t batch : {4, 32}) {
      SCOPED_TRACE(::testing::Message() << model.name << " batch " << batch);
      const Planned p = plan_training(model.name, batch);
      EXPECT_TRUE(verify(p.graph, p.plan).empty());
      EXPECT_EQ(p.plan.arena.count, p.plan.predicted.peak.count);
      EXPECT_GE(p.plan.arena.count, p.plan.lower_bound.count);
    }
  }
}

// 1176 MiB for one update step of VGG16's, if its largest layer were whole.
TEST(PlanNetworks, NoLayerKeepsAlexNetAndVggFromTrainingInTwoFifthsOfTheirMemory) {
  const TierInfo host{.name = "host", .capacity = 16_GiB, .out_gb_per_s = 10, .in_gb_per_s = 10, .latency_us = 1};
  for (const auto& [model, batch] : {std::pair("alexnet", 64), std::pair("vgg16", 8)}) {
    Network network = build_model(model, {.batch = batch});
    run_fusion_passes(network);
    const Graph graph = make_training_network(network, {}).graph;
    std::vector<KernelChoice> kernels;
    for (const Op& op : graph.ops()) kernels.push_back({op.type->is_view ? "" : "reference", {}});
    const CostTable costs;
    const Route route = make_route(graph);
    PolicyInput input{.graph = graph, .route = route, .kernels = kernels, .costs = costs, .device = {.name = "cpu"}};
    const Plan liveness = std::get<Plan>(find_policy("liveness").plan(input));
    input.device.tiers = {host};
    input.budget = {liveness.arena.count * 2 / 5};
    input.first_that_fits = true;
    const PlanOrInfeasible answer = find_policy("auto").plan(input);
    ASSERT_TRUE(std::holds_alternative<Plan>(answer)) << model << ": " << to_text(std::get<Infeasible>(answer));
    EXPECT_TRUE(verify(graph, std::get<Plan>(answer)).empty()) << model;
  }
}

TEST(PlanNetworks, AResNetOf9167LayersIsPlannedInSeconds) {
  const Planned p = plan_training("resnet:6-32-788-6", 2);
  EXPECT_LT(static_cast<double>(p.plan.arena.count), 1.001 * static_cast<double>(p.plan.predicted.peak.count));
  const Stopwatch watch;
  EXPECT_TRUE(verify(p.graph, p.plan).empty());
  const double verify_seconds = watch.seconds();
  EXPECT_LT(p.seconds, 25) << "five times what it may take alone on a quiet machine";
  EXPECT_LT(verify_seconds, 5);
}

TEST(PlanNetworks, ATierThatIsTooSmallIsFilledAndTheNextTakesTheRest) {
  const Graph graph = make_training_network(build_model("resnet32", {.batch = 16}), {}).graph;
  std::vector<KernelChoice> kernels;
  for (const Op& op : graph.ops()) kernels.push_back({op.type->is_view ? "" : "reference", {}});
  const CostTable costs;
  const std::unique_ptr<Device> device = open_reference_device();
  for (const Op& op : graph.ops()) {
    if (!op.type->is_view) costs.note(graph, op, device->kernels(graph, op, LayoutFamily::plain).at(0));
  }
  const Route route = make_route(graph);
  auto plan_with = [&](std::vector<TierInfo> tiers, Bytes budget) {
    PolicyInput input{.graph = graph,
                      .route = route,
                      .kernels = kernels,
                      .costs = costs,
                      .device = {.name = "cpu"},
                      .budget = budget};
    input.device.tiers = std::move(tiers);
    return find_policy("auto").plan(input);
  };
  const TierInfo host{.name = "host", .capacity = 1_GiB, .out_gb_per_s = 10, .in_gb_per_s = 10, .latency_us = 1};
  TierInfo disk{.name = "disk", .capacity = 1_GiB, .out_gb_per_s = 1, .in_gb_per_s = 1, .latency_us = 100};
  const auto least = std::get<Infeasible>(plan_with({host}, 1_KiB)).minimum;
  const auto alone = std::get<Plan>(plan_with({host}, {least.count * 21 / 20}));
  ASSERT_GT(alone.tiers[0].used, 1_MiB);
  TierInfo small = host;
  small.capacity = {alone.tiers[0].used.count / 4};
  const PlanOrInfeasible answer = plan_with({small, disk}, {least.count * 21 / 20});
  ASSERT_TRUE(std::holds_alternative<Plan>(answer)) << to_text(std::get<Infeasible>(answer));
  const Plan& plan = std::get<Plan>(answer);
  EXPECT_TRUE(verify(graph, plan).empty());
  EXPECT_GT(plan.tiers[0].used, Bytes{small.capacity.count / 2});
  EXPECT_GT(plan.tiers[1].used.count, 0);
}

}  // namespace
}  // namespace plimsoll
