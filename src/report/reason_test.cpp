#include "report/reason.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/texts.h"
#include "plimsoll/cost_graph.h"
#include "plimsoll/models.h"

namespace plimsoll {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Simulated, so that times do not depend on the machine.
class Reason : public ::testing::Test {
 protected:
  Program plan(Bytes memory, const std::string& policy, Bytes host = {}) {
    CompileOptions options{.memory = memory, .policy = policy};
    for (TierInfo tier : device_->info().tiers) {
      if (tier.name != "host" || host.count == 0) continue;
      tier.capacity = host;
      options.tiers.push_back(tier);
    }
    auto result = compile_training(build_model("resnet20", {.batch = 64}), *device_, costs_, options);
    return std::get<Program>(std::move(result));
  }
  std::unique_ptr<Device> device_ = open_device("k40c");
  CostTable costs_;
};

TEST_F(Reason, SaysWhatKeepingEverythingWouldNeedAndWhatIsDoneInstead) {
  const Program keeping = plan({INT64_MAX}, "liveness");
  ASSERT_TRUE(keeps_everything(keeping.plan));
  const Bytes budget{keeping.plan->arena.count / 2};
  // Without room outside, ops are recomputed, which takes time; copies to the host run beside the computing.
  for (const Bytes host : {4_KiB, 0_B}) {
    SCOPED_TRACE(to_string(host));
    const Program tight = plan(budget, "auto", host);
    const PlanReason reason = reason_of(tight, {.keeping = &keeping});
    EXPECT_THAT(reason.why,
                StartsWith(fmt::format("Keeping every tensor needs {}, {} above the budget; the plan ",
                                       to_string(keeping.plan->arena), to_string(keeping.plan->arena - budget))));
    std::set<OpId> again;
    for (const Step& step : tight.plan->steps) {
      if (step.recompute && !step.kernel.empty()) again.insert(step.op);
    }
    std::set<TensorId> away, states;
    for (const State& state : tight.network.graph.states) states.insert({state.before, state.after});
    for (const Move& move : tight.plan->moves) {
      if (move.direction == Move::Direction::out && !states.contains(move.tensor)) away.insert(move.tensor);
    }
    for (const Home& home : tight.plan->homes) {
      if (!states.contains(home.tensor)) away.insert(home.tensor);
    }
    ASSERT_GT(again.size() + away.size(), 0u);
    if (!again.empty()) {
      EXPECT_THAT(reason.why, HasSubstr(fmt::format("recomputes the results of {} op", again.size())));
    }
    if (!away.empty()) {
      EXPECT_THAT(reason.why, HasSubstr(fmt::format("offloads {} tensor", away.size())));
      EXPECT_THAT(reason.why, HasSubstr("to host memory"));
    }
    const double ms = tight.plan->predicted.step_time_ms, best = keeping.plan->predicted.step_time_ms;
    if (host == 4_KiB) {
      ASSERT_GT(again.size(), 0u);
      ASSERT_GT(ms, 1.01 * best);
    } else {
      ASSERT_GT(away.size(), 0u);
    }
    EXPECT_THAT(reason.why,
                EndsWith(ms > 1.0005 * best ? fmt::format("which costs {:.1f} % of step time ({} instead of {}).",
                                                          100 * (ms / best - 1), time_text(ms), time_text(best))
                                            : ", at no predicted cost in time."));
    EXPECT_EQ(reason.keeping_bytes, keeping.plan->arena);
    EXPECT_EQ(reason.keeping_ms, best);
    EXPECT_EQ(reason.more, "");
  }
}

TEST_F(Reason, SaysWhatATenthMoreMemoryBuys) {
  Program now = plan({INT64_MAX}, "liveness"), more = now;
  const auto taking = [](Program& program, double factor, Bytes budget) {
    Plan plan = program.plan;
    for (Step& step : plan.steps) step.time_ms *= factor;
    plan.budget = budget;
    program.plan = check_plan(program.network.graph, std::move(plan));
  };
  taking(now, 2, 10_GiB);
  taking(more, 1.5, a_tenth_more(10_GiB));
  const PlanReason reason = reason_of(now, {.more = &more});
  const double ms = now.plan->predicted.step_time_ms, then = more.plan->predicted.step_time_ms;
  ASSERT_LT(then, 0.9 * ms);
  EXPECT_EQ(reason.more, fmt::format("With 10 % more (11.0 GiB) a step would take {} instead of {}, {:.1f} % less.",
                                     time_text(then), time_text(ms), 100 * (1 - then / ms)));
  EXPECT_EQ(reason.more_bytes, 11_GiB);
  EXPECT_EQ(reason_of(more, {.more = &now}).more, "With 10 % more (10.0 GiB) a step would not be faster.");
}

TEST_F(Reason, WhatFitsIsSaidToFit) {
  const Program keeping = plan({INT64_MAX}, "liveness");
  const Program roomy = plan(keeping.plan->arena * 2, "auto");
  EXPECT_EQ(reason_of(roomy, {.keeping = &keeping}).why,
            fmt::format("Keeping every tensor needs {} of the budget of {}: nothing is recomputed or moved.",
                        to_string(keeping.plan->arena), to_string(keeping.plan->arena * 2)));
  EXPECT_EQ(reason_of(keeping).why, "No limit on memory was given, so nothing is recomputed or moved.");
}

TEST_F(Reason, APolicyThatMovesWithoutNeedIsNamed) {
  const Program keeping = plan({INT64_MAX}, "liveness");
  const Program vdnn = plan(keeping.plan->arena * 2, "vdnn:layers=conv");
  ASSERT_FALSE(vdnn.plan->moves.empty());
  EXPECT_THAT(reason_of(vdnn, {.keeping = &keeping}).why,
              HasSubstr("within the budget; policy vdnn:layers=conv all the same offloads "));
  EXPECT_THAT(reason_of(vdnn).why, StartsWith("The plan offloads "));
}

// The blocks of a split weight are one state.
TEST_F(Reason, StatesOutsideTheArenaAreCountedWhole) {
  CompileOptions options{.tiers = device_->info().tiers, .name_minimum = true};
  ASSERT_FALSE(options.tiers.empty());
  options.fusion = {.off = {}, .split_above = 20_KiB, .block_bytes = 16_KiB};
  const Network lenet = build_model("lenet", {.batch = 4});
  options.memory = *std::get<Program>(compile_training(lenet, *device_, costs_, options)).minimum;
  const auto result = compile_training(lenet, *device_, costs_, options);
  const Program& program = std::get<Program>(result);
  const Graph& graph = program.network.graph;
  std::set<TensorId> outside;
  for (const Home& home : program.plan->homes) outside.insert(home.tensor);
  size_t count = 0, blocks = 0;
  for (const WholeState& whole : whole_states(graph)) {
    const auto away =
        std::count_if(whole.parts.begin(), whole.parts.end(), [&](TensorId part) { return outside.contains(part); });
    count += away > 0 ? 1 : 0;
    blocks += static_cast<size_t>(away);
  }
  ASSERT_GT(blocks, count);
  EXPECT_THAT(reason_of(program).why, HasSubstr(fmt::format("keeps {} states (weights and the like) in host "
                                                            "memory",
                                                            count)));
}

TEST(ReasonOfAGraphOfCosts, SaysThatItsOpsRunInAnotherOrder) {
  const CostGraph costs = cost_graph_from_json(R"({"nodes": [
      {"ms": 1, "out": [6400], "in": []}, {"ms": 1, "out": [6400], "in": []}, {"ms": 1, "out": [6400], "in": []},
      {"ms": 1, "out": [64], "in": [[0, 0]]}, {"ms": 1, "out": [64], "in": [[1, 0]]}, {"ms": 1, "out": [64], "in": [[2, 0]]},
      {"ms": 1, "out": [64], "in": [[3, 0], [4, 0], [5, 0]]}], "keep": [[6, 0]]})");
  const std::unique_ptr<Device> device = open_device("cpu", 1);
  const auto plan = [&](Bytes memory, const std::string& policy) {
    return std::get<Program>(compile_graph(costs.graph, costs.kernels, *device, costs_of(costs),
                                           {.memory = memory, .policy = policy, .as_listed = true}));
  };
  const Program keeping = plan({INT64_MAX}, "liveness"), tight = plan(7_KiB, "auto");
  EXPECT_EQ(tight.plan->predicted.recompute_steps, 0);
  EXPECT_THAT(reason_of(tight, {.keeping = &keeping}).why,
              HasSubstr("the plan runs its ops in another order, at no predicted cost in time."));
  EXPECT_THAT(reason_of(keeping, {.keeping = &keeping}).why, ::testing::Not(HasSubstr("another order")));
}

}  // namespace
}  // namespace plimsoll
