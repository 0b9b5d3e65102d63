// Bounds are judged by plans: none may be better than they say.
#include "plan/bounds.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "plan/assemble.h"
#include "plan/simulate.h"
#include "plimsoll/verify.h"
#include "tests/support/random_graph.h"

namespace plimsoll {
namespace {

// Every op at a random time.
CostTable random_times(const Graph& graph, const std::vector<KernelChoice>& kernels, uint64_t seed) {
  std::mt19937_64 random(seed);
  CostTable costs;
  for (OpId op{0}; op.index < graph.op_count(); ++op.index) {
    const std::string& kernel = kernels[op.index].kernel;
    if (!kernel.empty())
      costs.put({op_signature(graph, graph.op(op)), kernel, 0},
                {Cost::Source::measured, 0.01 * static_cast<double>(1 + random() % 300), 0, 3});
  }
  return costs;
}

TEST(Bounds, NoPlanWithinTheBudgetIsFasterNorDoesOneExistBelow) {
  int sharp = 0, feasible = 0, proven = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    const Graph graph =
        testing::random_graph(seed, {.forward_ops = static_cast<int>(5 + seed % 26), .updates = seed % 7 != 0});
    const Route route = make_route(graph);
    const auto kernels = testing::random_kernels(graph, seed);
    const CostTable costs = random_times(graph, kernels, seed);
    PolicyInput input{.graph = graph,
                      .route = route,
                      .kernels = kernels,
                      .costs = costs,
                      .device = {.name = "cpu"},
                      .effort = 100'000};
    if (seed % 3 == 0)
      input.device.tiers = {
          {.name = "host", .capacity = 1_GiB, .out_gb_per_s = 0.00002, .in_gb_per_s = 0.00003, .latency_us = 2}};
    const ValueTimeline timeline = make_timeline(input);
    const Bytes most = std::get<Plan>(find_policy("liveness").plan(input)).arena;
    double before = 0;
    for (int percent : {110, 95, 80, 65, 50, 35, 20, 8}) {
      SCOPED_TRACE(fmt::format("seed {} at {} %", seed, percent));
      input.budget = {most.count * percent / 100};
      const double bound = least_ms(timeline, input.device.tiers, input.budget.count);
      EXPECT_GE(bound, before) << "with less memory";
      before = bound;
      const bool none = input.budget.count < least_live(timeline, !input.device.tiers.empty());
      EXPECT_EQ(none, bound == kAnyTime);
      proven += none ? 1 : 0;
      const PlanOrInfeasible answer = find_policy("auto").plan(input);
      const Plan* plan = std::get_if<Plan>(&answer);
      if (plan == nullptr) continue;
      ++feasible;
      EXPECT_FALSE(none);
      EXPECT_LE(bound, simulate(graph, *plan, costs).step_time_ms * (1 + 1e-9));
      sharp += bound > timeline.compute_ms * 1.001 ? 1 : 0;
    }
  }
  EXPECT_GT(feasible, 80);
  EXPECT_GT(sharp, 30);
  EXPECT_GT(proven, 8);
}

TEST(PlacingAgain, LeavesASafePlanThatNeedsNoMoreAndLiesWhereStatesLay) {
  int lower = 0, made = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Graph graph =
        testing::random_graph(seed, {.forward_ops = static_cast<int>(5 + seed % 26), .updates = seed % 7 != 0});
    const Route route = make_route(graph);
    const auto kernels = testing::random_kernels(graph, seed);
    const CostTable costs = random_times(graph, kernels, seed);
    PolicyInput input{.graph = graph,
                      .route = route,
                      .kernels = kernels,
                      .costs = costs,
                      .device = {.name = "cpu"},
                      .effort = 100'000,
                      .only_to_fit = true};
    if (seed % 3 == 0) input.device.tiers = {{.name = "host", .capacity = 1_GiB, .out_gb_per_s = 1, .in_gb_per_s = 1}};
    const Bytes most = std::get<Plan>(find_policy("liveness").plan(input)).arena;
    for (int percent : {150, 100, 70, 50}) {
      input.budget = {most.count * percent / 100};
      for (const char* policy : {"auto", "liveness", "superneurons", "caffe"}) {
        SCOPED_TRACE(fmt::format("seed {} at {} % by {}", seed, percent, policy));
        PlanOrInfeasible answer = find_policy(policy).plan(input);
        Plan* plan = std::get_if<Plan>(&answer);
        if (plan == nullptr) continue;
        EXPECT_LE(plan->arena, input.budget);
        Plan again = *plan;
        place_again(input, again);
        EXPECT_TRUE(verify(graph, again).empty());
        EXPECT_LE(again.arena, plan->arena);
        EXPECT_EQ(again.steps.size(), plan->steps.size());
        EXPECT_EQ(again.stays.size(), plan->stays.size());
        EXPECT_EQ(live_peak(again).bytes, live_peak(*plan).bytes);
        lower += again.arena < plan->arena ? 1 : 0;
        ++made;
      }
    }
  }
  EXPECT_GT(made, 300);
  EXPECT_GT(lower, 5);
}

}  // namespace
}  // namespace plimsoll
