// A second buffer for the batch is a choice like any other: taken where it makes the time from step to step shorter, and never
// at the price of a plan that would fit without it.
#include "compile/feeding.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plimsoll/models.h"
#include "plimsoll/verify.h"

namespace plimsoll {
namespace {

const ModelInput kInput{.batch = 16, .channels = 3, .height = 32, .width = 32, .classes = 10};
constexpr Bytes kData{16 * 3 * 32 * 32 * 4}, kLabels{16 * 4};
constexpr Bytes kBatchBytes = kData + kLabels;

class FeedingChoice : public ::testing::Test {
 protected:
  // Over a link that takes so long for a batch.
  Feeding link(double ms) const {
    return {
        .second_buffer = true, .gb_per_s = static_cast<double>(kBatchBytes.count) / (ms * 1e6), .arena_gb_per_s = 1000};
  }
  std::variant<Program, Infeasible> compile(Bytes memory, std::optional<Feeding> feeding) const {
    CompileOptions options{.memory = memory, .exact = true, .feeding = std::move(feeding)};
    return compile_training(network_, *device_, CostTable(), options);
  }
  Program program(Bytes memory, std::optional<Feeding> feeding) const {
    return std::get<Program>(compile(memory, std::move(feeding)));
  }

  const Network network_ = build_model("lenet", kInput);
  const std::unique_ptr<Device> device_ = open_device("k40c");  // of known kernels, whatever the machine has
};

TEST_F(FeedingChoice, IsAboveAPlanThatLeavesRoomForIt) {
  const Program alone = program({INT64_MAX}, {});
  EXPECT_TRUE(alone.plan->feeding.inputs.empty());
  EXPECT_EQ(alone.plan->predicted.wall_time_ms, 0);
  const double step_ms = alone.plan->predicted.step_time_ms;
  for (const double share : {0.01, 0.5, 3.0}) {
    const Program fed = program(alone.plan->arena + kBatchBytes, link(share * step_ms));
    const Plan& plan = *fed.plan;
    EXPECT_TRUE(plan.feeding.second_buffer);
    EXPECT_EQ(plan.arena, alone.plan->arena + kBatchBytes);
    EXPECT_EQ(plan.predicted.peak, alone.plan->predicted.peak + kBatchBytes);
    EXPECT_EQ(plan.predicted.step_time_ms, step_ms);
    EXPECT_NEAR(plan.predicted.feed_ms, share * step_ms, 1e-9 * step_ms);
    const double moved_ms = 2e-6 * static_cast<double>(kBatchBytes.count) / 1000;
    EXPECT_NEAR(plan.predicted.wall_time_ms, std::max(step_ms + moved_ms, share * step_ms), 1e-9 * step_ms);
    EXPECT_TRUE(verify(fed.network.graph, plan).empty());
    const Plan again = plan_from_json(to_json(plan, fed.network.graph), fed.network.graph);
    EXPECT_EQ(again.feeding, plan.feeding);
    EXPECT_EQ(again.predicted.wall_time_ms, plan.predicted.wall_time_ms);
  }
}

TEST_F(FeedingChoice, IsLeftOutWhereNothingFitsBesideIt) {
  const auto none = compile(1_B, link(1));
  const Bytes least = std::get<Infeasible>(none).minimum;
  EXPECT_EQ(std::get<Infeasible>(compile(1_B, {})).minimum, least) << "what is asked for does not change what would do";
  const Program tight = program(least, link(1));
  EXPECT_FALSE(tight.plan->feeding.second_buffer);
  EXPECT_EQ(tight.plan->feeding.inputs.size(), 2u);
  EXPECT_EQ(tight.plan->arena, program(least, {}).plan->arena);
  EXPECT_DOUBLE_EQ(tight.plan->predicted.wall_time_ms,
                   tight.plan->predicted.step_time_ms + tight.plan->predicted.feed_ms);
}

// With all memory for the step it is faster; with a second buffer beside it, it is fed meanwhile.
TEST_F(FeedingChoice, TakesWhatIsFasterFromStepToStepWhereMemoryIsShort) {
  const Bytes all = program({INT64_MAX}, {}).plan->arena;
  const Bytes least = std::get<Infeasible>(compile(1_B, {})).minimum;
  int one = 0, two = 0, at_a_price = 0;
  for (int i = 1; i <= 6; ++i) {
    const Bytes memory{least.count + (all.count - least.count) * i / 6};
    const Program alone = program(memory, {});
    for (const double ms : {1e-5, 0.05, 100.0}) {
      const Program fed = program(memory, link(ms));
      const Prediction& is = fed.plan->predicted;
      EXPECT_LE(fed.plan->arena, memory);
      EXPECT_EQ(fed.plan->budget, memory);
      EXPECT_LE(is.wall_time_ms, alone.plan->predicted.step_time_ms + is.feed_ms + 1e-9);
      (fed.plan->feeding.second_buffer ? two : one) += 1;
      at_a_price += is.step_time_ms > alone.plan->predicted.step_time_ms;
      if (ms == 100.0 && memory >= least + kBatchBytes) {
        EXPECT_TRUE(fed.plan->feeding.second_buffer) << memory.count;
      }
    }
  }
  EXPECT_GT(one, 0);
  EXPECT_GT(two, 0);
  EXPECT_GT(at_a_price, 0);
}

// The host writes such a batch to the tier.
TEST_F(FeedingChoice, IsNotForABatchThatLiesInATier) {
  CompileOptions options{.exact = true, .feeding = link(0.05)};
  options.tiers = {{.name = "host", .capacity = 1_GiB, .out_gb_per_s = 1000, .in_gb_per_s = 1000, .compute_share = 1}};
  const Bytes all = program({INT64_MAX}, {}).plan->arena;
  int homes = 0;
  for (const int64_t percent : {90, 70, 50, 40, 30, 20}) {
    options.memory = {all.count * percent / 100};
    const auto result = compile_training(network_, *device_, CostTable(), options);
    const auto* const fed = std::get_if<Program>(&result);
    if (fed == nullptr) continue;
    const bool has_home =
        std::ranges::any_of(fed->plan->homes, [&](const Home& home) { return home.tensor == fed->network.data; });
    homes += has_home;
    EXPECT_FALSE(has_home && fed->plan->feeding.second_buffer);
  }
  EXPECT_GT(homes, 0);
}

// It asks for the next batch too late for that to come beside the step.
TEST_F(FeedingChoice, IsNotWhereTheHostCopiesInTheMidstOfAStep) {
  const Bytes all = program({INT64_MAX}, {}).plan->arena;
  CompileOptions options{.exact = true, .feeding = link(1000)};
  int moving = 0;
  for (const char* tier : {"disk", "host"}) {
    options.tiers = {{.name = tier, .capacity = 1_GiB, .out_gb_per_s = 1000, .in_gb_per_s = 1000}};
    for (const int64_t percent : {100, 95, 90, 80}) {  // at first nothing moves without the buffer
      options.memory = {all.count * percent / 100};
      const Program fed = std::get<Program>(compile_training(network_, *device_, CostTable(), options));
      moving += !fed.plan->moves.empty();
      EXPECT_FALSE(tier == std::string("disk") && fed.plan->feeding.second_buffer && !fed.plan->moves.empty())
          << percent;
    }
  }
  EXPECT_GT(moving, 0);
}

TEST_F(FeedingChoice, IsForWhoFeedsEveryInput) {
  Network network = build_model("lenet", kInput);
  network.data = {};  // as a network of somebody's own, whose inputs are what it calls them
  CompileOptions options{.exact = true, .feeding = link(1)};
  for (const bool every : {false, true}) {
    options.feeds_every_input = every;
    const Program fed = std::get<Program>(compile_training(network, *device_, CostTable(), options));
    EXPECT_EQ(fed.plan->feeding.second_buffer, every);
    EXPECT_EQ(fed.plan->feeding.inputs.size(), every ? 2u : 0u);
  }
}

TEST_F(FeedingChoice, IsForWhoWantsIt) {
  Feeding feeding = link(1);
  feeding.second_buffer = false;
  const Program fed = program({INT64_MAX}, feeding);
  EXPECT_FALSE(fed.plan->feeding.second_buffer);
  EXPECT_DOUBLE_EQ(fed.plan->predicted.wall_time_ms, fed.plan->predicted.step_time_ms + fed.plan->predicted.feed_ms);
}

}  // namespace
}  // namespace plimsoll
