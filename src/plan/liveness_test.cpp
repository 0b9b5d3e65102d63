#include "plan/liveness.h"

#include <gtest/gtest.h>

#include "plan/simulate.h"
#include "tests/support/random_graph.h"

namespace plimsoll {
namespace {

Attributes shaped(int64_t n) { return {{"shape", std::vector<int64_t>{n}}}; }

struct TimelineBuilder {
  Graph graph;
  TimelineBuilder() { testing::register_test_ops(); }
  TensorId source(std::string name, int64_t n, Role role = Role::input) {
    return graph.add_source(std::move(name), {n}, DType::f32, role);
  }
  TensorId mix(std::string name, std::vector<TensorId> in, int64_t n = 16) {
    return graph.output(graph.add_op("TestMix", name, name, std::move(in), shaped(n)));
  }
  TensorId map(std::string name, TensorId in) { return graph.output(graph.add_op("TestMap", name, name, {in})); }
  TensorId view(std::string name, TensorId in, int64_t n = 16) {
    return graph.output(graph.add_op("TestView", name, name, {in}, shaped(n)));
  }
  Liveness analyze(const LivenessOptions& options = {}) const {
    return find_liveness(graph, make_route(graph), options);
  }
  bool share(const Liveness& l, TensorId a, TensorId b) const { return l.buffer_of[a] == l.buffer_of[b]; }
};

TEST(Liveness, ATensorLivesFromItsWriterToItsLastReader) {
  TimelineBuilder b;
  const TensorId data = b.source("data", 16);
  const TensorId y = b.mix("a", {data}), z = b.mix("b", {y}), end = b.mix("c", {z, y});
  b.graph.outputs = {end};
  const Liveness l = b.analyze();
  EXPECT_EQ(l.tensors[TensorId{0}], (LiveRange{0, 0}));
  EXPECT_EQ(l.tensors[TensorId{1}], (LiveRange{0, 2}));
  EXPECT_EQ(l.tensors[TensorId{2}], (LiveRange{1, 2}));
  EXPECT_EQ(live_before(b.graph, l, 0), (std::vector<TensorId>{data}));
  EXPECT_EQ(live_after(l, 0), (std::vector<TensorId>{y}));
  EXPECT_EQ(live_before(b.graph, l, 2), (std::vector<TensorId>{y, z}));
}

TEST(Liveness, AnOutputTakesADyingInputsPlaceButNotOneThatIsReadLater) {
  TimelineBuilder b;
  const TensorId data = b.source("data", 16);
  const TensorId y = b.mix("a", {data}), z = b.map("b", y), u = b.map("c", z);
  b.mix("d", {z, u});
  const Liveness l = b.analyze();
  EXPECT_TRUE(b.share(l, y, z));   // b is y's last reader
  EXPECT_FALSE(b.share(l, z, u));  // d reads z as well
  EXPECT_FALSE(b.share(b.analyze({.in_place = false}), y, z));
}

TEST(Liveness, WhatAViewShowsIsNotOverwrittenWhileTheViewIsRead) {
  TimelineBuilder b;
  const TensorId data = b.source("data", 16);
  const TensorId y = b.mix("a", {data});
  const TensorId v = b.view("view", y);
  const TensorId z = b.map("b", y);  // y's last reader, but v is read later
  b.mix("c", {v, z});
  const Liveness l = b.analyze();
  EXPECT_TRUE(b.share(l, y, v));
  EXPECT_FALSE(b.share(l, y, z));
}

TEST(Liveness, NeitherAStateNorAnOutputOfTheGraphIsOverwritten) {
  TimelineBuilder b;
  const TensorId data = b.source("data", 16), w = b.source("w", 16, Role::parameter);
  const TensorId fromw = b.map("fromw", w), y = b.mix("a", {data, fromw});
  const TensorId z = b.map("b", y);
  b.graph.outputs = {y, z};
  const Liveness l = b.analyze();
  EXPECT_FALSE(b.share(l, w, fromw));
  EXPECT_FALSE(b.share(l, y, z));
  EXPECT_EQ(l.buffers[0].tensors, (std::vector<TensorId>{w}));
  EXPECT_TRUE(l.buffers[0].is_state);
}

TEST(Liveness, RefusesAStateThatNoOpWritesInItsPlace) {
  TimelineBuilder b;
  const TensorId data = b.source("data", 16);
  b.source("w", 16, Role::parameter);
  b.graph.states[0].after = b.mix("a", {data});
  try {
    b.analyze();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "graph '': state 'w' leaves the step as 'a:0', which no op writes in its place");
  }
}

TEST(Simulate, CopiesRunBesideComputeAndAStepWaitsForThem) {
  TimelineBuilder b;
  const TensorId data = b.source("data", 1000);
  TensorId t = data;
  for (int i = 0; i < 4; ++i) t = b.mix("m" + std::to_string(i), {t});
  Plan plan;
  for (OpId id : make_route(b.graph).order) plan.steps.push_back({.op = id, .kernel = "k"});
  plan.tiers = {
      {.tier = {.name = "host", .capacity = 1_MiB, .out_gb_per_s = 0.001, .in_gb_per_s = 0.001}}};  // 4000 bytes: 4 ms
  CostTable costs;
  for (const Op& op : b.graph.ops())
    costs.put({op_signature(b.graph, op), "k", 0}, {Cost::Source::measured, 1.0, 0, 3});
  Prediction alone = simulate(b.graph, plan, costs);
  EXPECT_DOUBLE_EQ(alone.step_time_ms, 4);
  EXPECT_DOUBLE_EQ(alone.estimated_share, 0);
  plan.moves = {{Move::Direction::out, data, 0, 0_B, 0, 4}};  // from 1 ms to 5 ms; complete before the end
  EXPECT_DOUBLE_EQ(simulate(b.graph, plan, costs).step_time_ms, 5);
  plan.moves[0].before = 2;  // step 2 starts at 5 ms
  const Prediction waiting = simulate(b.graph, plan, costs);
  EXPECT_DOUBLE_EQ(waiting.step_time_ms, 7);
  EXPECT_EQ(waiting.offload, 4000_B);
  EXPECT_EQ(waiting.prefetch, 0_B);
  EXPECT_DOUBLE_EQ(waiting.stall_ms, 3);
  EXPECT_EQ(waiting.timeline.size(), 5u);
  plan.moves[0].before = 4;  // from 1 ms to 5 ms at half the compute speed: steps 1 and 2 take 2 ms each
  plan.tiers[0].tier.compute_share = 0.5;
  EXPECT_DOUBLE_EQ(simulate(b.graph, plan, costs).step_time_ms, 6);
  plan.tiers[0].tier.compute_share = 1;  // the computing threads copy
  const Prediction together = simulate(b.graph, plan, costs);
  EXPECT_DOUBLE_EQ(together.step_time_ms, 8);
  EXPECT_DOUBLE_EQ(together.stall_ms, 4);
}

}  // namespace
}  // namespace plimsoll
