#include <gtest/gtest.h>

#include <chrono>

#include "plimsoll/verify.h"
#include "tests/random_graph.h"

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
                                .seconds = 0.05};
        const PlanOrInfeasible answer = policy.plan(input);
        ASSERT_TRUE(std::holds_alternative<Plan>(answer));
        const Plan& plan = std::get<Plan>(answer);
        const auto violations = verify(graph, plan);
        ASSERT_TRUE(violations.empty()) << describe(violations);
        EXPECT_EQ(live_peak(plan).bytes, plan.lower_bound);
        EXPECT_GE(plan.arena, plan.lower_bound);
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

TEST(Policies, TheBudgetThatTheAnswerNamesIsEnoughAndOneByteLessIsNot) {
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
    EXPECT_FALSE(why.needs.empty());
    EXPECT_FALSE(why.op.empty());
    input.budget = why.minimum;
    ASSERT_TRUE(std::holds_alternative<Plan>(policy.plan(input)));
    EXPECT_LE(std::get<Plan>(policy.plan(input)).arena, why.minimum);
    input.budget = why.minimum - 1_B;
    EXPECT_TRUE(std::holds_alternative<Infeasible>(policy.plan(input)));
  }
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
