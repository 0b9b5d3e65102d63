// The numbers of SuperNeurons' Figure 10 and Table 1, under its own layer model.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "papers/layer_model.h"
#include "plan/policy.h"
#include "plan/simulate.h"
#include "plimsoll/models.h"
#include "plimsoll/verify.h"

namespace plimsoll {
namespace {

struct Result {
  double mib = 0;
  int peak_step = 0;  // counted from 1 without recomputations
  int recomputations = 0;
  Bytes offload;
  double arena_mib = 0;
};

Result run(const std::string& model, int64_t batch, int64_t size, const std::string& policy,
           bool relu_in_place = false) {
  const Network network = build_model(model, {.batch = batch, .height = size, .width = size});
  const Graph graph = lower_to_layers(network, {.relu_in_place = relu_in_place});
  const Route route = make_route(graph);
  const std::vector<KernelChoice> kernels = layer_kernels(graph);
  const CostTable costs;
  PolicyInput input{.graph = graph,
                    .route = route,
                    .kernels = kernels,
                    .costs = costs,
                    .device = {.name = "paper"},
                    .options = policy_options(policy)};
  input.device.tiers = {{.name = "host", .capacity = 1024_GiB}};  // copies take no time
  PlanOrInfeasible answer = find_policy(policy).plan(input);
  Plan& plan = std::get<Plan>(answer);
  const auto violations = verify(graph, plan);
  EXPECT_TRUE(violations.empty()) << violations.size() << " " << violations[0].message;
  const Prediction p = simulate(graph, plan, costs);
  int step = 1;  // a recomputation belongs to the step that wants it
  for (StepIndex s = 0; s < p.peak_step; ++s) step += plan.steps[s].recompute ? 0 : 1;
  return {static_cast<double>(p.peak.count) / 1048576, step, p.recompute_steps, p.offload,
          static_cast<double>(plan.arena.count) / 1048576};
}

TEST(SuperNeurons, AlexNetStepByStep) {
  EXPECT_NEAR(run("alexnet", 200, 227, "baseline").mib, 2189.437, 1e-3);
  const Result liveness = run("alexnet", 200, 227, "liveness");
  EXPECT_NEAR(liveness.mib, 1489.355, 1e-3);
  EXPECT_EQ(liveness.peak_step, 32);
  const Result offload =
      run("alexnet", 200, 227, "superneurons:offload=conv,recompute=none,cache=off,release=keep,prefetch=checkpoint");
  EXPECT_NEAR(offload.mib, 1132.056, 1e-3);
  EXPECT_EQ(offload.peak_step, 39);
}

TEST(SuperNeurons, Table1) {
  const std::string common = "superneurons:cache=off,release=keep,prefetch=demand,recompute=";
  struct Row {
    std::string model;
    int64_t batch;
    int speed;
    double speed_mib;
    int memory;
    double memory_mib;
    int cost;
  };
  for (const Row& row :
       {Row{"alexnet", 200, 14, 993.018, 23, 886.230, 17}, Row{"resnet50", 32, 84, 455.125, 118, 406.125, 85},
        Row{"resnet101", 32, 169, 455.125, 237, 406.125, 170}, Row{"resnet152", 32, 254, 455.125, 356, 406.125, 255}}) {
    SCOPED_TRACE(row.model);
    const Result speed = run(row.model, row.batch, 227, common + "speed");
    EXPECT_EQ(speed.recomputations, row.speed);
    EXPECT_NEAR(speed.mib, row.speed_mib, 1e-3);
    const Result memory = run(row.model, row.batch, 227, common + "memory");
    EXPECT_EQ(memory.recomputations, row.memory);
    EXPECT_NEAR(memory.mib, row.memory_mib, 1e-3);
    const Result cost = run(row.model, row.batch, 227, common + "cost-aware");
    EXPECT_EQ(cost.recomputations, row.cost);
    EXPECT_NEAR(cost.mib, row.memory_mib, 1e-3);
    if (row.model == "alexnet") {
      EXPECT_EQ(cost.peak_step, 44);
    }
    EXPECT_DOUBLE_EQ(cost.arena_mib, cost.mib);  // where first fit needs 993 for the 886
  }
}

TEST(SuperNeurons, WithCheckpointsDroppedRightAfterUseNeedsLess) {
  const std::string better = "superneurons:cache=off,release=drop,prefetch=demand,recompute=speed";
  const Result alexnet = run("alexnet", 200, 227, better);
  EXPECT_NEAR(alexnet.mib, 771.460, 1e-3);
  EXPECT_EQ(alexnet.recomputations, 14);
  const Result resnet = run("resnet50", 32, 227, better);
  EXPECT_NEAR(resnet.mib, 392.0, 1e-3);
  EXPECT_EQ(resnet.recomputations, 84);
}

}  // namespace
}  // namespace plimsoll
