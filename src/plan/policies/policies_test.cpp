#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>

#include <random>
#include <utility>

#include "plan/effort.h"
#include "plan/simulate.h"
#include "plimsoll/autodiff.h"
#include "plimsoll/models.h"
#include "plimsoll/verify.h"
#include "tests/support/random_graph.h"

namespace plimsoll {
namespace {

std::string describe(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& v : violations) text += std::string(to_string(v.rule)) + ": " + v.message + "\n";
  return text;
}

// The largest sum of tensor bytes that the route cannot avoid: every step's own inputs and outputs, in place where
// possible.
Bytes least_possible(const Graph& graph) {
  Bytes states, most;
  for (const State& s : graph.states) states += graph.tensor(s.before).bytes();
  for (const Op& op : graph.ops()) {
    Bytes sum;
    std::vector<TensorId> inputs = op.inputs;
    std::sort(inputs.begin(), inputs.end());
    inputs.erase(std::unique(inputs.begin(), inputs.end()), inputs.end());
    for (TensorId t : inputs) {
      const Role role = graph.tensor(t).role;
      if (role != Role::parameter && role != Role::statistic && role != Role::optimizer_state)
        sum += graph.tensor(t).bytes();
    }
    most = std::max(most, sum);
  }
  return states + most;
}

TEST(Policies, EveryPlanPassesTheVerifierAndLivenessNeverNeedsMoreThanBaseline) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    const Graph graph =
        testing::random_graph(seed, {.forward_ops = static_cast<int>(3 + seed % 50), .updates = seed % 7 != 0});
    const Route route = make_route(graph);
    const auto kernels = testing::random_kernels(graph, seed);
    const CostTable costs;
    Bytes baseline;
    for (const Policy& policy : policies()) {
      if (policy.name == "auto") continue;
      for (const PlacementMethod& method : placement_methods()) {
        SCOPED_TRACE(fmt::format("seed {} policy {} placement {}", seed, policy.name, method.name));
        const PolicyInput input{.graph = graph,
                                .route = route,
                                .kernels = kernels,
                                .costs = costs,
                                .device = {.name = "cpu"},
                                .placement = std::string(method.name),
                                .effort = 100'000};
        const PlanOrInfeasible answer = policy.plan(input);
        ASSERT_TRUE(std::holds_alternative<Plan>(answer));
        const Plan& plan = std::get<Plan>(answer);
        const auto violations = verify(graph, plan);
        ASSERT_TRUE(violations.empty()) << describe(violations);
        EXPECT_EQ(live_peak(plan).bytes, plan.predicted.peak);
        EXPECT_GE(plan.predicted.peak, plan.lower_bound);
        EXPECT_GT(plan.lower_bound, 0_B);
        EXPECT_GE(plan.predicted.peak, least_possible(graph));
        if (policy.name == "baseline") baseline = plan.predicted.peak;
        if (policy.name == "liveness") {
          EXPECT_LE(plan.predicted.peak, baseline);
        } else if (policy.name == "baseline" && method.name == "offline") {
          EXPECT_EQ(plan.arena, plan.predicted.peak);
        }
      }
    }
  }
}

TEST(Policies, TheBudgetThatTheAnswerNamesIsEnough) {
  const Graph graph = testing::random_graph(5);
  const Route route = make_route(graph);
  const auto kernels = testing::random_kernels(graph, 5);
  const CostTable costs;
  for (const Policy& policy : policies()) {
    PolicyInput input{
        .graph = graph, .route = route, .kernels = kernels, .costs = costs, .device = {}, .budget = 1_KiB};
    const PlanOrInfeasible refused = policy.plan(input);
    ASSERT_TRUE(std::holds_alternative<Infeasible>(refused));
    const Infeasible& why = std::get<Infeasible>(refused);
    input.budget = why.minimum;
    const PlanOrInfeasible answer = policy.plan(input);
    ASSERT_TRUE(std::holds_alternative<Plan>(answer));
    const Plan& plan = std::get<Plan>(answer);
    EXPECT_LE(plan.arena, why.minimum);
    SCOPED_TRACE(policy.name);
    Bytes sum;
    for (const Infeasible::Need& need : why.needs) sum += need.bytes;
    if (policy.name == "auto") {  // another plan within that budget may be as fast and need less
      EXPECT_GE(sum, plan.predicted.peak);
      continue;
    }
    EXPECT_EQ(sum, plan.predicted.peak);
    EXPECT_EQ(why.op, graph.op(plan.steps[plan.predicted.peak_step].op).name);
    if (policy.name != "liveness" && policy.name != "baseline")
      continue;  // the others search, and may find better for a budget
    input.budget = why.minimum - 1_B;
    EXPECT_TRUE(std::holds_alternative<Infeasible>(policy.plan(input)));
  }
}

