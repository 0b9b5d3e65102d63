#include "cores/relax_reuse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "plan/dependencies.h"
#include "plimsoll/compile.h"
#include "plimsoll/models.h"
#include "plimsoll/verify.h"
#include "tests/support/random_plan.h"

namespace plimsoll {
namespace {

Program program_of(const std::string& model) {
  const ModelInput input{.batch = 2, .channels = 3, .height = 32, .width = 32, .classes = 10, .training = true};
  const CompileOptions options{.policy = "liveness", .exact = true, .family = LayoutFamily::plain};
  return std::get<Program>(compile_training(build_model(model, input), *open_reference_device(), CostTable(), options));
}

// Steps of the longest chain of which each waits for the one before.
int chain_of(const Graph& graph, const Plan& plan) {
  const Dependencies dependencies = find_dependencies(graph, plan);
  std::vector<int> length(dependencies.count(), 1);
  int longest = 0;
  for (int32_t node : dependencies.order()) {
    int& mine = length[node];
    for (int32_t other : dependencies.before(node)) mine = std::max(mine, length[other] + 1);
    longest = std::max(longest, mine);
  }
  return longest;
}

Plan with(Plan plan, const RelaxedStays& relaxed) {
  plan.stays = relaxed.stays;
  plan.arena = plan.budget = relaxed.arena;
  return plan;
}
Plan relaxed(const Graph& graph, const Plan& plan, StepIndex steps) {
  return with(plan, ReuseRelaxation(graph, plan).with_reuse_distance(steps));
}

TEST(RelaxReuse, StepsWaitLessForEachOther) {
  const Program program = program_of("resnet20");
  const Graph& graph = program.network.graph;
  const int tight = chain_of(graph, program.plan);
  int before = tight;
  for (StepIndex steps : {8, 64, 1000}) {
    const Plan plan = relaxed(graph, program.plan, steps);
    EXPECT_TRUE(verify(graph, plan).empty());
    const int chain = chain_of(graph, plan);
    EXPECT_LE(chain, before + before / 20);
    before = chain;
  }
  EXPECT_LT(before, tight * 3 / 4);
}

bool meet(const Stay& x, const Stay& y) { return x.first <= y.last && y.first <= x.last; }
bool lie_upon(const Stay& x, const Stay& y) { return x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes; }

// Stays that lie upon each other at different times are linked by others that do at one time: nothing is taken over but
// by the rules of ops. The states, at the bottom, are what they are.
TEST(RelaxReuse, WithoutReuseNothingIsTakenOver) {
  const Program program = program_of("lenet");
  const Graph& graph = program.network.graph;
  auto strangers = [&](const Plan& plan) {
    Bytes states;
    for (const State& state : graph.states) states += align_up(graph.tensor(state.before).bytes(), kStayAlignment);
    std::vector<size_t> group(plan.stays.size());
    for (size_t i = 0; i < group.size(); ++i) group[i] = i;
    for (size_t a = 0; a < group.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        if (!meet(plan.stays[a], plan.stays[b]) || !lie_upon(plan.stays[a], plan.stays[b])) continue;
        const size_t from = group[a], to = group[b];
        for (size_t& g : group) g = g == from ? to : g;
      }
    }
    int count = 0;
    for (size_t a = 0; a < group.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        count += group[a] != group[b] && lie_upon(plan.stays[a], plan.stays[b]) && plan.stays[a].offset >= states;
      }
    }
    return count;
  };
  const ReuseRelaxation relaxation(graph, program.plan);
  EXPECT_GT(strangers(program.plan), 20);
  EXPECT_GT(strangers(with(program.plan, relaxation.with_reuse_distance(2))), 0);
  EXPECT_EQ(strangers(with(program.plan, relaxation.without_reuse())), 0);
  EXPECT_EQ(
      strangers(with(program.plan, relaxation.with_reuse_distance(static_cast<StepIndex>(program.plan->steps.size())))),
      0);
}

TEST(RelaxReuse, GoesByThePlansOwnPlacement) {
  const Program program = program_of("resnet20");
  const Bytes offline = ReuseRelaxation(program.network.graph, program.plan).with_reuse_distance(3).arena;
  Plan first_fit = program.plan;
  first_fit.placement = "first_fit";
  const Plan plan = relaxed(program.network.graph, first_fit, 3);
  EXPECT_NE(plan.arena, offline);
  EXPECT_TRUE(verify(program.network.graph, plan).empty());
}

TEST(RelaxReuse, KeepsTheStatesWhereTheyAre) {
  const Program program = program_of("resnet20");
  const Graph& graph = program.network.graph;
  const Plan plan = relaxed(graph, program.plan, 100);
  auto offset_of = [](const Plan& p, TensorId id) {
    return std::find_if(p.stays.begin(), p.stays.end(), [&](const Stay& s) { return s.tensor == id; })->offset;
  };
  for (const State& state : graph.states)
    EXPECT_EQ(offset_of(plan, state.before), offset_of(program.plan, state.before));
}

TEST(RelaxReuse, RandomPlansStayValid) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const Graph graph = testing::random_graph(seed, {.forward_ops = static_cast<int>(2 + seed % 40)});
    Plan plan = testing::RandomPlan(graph, seed, seed % 2 == 0).make();
    ASSERT_TRUE(verify(graph, plan).empty());
    if (seed % 5 == 0) plan.placement = "best_fit";
    const Plan other = seed % 3 == 0 ? with(plan, ReuseRelaxation(graph, plan).without_reuse())
                                     : relaxed(graph, plan, static_cast<StepIndex>(seed % 60));
    ASSERT_EQ(other.stays.size(), plan.stays.size());
    const auto violations = verify(graph, other);
    ASSERT_TRUE(violations.empty()) << "seed " << seed << ": " << violations[0].message;
  }
}

}  // namespace
}  // namespace plimsoll
