#include "plimsoll/train.h"

#include <gtest/gtest.h>

#include "plimsoll/error.h"

namespace plimsoll {
namespace {

TEST(Schedule, StepDecaysByTheRateEverySoManyEpochs) {
  const ScheduleOptions options{.name = "step", .lr = 1, .decay_rate = 0.5, .decay_epochs = 2};
  EXPECT_DOUBLE_EQ(learning_rate(options, 0, 10, 100), 1);
  EXPECT_DOUBLE_EQ(learning_rate(options, 19, 10, 100), 1);
  EXPECT_DOUBLE_EQ(learning_rate(options, 20, 10, 100), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(options, 45, 10, 100), 0.25);
}

TEST(Schedule, CosineGoesFromTheRateToTheLeast) {
  const ScheduleOptions options{.name = "cosine", .lr = 1, .min_lr = 0.2};
  EXPECT_DOUBLE_EQ(learning_rate(options, 0, 10, 100), 1);
  EXPECT_NEAR(learning_rate(options, 50, 10, 100), 0.6, 1e-12);
  EXPECT_NEAR(learning_rate(options, 100, 10, 100), 0.2, 1e-12);
}

TEST(Schedule, WarmUpRisesLinearlyAndTheScheduleFollows) {
  const ScheduleOptions options{.name = "cosine", .lr = 1, .warmup_epochs = 1, .warmup_lr = 0.1};
  EXPECT_NEAR(learning_rate(options, 0, 10, 30), 0.19, 1e-12);
  EXPECT_NEAR(learning_rate(options, 9, 10, 30), 1, 1e-12);
  EXPECT_NEAR(learning_rate(options, 20, 10, 30), 0.5, 1e-12);
}

TEST(Schedule, NamesTheNearestOfAnUnknownOne) {
  try {
    check(ScheduleOptions{.name = "cosin"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "unknown learning-rate schedule 'cosin'; did you mean 'cosine'? known: constant, step, cosine");
  }
}

}  // namespace
}  // namespace plimsoll
