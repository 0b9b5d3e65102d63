#include "plan/schedule.h"

#include <gtest/gtest.h>

#include <random>

#include "plan/make_plan.h"
#include "plan/simulate.h"
#include "plimsoll/verify.h"
#include "tests/support/random_graph.h"

namespace plimsoll {
namespace {

std::string describe(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& v : violations) text += std::string(to_string(v.rule)) + ": " + v.message + "\n";
  return text;
}

std::vector<TierInfo> two_tiers(std::mt19937_64& random) {
  auto rate = [&] { return 0.0001 * static_cast<double>(1 + random() % 1000); };
  return {{.name = "host",
           .capacity = 1_GiB,
           .out_gb_per_s = rate(),
           .in_gb_per_s = rate(),
           .latency_us = 1,
           .compute_share = 0.3},
          {.name = "disk", .capacity = 1_GiB, .out_gb_per_s = rate(), .in_gb_per_s = rate(), .latency_us = 5}};
}

Decisions random_decisions(const ValueTimeline& timeline, std::mt19937_64& random, int tiers) {
  Decisions decisions = keep_everything(timeline);
  const int eager = 1 + static_cast<int>(random() % 99);
  for (Choice& choice : decisions.gaps) {
    if (static_cast<int>(random() % 100) < eager)
      choice = static_cast<Choice>(1 + random() % static_cast<uint64_t>(tiers + 1));
  }
  for (size_t v = 0; v < timeline.values.size(); ++v) {
    const TimelineValue& value = timeline.values[v];
    decisions.retain[v] = random() % 2 == 0;
    if (value.producer < 0 && tiers > 0 && random() % 3 == 0)
      decisions.home[v] = static_cast<int8_t>(random() % static_cast<uint64_t>(tiers));
    // What comes from outside and has no home cannot come back; a gradient is not made twice.
    const bool stays = (value.producer < 0 && decisions.home[v] < 0) || value.state >= 0;
    for (int32_t g = 0; g < value.gap_count(); ++g) {
      Choice& choice = decisions.gaps[value.first_gap + g];
      if (stays && !(value.before < 0 && decisions.home[v] >= 0)) choice = kKeep;
    }
  }
  return decisions;
}

TEST(Schedule, OfRandomDecisionsMakesSafePlans) {
  int made = 0, with_moves = 0, with_recomputations = 0, shared = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const Graph graph =
        testing::random_graph(seed, {.forward_ops = static_cast<int>(3 + seed % 28), .updates = seed % 7 != 0});
    const Route route = make_route(graph);
    const auto kernels = testing::random_kernels(graph, seed);
    const CostTable costs;
    PolicyInput input{.graph = graph, .route = route, .kernels = kernels, .costs = costs, .device = {.name = "cpu"}};
    const int tiers = static_cast<int>(seed % 3);
    input.device.tiers = two_tiers(random);
    input.device.tiers.resize(tiers);
    input.placement = "best_fit";
    input.effort = 100'000;
    const ValueTimeline timeline = make_timeline(input);
    const Decisions decisions = random_decisions(timeline, random, tiers);
    Schedule schedule;
    Scheduler(timeline).run(decisions, schedule);
    if (schedule.unrecoverable >= 0) continue;
    ++made;
    with_moves += schedule.moves.empty() ? 0 : 1;
    with_recomputations += schedule.recomputations > 0 ? 1 : 0;
    for (const Residence& r : schedule.residences) shared += r.in_place_of >= 0 ? 1 : 0;
    for (const double room : {0.0, 1.0, 1.3, 10.0}) {
      SCOPED_TRACE(room);
      Schedule spread = schedule;
      if (room > 0)
        spread_copies(timeline, input.device.tiers, static_cast<int64_t>(room * static_cast<double>(schedule.peak)),
                      spread);
      const Plan plan = make_plan(input, timeline, decisions, spread, "test");
      const auto violations = verify(graph, plan);
      ASSERT_TRUE(violations.empty()) << describe(violations);
      EXPECT_EQ(live_peak(plan).bytes.count, spread.peak);
      if (room == 1.0) {
        EXPECT_EQ(spread.peak, schedule.peak);
      }
      EXPECT_NEAR(simulate(graph, plan, costs).step_time_ms, time_of(timeline, input.device.tiers, spread).total_ms,
                  1e-6);
    }
  }
  EXPECT_GT(made, 120);
  EXPECT_GT(with_moves, 60);
  EXPECT_GT(with_recomputations, 60);
  EXPECT_GT(shared, 500);
}

