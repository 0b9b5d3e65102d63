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
      const bool may_go = value.before < 0 ? decisions.home[v] >= 0 : choice >= kOffload;
      if (stays && !may_go) choice = kKeep;
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
    if (seed % 4 == 0) input.device.tiers[0].compute_share = 0;
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
      const auto limit = static_cast<int64_t>(room * static_cast<double>(schedule.peak));
      Schedule spread = schedule, in_turn = schedule;
      if (room > 0) spread_copies(timeline, input.device.tiers, limit, spread);
      const double in_turn_ms = spread_in_turn(timeline, input.device.tiers, limit, in_turn);
      for (const Schedule* made_so : {&spread, &in_turn}) {
        SCOPED_TRACE(made_so == &spread ? "spread" : "in turn");
        const Plan plan = make_plan(input, timeline, decisions, *made_so, "test");
        const auto violations = verify(graph, plan);
        ASSERT_TRUE(violations.empty()) << describe(violations);
        EXPECT_EQ(live_peak(plan).bytes.count, made_so->peak);
        if (room <= 1.0) {
          EXPECT_EQ(made_so->peak, schedule.peak);
        }
        EXPECT_NEAR(simulate(graph, plan, costs).step_time_ms, time_of(timeline, input.device.tiers, *made_so).total_ms,
                    1e-6);
      }
      EXPECT_NEAR(in_turn_ms, time_of(timeline, input.device.tiers, in_turn).total_ms, 1e-6);
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

// One step writes two values, `first` and `second`. Four follow, each of which reads `first`; the first and the third
// read `second` as well.
struct Pair {
  Graph graph;
  TensorId first, second;
};
Pair pair_and_its_readers() {
  static const bool registered = [] {
    register_op({.name = "TestPair",
                 .infer =
                     [](const Attributes&, std::span<const Tensor* const> in) {
                       return std::vector<TensorSpec>{{in[0]->shape, DType::f32}, {in[0]->shape, DType::f32}};
                     },
                 .kind = LayerKind::other});
    testing::register_test_ops();
    return true;
  }();
  (void)registered;
  Pair made;
  Graph& graph = made.graph;
  const TensorId data = graph.add_source("data", {4, 64}, DType::f32, Role::input);
  const OpId pair = graph.add_op("TestPair", "pair", "pair", {data});
  made.first = graph.output(pair, 0);
  made.second = graph.output(pair, 1);
  const Attributes shape{{"shape", std::vector<int64_t>{4, 64}}};
  TensorId last = made.second;
  for (const char* name : {"sum", "other", "again", "still"}) {
    std::vector<TensorId> reads{made.first, last};
    if (name == std::string_view("again")) reads.push_back(made.second);
    last = graph.output(graph.add_op("TestMix", name, name, reads, shape));
  }
  graph.outputs = {last};
  return made;
}

struct Gap {
  bool of_second;
  int32_t gap;
  Choice choice;
};

// What the verifier says of the schedule by these choices, copies as slow as can be, with little room and with much.
std::string violations_of(const std::vector<Gap>& gaps) {
  const Pair pair = pair_and_its_readers();
  const Route route = make_route(pair.graph);
  const auto kernels = testing::random_kernels(pair.graph, 1);
  const CostTable costs;
  PolicyInput input{.graph = pair.graph, .route = route, .kernels = kernels, .costs = costs, .device = {.name = "cpu"}};
  input.device.tiers = {{.name = "host", .capacity = 1_GiB, .out_gb_per_s = 1e-6, .in_gb_per_s = 1e-6}};
  const ValueTimeline timeline = make_timeline(input);
  Decisions decisions = keep_everything(timeline);
  for (const Gap& gap : gaps) {
    const int32_t value = timeline.value_of[gap.of_second ? pair.second : pair.first];
    decisions.gaps[timeline.values[value].first_gap + gap.gap] = gap.choice;
  }
  Schedule schedule;
  Scheduler(timeline).run(decisions, schedule);
  EXPECT_EQ(schedule.unrecoverable, -1);
  EXPECT_EQ(schedule.recomputations, 1);
  EXPECT_EQ(schedule.moves.size(), 2u);
  std::string said;
  for (const int64_t limit : {int64_t{0}, int64_t{1} << 30}) {
    Schedule spread = schedule;
    spread_copies(timeline, input.device.tiers, limit, spread);
    said += describe(verify(pair.graph, make_plan(input, timeline, decisions, spread, "test")));
  }
  return said;
}

// A copy brings `first`, and `second` is made again, with which `first` is written once more.
TEST(Schedule, ACopyIsCompleteBeforeTheStepThatWritesTheSameOnceMore) {
  EXPECT_EQ(violations_of({{false, 2, kOffload}, {true, 1, kDrop}}), "");
}

// `first` is there when `second` is made again, and leaves after that.
TEST(Schedule, ACopyOutBeginsAfterTheLastStepThatWritesTheSame) {
  EXPECT_EQ(violations_of({{false, 3, kOffload}, {true, 1, kDrop}}), "");
}

// So a sum of gradients does that the norm of all gradients reads and, much later, the update.
TEST(Schedule, AStateThatLiesInTheArenaIsThereAtTheEndThoughItsNewValueWasCopiedAway) {
  testing::register_test_ops();
  Graph graph;
  const TensorId data = graph.add_source("data", {4, 64}, DType::f32, Role::input);
  const TensorId sum = graph.add_source("sum", {4, 64}, DType::f32, Role::optimizer_state);
  const Attributes shape{{"shape", std::vector<int64_t>{4, 64}}};
  const TensorId next = graph.output(graph.add_op("TestUpdate", "accumulate", "accumulate", {sum, data}));
  graph.states[0].after = next;
  TensorId last = graph.output(graph.add_op("TestMap", "norm", "norm", {next}));
  for (const char* name : {"one", "two"}) last = graph.output(graph.add_op("TestMap", name, name, {last}));
  last = graph.output(graph.add_op("TestMix", "update", "update", {next, last}, shape));
  graph.outputs = {graph.output(graph.add_op("TestMap", "after", "after", {last}))};
  const Route route = make_route(graph);
  const auto kernels = testing::random_kernels(graph, 1);
  const CostTable costs;
  PolicyInput input{.graph = graph, .route = route, .kernels = kernels, .costs = costs, .device = {.name = "cpu"}};
  input.device.tiers = {{.name = "disk", .capacity = 1_GiB, .out_gb_per_s = 1, .in_gb_per_s = 1}};
  const ValueTimeline timeline = make_timeline(input);
  Decisions decisions = keep_everything(timeline);
  decisions.gaps[timeline.values[timeline.value_of[next]].first_gap + 1] = kOffload;
  Schedule schedule;
  Scheduler(timeline).run(decisions, schedule);
  ASSERT_EQ(schedule.moves.size(), 2u);
  EXPECT_EQ(describe(verify(graph, make_plan(input, timeline, decisions, schedule, "test"))), "");
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
