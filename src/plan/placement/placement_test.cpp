#include "plan/placement/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <random>

#include "plan/placement/first_fit.h"
#include "plan/placement/greedy.h"
#include "plan/placement/judge.h"
#include "plan/placement/search.h"
#include "plimsoll/error.h"
#include "tests/support/error_text.h"

namespace plimsoll {
namespace {

TEST(Placement, SharesBytesBetweenBuffersThatNeverMeet) {
  const std::vector<Buffer> buffers{{0, 2, 64_B}, {2, 4, 64_B}, {1, 3, 64_B}};
  for (const PlacementMethod& method : placement_methods()) {
    const Placement placement = method.place(buffers, {});
    EXPECT_EQ(placement.offsets[0], placement.offsets[1]) << method.name;
    EXPECT_NE(placement.offsets[0], placement.offsets[2]) << method.name;
  }
  EXPECT_EQ(place_offline(buffers).height, 128_B);
}

TEST(Placement, OfThousandsOfRandomProblemsIsAlwaysSoundAndOfflineIsNeverTheWorse) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::vector<Buffer> buffers;
    const int64_t times = 2 + static_cast<int64_t>(random() % 60);
    for (size_t n = random() % (seed % 100 == 0 ? 400 : 60); n > 0; --n) {
      const int64_t lower = static_cast<int64_t>(random() % static_cast<uint64_t>(times));
      const int64_t length = static_cast<int64_t>(random() % (seed % 3 == 0 ? 50 : 6));
      buffers.push_back({lower * 1000,
                         (lower + length) * 1000,
                         {static_cast<int64_t>(random() % 5000)},
                         static_cast<Mobility>(random() % 3)});
    }
    const int64_t alignment = seed % 2 == 0 ? 64 : 1;
    const PlacementOptions options{.alignment = alignment, .effort = 20'000};
    const Placement offline = place_offline(buffers, options);
    ASSERT_EQ(judge(buffers, offline, alignment), "");
    for (const PlacementMethod& method : placement_methods()) {
      const Placement placement = method.place(buffers, options);
      ASSERT_EQ(judge(buffers, placement, alignment), "") << method.name;
      ASSERT_LE(offline.height, placement.height) << method.name;
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

// A rectangle of time and bytes cut at random into buffers: there is a placement without a gap.
std::vector<Buffer> cut_rectangle(std::mt19937_64& random, int64_t times, int64_t bytes, int cuts) {
  struct Cut {
    int64_t lower, upper, from, to;
  };
  std::vector<Cut> cutting{{0, times, 0, bytes}};
  for (int tries = 0; static_cast<int>(cutting.size()) < cuts && tries < 100 * cuts; ++tries) {
    Cut& c = cutting[random() % cutting.size()];
    Cut other = c;
    if (random() % 2 == 0) {
      if (c.upper - c.lower < 2) continue;
      c.upper = other.lower =
          c.lower + 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(c.upper - c.lower - 1));
    } else {
      if (c.to - c.from < 2) continue;
      c.to = other.from = c.from + 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(c.to - c.from - 1));
    }
    cutting.push_back(other);
  }
  std::vector<Buffer> buffers;
  for (const Cut& c : cutting) buffers.push_back({c.lower, c.upper, {c.to - c.from}});
  return buffers;
}

TEST(Placement, OfflineFindsThePlacementWithoutAGapWhereThereIsOne) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<Buffer> buffers = cut_rectangle(random, 40, 1000, static_cast<int>(5 + seed % 40));
    const Placement placement = place_offline(buffers, {.alignment = 1, .seconds = 20});
    EXPECT_EQ(placement.height, 1000_B) << "seed " << seed;
    EXPECT_EQ(judge(buffers, placement, 1), "");
  }
}

// Every placement of each buffer on 0 or on top of another, for what is small enough: the judge of the exact search.
int64_t least_height(const std::vector<Buffer>& buffers) {
  std::vector<size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), 0);
  int64_t least = INT64_MAX;
  do {
    std::vector<int64_t> offset(buffers.size(), 0);
    int64_t height = 0;
    for (size_t p = 0; p < order.size(); ++p) {
      const Buffer& b = buffers[order[p]];
      for (size_t q = 0; q < p; ++q) {
        const Buffer& other = buffers[order[q]];
        if (b.lower < other.upper && other.lower < b.upper) {
          offset[order[p]] = std::max(offset[order[p]], offset[order[q]] + other.bytes.count);
        }
      }
      height = std::max(height, offset[order[p]] + b.bytes.count);
    }
    least = std::min(least, height);
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

TEST(PlacementSearch, AgreesWithBruteForceAboutWhatIsPossible) {
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<Buffer> buffers;
    for (uint64_t i = 0; i < 5 + seed % 3; ++i) {
      const int64_t lower = static_cast<int64_t>(random() % 8);
      buffers.push_back(
          {lower, lower + 1 + static_cast<int64_t>(random() % 5), {1 + static_cast<int64_t>(random() % 9)}});
    }
    const int64_t least = least_height(buffers);
    const Placement placement = place_offline(buffers, {.alignment = 1});
    EXPECT_EQ(placement.height, Bytes{least}) << "seed " << seed;
    EXPECT_TRUE(placement.proven_optimal) << "seed " << seed;
    const PlacementProblem problem = make_problem(buffers, 1);
    const std::vector<int64_t> zeros(buffers.size(), 0);
    const PlacementSearch::Limits forever{std::chrono::steady_clock::now() + std::chrono::hours(1), 1 << 24};
    EXPECT_EQ(PlacementSearch(problem, zeros, least).advance(forever).outcome, PlacementSearch::Outcome::found)
        << "seed " << seed;
    EXPECT_EQ(PlacementSearch(problem, zeros, least - 1).advance(forever).outcome, PlacementSearch::Outcome::none)
        << "seed " << seed;
  }
}

