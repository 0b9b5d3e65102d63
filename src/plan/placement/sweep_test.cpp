#include "plan/placement/sweep.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "plan/placement/first_fit.h"
#include "plan/placement/judge.h"

namespace plimsoll {
namespace {

constexpr int kLifetimes = 6, kSizes = 4;

// Random sets of the kinds that planners meet, by number.
std::vector<Buffer> make_set(int lifetimes, int sizes, int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  auto size = [&]() -> int64_t {
    switch (sizes) {
      case 0: return 1 + below(100'000);
      case 1: return int64_t{1} << (6 + below(12));
      case 2: return 1 + static_cast<int64_t>(1000 * std::exp(static_cast<double>(below(600)) / 100));
      default: return 64 * (1 + 7 * below(4));
    }
  };
  std::vector<Buffer> buffers;
  for (int i = 0; i < count; ++i) {
    int64_t lower = below(count), upper = lower + 1;
    switch (lifetimes) {
      case 0:  // two random ends
        upper = below(count);
        if (lower > upper) std::swap(lower, upper);
        ++upper;
        break;
      case 1: upper += below(count); break;           // begins anywhere
      case 2: upper += below(2 + count / 20); break;  // not for long
      case 3: upper += below(10) < 3 ? below(count / 2) : below(2 + count / 500); break;
      case 4:  // a step or two, beside long ones
        lower /= 4;
        upper = lower + 1 + (below(5) == 0 ? below(count / 8) : below(2));
        break;
      default:  // forward and backward
        lower = i / 2;
        upper = i % 2 == 0 ? 2 * count - lower : lower + 1 + below(4);
    }
    buffers.push_back({lower, upper, {size()}});
  }
  return buffers;
}

int32_t fullest(const PlacementProblem& problem) {
  return static_cast<int32_t>(std::max_element(problem.live.begin(), problem.live.end()) - problem.live.begin());
}

TEST(Sweep, PilesUpWhatLivesAtTheMomentAndTakesHolesOfItsSize) {
  //   c ends first and lies at the bottom; d takes its place to the byte.
  const PlacementProblem problem = make_problem({{0, 9, 30_B}, {1, 8, 20_B}, {2, 5, 10_B}, {5, 9, 10_B}}, 1);
  const SweepResult result = sweep(problem, {.height = 60, .moment = 2});
  EXPECT_EQ(result.height, 60);
  EXPECT_EQ(result.offsets[2], 0);
  EXPECT_EQ(result.offsets[3], 0);
}

TEST(Sweep, MovesOthersForWhatFindsNoHole) {
  // At 4 two holes of 10 come free with b between them, which may lie in either; only then is there room for d.
  const std::vector<Buffer> buffers{{0, 4, 10_B}, {1, 9, 10_B}, {2, 5, 10_B}, {4, 5, 1_B}, {5, 9, 20_B}};
  const PlacementProblem problem = make_problem(buffers, 1);
  int64_t kept = INT64_MAX, moved = INT64_MAX;
  for (int32_t moment = 0; moment < problem.times; ++moment) {
    kept = std::min(kept, sweep(problem, {.height = 30, .moment = moment}).height);
    moved = std::min(moved, sweep(problem, {.height = 30, .moment = moment, .moves = true}).height);
  }
  EXPECT_EQ(moved, 30);
  EXPECT_LE(moved, kept);
}

TEST(Sweep, OfRandomSetsIsSoundAndTheSameEveryTime) {
  int better = 0;
  for (int n = 0; n < 4 * kLifetimes * kSizes; ++n) {
    SCOPED_TRACE(::testing::Message() << n);
    const int64_t alignment = n % 2 == 0 ? 64 : 1;
    const std::vector<Buffer> buffers = make_set(n % kLifetimes, n / kLifetimes % kSizes, 30 + 3 * n, 1);
    const PlacementProblem problem = make_problem(buffers, alignment);
    int64_t kept = 0;
    for (const bool moves : {false, true}) {
      const SweepChoice choice{.height = problem.lower_bound, .moment = n % problem.times, .moves = moves};
      const SweepResult result = sweep(problem, choice);
      const Placement placement = make_placement(problem, result.offsets, buffers.size());
      ASSERT_EQ(judge(buffers, placement, alignment), "");
      ASSERT_EQ(result.height, placement.height.count);
      ASSERT_EQ(sweep(problem, choice).offsets, result.offsets);
      if (!moves) kept = result.height;
      better += moves && result.height < kept;
    }
  }
  EXPECT_GT(better, 10);
}

TEST(Sweep, EndsWithNothingWhenTheTimeIsOver) {
  const PlacementProblem problem = make_problem(make_set(2, 0, 3000, 1), 1);
  const SweepResult result = sweep(problem, {.height = problem.lower_bound, .moment = fullest(problem)}, Clock::now());
  EXPECT_EQ(result.height, INT64_MAX);
  EXPECT_TRUE(result.offsets.empty());
}

// A planner's budget is any number of bytes.
TEST(Placement, OfLargeSetsKeepsTheAlignmentWhateverTheCapacity) {
  for (const int lifetimes : {2, 3, 4}) {
    const std::vector<Buffer> buffers = make_set(lifetimes, 3, 2500, 1);
    const int64_t bound = make_problem(buffers, 64).lower_bound;
    const Placement placement = place_offline(buffers, {.alignment = 64, .capacity = {bound + 47}, .effort = 200'000});
    EXPECT_EQ(judge(buffers, placement, 64), "") << lifetimes;
  }
}

TEST(Placement, ReachesTheBoundOfLargeRandomSets) {
  for (const int lifetimes : {0, 1, 5}) {
    for (int sizes = 0; sizes < kSizes; ++sizes) {
      const std::vector<Buffer> buffers = make_set(lifetimes, sizes, 20'000, 3);
      // Who gives a time gets the sweeps first; it is not used up.
      const Placement placement = place_offline(buffers, {.alignment = 1, .seconds = 600});
      EXPECT_EQ(placement.height, placement.lower_bound) << lifetimes << " " << sizes;
    }
  }
}

TEST(Placement, OfEveryKindOfRandomSetIsNeverAboveFirstFitInOrderOfSize) {
  for (int n = 0; n < kLifetimes * kSizes; ++n) {
    SCOPED_TRACE(::testing::Message() << n);
    const int64_t alignment = n % 2 == 0 ? 64 : 1;
    const std::vector<Buffer> buffers = make_set(n % kLifetimes, n / kLifetimes % kSizes, 200 + 15 * n, 2);
    const PlacementProblem problem = make_problem(buffers, alignment);
    std::vector<int32_t> order(problem.items.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return problem.items[a].size > problem.items[b].size; });
    std::vector<int64_t> offsets(order.size());
    const int64_t by_size = FirstFit(problem).place(order, offsets);
    const PlacementOptions options{.alignment = alignment, .effort = 100'000};
    const Placement placement = place_offline(buffers, options);
    ASSERT_EQ(judge(buffers, placement, alignment), "");
    EXPECT_LE(placement.height.count, by_size);
    EXPECT_EQ(place_offline(buffers, options).offsets, placement.offsets);
  }
}

}  // namespace
}  // namespace plimsoll
