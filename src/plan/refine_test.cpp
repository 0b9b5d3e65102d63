#include <gtest/gtest.h>

#include "plan/tradeoff.h"
#include "tests/support/random_cost_graph.h"

namespace plimsoll {
namespace {

using testing::CostInput;
using testing::random_cost_graph;

TEST(Refinement, IsNeverSlowerThanWhatItStartsFromAndDependsOnNoLargerLimit) {
  int faster = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    const CostInput costs(random_cost_graph(seed, 30));
    const std::vector<TierInfo> tiers{
        {.name = "host", .capacity = {INT64_MAX / 4}, .out_gb_per_s = 2e-4, .in_gb_per_s = 2e-4, .latency_us = 10}};
    const ValueTimeline timeline = make_timeline(costs.input());
    const auto points = find_tradeoff(timeline, tiers, keep_everything(timeline), {});
    int64_t least = INT64_MAX, most = 0;
    for (const TradeoffPoint& point : points) {
      least = std::min(least, point.peak);
      most = std::max(most, point.peak);
    }
    std::vector<int64_t> limits;
    for (int64_t limit = least; limit <= most; limit += limit / 20 + 1) limits.push_back(limit);
    const auto start = improve_tradeoff(timeline, tiers, points, limits, 20, false, false);
    const RefinementOptions options{.changes = 200};
    const auto refined = refine_tradeoff(timeline, tiers, start, limits, options);
    ASSERT_FALSE(refined.empty());
    const auto within = [](const std::vector<LimitedPoint>& list, int64_t limit) {
      double ms = kAnyTime;
      for (const LimitedPoint& point : list) ms = std::min(ms, point.limit <= limit ? point.ms : kAnyTime);
      return ms;
    };
    for (const int64_t limit : limits) {
      EXPECT_LE(within(refined, limit), within(start, limit));
      faster += within(refined, limit) < within(start, limit) * (1 - 1e-9) ? 1 : 0;
    }
    for (const LimitedPoint& point : refined) {
      Schedule schedule;
      Scheduler(timeline).run(point.decisions, schedule);
      ASSERT_LT(schedule.unrecoverable, 0);
      EXPECT_DOUBLE_EQ(spread_in_turn(timeline, tiers, point.limit, schedule), point.ms);
      EXPECT_LE(schedule.peak, point.limit);
    }
    const std::vector<int64_t> fewer(limits.begin(), limits.begin() + static_cast<std::ptrdiff_t>(limits.size() / 2));
    const auto below = refine_tradeoff(timeline, tiers, start, fewer, options);
    ASSERT_LE(below.size(), refined.size());
    EXPECT_TRUE(std::equal(below.begin(), below.end(), refined.begin()));
  }
  EXPECT_GT(faster, 20);
}

}  // namespace
}  // namespace plimsoll
