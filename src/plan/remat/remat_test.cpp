#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <queue>

#include "plan/assemble.h"
#include "plan/bounds.h"
#include "plan/policies/policies.h"
#include "plan/policies/runs.h"
#include "plan/remat/evict.h"
#include "plan/remat/placed_search.h"
#include "plan/remat/search.h"
#include "plan/remat/time_bound.h"
#include "plan/schedule.h"
#include "plan/simulate.h"
#include "plimsoll/verify.h"
#include "tests/support/random_cost_graph.h"
#include "tests/support/random_graph.h"

#ifdef PLIMSOLL_CBC
#include <coin/Cbc_C_Interface.h>
#endif

namespace plimsoll {
namespace {

using testing::CostInput;
using testing::random_cost_graph;

Schedule followed(const ValueTimeline& timeline, const Sequence& sequence) {
  Schedule schedule;
  Scheduler(timeline).follow(keep_everything(timeline), sequence, schedule);
  return schedule;
}

void expect_as_scheduled(const ValueTimeline& timeline, RunSet& runs) {
  const Schedule schedule = followed(timeline, runs.sequence());
  ASSERT_LT(schedule.unrecoverable, 0);
  EXPECT_EQ(runs.peak(), schedule.peak);
  EXPECT_NEAR(timeline.compute_ms + runs.again_ms(), schedule.compute_ms, 1e-9 * schedule.compute_ms);
  int64_t excess = 0;
  for (int32_t t = 0; t <= runs.steps(); ++t) excess += std::max<int64_t>(0, runs.most(t) - runs.limit(t));
  EXPECT_EQ(runs.excess(), excess);
}

void toggle_at_random(const ValueTimeline& timeline, uint64_t seed) {
  std::mt19937_64 random(seed);
  RunSet runs(timeline, RunSet(timeline, 0).peak() / 2);
  expect_as_scheduled(timeline, runs);
  for (int i = 0; i < 40; ++i) {
    for (int n = 0; n < 3; ++n) {
      const auto step = static_cast<int32_t>(random() % static_cast<uint64_t>(runs.steps()));
      const auto stage = static_cast<int32_t>(random() % static_cast<uint64_t>(runs.steps() + 1));
      if (runs.may_run(step, stage)) runs.toggle(step, stage);
    }
    runs.settle();
    expect_as_scheduled(timeline, runs);
  }
}

TEST(RunSet, ItsBytesAndTimeAreThoseOfTheScheduleThatFollows) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    const CostInput costs(random_cost_graph(seed, 5 + static_cast<int>(seed)));
    toggle_at_random(make_timeline(costs.input()), seed);
    const Graph graph = testing::random_graph(seed);
    const Route route = make_route(graph);
    const auto kernels = testing::random_kernels(graph, seed);
    const CostTable none;
    toggle_at_random(make_timeline({.graph = graph, .route = route, .kernels = kernels, .costs = none, .device = {}}),
                     seed);
  }
}

TEST(Eviction, KeepsTheBudgetAndRunsEveryStep) {
  int found = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const CostInput costs(random_cost_graph(seed, 40));
    const ValueTimeline timeline = make_timeline(costs.input());
    const int64_t peak = RunSet(timeline, 0).peak();
    for (const int percent : {95, 80, 65, 50}) {
      const auto relaxed = relax_presence(timeline, peak / 100 * percent, 5, 1'000'000);
      for (const EvictionRule rule :
           {EvictionRule::dtr, EvictionRule::dtr_eq, EvictionRule::ahead, EvictionRule::relaxed}) {
        if (rule == EvictionRule::relaxed && !relaxed) continue;
        const auto sequence = evict_as_it_runs(timeline, peak / 100 * percent, rule, 100 * timeline.compute_ms,
                                               INT64_MAX, relaxed ? &*relaxed : nullptr);
        if (!sequence) continue;
        ++found;
        const Schedule schedule = followed(timeline, *sequence);
        ASSERT_LT(schedule.unrecoverable, 0);
        EXPECT_LE(schedule.peak, peak / 100 * percent);
        std::vector<int> runs(timeline.steps.size(), 0);
        for (int32_t s : *sequence) ++runs[static_cast<size_t>(s)];
        EXPECT_GE(*std::min_element(runs.begin(), runs.end()), 1);
      }
    }
  }
  EXPECT_GT(found, 350);
}

