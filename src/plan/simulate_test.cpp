// Steps that run at once, on paper, against times worked out by hand.
#include "plan/simulate.h"

#include <gtest/gtest.h>

#include "plan/policy.h"
#include "plimsoll/verify.h"
#include "tests/support/random_plan.h"

namespace plimsoll {
namespace {

// a and b both read data; c reads both.
struct Fork {
  Graph graph;
  Plan plan;

  Fork(double a_ms, double b_ms, double c_ms) {
    testing::register_test_ops();
    graph.name = "fork";
    auto mix = [&](const std::string& name, std::vector<TensorId> inputs) {
      return graph.output(graph.add_op("TestMix", name, name, std::move(inputs), {{"shape", Shape{250}}},
                                       Phase::forward, {name + "/y"}));
    };
    const TensorId data = graph.add_source("data", {250}, DType::f32, Role::input);
    const TensorId a = mix("a", {data}), b = mix("b", {data});
    graph.outputs = {mix("c", {a, b})};
    const Route route = make_route(graph);
    const std::vector<KernelChoice> kernels(3, {"k", {}});
    const CostTable costs;
    plan = std::get<Plan>(
        find_policy("baseline")
            .plan({.graph = graph, .route = route, .kernels = kernels, .costs = costs, .device = {.name = "cpu"}}));
    plan.cores = {.inter_op = 2, .cores = 2};
    const double times[] = {a_ms, b_ms, c_ms};
    for (Step& step : plan.steps) {
      step.threads = 1;
      step.time_ms = times[step.op.index];
    }
  }
  Prediction run() {
    plan.predicted = simulate(graph, plan);
    for (const Violation& v : verify(graph, plan)) ADD_FAILURE() << to_string(v.rule) << ": " << v.message;
    return plan.predicted;
  }
};

TEST(SimulateAtOnce, ReadyStepsRunSideBySide) {
  const Prediction p = Fork(2, 3, 1).run();
  EXPECT_DOUBLE_EQ(p.step_time_ms, 4);
  EXPECT_DOUBLE_EQ(p.lower_bound_ms, 4);  // b, then c
  EXPECT_DOUBLE_EQ(p.stall_ms, 0);
  EXPECT_EQ(p.timeline.size(), 3u);
}

TEST(SimulateAtOnce, OneAfterTheOtherWithoutCoresOrWhereTheyAreKeptApart) {
  Fork narrow(2, 3, 1);
  narrow.plan.cores.cores = 1;
  EXPECT_DOUBLE_EQ(narrow.run().step_time_ms, 6);
  EXPECT_DOUBLE_EQ(narrow.run().lower_bound_ms, 6);  // all the work
  Fork all(2, 3, 1);
  for (Step& step : all.plan.steps) step.threads = 0;
  EXPECT_DOUBLE_EQ(all.run().step_time_ms, 6);
  Fork conflicting(2, 3, 1);
  conflicting.plan.cores.conflicts = {{OpId{0}, OpId{1}}};
  EXPECT_DOUBLE_EQ(conflicting.run().step_time_ms, 6);
}

TEST(SimulateAtOnce, TheFirstOfTheOrderStartsFirst) {
  Fork fork(2, 3, 1);
  fork.plan.cores.cores = 1;
  fork.plan.cores.order = {1, 0, 2};
  const Prediction p = fork.run();
  EXPECT_EQ(p.timeline[0].index, 1);
  EXPECT_DOUBLE_EQ(p.timeline[1].start_ms, 3);
}

// Each moves 2000 bytes in 2 ms; where there are 1000 bytes a ms for both, both take twice as long.
TEST(SimulateAtOnce, StepsShareTheMemory) {
  Fork fork(2, 2, 1);
  fork.plan.cores.memory_gb_per_s = 0.001;
  const Prediction p = fork.run();
  EXPECT_DOUBLE_EQ(p.step_time_ms, 5);
  EXPECT_DOUBLE_EQ(p.lower_bound_ms, 3);
}

// Both compute at 0.625 until b is done at 3.2 ms, when a has 1 ms left.
TEST(SimulateAtOnce, AStepOnSecondHardwareThreadsSlowsTheOneWhoseCoresTheyAre) {
  Fork fork(3, 2, 1);
  fork.plan.cores = {.inter_op = 2, .cores = 1, .hardware_threads = 2, .smt_speed = 1.25};
  fork.plan.steps[1].affinity = Affinity::smt;
  EXPECT_DOUBLE_EQ(fork.run().step_time_ms, 5.2);
  fork.plan.steps[1].time_ms = 3.5;  // it would end after a: it waits
  EXPECT_DOUBLE_EQ(fork.run().step_time_ms, 7.5);
}

TEST(SimulateAtOnce, RandomPlansEndNoEarlierThanTheirBoundAndAreAsTheVerifierSees) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Graph graph = testing::random_graph(seed, {.forward_ops = 12});
    Plan plan = testing::random_plan(graph, seed);
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      if (graph.op(plan.steps[s].op).type->is_view) continue;
      plan.steps[s].threads = 1 + static_cast<int>(s * seed % 3);
      plan.steps[s].time_ms = 0.001 * static_cast<double>(1 + s * seed % 17);
    }
    plan.cores = {.inter_op = 3, .cores = 4, .memory_gb_per_s = 0};
    const Prediction p = simulate(graph, plan);
    EXPECT_EQ(p.timeline.size(), plan.steps.size() + plan.moves.size());
    EXPECT_GE(p.step_time_ms, p.lower_bound_ms * (1 - 1e-9)) << "seed " << seed;
    plan.predicted = p;
    const auto violations = verify(graph, plan, 3);
    EXPECT_TRUE(violations.empty()) << "seed " << seed << ": " << violations[0].message;
  }
}

}  // namespace
}  // namespace plimsoll
