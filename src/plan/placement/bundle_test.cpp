#include "plan/placement/bundle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plan/placement/heap.h"
#include "plan/placement/judge.h"

namespace plimsoll {
namespace {

std::vector<Buffer> random_buffers(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Buffer> buffers;
  const uint64_t times = 2 + random() % 60;
  for (size_t n = 1 + random() % 80; n > 0; --n) {
    const auto lower = static_cast<int64_t>(random() % times);
    buffers.push_back({lower,
                       lower + 1 + static_cast<int64_t>(random() % (seed % 3 == 0 ? 50 : 6)),
                       {1 + static_cast<int64_t>(random() % 900)}});
  }
  return buffers;
}

TEST(Bundles, HoldEveryItemOnceAndStayBelowTheHeightAndAPlacementOfThemIsOneOfTheItems) {
  int fewer = 0;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const std::vector<Buffer> buffers = random_buffers(seed);
    const PlacementProblem problem = make_problem(buffers, 1);
    const int64_t height = problem.lower_bound + static_cast<int64_t>(seed % 4) * problem.lower_bound / 8;
    const Bundles bundles =
        make_bundles(problem, height, {.share = 0.25 * static_cast<double>(seed % 5), .backwards = seed % 2 == 0});
    EXPECT_LE(bundles.problem.lower_bound, height);
    EXPECT_GE(bundles.problem.lower_bound, problem.lower_bound);
    std::vector<int> held(problem.items.size(), 0);
    for (const auto& members : bundles.members) {
      for (const Bundles::Member& member : members) ++held[member.item];
    }
    EXPECT_TRUE(std::all_of(held.begin(), held.end(), [](int times) { return times == 1; }));
    fewer += bundles.members.size() < problem.items.size() ? 1 : 0;

    const std::vector<int64_t> offsets = place_on_heap(bundles.problem, Heap::Fit::best, false);
    const Placement placement = make_placement(problem, bundles.offsets_of_items(problem, offsets), buffers.size());
    ASSERT_EQ(judge(buffers, placement, 1), "");
    int64_t top = 0;
    for (size_t b = 0; b < offsets.size(); ++b) top = std::max(top, offsets[b] + bundles.problem.items[b].size);
    EXPECT_LE(placement.height.count, top);
  }
  EXPECT_GT(fewer, 1500);
}

TEST(Bundles, WithoutRoomToWasteOnlyWhatLivesAtTheSameTimesIsJoined) {
  const PlacementProblem problem = make_problem({{0, 9, 5_B}, {0, 8, 5_B}, {0, 9, 7_B}}, 1);
  EXPECT_EQ(make_bundles(problem, problem.lower_bound, {.share = 0}).members.size(), 2U);
  EXPECT_EQ(make_bundles(problem, 2 * problem.lower_bound, {.share = 1}).members.size(), 1U);
}

TEST(Bundles, OfADeepStackAreFew) {
  std::vector<Buffer> buffers;
  for (int i = 0; i < 1000; ++i) {
    buffers.push_back({i, 2000 - i, {64 * (1 + i % 7)}});
    buffers.push_back({1999 - i, 2001 - i, {64 * (1 + i % 5)}});
  }
  const PlacementProblem problem = make_problem(buffers, 64);
  EXPECT_LT(make_bundles(problem, problem.lower_bound, {.share = 0.5}).members.size(), 100U);
}

}  // namespace
}  // namespace plimsoll