TEST(RunSearch, IsNeverWorseForMoreEffortNorThanARuleThatItStartsFrom) {
  int started = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    const CostInput costs(random_cost_graph(seed, 30));
    const ValueTimeline timeline = make_timeline(costs.input());
    const int64_t budget = RunSet(timeline, 0).peak() * (50 + static_cast<int64_t>(seed)) / 100;
    FoundRuns best{.again_ms = 1e300};
    for (const int64_t effort : {0, 300'000, 1'000'000, 3'000'000}) {
      const FoundRuns found = find_runs(timeline, budget, effort);
      EXPECT_GE(found.fits, best.fits);
      if (best.fits) {
        EXPECT_LE(found.again_ms, best.again_ms * (1 + 1e-9));
      }
      best = found;
    }
    if (best.fits) {
      EXPECT_LE(followed(timeline, best.sequence).peak, budget);
    }
    if (const auto dtr = evict_as_it_runs(timeline, budget, EvictionRule::dtr, 4 * timeline.compute_ms)) {
      RunSet runs(timeline, budget);
      runs.take(*dtr);
      if (runs.excess() > 0) continue;  // a step runs again twice in a stage
      ++started;
      ASSERT_TRUE(best.fits);
      EXPECT_LE(best.again_ms, runs.again_ms() * (1 + 1e-9));
    }
  }
  EXPECT_GT(started, 15);
}

TEST(RunSearch, ImprovesKnownRunsWithinTheLimitsOfStages) {
  int fitted = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const CostInput costs(random_cost_graph(seed, 30));
    const ValueTimeline timeline = make_timeline(costs.input());
    const int64_t budget = RunSet(timeline, 0).peak() * 8 / 10;
    const FoundRuns start = find_runs(timeline, budget, 300'000);
    std::vector<int64_t> limits(timeline.steps.size() + 1);
    for (int64_t& limit : limits) limit = budget - static_cast<int64_t>(random() % static_cast<uint64_t>(budget / 10));
    const auto within = [&](const Sequence& sequence) {
      RunSet runs(timeline, budget);
      runs.set_limits(limits);
      runs.take(sequence);
      return runs.excess();
    };
    const FoundRuns found = improve_runs(timeline, limits, start.sequence, 1'000'000);
    EXPECT_EQ(found.fits, within(found.sequence) == 0);
    EXPECT_LE(within(found.sequence), within(start.sequence));
    EXPECT_EQ(followed(timeline, found.sequence).peak, found.peak);
    fitted += found.fits ? 1 : 0;
    // What fits already only gets faster.
    if (!start.fits) continue;
    limits.assign(limits.size(), budget);
    const FoundRuns faster = improve_runs(timeline, limits, start.sequence, 1'000'000);
    EXPECT_TRUE(faster.fits);
    EXPECT_LE(faster.again_ms, start.again_ms * (1 + 1e-9));
  }
  EXPECT_GT(fitted, 5);
}

TEST(RunSearch, IsNeverWorseThanKnownRunsThatItStartsFrom) {
  int fitted = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    const CostInput costs(random_cost_graph(seed, 30));
    const ValueTimeline timeline = make_timeline(costs.input());
    const int64_t budget = RunSet(timeline, 0).peak() * 7 / 10;
    const FoundRuns known = find_runs(timeline, budget, 3'000'000);
    if (!known.fits) continue;
    ++fitted;
    const FoundRuns found = find_runs(timeline, budget, 0, {&known.sequence, 1});
    ASSERT_TRUE(found.fits);
    EXPECT_LE(found.again_ms, known.again_ms * (1 + 1e-9));
  }
  EXPECT_GT(fitted, 10);
}

