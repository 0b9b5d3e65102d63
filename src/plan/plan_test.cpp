#include "plimsoll/plan.h"

#include <gtest/gtest.h>

#include "plan/simulate.h"
#include "plimsoll/verify.h"
#include "tests/support/random_graph.h"

namespace plimsoll {
namespace {

struct Case {
  Graph graph;
  Plan plan;
};
Case make_case(uint64_t seed, std::string_view policy = "liveness") {
  Graph graph = testing::random_graph(seed, {.forward_ops = 12});
  const Route route = make_route(graph);
  const auto kernels = testing::random_kernels(graph, seed);
  const CostTable costs;
  Plan plan = std::get<Plan>(find_policy(policy).plan(
      {.graph = graph, .route = route, .kernels = kernels, .costs = costs, .device = {.name = "cpu", .key = "k1"}}));
  return {std::move(graph), std::move(plan)};
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string error_of(const std::string& text, const Graph& graph, ErrorCode code = ErrorCode::corrupt_file) {
  try {
    plan_from_json(text, graph);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

TEST(PlanJson, ReadsBackToAnEqualPlan) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Case c = make_case(seed, seed % 2 == 0 ? "liveness" : "baseline");
    c.plan.steps[0].kernel = "fast@3*2+slow@1";
    c.plan.steps[0].threads = 2;
    c.plan.steps[0].affinity = static_cast<Affinity>(seed % 3);
    c.plan.steps[0].time_ms = 0.1;
    c.plan.steps[0].estimated = true;
    c.plan.cores.inter_op = static_cast<int>(seed % 3) + 1;
    if (seed % 3 > 0) {
      c.plan.cores = {.inter_op = 2,
                      .cores = 4,
                      .cores_a_cache = 2,
                      .hardware_threads = 2,
                      .memory_gb_per_s = 12.5,
                      .smt_speed = 1.25,
                      .conflicts = {{OpId{0}, OpId{2}}, {OpId{1}, OpId{2}}},
                      .order = {2, 1, 0}};
    }
    c.plan.moves.push_back({Move::Direction::in, {1}, 1, 64_B, -1, 1});
    c.plan.homes.push_back({{1}, 1, 64_B});
    c.plan.tiers = {{.tier = {"host", 1_MiB, 8, 7.5, 10, 0.25}, .used = 4_KiB},
                    {.tier = {"disk", 1_GiB, 2, 2, 50, 0}, .used = 8_KiB}};
    c.plan.predicted.timeline = {{0, 0, 0.125, 1.5}, {2, 0, 1e-9, 3}};
    const std::string text = to_json(c.plan, c.graph);
    const Plan again = plan_from_json(text, c.graph);
    EXPECT_EQ(to_json(again, c.graph), text) << "seed " << seed;
    EXPECT_EQ(again.stays, c.plan.stays);
    EXPECT_EQ(again.moves, c.plan.moves);
    EXPECT_EQ(again.homes, c.plan.homes);
    EXPECT_EQ(again.tiers, c.plan.tiers);
    EXPECT_EQ(again.budget, c.plan.budget);
    EXPECT_EQ(again.cores, c.plan.cores);
    EXPECT_EQ(again.steps[0].time_ms, 0.1);
    EXPECT_TRUE(again.steps[0].estimated);
    EXPECT_EQ(again.steps[0].affinity, c.plan.steps[0].affinity);
  }
}

TEST(PlanJson, APlanForAnotherGraphIsRefusedByName) {
  const Case c = make_case(3);
  Graph other = make_case(4).graph;
  const std::string message = error_of(to_json(c.plan, c.graph), other, ErrorCode::invalid_input);
  EXPECT_NE(message.find("'random-3'"), std::string::npos) << message;
  EXPECT_NE(message.find("'random-4'"), std::string::npos) << message;
}

TEST(PlanJson, ErrorsSayThePlaceAndWhatWasExpected) {
  const Case c = make_case(3);
  const std::string text = to_json(c.plan, c.graph);
  const std::string first_op = c.graph.op(c.plan.steps[0].op).name;
  EXPECT_EQ(error_of(replaced(text, fmt::format("{{\"op\":\"{}\"", first_op), "{\"op\":\"nobody\""), c.graph),
            "steps[0].op: graph 'random-3' has no op 'nobody'");
  EXPECT_EQ(error_of(replaced(text, "\"first\":0", "\"first\":-1"), c.graph).substr(0, 46),
            "stays[0].first: an integer from 0 to " + std::to_string(c.plan.steps.size() - 1) + " was ex");
  EXPECT_EQ(error_of(replaced(text, "\"arena\": ", "\"arena\": -"), c.graph),
            fmt::format("arena: an integer of at least 0 was expected, not -{}", c.plan.arena.count));
  EXPECT_EQ(error_of(replaced(text, " \"steps\": ", " \"cores\": {\"inter_op\": -1},\n \"steps\": "), c.graph),
            "cores.inter_op: an integer from 1 to 4096 was expected, not -1");
  EXPECT_EQ(error_of(replaced(text, "\"version\": 2", "\"version\": 1"), c.graph),
            "version: version 2 was expected; a plan of another version must be made again, by `plimsoll plan --save`");
  EXPECT_EQ(error_of(replaced(text, "\"policy\": \"liveness\"", "\"policy\": 7"), c.graph),
            "policy: a text was expected, not 7");
  EXPECT_EQ(error_of(replaced(text, "\"kernel\"", "\"kernels\""), c.graph).substr(0, 40),
            "steps[0]: \"kernels\" is not known here; k");
  EXPECT_EQ(error_of("", c.graph), "line 1, column 1: the text ends inside a value");
}

TEST(PlanJson, NoDamageToTheTextGoesUnnoticedOrHarmsTheReader) {
  const Case c = make_case(3);
  const std::string text = to_json(c.plan, c.graph);
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = text;
    const size_t at = random() % damaged.size();
    if (i % 3 == 0) {
      damaged.resize(at);
    } else if (i % 3 == 1) {
      damaged[at] = static_cast<char>(random());
    } else {
      damaged.erase(at, 1 + random() % 20);
    }
    try {
      verify(c.graph, plan_from_json(damaged, c.graph));
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::corrupt_file || error.code() == ErrorCode::invalid_input) << error.what();
    }
  }
}

TEST(Infeasible, SaysWhatIsNeededWhereAndWhatToDo) {
  Infeasible none{.policy = "liveness",
                  .budget = 1_MiB,
                  .minimum = 3_MiB,
                  .proven = true,
                  .step = 7,
                  .op = "conv2/backward",
                  .layer = "conv2",
                  .needs = {},
                  .suggestion = "raise --memory to 3.0MiB, or lower --batch"};
  none.needs = {{"conv1/y", Role::activation, 2_MiB, false}, {"conv2/backward", Role::activation, 1_MiB, true}};
  EXPECT_EQ(to_text(none),
            "no plan by policy 'liveness' fits 1.00 MiB: at least 3.00 MiB (3145728 bytes) are needed\n"
            "the peak is at step 7, 'conv2/backward' of layer 'conv2', where these are live:\n"
            "    2.00 MiB  activation       conv1/y\n"
            "    1.00 MiB  workspace        conv2/backward\n"
            "raise --memory to 3.0MiB, or lower --batch\n");
}

TEST(Infeasible, SaysBelowWhichMemoryThereIsNoPlan) {
  const Infeasible none{.policy = "auto",
                        .budget = 1_MiB,
                        .minimum = 3_MiB,
                        .lower_bound = 2_MiB,
                        .proven = true,
                        .needs = {},
                        .suggestion = "raise --memory to 3.0MiB, or lower --batch"};
  EXPECT_EQ(to_text(none),
            "no plan by policy 'auto' fits 1.00 MiB, as none needs less than 2.00 MiB: as far as was found, 3.00 MiB "
            "(3145728 bytes) are needed\n"
            "raise --memory to 3.0MiB, or lower --batch\n");
}

TEST(Plan, BytesSharedInPlaceCountOnceInThePeak) {
  Plan plan;
  plan.steps.resize(3);
  plan.stays = {{{0}, 0_B, 64_B, 0, 1}, {{1}, 0_B, 64_B, 1, 2}, {{2}, 64_B, 128_B, 1, 1}};
  EXPECT_EQ(live_peak(plan).bytes, 192_B);
  EXPECT_EQ(live_peak(plan).step, 1);
  EXPECT_EQ(live_at(plan, 1).size(), 3u);
  EXPECT_EQ(live_at(plan, 1)[0]->bytes, 128_B);
}

//        0    64   128  192  256
//   0    |aaaaaaaaa|                      a, and from step 1 its view
//   1    |aaaaaaaaa|    |ccccccccc|       c
//   2         |bbbbbbbbb|ccccccccc|       b begins where a's second half was
//   3    |bbbbbbbbbbbbbbbbbbb|            b lies across c's end
TEST(Plan, LiveBytesAreThoseThatLieInAStayHoweverManyShareThem) {
  Plan plan;
  plan.steps.resize(5);
  plan.stays = {{{0}, 0_B, 128_B, 0, 1}, {{1}, 0_B, 128_B, 1, 1},   {{2}, 192_B, 128_B, 1, 2}, {{3}, 64_B, 128_B, 2, 2},
                {{4}, 0_B, 256_B, 3, 3}, {{2}, 192_B, 128_B, 3, 3}, {{5}, 64_B, 0_B, 0, 4}};
  EXPECT_EQ(live_bytes(plan), (std::vector<Bytes>{128_B, 256_B, 256_B, 320_B, 0_B}));
  EXPECT_EQ(live_peak(plan).bytes, 320_B);
  EXPECT_EQ(live_peak(plan).step, 3);
  EXPECT_EQ(live_bytes(Plan{}), std::vector<Bytes>{});
  EXPECT_EQ(live_peak(Plan{}).bytes, 0_B);
}

TEST(Plan, LiveBytesAgreeWithMarkingEveryByte) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    Plan plan;
    plan.steps.resize(1 + random() % 12);
    for (uint64_t i = random() % 30; i > 0; --i) {
      const StepIndex first = static_cast<StepIndex>(random() % plan.steps.size());
      const StepIndex last = first + static_cast<StepIndex>(random() % (plan.steps.size() - first));
      plan.stays.push_back(
          {{0}, {static_cast<int64_t>(random() % 40)}, {static_cast<int64_t>(random() % 20)}, first, last});
    }
    std::vector<Bytes> expected;
    for (StepIndex s = 0; s < static_cast<StepIndex>(plan.steps.size()); ++s) {
      std::set<int64_t> bytes;
      for (const Stay* stay : live_at(plan, s)) {
        for (int64_t b = 0; b < stay->bytes.count; ++b) bytes.insert(stay->offset.count + b);
      }
      expected.push_back({static_cast<int64_t>(bytes.size())});
    }
    EXPECT_EQ(live_bytes(plan), expected) << "round " << round;
  }
}

}  // namespace
}  // namespace plimsoll
