#include "plan/fastest_order.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/policy.h"
#include "plan/reorder.h"
#include "plan/value_timeline.h"
#include "tests/support/random_cost_graph.h"

namespace plimsoll {
namespace {

constexpr int64_t kStates = 1'000'000;

// No plan is faster, whatever its policy; with enough memory nothing runs again; and with less it takes no less.
TEST(FastestOrder, IsNoSlowerThanAnyPlan) {
  int plans = 0, reached = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const testing::CostInput costs(testing::random_cost_graph(seed, 4 + static_cast<int>(seed % 7)));
    PolicyInput input = costs.input();
    const ValueTimeline timeline = make_timeline(input);
    const auto free = fastest_order(costs.graph.graph, timeline, int64_t{1} << 40, kStates);
    ASSERT_TRUE(free);
    EXPECT_NEAR(free->least_ms, timeline.compute_ms, 1e-9);
    double last_ms = 0;
    for (int64_t budget = 1 << 14; budget > 0; budget -= 448) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " in " << budget);
      const auto found = fastest_order(costs.graph.graph, timeline, budget, kStates);
      input.budget = {budget};
      const PlanOrInfeasible answer = find_policy("auto").plan(input);
      if (!found) {
        EXPECT_TRUE(std::holds_alternative<Infeasible>(answer));
        ++refused;
        break;
      }
      EXPECT_GE(found->least_ms, last_ms - 1e-9);
      last_ms = found->least_ms;
      std::vector<OpId> order = found->route.order;
      EXPECT_EQ(order.size(), timeline.steps.size());
      std::ranges::sort(order);
      EXPECT_EQ(std::ranges::unique(order).begin(), order.end());
      const Plan* const plan = std::get_if<Plan>(&answer);
      if (plan == nullptr) continue;
      ++plans;
      double ms = 0;
      for (const Step& step : plan->steps) ms += timeline.steps[timeline.step_of[step.op]].ms;
      EXPECT_GE(ms, found->least_ms - 1e-9);
      reached += ms <= found->least_ms + 1e-9 ? 1 : 0;
    }
  }
  EXPECT_GT(plans, 500);
  EXPECT_GT(reached, plans / 2);
  EXPECT_GT(refused, 50);
}

// The least bytes are those of the least budget in which there is an order, and no plan has less.
TEST(FastestOrder, NeedsNoMoreThanTheLeastBytes) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const testing::CostInput costs(testing::random_cost_graph(seed, 4 + static_cast<int>(seed % 7)));
    const Graph& graph = costs.graph.graph;
    PolicyInput input = costs.input();
    const ValueTimeline timeline = make_timeline(input);
    const auto least = least_live_exactly(graph, timeline, kStates);
    ASSERT_TRUE(least);
    EXPECT_TRUE(fastest_order(graph, timeline, *least, kStates));
    EXPECT_FALSE(fastest_order(graph, timeline, *least - 1, kStates));
    EXPECT_GE(*least, least_live_in_any_order(graph, timeline, false));
    input.least_memory = true;
    const PlanOrInfeasible answer = find_policy("auto").plan(input);
    EXPECT_GE(std::get<Plan>(answer).arena.count, *least);
  }
}

// Of two inputs that may be overwritten the second is the one that nobody reads later.
TEST(FastestOrder, TakesThePlaceOfAnyInput) {
  const testing::CostInput costs(
      cost_graph_from_json(R"({"format": "plimsoll cost graph", "version": 1, "sources": [], "ops": [
    {"name": "a", "ms": 9, "inputs": [], "outputs": [{"name": "a", "bytes": 640}]},
    {"name": "b", "ms": 9, "inputs": [], "outputs": [{"name": "b", "bytes": 640}]},
    {"name": "c", "ms": 1, "inputs": ["a", "b"], "outputs": [{"name": "c", "bytes": 640, "may_overwrite": ["a", "b"]}]},
    {"name": "d", "ms": 1, "inputs": ["a", "c"], "outputs": [{"name": "d", "bytes": 64}]}], "keep": ["d"]})"));
  const ValueTimeline timeline = make_timeline(costs.input());
  EXPECT_EQ(least_live_exactly(costs.graph.graph, timeline, kStates), 1344);
  const auto found = fastest_order(costs.graph.graph, timeline, 1344, kStates);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->least_ms, 20);
  EXPECT_TRUE(found->is_bound);
}

TEST(FastestOrder, IsOfFewSteps) {
  const testing::CostInput costs(testing::random_cost_graph(1, 40));
  const PolicyInput input = costs.input();
  EXPECT_FALSE(fastest_order(costs.graph.graph, make_timeline(input), int64_t{1} << 40, kStates));
  EXPECT_FALSE(least_live_exactly(costs.graph.graph, make_timeline(input), kStates));
}

}  // namespace
}  // namespace plimsoll