TEST(RunSearch, EndsWhereNoMoreRunsAgainThanIsEnough) {
  int improved = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    const CostInput costs(random_cost_graph(seed, 30));
    const ValueTimeline timeline = make_timeline(costs.input());
    const int64_t budget = RunSet(timeline, 0).peak() * 7 / 10;
    const FoundRuns known = find_runs(timeline, budget, 0), best = find_runs(timeline, budget, 3'000'000);
    if (!known.fits || best.again_ms > 0.999 * known.again_ms) continue;
    ++improved;
    const FoundRuns enough = find_runs(timeline, budget, 3'000'000, {&known.sequence, 1}, known.again_ms);
    EXPECT_DOUBLE_EQ(enough.again_ms, known.again_ms);
    const FoundRuns less = find_runs(timeline, budget, 3'000'000, {&known.sequence, 1}, 0.9999 * known.again_ms);
    EXPECT_LT(less.again_ms, known.again_ms);
  }
  EXPECT_GT(improved, 3);
}

TEST(RunSearch, OfManyStepsLeadsToPlansWhoseOffsetsKeepTheBudget) {
  int found = 0;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    const CostInput costs(random_cost_graph(seed, 160));
    const int64_t peak = RunSet(make_timeline(costs.input()), 0).peak();
    PolicyInput input = costs.input({peak * (75 + 3 * static_cast<int64_t>(seed)) / 100});
    input.run_effort = 10'000'000;
    const PlanOrInfeasible answer = plan_by_runs(input);
    const Plan* plan = std::get_if<Plan>(&answer);
    if (plan == nullptr) continue;
    ++found;
    EXPECT_LE(plan->arena, input.budget);
    const auto wrong = verify(costs.graph.graph, *plan);
    EXPECT_TRUE(wrong.empty()) << wrong[0].message;
  }
  EXPECT_GT(found, 3);
}

// No two items that meet share bytes, and there is one for each time that a value is in memory.
void expect_placed(const ValueTimeline& timeline, const PlacedRuns& placed, int64_t room) {
  for (size_t i = 0; i < placed.items.size(); ++i) {
    const PlacedRuns::Item& a = placed.items[i];
    EXPECT_GE(a.offset, 0);
    EXPECT_EQ(a.offset % kStayAlignment, 0);
    EXPECT_LE(a.offset + a.bytes, room);
    for (size_t j = 0; j < i; ++j) {
      const PlacedRuns::Item& b = placed.items[j];
      const bool meet = a.first <= b.last && b.first <= a.last;
      EXPECT_FALSE(meet && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes) << i << " and " << j;
    }
  }
  RunSet runs(timeline, room);
  runs.take(placed.sequence);
  EXPECT_EQ(runs.sequence(), placed.sequence);
  EXPECT_NEAR(runs.again_ms(), placed.again_ms, 1e-6);
  size_t spans = 0;
  for (int32_t v = 0; v < static_cast<int32_t>(timeline.values.size()); ++v) {
    if (timeline.values[static_cast<size_t>(v)].state >= 0) continue;
    for (const RunSet::Span& span : runs.spans_of(v)) {
      ++spans;
      EXPECT_TRUE(std::ranges::any_of(placed.items, [&](const PlacedRuns::Item& item) {
        return item.value == v && item.first == span.first && item.last == span.last;
      }));
    }
  }
  for (const int32_t s : placed.sequence) spans += timeline.steps[static_cast<size_t>(s)].workspace > 0 ? 1 : 0;
  EXPECT_EQ(spans, placed.items.size());
}

