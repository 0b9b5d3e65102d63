#include "base/random.h"

#include <gtest/gtest.h>

#include <set>

namespace plimsoll {
namespace {

using Block = std::array<uint32_t, 4>;

// The known answers that the authors publish with their Random123 library.
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, DiffersBySeedStepSaltAndIndex) {
  std::set<uint32_t> seen;
  int64_t drawn = 0;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40}) {
    for (uint64_t step : {uint64_t{0}, uint64_t{7}, uint64_t{1} << 33}) {
      for (uint32_t salt : {0u, 1u}) {
        for (int64_t i = 0; i < 16; ++i, ++drawn) seen.insert(RandomStream{seed, step, salt}.bits(i));
      }
    }
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), drawn);
}

TEST(RandomStream, UniformDrawsFillTheUnitInterval) {
  const RandomStream stream{5, 0, 0};
  std::array<int, 10> counts{};
  for (int64_t i = 0; i < 100000; ++i) {
    const double u = stream.uniform(i);
    ASSERT_TRUE(u > 0 && u < 1);
    ++counts[static_cast<size_t>(u * 10)];
  }
  for (int count : counts) EXPECT_NEAR(count, 10000, 500);  // five standard deviations
}

TEST(RandomStream, NormalDrawsHaveTheMomentsOfANormal) {
  const RandomStream stream{11, 3, 2};
  const int64_t n = 200000;
  double sum[5] = {};
  int64_t beyond_two = 0;
  double neighbours = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double z = stream.normal(i);
    for (int k = 1; k <= 4; ++k) sum[k] += std::pow(z, k);
    beyond_two += std::abs(z) > 2 ? 1 : 0;
    neighbours += z * stream.normal(i ^ 1);
  }
  const double count = static_cast<double>(n);
  EXPECT_NEAR(sum[1] / count, 0, 0.012);
  EXPECT_NEAR(sum[2] / count, 1, 0.02);
  EXPECT_NEAR(sum[3] / count, 0, 0.05);
  EXPECT_NEAR(sum[4] / count, 3, 0.12);
  EXPECT_NEAR(static_cast<double>(beyond_two) / count, 0.0455, 0.003);
  EXPECT_NEAR(neighbours / count, 0, 0.015);  // the two halves of a pair are independent
}

TEST(DropoutThreshold, IsTheShareThatFalls) {
  EXPECT_EQ(dropout_threshold(0), 0u);
  EXPECT_EQ(dropout_threshold(0.5), 0x80000000u);
}

}  // namespace
}  // namespace plimsoll