// Costs that differ from op to op, so that it matters what is rebuilt.
CostTable random_costs(const Graph& graph, const std::vector<KernelChoice>& kernels, std::mt19937_64& random) {
  CostTable costs;
  for (int32_t i = 0; i < graph.op_count(); ++i) {
    const std::string& kernel = kernels[i].kernel;
    if (!kernel.empty()) {
      costs.put({op_signature(graph, graph.op({i})), kernel, 0},
                {Cost::Source::measured, 0.01 + 0.001 * static_cast<double>(random() % 5000), 0, 3});
    }
  }
  return costs;
}

TEST(Policies, AutoIsNeverSlowerThanAnotherAndNeverSlowerForMoreMemory) {
  int tight = 0, recomputing = 0, moving = 0;
  for (uint64_t seed = 1; seed <= 18; ++seed) {
    std::mt19937_64 random(seed);
    const Graph graph =
        testing::random_graph(seed, {.forward_ops = static_cast<int>(5 + seed % 26), .updates = seed % 7 != 0});
    const Route route = make_route(graph);
    const auto kernels = testing::random_kernels(graph, seed);
    const CostTable costs = random_costs(graph, kernels, random);
    PolicyInput input{.graph = graph,
                      .route = route,
                      .kernels = kernels,
                      .costs = costs,
                      .device = {.name = "cpu"},
                      .effort = 100'000};
    for (size_t t = 0; t < seed % 3; ++t) {
      input.device.tiers.push_back({.name = t == 0 ? "host" : "disk",
                                    .capacity = 1_GiB,
                                    .out_gb_per_s = 0.0002,
                                    .in_gb_per_s = 0.0003,
                                    .latency_us = 2,
                                    .compute_share = t > 0           ? 0.0
                                                     : seed % 2 == 0 ? 0.5
                                                                     : 1.0});
    }
    const Bytes most = std::get<Plan>(find_policy("liveness").plan(input)).arena;
    double slowest_above = 0;
    for (int percent : {100, 95, 85, 75, 65, 55, 45, 35, 25, 15}) {
      SCOPED_TRACE(fmt::format("seed {} with {} tiers at {} %", seed, input.device.tiers.size(), percent));
      input.budget = {most.count * percent / 100};
      const PlanOrInfeasible answer = find_policy("auto").plan(input);
      double fastest = 1e300;
      for (const Policy& policy : policies()) {
        if (policy.name == "auto") continue;
        const PlanOrInfeasible other = policy.plan(input);
        const Plan* plan = std::get_if<Plan>(&other);
        if (plan == nullptr) continue;
        const auto violations = verify(graph, *plan);
        ASSERT_TRUE(violations.empty()) << policy.name << "\n" << describe(violations);
        ASSERT_LE(plan->arena, input.budget);
        fastest = std::min(fastest, simulate(graph, *plan, costs).step_time_ms);
      }
      const Plan* plan = std::get_if<Plan>(&answer);
      if (plan == nullptr) {
        EXPECT_EQ(fastest, 1e300) << "another policy has a plan";
        EXPECT_GT(std::get<Infeasible>(answer).minimum, input.budget);
        continue;
      }
      ++tight;
      EXPECT_LE(least_bytes(graph, !input.device.tiers.empty()), plan->arena);
      const auto violations = verify(graph, *plan);
      ASSERT_TRUE(violations.empty()) << describe(violations);
      ASSERT_LE(plan->arena, input.budget);
      const Prediction predicted = simulate(graph, *plan, costs);
      recomputing += predicted.recompute_steps > 0 ? 1 : 0;
      moving += plan->moves.empty() ? 0 : 1;
      EXPECT_LE(predicted.step_time_ms, fastest * (1 + 1e-9));
      EXPECT_GE(predicted.step_time_ms, slowest_above * (1 - 1e-9)) << "more memory was slower";
      slowest_above = predicted.step_time_ms;
    }
  }
  EXPECT_GT(tight, 80);
  EXPECT_GT(recomputing, 20);
  EXPECT_GT(moving, 20);
}

TEST(Policies, ATierMoreHoweverSmallNeverHurtsAuto) {
  int used = 0, feasible = 0;
  for (uint64_t seed = 1; seed <= 14; ++seed) {
    std::mt19937_64 random(seed);
    const Graph graph =
        testing::random_graph(seed, {.forward_ops = static_cast<int>(5 + seed % 26), .updates = seed % 7 != 0});
    const Route route = make_route(graph);
    const auto kernels = testing::random_kernels(graph, seed);
    const CostTable costs = random_costs(graph, kernels, random);
    PolicyInput input{.graph = graph,
                      .route = route,
                      .kernels = kernels,
                      .costs = costs,
                      .device = {.name = "cpu"},
                      .effort = 100'000};
    const Bytes most = std::get<Plan>(find_policy("liveness").plan(input)).arena;
    for (int percent : {90, 75, 60, 45}) {
      input.budget = {most.count * percent / 100};
      input.device.tiers.clear();
      const PlanOrInfeasible without = find_policy("auto").plan(input);
      for (const Bytes capacity : {4096_B, Bytes{most.count / 20}, Bytes{most.count / 4}}) {
        SCOPED_TRACE(fmt::format("seed {} at {} % with {}", seed, percent, to_string(capacity)));
        input.device.tiers = {{.name = "host",
                               .capacity = capacity,
                               .out_gb_per_s = 0.002,
                               .in_gb_per_s = 0.003,
                               .latency_us = 2,
                               .compute_share = 1}};
        const PlanOrInfeasible with = find_policy("auto").plan(input);
        const Plan* plan = std::get_if<Plan>(&with);
        if (const Plan* alone = std::get_if<Plan>(&without)) {
          ASSERT_NE(plan, nullptr);
          EXPECT_LE(plan->predicted.step_time_ms, alone->predicted.step_time_ms * (1 + 1e-9));
        }
        if (plan == nullptr) {
          EXPECT_GT(std::get<Infeasible>(with).minimum, input.budget);
          continue;
        }
        ASSERT_TRUE(verify(graph, *plan).empty());
        ++feasible;
        used += plan->moves.empty() ? 0 : 1;
      }
    }
  }
  EXPECT_GT(feasible, 45);
  EXPECT_GT(used, 10);
}

TEST(Policies, StatesLieInTheOrderOfTheGraphFromOffsetZero) {
  const Graph graph = testing::random_graph(11);
  const Route route = make_route(graph);
  const auto kernels = testing::random_kernels(graph, 11);
  const CostTable costs;
  for (const Policy& policy : policies()) {
    const PlanOrInfeasible answer =
        policy.plan({.graph = graph, .route = route, .kernels = kernels, .costs = costs, .device = {}});
    Bytes expected;
    for (const State& state : graph.states) {
      for (const Stay& stay : std::get<Plan>(answer).stays) {
        if (stay.tensor != state.before && stay.tensor != state.after) continue;
        EXPECT_EQ(stay.offset, expected) << policy.name;
      }
      expected += align_up(graph.tensor(state.before).bytes(), kStayAlignment);
    }
  }
}

// What is rebuilt from two values, and these from two each, took steps, and memory for them, without end.
TEST(Policies, RebuildingThatMultipliesIsGivenUp) {
  Builder builder("fibonacci", {.batch = 2, .channels = 3, .height = 8, .width = 8, .classes = 4});
  TensorId before = builder.relu("first", builder.data());
  TensorId now = builder.relu("second", before);
  for (int i = 0; i < 60; ++i) before = std::exchange(now, builder.add(fmt::format("add{}", i), {now, before}));
  const TensorId wide = builder.conv("conv", now, {.channels = 4, .kernel = 3, .padding = 1});
  const Network network = make_training_network(
      std::move(builder).finish_classifier(builder.fully_connected("fc", builder.flatten("flat", wide), {4})), {});
  const Route route = make_route(network.graph);
  const auto kernels = testing::random_kernels(network.graph, 1);
  const CostTable costs;
  const int64_t before_all = planning_effort().scheduled_steps;
  for (const Policy& policy : policies()) {
    const PlanOrInfeasible answer = policy.plan({.graph = network.graph,
                                                 .route = route,
                                                 .kernels = kernels,
                                                 .costs = costs,
                                                 .device = {},
                                                 .budget = least_possible(network.graph)});
    if (const Plan* plan = std::get_if<Plan>(&answer)) {
      EXPECT_EQ(describe(verify(network.graph, *plan)), "") << policy.name;
    }
  }
  EXPECT_LT(planning_effort().scheduled_steps - before_all, 5'000'000);
}

TEST(Policies, UnknownNamesAreAnsweredWithTheNearest) {
  try {
    find_policy("livenes");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'liveness'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace plimsoll