// A network that is trained gives its scores, which the loss reads and could overwrite.
TEST(Schedule, KeepsAnOutputThatTheLastStepCouldOverwrite) {
  testing::register_test_ops();
  Graph graph;
  const TensorId data = graph.add_source("data", {4, 64}, DType::f32, Role::input);
  const TensorId scores = graph.output(graph.add_op("TestMap", "scores", "scores", {data}));
  const TensorId loss = graph.output(graph.add_op("TestMap", "loss", "loss", {scores}));
  graph.outputs = {loss, scores};
  const Route route = make_route(graph);
  const auto kernels = testing::random_kernels(graph, 1);
  const CostTable costs;
  std::mt19937_64 random(1);
  PolicyInput input{.graph = graph, .route = route, .kernels = kernels, .costs = costs, .device = {.name = "cpu"}};
  input.device.tiers = two_tiers(random);
  for (const Policy& policy : policies()) {
    SCOPED_TRACE(policy.name);
    const PlanOrInfeasible answer = policy.plan(input);
    ASSERT_TRUE(std::holds_alternative<Plan>(answer));
    EXPECT_EQ(describe(verify_safety(graph, std::get<Plan>(answer), 1)), "");
  }
  const ValueTimeline timeline = make_timeline(input);
  Schedule schedule;
  Scheduler(timeline).run(keep_everything(timeline), schedule);
  const Plan plan = make_plan(input, timeline, keep_everything(timeline), schedule, "test");
  EXPECT_EQ(describe(verify_safety(graph, plan, 1)), "");
}

// A step writes two values. A later one wants both: a copy brings the first, and the second is made again, with which
// the first is written once more.
TEST(Schedule, ACopyIsCompleteBeforeTheStepThatWritesTheSameOnceMore) {
  register_op({.name = "TestPair",
               .infer =
                   [](const Attributes&, std::span<const Tensor* const> in) {
                     return std::vector<TensorSpec>{{in[0]->shape, DType::f32}, {in[0]->shape, DType::f32}};
                   },
               .kind = LayerKind::other});
  testing::register_test_ops();
  Graph graph;
  const TensorId data = graph.add_source("data", {4, 64}, DType::f32, Role::input);
  const OpId pair = graph.add_op("TestPair", "pair", "pair", {data});
  const TensorId first = graph.output(pair, 0), second = graph.output(pair, 1);
  const Attributes shape{{"shape", std::vector<int64_t>{4, 64}}};
  const TensorId sum = graph.output(graph.add_op("TestMix", "sum", "sum", {first, second}, shape));
  const TensorId other = graph.output(graph.add_op("TestMix", "other", "other", {sum}, shape));
  graph.outputs = {graph.output(graph.add_op("TestMix", "loss", "loss", {first, second, other}, shape))};
  const Route route = make_route(graph);
  const auto kernels = testing::random_kernels(graph, 1);
  const CostTable costs;
  std::mt19937_64 random(1);
  PolicyInput input{.graph = graph, .route = route, .kernels = kernels, .costs = costs, .device = {.name = "cpu"}};
  input.device.tiers = two_tiers(random);
  const ValueTimeline timeline = make_timeline(input);
  Decisions decisions = keep_everything(timeline);
  decisions.gaps[timeline.values[timeline.value_of[first]].first_gap + 1] = kOffload;
  decisions.gaps[timeline.values[timeline.value_of[second]].first_gap + 1] = kDrop;
  Schedule schedule;
  Scheduler(timeline).run(decisions, schedule);
  ASSERT_EQ(schedule.unrecoverable, -1);
  ASSERT_EQ(schedule.recomputations, 1);
  ASSERT_EQ(schedule.moves.size(), 2u);
  for (const int64_t limit : {int64_t{0}, int64_t{1} << 30}) {
    Schedule spread = schedule;
    spread_copies(timeline, input.device.tiers, limit, spread);
    EXPECT_EQ(describe(verify(graph, make_plan(input, timeline, decisions, spread, "test"))), "") << "limit " << limit;
  }
}

TEST(Schedule, OfKeptValuesNeedsWhatLivenessNeeds) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Graph graph = testing::random_graph(seed, {.forward_ops = static_cast<int>(3 + seed % 50)});
    const Route route = make_route(graph);
    const auto kernels = testing::random_kernels(graph, seed);
    const CostTable costs;
    const PolicyInput input{.graph = graph,
                            .route = route,
                            .kernels = kernels,
                            .costs = costs,
                            .device = {.name = "cpu"},
                            .effort = 100'000};
    const ValueTimeline timeline = make_timeline(input);
    Schedule schedule;
    Scheduler(timeline).run(keep_everything(timeline), schedule);
    EXPECT_EQ(schedule.recomputations, 0);
    EXPECT_LE(schedule.peak, std::get<Plan>(find_policy("liveness").plan(input)).predicted.peak.count);
  }
}

}  // namespace
}  // namespace plimsoll
