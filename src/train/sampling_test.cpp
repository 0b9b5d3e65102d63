#include "train/sampling.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace plimsoll {
namespace {

TEST(SampleToken, TakesTheLikeliestWithoutTemperatureAndAmongOne) {
  const std::array<float, 4> scores{0, 3, 3, -1};
  EXPECT_EQ(sample_token(scores, {.temperature = 0}, 0), 1);  // of equals the first
  for (int64_t draw = 0; draw < 50; ++draw) EXPECT_EQ(sample_token(scores, {.temperature = 5, .top_k = 1}, draw), 1);
}

TEST(SampleToken, DrawsByTheProbabilities) {
  const std::array<float, 3> scores{std::log(0.5F), std::log(0.3F), std::log(0.2F)};
  constexpr int kDraws = 20000;
  std::array<int, 3> at_one{}, at_half{}, of_two{};
  for (int64_t draw = 0; draw < kDraws; ++draw) {
    ++at_one[sample_token(scores, {.seed = 7}, draw)];
    ++at_half[sample_token(scores, {.temperature = 0.5, .seed = 7}, draw)];
    ++of_two[sample_token(scores, {.top_k = 2, .seed = 7}, draw)];
  }
  EXPECT_NEAR(at_one[0] / double{kDraws}, 0.5, 0.015);
  EXPECT_NEAR(at_one[2] / double{kDraws}, 0.2, 0.015);
  EXPECT_NEAR(at_half[0] / double{kDraws}, 0.25 / 0.38, 0.015);  // squares: 0.25, 0.09, 0.04
  EXPECT_NEAR(of_two[0] / double{kDraws}, 0.5 / 0.8, 0.015);
  EXPECT_EQ(of_two[2], 0);
}

TEST(SampleToken, DependsOnSeedAndDrawAlone) {
  std::array<float, 100> scores{};
  int differ = 0;
  for (int64_t draw = 0; draw < 100; ++draw) {
    EXPECT_EQ(sample_token(scores, {.seed = 1}, draw), sample_token(scores, {.seed = 1}, draw));
    differ += sample_token(scores, {.seed = 1}, draw) != sample_token(scores, {.seed = 2}, draw) ? 1 : 0;
  }
  EXPECT_GT(differ, 80);
}

TEST(SampleToken, NeverTakesWhatIsNoNumber) {
  const std::array<float, 3> scores{NAN, 1, NAN};
  for (int64_t draw = 0; draw < 50; ++draw) EXPECT_EQ(sample_token(scores, {.temperature = 9}, draw), 1);
  const std::array<float, 2> none{NAN, NAN};
  EXPECT_EQ(sample_token(none, {}, 0), 0);
}

}  // namespace
}  // namespace plimsoll
