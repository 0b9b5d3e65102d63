#include "plimsoll/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "plimsoll/error.h"

namespace plimsoll {
namespace {

// Every pair, one by one: the judge knows nothing of how placements are made.
void expect_sound(const std::vector<Buffer>& buffers, const Placement& placement, int64_t alignment) {
  ASSERT_EQ(placement.offsets.size(), buffers.size());
  Bytes height;
  auto empty = [](const Buffer& b) { return b.bytes.count == 0 || b.lower >= b.upper; };
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (empty(buffers[i])) continue;
    const int64_t begin = placement.offsets[i].count, end = begin + buffers[i].bytes.count;
    EXPECT_GE(begin, 0);
    EXPECT_EQ(begin % alignment, 0);
    height = std::max(height, Bytes{end});
    for (size_t j = 0; j < i; ++j) {
      if (empty(buffers[j]) || buffers[i].upper <= buffers[j].lower || buffers[j].upper <= buffers[i].lower) continue;
      const int64_t other = placement.offsets[j].count;
      EXPECT_TRUE(end <= other || other + buffers[j].bytes.count <= begin) << "buffers " << i << " and " << j;
    }
  }
  EXPECT_GE(placement.height, height);
  EXPECT_GE(placement.height, placement.lower_bound);
  Bytes bound;
  for (const Buffer& at : buffers) {
    Bytes live;
    for (const Buffer& b : buffers) {
      if (b.lower <= at.lower && at.lower < b.upper) live += align_up(b.bytes, alignment);
    }
    if (at.lower < at.upper) bound = std::max(bound, live);
  }
  EXPECT_EQ(placement.lower_bound, bound);
  if (placement.height == placement.lower_bound) {
    EXPECT_TRUE(placement.proven_optimal);
  }
}

TEST(Placement, SharesBytesBetweenBuffersThatNeverMeet) {
  const std::vector<Buffer> buffers{{0, 2, 64_B}, {2, 4, 64_B}, {1, 3, 64_B}};
  for (const PlacementMethod& method : placement_methods()) {
    const Placement placement = method.place(buffers, {});
    EXPECT_EQ(placement.offsets[0], placement.offsets[1]) << method.name;
    EXPECT_NE(placement.offsets[0], placement.offsets[2]) << method.name;
  }
  EXPECT_EQ(place_offline(buffers).height, 128_B);
}

TEST(Placement, OfRandomProblemsIsAlwaysSound) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::vector<Buffer> buffers;
    const int64_t times = 2 + static_cast<int64_t>(random() % 60);
    for (size_t n = random() % 80; n > 0; --n) {
      const int64_t lower = static_cast<int64_t>(random() % static_cast<uint64_t>(times));
      const int64_t length = static_cast<int64_t>(random() % (seed % 3 == 0 ? 50 : 6));
      buffers.push_back({lower * 1000, (lower + length) * 1000, {static_cast<int64_t>(random() % 5000)}});
    }
    const int64_t alignment = seed % 2 == 0 ? 64 : 1;
    for (const PlacementMethod& method : placement_methods()) {
      SCOPED_TRACE(method.name);
      expect_sound(buffers, method.place(buffers, {.alignment = alignment, .seconds = 0.02}), alignment);
    }
  }
}

TEST(Placement, OfflineNeverNeedsMoreThanTheHeapsHereAndReachesTheBoundOnNestedLifetimes) {
  // A chain of layers: activations wait for their backward step, gradients live for two steps.
  for (int layers : {5, 50, 500}) {
    std::mt19937_64 random(static_cast<uint64_t>(layers));
    std::vector<Buffer> buffers;
    for (int i = 0; i < layers; ++i) {
      const int64_t bytes = 64 * (1 + static_cast<int64_t>(random() % 100));
      buffers.push_back({i, 2 * layers - i, {bytes}});
      buffers.push_back({2 * layers - i - 1, 2 * layers - i + 1, {bytes}});
      buffers.push_back({i, i + 1, {64 * static_cast<int64_t>(random() % 50)}});
    }
    const Placement offline = place_offline(buffers, {.seconds = 0.5});
    EXPECT_EQ(offline.height, offline.lower_bound) << layers;
    EXPECT_LE(offline.height, place_first_fit(buffers).height);
    EXPECT_LE(offline.height, place_best_fit(buffers).height);
  }
}

TEST(Placement, FirstFitCountsInBlocksOf1KB) {
  const std::vector<Buffer> buffers{{0, 2, 10_B}, {0, 2, 1025_B}, {1, 3, 64_B}};
  const Placement placement = place_first_fit(buffers);
  EXPECT_EQ(placement.offsets, (std::vector<Bytes>{0_B, 1024_B, 3072_B}));
  EXPECT_EQ(placement.height, 4096_B);
  EXPECT_EQ(placement.lower_bound, Bytes{64 + 1088 + 64});
}

TEST(Placement, TwentyThousandBuffersArePlacedInTwoSeconds) {
  std::mt19937_64 random(7);
  std::vector<Buffer> buffers;
  const int layers = 5000;
  for (int i = 0; i < layers; ++i) {
    const int64_t bytes = 64 * (1 + static_cast<int64_t>(random() % 1000));
    buffers.push_back({3 * i, 6 * layers - 3 * i, {bytes}});
    buffers.push_back({3 * i, 3 * i + 2, {bytes}});
    buffers.push_back({6 * layers - 3 * i - 3, 6 * layers - 3 * i + 1, {bytes}});
    buffers.push_back({6 * layers - 3 * i - 2, 6 * layers - 3 * i - 1, {64 * static_cast<int64_t>(random() % 3000)}});
  }
  const auto started = std::chrono::steady_clock::now();
  const Placement placement = place_offline(buffers, {.seconds = 1.0});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  RecordProperty("seconds", std::to_string(seconds));
  EXPECT_LT(seconds, 20) << "ten times what it takes alone on a quiet machine";
  EXPECT_LT(static_cast<double>(placement.height.count), 1.01 * static_cast<double>(placement.lower_bound.count));
}

TEST(Placement, RefusesWhatIsNoProblem) {
  EXPECT_THROW(place_offline({{0, 1, {-5}}}), Error);
  EXPECT_THROW(place_offline({{0, 1, 5_B}}, {.alignment = 0}), Error);
  EXPECT_EQ(place_offline({}).height, 0_B);
}

}  // namespace
}  // namespace plimsoll
