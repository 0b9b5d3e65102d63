#include "plan/together.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "plan/simulate.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

// Four updates, one after the other, of parameters of 4, 8, 12 and 16 elements.
struct Updates {
  Updates() {
    const TensorId rate = graph.add_source("lr", {}, DType::f32, Role::hyperparameter);
    for (int64_t i = 1; i <= 4; ++i) {
      const TensorId w = graph.add_source(fmt::format("w{}", i), {4 * i}, DType::f32, Role::parameter);
      const TensorId g = graph.add_source(fmt::format("g{}", i), {4 * i}, DType::f32, Role::input);
      const OpId op = graph.add_op("SgdUpdate", fmt::format("u{}", i), "", {w, g, rate}, {}, Phase::update);
      plan.steps.push_back({.op = op, .kernel = "own"});
    }
  }
  std::string signature(size_t s) const { return op_signature(graph, graph.op(plan.steps[s].op)); }
  std::vector<double> times(const CostTable& costs) const {
    Plan timed = plan;
    take_times(graph, timed, costs);
    std::vector<double> ms;
    for (const Step& step : timed.steps) ms.push_back(step.time_ms);
    return ms;
  }

  Graph graph;
  Plan plan;
};

using Flags = std::vector<bool>;

TEST(Together, AreUpdatesByOneKernelWithNothingBetweenThem) {
  Updates u;
  EXPECT_EQ(steps_together(u.graph, u.plan), (Flags{true, true, true, true}));
  u.plan.steps[1].kernel = "other";
  EXPECT_EQ(steps_together(u.graph, u.plan), (Flags{false, false, true, true}));
  u.plan.steps[1].kernel = "own";
  u.plan.moves.push_back({.tensor = {0}, .after = 1, .before = 4});  // begins before step 2
  EXPECT_EQ(steps_together(u.graph, u.plan), (Flags{true, true, true, true})) << "two and two";
  u.plan.moves[0] = {.tensor = {0}, .after = 0, .before = 3};
  EXPECT_EQ(steps_together(u.graph, u.plan), (Flags{false, true, true, false}));
  u.plan.moves.clear();
  u.plan.collectives.push_back({.steps = {}, .before = 3});
  EXPECT_EQ(steps_together(u.graph, u.plan), (Flags{true, true, true, false}));
}

TEST(Together, HaveTheirSharesOfALaunchAndTheOthersTheirOwnTimes) {
  Updates u;
  CostTable costs;
  for (size_t s = 0; s < 4; ++s) {
    const double share = 0.001 * static_cast<double>(s + 1);
    costs.put({u.signature(s), kernel_together("own")}, {Cost::Source::in_step, share, 0, 5});
    costs.put({u.signature(s), "own"}, {Cost::Source::measured, 0.004 + share, 0, 5});
  }
  EXPECT_EQ(u.times(costs), (std::vector<double>{0.001, 0.002, 0.003, 0.004}));
  u.plan.steps[1].kernel = "";  // the first stands alone
  EXPECT_EQ(u.times(costs), (std::vector<double>{0.005, 0, 0.003, 0.004}));
  u.plan.steps[1].kernel = "own";
  costs.put({u.signature(0), "own"}, {Cost::Source::in_step, 0.0045, 0, 5});  // alone, inside a step
  EXPECT_EQ(u.times(costs)[0], 0.001);
  std::swap(u.plan.steps[0].op, u.plan.steps[1].op);
  u.plan.moves.push_back({.tensor = {0}, .after = 0, .before = 1});
  EXPECT_EQ(u.times(costs)[1], 0.001) << "the next is beside it";
  u.plan.moves.push_back({.tensor = {0}, .after = 1, .before = 2});
  EXPECT_EQ(u.times(costs), (std::vector<double>{0.006, 0.0045, 0.003, 0.004}));
}

}  // namespace
}  // namespace plimsoll