TEST(PlacedSearch, GivesAllThatIsInMemoryBytesOfItsOwnAndIsNeverWorseForMoreEffort) {
  int fitted = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    const CostInput costs(random_cost_graph(seed, 16 + static_cast<int>(seed)));
    const PolicyInput input = costs.input();
    ValueTimeline timeline = make_timeline(input);
    if (seed % 2 == 0) timeline.steps[timeline.steps.size() / 2].workspace = 640;
    ASSERT_TRUE(has_plain_places(timeline));
    int64_t states = 0;
    for (const TimelineValue& value : timeline.values) states += value.state >= 0 ? value.bytes : 0;
    const int64_t budget = RunSet(timeline, 0).peak() * (60 + 2 * static_cast<int64_t>(seed)) / 100;
    const FoundRuns known = find_runs(timeline, budget, 1'000'000);
    const std::vector<Sequence> starts{known.sequence, find_runs(timeline, budget / 100 * 95, 1'000'000).sequence};
    double before = kAnyTime;
    for (const int64_t effort : {16'000'000, 48'000'000}) {
      const PlacedRuns placed = place_runs(timeline, budget - states, starts, effort);
      if (before < kAnyTime) {
        ASSERT_TRUE(placed.fits);
        EXPECT_LE(placed.again_ms, before);
      }
      if (!placed.fits) continue;
      ++fitted;
      before = placed.again_ms;
      expect_placed(timeline, placed, budget - states);
    }
  }
  EXPECT_GT(fitted, 10);
}

TEST(Policies, AutoFitsWhereAnyPolicyDoesAndIsNeverSlowerOnIrregularGraphs) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const CostInput costs(random_cost_graph(seed, 12 + static_cast<int>(seed)));
    const ValueTimeline timeline = make_timeline(costs.input());
    const int64_t peak = RunSet(timeline, 0).peak();
    for (const int percent : {100, 85, 70, 55}) {
      const PolicyInput input = costs.input({peak * percent / 100});
      double fastest = kAnyTime, of_auto = kAnyTime;
      for (const Policy& policy : policies()) {
        SCOPED_TRACE(fmt::format("seed {}, {} %, {}", seed, percent, policy.name));
        PlanOrInfeasible answer = policy.plan(input);
        Plan* plan = std::get_if<Plan>(&answer);
        if (plan == nullptr) continue;
        predict(input, *plan);
        EXPECT_LE(plan->arena, input.budget);
        const auto wrong = verify(costs.graph.graph, *plan);
        EXPECT_TRUE(wrong.empty()) << (wrong.empty() ? "" : wrong[0].message);
        (policy.name == "auto" ? of_auto : fastest) =
            std::min(policy.name == "auto" ? of_auto : fastest, plan->predicted.step_time_ms);
      }
      EXPECT_LE(of_auto, fastest * (1 + 1e-9)) << "seed " << seed << ", " << percent << " %";
    }
  }
}

