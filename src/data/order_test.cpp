#include "data/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace plimsoll {
namespace {

std::vector<int64_t> all_of(const EpochOrder& order, int64_t count) {
  std::vector<int64_t> result;
  for (int64_t i = 0; i < count; ++i) result.push_back(order[i]);
  return result;
}

TEST(LargeEpochOrder, IsAPermutationThatSeedAndEpochDecide) {
  for (const int64_t count : {1, 2, 3, 64, 65, 1000, 4097, 100'000}) {
    const auto order_of = [&](uint64_t seed, int64_t epoch) { return all_of({count, seed, epoch, 0}, count); };
    std::vector<int64_t> order = order_of(1, 2);
    EXPECT_EQ(order, order_of(1, 2));
    if (count > 3) {
      EXPECT_NE(order, order_of(2, 2));
      EXPECT_NE(order, order_of(1, 3));
    }
    std::sort(order.begin(), order.end());
    std::vector<int64_t> numbers(static_cast<size_t>(count));
    std::iota(numbers.begin(), numbers.end(), 0);
    EXPECT_EQ(order, numbers) << count;
  }
}

TEST(LargeEpochOrder, PutsEveryItemAtEveryPositionAboutEquallyOften) {
  constexpr int kItems = 6, kRounds = 6000;
  int seen[kItems][kItems] = {};
  for (int round = 0; round < kRounds; ++round) {
    const EpochOrder order(kItems, 11, round, 0);
    for (int i = 0; i < kItems; ++i) ++seen[order[i]][i];
  }
  for (const auto& row : seen) {
    for (int count : row) EXPECT_NEAR(count, kRounds / kItems, 150);  // five standard deviations
  }
}

// Neighbours of a text do not come one after another.
TEST(LargeEpochOrder, LeavesNoNeighbours) {
  constexpr int64_t kCount = 100'000;
  const EpochOrder order(kCount, 3, 0, 0);
  int near = 0;
  for (int64_t i = 1; i < kCount; ++i) near += std::abs(order[i] - order[i - 1]) <= 50 ? 1 : 0;
  EXPECT_NEAR(near, 100, 50);  // of 10^5 pairs, 100 in 10^5 are so near by chance; five standard deviations
}

TEST(LargeEpochOrder, IsTheListWhereThereAreFew) {
  const EpochOrder order(100, 5, 6, 100);
  const std::vector<int32_t> list = epoch_order(100, 5, 6);
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(order[i], list[static_cast<size_t>(i)]);
}

TEST(LargeEpochOrder, TakesNoMemoryForManyWindowsOfAText) {
  DataInfo info{.train_count = 48'000'000};
  EXPECT_EQ(order_memory(info), Bytes{192'000'000});  // images
  info.windows.context = 1024;
  EXPECT_EQ(order_memory(info), Bytes{0});
  info.train_count = 1000;
  EXPECT_EQ(order_memory(info), Bytes{4000});
}

}  // namespace
}  // namespace plimsoll
