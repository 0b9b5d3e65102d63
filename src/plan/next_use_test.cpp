#include "plan/next_use.h"

#include <gtest/gtest.h>

#include "plan/simulate.h"
#include "tests/support/random_cost_graph.h"
#include "tests/support/random_graph.h"

namespace plimsoll {
namespace {

using testing::CostInput;
using testing::random_cost_graph;

std::vector<TierInfo> host(double gb_per_s) {
  return {{.name = "host", .capacity = {INT64_MAX / 4}, .out_gb_per_s = gb_per_s, .in_gb_per_s = gb_per_s}};
}

// a and b wait while c is made and read, then b is wanted, then a. There is room for two of them.
TEST(NextUse, LetsGoWhatIsWantedLast) {
  const CostInput costs(cost_graph_from_json(R"({"sources": [], "nodes": [
      {"ms": 1, "out": [6400], "in": []},
      {"ms": 1, "out": [6400], "in": []},
      {"ms": 1, "out": [6400], "in": []},
      {"ms": 1, "out": [0], "in": [[2, 0]]},
      {"ms": 1, "out": [0], "in": [[1, 0], [3, 0]]},
      {"ms": 1, "out": [0], "in": [[0, 0], [4, 0]]}], "keep": [[5, 0]]})"));
  const ValueTimeline timeline = make_timeline(costs.input());
  const std::vector<Decisions> found = copy_by_next_use(timeline, host(1), keep_everything(timeline), 13000, true);
  ASSERT_FALSE(found.empty());
  for (const Decisions& decisions : found) {
    EXPECT_EQ(decisions.gaps[timeline.values[0].first_gap], kOffload);
    EXPECT_EQ(std::ranges::count(decisions.gaps, kKeep), std::ssize(decisions.gaps) - 1);
  }
  EXPECT_EQ(copy_by_next_use(timeline, host(1), keep_everything(timeline), 19500, true),
            std::vector<Decisions>{keep_everything(timeline)});
}

TEST(NextUse, KeepsTheRerunsAndMostlyTheLimit) {
  int tried = 0, within = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const CostInput costs(random_cost_graph(seed, 30));
    const ValueTimeline timeline = make_timeline(costs.input());
    Decisions start = keep_everything(timeline);
    for (size_t v = seed % 5; v < timeline.values.size(); v += 5) {
      const TimelineValue& value = timeline.values[v];
      if (value.recomputable && !value.at_end)
        std::fill_n(start.gaps.begin() + value.first_gap, value.gap_count(), kDrop);
    }
    Schedule before;
    Scheduler(timeline).run(start, before);
    if (before.unrecoverable >= 0) continue;
    const int64_t limit = before.peak * 4 / 5;
    for (const Decisions& decisions : copy_by_next_use(timeline, host(1e-4), start, limit, true)) {
      Schedule schedule;
      Scheduler(timeline).run(decisions, schedule);
      ASSERT_LT(schedule.unrecoverable, 0);
      EXPECT_EQ(schedule.recomputations, before.recomputations);
      ++tried;
      within += schedule.peak <= limit ? 1 : 0;
    }
  }
  EXPECT_GT(tried, 60);
  EXPECT_GT(within, tried / 2);
}

// When steps start is known only with the waits for copies: by compute's times alone, what is wanted late comes early, and what is
// wanted sooner has to leave for it.
TEST(NextUse, GoesThroughTheStepWithItsWaits) {
  int better = 0, seen = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Graph graph = testing::random_graph(seed, {.forward_ops = 30, .updates = true});
    const Route route = make_route(graph);
    const auto kernels = testing::random_kernels(graph, seed);
    const CostTable costs;
    const ValueTimeline timeline =
        make_timeline({.graph = graph, .route = route, .kernels = kernels, .costs = costs, .device = {.name = "cpu"}});
    Schedule schedule;
    Scheduler(timeline).run(keep_everything(timeline), schedule);
    const int64_t limit = schedule.peak * 6 / 10;
    const std::vector<TierInfo> tiers = host(static_cast<double>(schedule.peak) / timeline.compute_ms * 1e-6);
    std::vector<double> found;
    for (const Decisions& decisions : copy_by_next_use(timeline, tiers, keep_everything(timeline), limit, true)) {
      Scheduler(timeline).run(decisions, schedule);
      ASSERT_LT(schedule.unrecoverable, 0);
      found.push_back(schedule.peak <= limit ? spread_in_turn(timeline, tiers, limit, schedule) : kAnyTime);
    }
    if (found.size() < 3) continue;
    const double first = std::min(found[0], found[1]), best = std::ranges::min(found);
    if (best == kAnyTime) continue;
    ++seen;
    better += best < first * 0.99 ? 1 : 0;
  }
  EXPECT_GE(better, 5);
}

// Another step shares the memory that they lie in.
TEST(NextUse, LeavesStatesWhereTheyLieWhereTheyMayNotMove) {
  int copied = 0, moved = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = testing::random_graph(seed, {.forward_ops = 20, .updates = true});
    const Route route = make_route(graph);
    const auto kernels = testing::random_kernels(graph, seed);
    const CostTable costs;
    const ValueTimeline timeline =
        make_timeline({.graph = graph, .route = route, .kernels = kernels, .costs = costs, .device = {.name = "cpu"}});
    const Decisions start = keep_everything(timeline);
    Schedule before;
    Scheduler(timeline).run(start, before);
    for (const bool may_move : {false, true}) {
      for (const Decisions& decisions : copy_by_next_use(timeline, host(1e-4), start, before.peak / 2, may_move)) {
        copied += !may_move && decisions != start ? 1 : 0;
        if (!may_move) {
          EXPECT_EQ(decisions.home, start.home);
        }
        moved += decisions.home != start.home ? 1 : 0;
      }
    }
  }
  EXPECT_GT(copied, 0);
  EXPECT_GT(moved, 0);
}

}  // namespace
}  // namespace plimsoll