// The least ms of all schedules whose first runs keep the order, whatever runs again wherever: Dijkstra's algorithm over
// what has run and what is in memory. Nothing is in place.
double least_by_all_states(const ValueTimeline& timeline, int64_t budget) {
  using State = std::pair<int32_t, uint64_t>;  // steps that ran the first time; values that are there
  std::map<State, double> least;
  using Entry = std::pair<double, State>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  uint64_t start = 0, always = 0;
  for (size_t v = 0; v < timeline.values.size(); ++v) {
    if (timeline.values[v].producer < 0) start |= uint64_t{1} << v;
    if (timeline.values[v].producer < 0 && timeline.values[v].at_end) always |= uint64_t{1} << v;
  }
  const auto bytes_of = [&](uint64_t set) {
    int64_t bytes = 0;
    for (size_t v = 0; v < timeline.values.size(); ++v) bytes += (set >> v & 1) != 0 ? timeline.values[v].bytes : 0;
    return bytes;
  };
  const auto set_of = [](std::span<const int32_t> list) {
    uint64_t set = 0;
    for (int32_t v : list) set |= uint64_t{1} << v;
    return set;
  };
  uint64_t wanted_at_end = 0;
  for (size_t v = 0; v < timeline.values.size(); ++v) wanted_at_end |= timeline.values[v].at_end ? uint64_t{1} << v : 0;
  const auto reach = [&](const State& state, double ms) {
    const auto [at, fresh] = least.try_emplace(state, ms);
    if (!fresh && at->second <= ms) return;
    at->second = ms;
    queue.emplace(ms, state);
  };
  reach({0, start}, 0);
  const int32_t steps = static_cast<int32_t>(timeline.steps.size());
  while (!queue.empty()) {
    const auto [ms, state] = queue.top();
    queue.pop();
    if (least[state] < ms) continue;
    const auto [next, there] = state;
    if (next == steps && (there & wanted_at_end) == wanted_at_end) return ms;
    for (size_t v = 0; v < timeline.values.size(); ++v) {
      const uint64_t bit = uint64_t{1} << v;
      if ((there & bit) != 0 && (always & bit) == 0) reach({next, there & ~bit}, ms);
    }
    for (int32_t s = 0; s <= std::min(next, steps - 1); ++s) {
      const TimelineStep& step = timeline.steps[static_cast<size_t>(s)];
      const uint64_t reads = set_of(step.inputs), writes = set_of(step.outputs);
      if ((there & reads) != reads) continue;
      if (bytes_of(there | writes) + step.workspace > budget) continue;
      reach({s == next ? next + 1 : next, there | writes}, ms + step.ms);
    }
  }
  return kAnyTime;
}

#ifdef PLIMSOLL_CBC
// The same of schedules in which a step runs again at most once in a stage, in the order of the steps: an integer program.
double least_by_cbc(const ValueTimeline& timeline, int64_t budget) {
  Cbc_Model* model = Cbc_newModel();
  Cbc_setLogLevel(model, 0);
  const int steps = static_cast<int>(timeline.steps.size()), values = static_cast<int>(timeline.values.size());
  int columns = 0;
  const auto column = [&](double low, double high, double cost) {
    Cbc_addCol(model, "", low, high, cost, 1, 0, nullptr, nullptr);
    return columns++;
  };
  const auto row = [&](std::vector<int> which, std::vector<double> by, char sense, double right) {
    Cbc_addRow(model, "", static_cast<int>(which.size()), which.data(), by.data(), sense, right);
  };
  std::vector<int> was(static_cast<size_t>(values), -1);  // by value: whether it is there at the last event
  for (int v = 0; v < values; ++v) {
    const TimelineValue& value = timeline.values[static_cast<size_t>(v)];
    if (value.producer < 0) was[static_cast<size_t>(v)] = column(value.at_end ? 1 : 0, 1, 0);
  }
  for (int t = 0; t <= steps; ++t) {  // in the last stage what must be there at the end may come back
    for (int s = 0; s <= std::min(t, steps - 1); ++s) {
      const TimelineStep& step = timeline.steps[static_cast<size_t>(s)];
      const int runs = column(s == t ? 1 : 0, 1, step.ms);
      std::vector<int> memory{runs};
      std::vector<double> bytes{static_cast<double>(step.workspace)};
      std::vector<int> is(static_cast<size_t>(values), -1);
      for (int v = 0; v < values; ++v) {
        const TimelineValue& value = timeline.values[static_cast<size_t>(v)];
        if (value.producer > t) continue;
        const bool stays = value.producer < 0 && value.at_end;
        const int there = is[static_cast<size_t>(v)] = column(stays ? 1 : 0, 1, 0);
        memory.push_back(there);
        bytes.push_back(static_cast<double>(value.bytes));
        std::vector<int> from{there};
        std::vector<double> by{1};
        if (was[static_cast<size_t>(v)] >= 0) {
          from.push_back(was[static_cast<size_t>(v)]);
          by.push_back(-1);
        }
        if (value.producer == s) {
          from.push_back(runs);
          by.push_back(-1);
          row({there, runs}, {1, -1}, 'G', 0);  // what it writes is there
        }
        row(from, by, 'L', 0);
      }
      for (int32_t w : step.inputs) {  // and what it reads was before
        const int before = was[static_cast<size_t>(w)], now = is[static_cast<size_t>(w)];
        if (before >= 0) row({before, runs}, {1, -1}, 'G', 0);
        if (before < 0) row({runs}, {1}, 'L', 0);
        row({now, runs}, {1, -1}, 'G', 0);
      }
      row(memory, bytes, 'L', static_cast<double>(budget));
      was = is;
    }
  }
  for (int v = 0; v < values; ++v) {
    if (timeline.values[static_cast<size_t>(v)].at_end) row({was[static_cast<size_t>(v)]}, {1}, 'G', 1);
  }
  Cbc_setAllowableGap(model, 0);
  Cbc_setAllowableFractionGap(model, 0);
  Cbc_solve(model);
  const double least = Cbc_isProvenOptimal(model) ? Cbc_getObjValue(model) : kAnyTime;
  Cbc_deleteModel(model);
  return least;
}
#endif