TEST(Placement, FirstFitCountsInBlocksOf1KB) {
  const std::vector<Buffer> buffers{{0, 2, 10_B}, {0, 2, 1025_B}, {1, 3, 64_B}};
  const Placement placement = place_first_fit(buffers);
  EXPECT_EQ(placement.offsets, (std::vector<Bytes>{0_B, 1024_B, 3072_B}));
  EXPECT_EQ(placement.height, 4096_B);
  EXPECT_EQ(placement.lower_bound, Bytes{64 + 1088 + 64});
}

// A training step: activations wait for their backward step in a stack; some are offloaded or recomputed, so that they
// live twice, briefly; gradients and workspaces live for a few steps.
std::vector<Buffer> training_step(uint64_t seed, int layers, int kept_of_four) {
  std::mt19937_64 random(seed);
  auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  std::vector<Buffer> buffers;
  for (int i = 0; i < layers; ++i) {
    const Bytes bytes{64 * (1 + below(1000))};
    const int64_t forward = 3 * i, backward = 6 * layers - 3 * i;
    if (i % 4 < kept_of_four) {
      buffers.push_back({forward, backward, bytes});
    } else {
      buffers.push_back({forward, forward + 2 + below(8), bytes});
      buffers.push_back({backward - 1 - below(30), backward, bytes});
    }
    buffers.push_back({backward - 3, backward + 1, bytes});
    buffers.push_back({backward - 2, backward - 1, {64 * below(3000)}});
    buffers.push_back({forward, forward + 1, {64 * below(3000)}});
  }
  return buffers;
}

TEST(Placement, TensOfThousandsOfBuffersOfATrainingStepArePlacedWithoutAGap) {
  for (int kept : {4, 2, 1}) {
    for (int layers : {2500, 8000}) {
      const std::vector<Buffer> buffers = training_step(7, layers, kept);
      const Placement placement = place_offline(buffers);
      EXPECT_EQ(placement.height, placement.lower_bound) << kept << " of 4 kept, " << layers << " layers";
    }
  }
}

TEST(GreedyPlacer, LooksAtSoManyPairsAsItSaysHoweverManyBuffersLiveTogether) {
  for (int count : {1000, 30000}) {
    std::mt19937_64 random(static_cast<uint64_t>(count));
    std::vector<Buffer> buffers;
    for (int i = 0; i < count; ++i) {
      const auto lower = static_cast<int64_t>(random() % static_cast<uint64_t>(count));
      buffers.push_back({lower, lower + 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(count)), {64}});
    }
    const PlacementProblem problem = make_problem(buffers, 64);
    const GreedyPlacer placer(problem);
    for (size_t i = 0; i < GreedyPlacer::kOrders; ++i) {
      const std::vector<int32_t> order = placer.order(i);
      std::vector<int64_t> offsets(problem.items.size(), -1);
      placer.place_short(order, placer.place_long(order, offsets), offsets);
    }
    EXPECT_LE(placer.looks(), static_cast<int64_t>(GreedyPlacer::kOrders) * 2 * 3'000'000) << count;
  }
}

TEST(Placement, ManyBuffersThatLiveAllTheTimeArePiledUpWithoutLookingForHoles) {
  // The baseline's problem: twenty thousand million pairs meet.
  std::mt19937_64 random(11);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 200'000; ++i) buffers.push_back({0, 9, {64 * static_cast<int64_t>(random() % 1000)}});
  const Placement placement = place_offline(buffers);
  EXPECT_EQ(placement.height, placement.lower_bound);
}

