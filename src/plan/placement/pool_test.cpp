#include "plan/placement/pool.h"

#include <gtest/gtest.h>

#include "plan/placement/judge.h"
#include "plan/placement/mobility.h"
#include "plimsoll/error.h"
#include "tests/support/error_text.h"

namespace plimsoll {
namespace {

TEST(Mobility, FollowsAlgorithm3) {
  EXPECT_EQ(classify_mobility({.is_fc_softmax_dropout = true, .reference_count = 3, .has_next = false}),
            Mobility::reclaimed);
  EXPECT_EQ(classify_mobility({.reference_count = 2}), Mobility::temporary);
  EXPECT_EQ(classify_mobility({.reference_count = 1, .has_next = false}), Mobility::temporary);
  EXPECT_EQ(classify_mobility({.reference_count = 1, .has_next = true}), Mobility::movable);
}

TEST(UnifiedPool, GivesMovableFromTheLowEndTemporaryFromTheHighEndAndReclaimedBesideIt) {
  UnifiedPool pool(1000);
  EXPECT_EQ(pool.take(100, Mobility::movable), 0);
  EXPECT_EQ(pool.take(200, Mobility::temporary), 800);
  EXPECT_EQ(pool.take(50, Mobility::reclaimed), 0);
  EXPECT_EQ(pool.take(300, Mobility::movable), 100);
  EXPECT_EQ(pool.take(100, Mobility::temporary), 700);
  EXPECT_EQ(pool.squeeze_gap(), 300);
  pool.give_back(0, 100, Mobility::movable);
  EXPECT_EQ(pool.take(60, Mobility::movable), 0);  // the smallest hole that is large enough
  pool.give_back(100, 300, Mobility::movable);     // what is free at the end belongs to the gap again
  EXPECT_EQ(pool.take(500, Mobility::temporary), 200);
  EXPECT_EQ(pool.squeeze_gap(), 140);
  EXPECT_EQ(pool.take(141, Mobility::movable), std::nullopt);
  EXPECT_EQ(pool.take(140, Mobility::movable), 60);
  EXPECT_EQ(pool.squeeze_gap(), 0);
  EXPECT_EQ(pool.incremental_bytes(), 50);
}

TEST(PoolSize, IsTheFirstOneWithoutTheSqueezeGapAndGrowsByBetaUntilTrainingWorks) {
  int tries = 0;
  auto works_from = [&](int64_t least) {
    return [&tries, least](Bytes size) {
      ++tries;
      return size.count >= least;
    };
  };
  EXPECT_EQ(fit_pool_size(1000_B, 400_B, 10_B, works_from(600)), 610_B);
  EXPECT_EQ(tries, 1);
  EXPECT_EQ(fit_pool_size(1000_B, 400_B, 10_B, works_from(635)), 640_B);
  EXPECT_EQ(tries, 1 + 4);
  // Neither without growing, nor by growing as far as it goes.
  for (const auto& [beta, least] : {std::pair{0_B, 601}, {10_B, 5000}}) {
    EXPECT_EQ(
        testing::error_text(ErrorCode::infeasible, [&] { fit_pool_size(1000_B, 400_B, beta, works_from(least)); }),
        "the pool cannot grow to a size that training works in");
  }
}

TEST(Gtbm, KeepsWhatWaitsForAJoinFromCuttingTheLowEndToPieces) {
  // A temporary tensor between two movable ones: best fit cannot join their bytes for the larger one that follows.
  const std::vector<Buffer> buffers{{0, 2, 100_B},
                                    {1, 9, 100_B, Mobility::temporary},
                                    {2, 4, 100_B},
                                    {4, 6, 200_B},
                                    {0, 9, 30_B, Mobility::reclaimed}};
  const PlacementOptions options{.alignment = 1};
  const Placement gtbm = place_gtbm(buffers, options);
  EXPECT_EQ(judge(buffers, gtbm, 1), "");
  EXPECT_EQ(gtbm.height, 330_B);  // main space 300, incremental space 30
  EXPECT_EQ(gtbm.offsets, (std::vector<Bytes>{0_B, 200_B, 0_B, 0_B, 300_B}));
  const std::vector<Buffer> main(buffers.begin(), buffers.end() - 1);
  EXPECT_EQ(place_best_fit(main, options).height, 400_B);
}

TEST(UnusableFreeSpace, IsTheShareOfWhatIsFreeInRegionsSmallerThanTheRequest) {
  const std::vector<Bytes> regions{1_B, 1_B, 2_B, 4_B, 8_B};  // 2^i with k = 2, 1, 1, 1
  EXPECT_DOUBLE_EQ(unusable_free_space(regions, 1_B), 0);
  EXPECT_DOUBLE_EQ(unusable_free_space(regions, 2_B), 2.0 / 16);
  EXPECT_DOUBLE_EQ(unusable_free_space(regions, 4_B), 4.0 / 16);
  EXPECT_DOUBLE_EQ(unusable_free_space(regions, 8_B), 8.0 / 16);
  EXPECT_DOUBLE_EQ(unusable_free_space(regions, 9_B), 1);
  EXPECT_DOUBLE_EQ(unusable_free_space({}, 1_B), 0);
}

TEST(Fragmentation, IsToldForEveryTimeAtWhichSomethingChanges) {
  const std::vector<Buffer> buffers{{0, 2, 100_B}, {1, 9, 100_B}, {4, 6, 200_B}};
  const Placement placement{.offsets = {0_B, 100_B, 200_B}, .height = 400_B};
  const std::vector<FragmentationAt> at = fragmentation_over_time(buffers, placement, 200_B);
  ASSERT_EQ(at.size(), 6U);  // 0 1 2 4 6 9
  EXPECT_EQ(at[0].free, 300_B);
  EXPECT_EQ(at[0].used, 100_B);
  EXPECT_DOUBLE_EQ(at[0].unusable, 0);
  EXPECT_EQ(at[2].time, 2);
  EXPECT_EQ(at[2].live, 100_B);
  EXPECT_EQ(at[2].used, 200_B);
  EXPECT_EQ(at[2].largest_free, 200_B);
  EXPECT_DOUBLE_EQ(at[2].unusable, 100.0 / 300);
  EXPECT_EQ(at[3].free, 100_B);
  EXPECT_DOUBLE_EQ(at[3].unusable, 1);
  EXPECT_EQ(at[5].live, 0_B);
  EXPECT_EQ(at[5].largest_free, 400_B);
}

}  // namespace
}  // namespace plimsoll