// PLIMSOLL_BOUND_GRAPHS=10000 takes as many instead.
int graphs_asked() {
  const char* const asked = std::getenv("PLIMSOLL_BOUND_GRAPHS");
  return asked != nullptr ? std::atoi(asked) : 300;
}

TEST(TimeBound, IsNoMoreThanTheOptimumAndNoPlanIsLess) {
  int solved = 0, infeasible = 0, closed = 0, optimal = 0;
  double worst = 0, sum = 0;
  for (int seed = 0; seed < graphs_asked(); ++seed) {
    SCOPED_TRACE(seed);
    const CostInput costs(random_cost_graph(static_cast<uint64_t>(seed) + 1'000, 5 + seed % 4));
    const ValueTimeline timeline = make_timeline(costs.input());
    const int64_t peak = RunSet(timeline, 0).peak();
    const int64_t least = least_live(timeline, false);
    const int64_t budget = least + (peak - least) * (seed * 7 % 50) / 50;
    const double optimum = least_by_all_states(timeline, budget);
    const double bound = bound_time(timeline, {}, budget, 2'000'000, kAnyTime);
    const FoundRuns found = find_runs(timeline, budget, 1'000'000);
    if (bound >= kAnyTime) {
      EXPECT_EQ(optimum, kAnyTime);
    }
    if (optimum >= kAnyTime) {
      EXPECT_FALSE(found.fits);
      ++infeasible;
      continue;
    }
    ++solved;
    EXPECT_LE(bound, optimum * (1 + 1e-9));
    EXPECT_GE(bound, timeline.compute_ms);
    const double again = found.fits ? timeline.compute_ms + found.again_ms : kAnyTime;
    EXPECT_GE(again, optimum * (1 - 1e-9));
#ifdef PLIMSOLL_CBC
    if (seed % 5 == 0) {
      const double by_stages = least_by_cbc(timeline, budget);
      EXPECT_GE(by_stages, optimum * (1 - 1e-6));
      EXPECT_LE(by_stages, again * (1 + 1e-6));
      EXPECT_LE(bound, by_stages * (1 + 1e-6));
    }
#endif
    const double gap = 100 * (optimum - bound) / timeline.compute_ms;
    closed += gap < 1e-3 ? 1 : 0;
    optimal += again <= optimum * (1 + 1e-9) ? 1 : 0;
    worst = std::max(worst, gap);
    sum += gap;
  }
  ::testing::Test::RecordProperty("solved", solved);
  std::printf(
      "%d solved, %d infeasible; found plan optimal in %d; bound exact in %d, gap in points: mean %.2f, worst %.2f\n",
      solved, infeasible, optimal, closed, solved > 0 ? sum / solved : 0.0, worst);
  EXPECT_GT(solved, graphs_asked() / 4);
  EXPECT_GT(closed, solved * 9 / 10);
  EXPECT_GT(optimal, solved * 9 / 10);
}

}  // namespace
}  // namespace plimsoll