// First fit as everybody writes it: every earlier one that is alive at the same time is looked at.
int64_t plain_first_fit(const PlacementProblem& problem, const std::vector<int32_t>& order,
                        std::vector<int64_t>& offsets) {
  int64_t height = 0;
  for (size_t p = 0; p < order.size(); ++p) {
    const PlacementItem& item = problem.items[order[p]];
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (size_t q = 0; q < p; ++q) {
      const PlacementItem& other = problem.items[order[q]];
      if (item.lower < other.upper && other.lower < item.upper)
        taken.emplace_back(offsets[order[q]], offsets[order[q]] + other.size);
    }
    std::sort(taken.begin(), taken.end());
    int64_t offset = 0;
    for (const auto& [begin, end] : taken) {
      if (begin - offset >= item.size) break;
      offset = std::max(offset, end);
    }
    offsets[order[p]] = offset;
    height = std::max(height, offset + item.size);
  }
  return height;
}

std::vector<Buffer> random_set(uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  std::vector<Buffer> buffers;
  for (int i = 0; i < count; ++i) {
    const int64_t lower = below(count), length = 1 + below(seed % 2 == 0 ? count : 2 + count / 20);
    buffers.push_back({lower, lower + length, {1 + below(seed % 3 == 0 ? 8 : 5000)}});
  }
  return buffers;
}

TEST(FirstFit, PlacesEveryItemWhereLookingAtAllTheOthersDoes) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const PlacementProblem problem = make_problem(random_set(seed, 1 + static_cast<int>(seed)), seed % 5 == 0 ? 64 : 1);
    FirstFit first_fit(problem);
    std::vector<int32_t> order(problem.items.size());
    std::iota(order.begin(), order.end(), 0);
    std::vector<int64_t> offsets(order.size()), plain(order.size());
    for (int again = 0; again < 3; ++again) {
      std::shuffle(order.begin(), order.end(), std::mt19937_64(seed + again));
      const int64_t height = plain_first_fit(problem, order, plain);
      ASSERT_EQ(first_fit.place(order, offsets), height) << "seed " << seed;
      ASSERT_EQ(offsets, plain) << "seed " << seed;
      ASSERT_EQ(first_fit.place(order, offsets, height + 1), height) << "seed " << seed;
      ASSERT_EQ(first_fit.place(order, offsets, height), height) << "seed " << seed;
    }
  }
}

TEST(Placement, IsNeverAboveFirstFitInAnyUsualOrderAndMoreEffortIsNeverWorse) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const std::vector<Buffer> buffers = random_set(seed, 20 + static_cast<int>(seed));
    const PlacementProblem problem = make_problem(buffers, 1);
    int64_t last = INT64_MAX;
    for (const int64_t effort : {0, 100'000, 1'000'000}) {
      const PlacementOptions options{.alignment = 1, .effort = effort};
      const Placement placement = place_offline(buffers, options);
      ASSERT_EQ(judge(buffers, placement, 1), "");
      ASSERT_EQ(place_offline(buffers, options).offsets, placement.offsets);
      ASSERT_LE(placement.height.count, last);
      last = placement.height.count;
      auto size = [&](int32_t i) { return static_cast<double>(problem.items[i].size); };
      auto length = [&](int32_t i) { return static_cast<double>(problem.items[i].duration); };
      const std::vector<std::function<double(int32_t)>> keys{
          size, length, [&](int32_t i) { return size(i) * length(i); },
          [&](int32_t i) { return -static_cast<double>(problem.items[i].lower); }};
      for (const auto& key : keys) {
        std::vector<int32_t> order(problem.items.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) > key(b); });
        std::vector<int64_t> offsets(order.size());
        ASSERT_LE(placement.height.count, plain_first_fit(problem, order, offsets));
      }
    }
  }
}

TEST(Placement, OneBufferMayHaveAllTheBytesThatANumberHolds) {
  for (const auto& seconds : {std::optional<double>(), std::optional<double>(5)}) {
    const Placement placement = place_offline({{0, 1, {INT64_MAX}}}, {.alignment = 1, .seconds = seconds});
    EXPECT_EQ(placement.height, Bytes{INT64_MAX});
    EXPECT_TRUE(placement.proven_optimal);
  }
}

TEST(Placement, RefusesWhatIsNoProblem) {
  const auto refusal = [](const std::vector<Buffer>& buffers, int64_t alignment) {
    return testing::error_text(ErrorCode::invalid_input, [&] { place_offline(buffers, {.alignment = alignment}); });
  };
  EXPECT_EQ(refusal({{0, 1, 7_B}, {0, 1, {-5}}}, 1), "buffer 1 has -5 bytes");
  EXPECT_EQ(refusal({{0, 1, 5_B}}, 0), "an alignment of 0 is not positive");
  EXPECT_EQ(refusal({{0, 1, {INT64_MAX}}, {0, 1, {INT64_MAX}}}, 1),
            "the sizes of all buffers together are more than a 64-bit number holds");
  EXPECT_EQ(place_offline({}).height, 0_B);
}

}  // namespace
}  // namespace plimsoll
