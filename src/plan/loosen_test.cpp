#include "plan/loosen.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "plimsoll/compile.h"
#include "plimsoll/dependencies.h"
#include "plimsoll/models.h"
#include "plimsoll/verify.h"
#include "tests/random_plan.h"

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
  std::vector<int> length(static_cast<size_t>(dependencies.count()), 1);
  int longest = 0;
  for (int32_t node : dependencies.order()) {
    int& mine = length[static_cast<size_t>(node)];
    for (int32_t other : dependencies.before(node)) mine = std::max(mine, length[static_cast<size_t>(other)] + 1);
    longest = std::max(longest, mine);
  }
  return longest;
}

Plan loosened(const Graph& graph, Plan plan, StepIndex steps) {
  const LooseStays loose = loosen(graph, plan, steps, {INT64_MAX}).value();
  plan.stays = loose.stays;
  plan.arena = plan.budget = loose.arena;
  return plan;
}

TEST(Loosen, StepsWaitLessForEachOther) {
  const Program program = program_of("resnet20");
  const Graph& graph = program.network.graph;
  const int packed = chain_of(graph, program.plan);
  int before = packed;
  for (StepIndex steps : {8, 64, 1000}) {
    const Plan plan = loosened(graph, program.plan, steps);
    EXPECT_TRUE(verify(graph, plan).empty());
    const int chain = chain_of(graph, plan);
    EXPECT_LE(chain, before + before / 20);
    before = chain;
  }
  EXPECT_LT(before, packed * 3 / 4);
}

// When nothing takes the bytes of another, but by the rules of ops, steps wait for what they read alone.
TEST(Loosen, WithAllTheRoomThereIsOnlyDataIsWaitedFor) {
  const Program program = program_of("lenet");
  const Graph& graph = program.network.graph;
  const Plan plan = loosened(graph, program.plan, static_cast<StepIndex>(program.plan.steps.size()));
  for (size_t a = 0; a < plan.stays.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      const Stay &x = plan.stays[a], &y = plan.stays[b];
      const bool meet = x.first <= y.last && y.first <= x.last;
      const bool upon = x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes;
      if (!upon || meet) continue;
      // A chain of places taken over, or a state and what it becomes: they were upon each other before.
      const auto same = [&](const Stay& s) {
        return std::find_if(program.plan.stays.begin(), program.plan.stays.end(), [&](const Stay& p) {
          return std::tie(p.tensor, p.first, p.last) == std::tie(s.tensor, s.first, s.last);
        });
      };
      EXPECT_TRUE(same(x)->offset < same(y)->offset + same(y)->bytes && same(y)->offset < same(x)->offset + same(x)->bytes);
    }
  }
}

TEST(Loosen, KeepsTheStatesWhereTheyAre) {
  const Program program = program_of("resnet20");
  const Graph& graph = program.network.graph;
  const Plan plan = loosened(graph, program.plan, 100);
  auto offset_of = [](const Plan& p, TensorId id) {
    return std::find_if(p.stays.begin(), p.stays.end(), [&](const Stay& s) { return s.tensor == id; })->offset;
  };
  for (const State& state : graph.states) EXPECT_EQ(offset_of(plan, state.before), offset_of(program.plan, state.before));
}

TEST(Loosen, NeverTakesMoreThanTheLimit) {
  const Program program = program_of("resnet20");
  for (int percent : {50, 100, 105, 150, 400}) {
    const Bytes limit{program.plan.arena.count * percent / 100};
    for (StepIndex steps : {1, 10, 1000}) {
      const auto loose = loosen(program.network.graph, program.plan, steps, limit);
      if (loose) {
        EXPECT_LE(loose->arena, limit);
      }
    }
  }
  EXPECT_FALSE(loosen(program.network.graph, program.plan, 1, Bytes{program.plan.arena.count / 2}));
}

TEST(Loosen, RandomPlansStayValid) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const Graph graph = testing::random_graph(seed, {.forward_ops = static_cast<int>(2 + seed % 40)});
    const Plan plan = testing::RandomPlan(graph, seed, seed % 2 == 0).make();
    ASSERT_TRUE(verify(graph, plan).empty());
    const Plan loose = loosened(graph, plan, static_cast<StepIndex>(seed % 60));
    ASSERT_EQ(loose.stays.size(), plan.stays.size());
    const auto violations = verify(graph, loose);
    ASSERT_TRUE(violations.empty()) << "seed " << seed << ": " << violations[0].message;
  }
}

}  // namespace
}  // namespace plimsoll
