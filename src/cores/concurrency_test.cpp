#include "cores/strategies.h"
#include "plimsoll/error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

namespace plimsoll {
namespace {

ThreadCurve points(std::initializer_list<std::pair<int, double>> list) {
  ThreadCurve curve;
  for (const auto& [threads, ms] : list) curve.put({threads, Affinity::close}, ms);
  return curve;
}

// Amdahl's law with a cost for every thread.
ThreadCurve law(double work_ms, double serial_ms, double thread_ms, int cores) {
  std::vector<double> ms;
  for (int p = 1; p <= cores; ++p) ms.push_back(serial_ms + work_ms / p + thread_ms * p);
  return ThreadCurve::of(ms);
}

TEST(Strategies, OneTakesTheFastestCountOfEachOpAndTwoThatOfTheLargestOfItsType) {
  const std::vector<CoTask> tasks{{.type = 0, .curve = law(100, 0, 1, 68), .after = {}},
                                  {.type = 0, .curve = law(1600, 0, 1, 68), .after = {}},
                                  {.type = 1, .curve = law(400, 0, 1, 68), .after = {}}};
  EXPECT_EQ(fastest_threads(tasks), (std::vector<int>{10, 40, 20}));
  EXPECT_EQ(threads_by_type(tasks), (std::vector<int>{40, 40, 20}));
}

// Section III-D: 20 cores are idle, what runs on the other 48 has 1.9 s left.
TEST(Strategies, ThreesWorkedExampleChooses18) {
  const ThreadCurve curve = points({{16, 2100}, {18, 1500}, {20, 1300}});
  const std::vector<Candidate> candidates{{20, 1300}, {18, 1500}, {16, 2100}};
  for (const Candidate& c : candidates) EXPECT_EQ(curve.time_ms(c.threads), c.time_ms);
  const auto how = choose_co_running(candidates, 20, 1900);
  ASSERT_TRUE(how);
  EXPECT_EQ(how->threads, 18);
  EXPECT_EQ(choose_co_running(candidates, 20, 1900, candidates[0])->threads, 18);  // two less than Strategy 2's 20
}

TEST(Strategies, ThreeFitsAndEndsInTimeOrDoesNotRun) {
  const std::vector<Candidate> candidates{{20, 1300}, {18, 1500}, {16, 2100}};
  EXPECT_EQ(choose_co_running(candidates, 20, 3000)->threads, 16);
  EXPECT_EQ(choose_co_running(candidates, 17, 3000)->threads, 16);
  EXPECT_EQ(choose_co_running(candidates, 20, 1400)->threads, 20);
  EXPECT_FALSE(choose_co_running(candidates, 19, 1400));
  EXPECT_FALSE(choose_co_running(candidates, 15, 3000));
}

TEST(Strategies, ThreeDeviatesFromTwoByAtMostTwoThreads) {
  const std::vector<Candidate> candidates{{20, 1300}, {18, 1500}, {16, 2100}};
  EXPECT_EQ(choose_co_running(candidates, 24, 3000, Candidate{22, 1250})->threads, 22);  // 16 is too far
  EXPECT_EQ(choose_co_running(candidates, 20, 3000, Candidate{18, 1500})->threads, 16);
  EXPECT_FALSE(choose_co_running(candidates, 21, 3000, Candidate{22, 1250}));  // and 22 does not fit
}

TEST(Strategies, ThreesCandidatesAreTheThreeFastestCounts) {
  const auto candidates = fastest_candidates(law(400, 0, 1, 68), 68);
  ASSERT_EQ(candidates.size(), 3u);
  EXPECT_EQ(candidates[0].threads, 20);
  EXPECT_EQ(candidates[1].threads, 21);
  EXPECT_EQ(candidates[2].threads, 19);
  EXPECT_EQ(fastest_candidates(law(400, 0, 1, 68), 2).size(), 2u);
}

TEST(Strategies, FourTakesTheOpThatIsShortestWithOneThread) {
  const std::vector<CoTask> tasks{{.curve = law(100, 0, 1, 4), .after = {}},
                                  {.curve = law(50, 0, 9, 4), .after = {}},
                                  {.curve = law(70, 0, 1, 4), .after = {}}};
  const int32_t all[] = {0, 1, 2}, some[] = {2, 0};
  EXPECT_EQ(smallest_ready(tasks, all), 1u);
  EXPECT_EQ(smallest_ready(tasks, some), 0u);
  EXPECT_FALSE(smallest_ready(tasks, {}));
}

TEST(Interference, RemembersPairsThatWereSlowerTogetherThanPredicted) {
  Interference seen(0.25);
  seen.record(4, 7, 10, 12);
  EXPECT_FALSE(seen.conflict(4, 7));
  seen.record(7, 4, 10, 13);
  EXPECT_TRUE(seen.conflict(4, 7));
  EXPECT_TRUE(seen.conflict(7, 4));
  EXPECT_FALSE(seen.conflict(4, 4));
}

const CoSpan& span_of(const CoSchedule& schedule, int32_t task) {
  return *std::find_if(schedule.spans.begin(), schedule.spans.end(), [&](const CoSpan& s) { return s.task == task; });
}

TEST(CoRun, RunsOneAfterTheOtherWithoutStrategyThree) {
  const std::vector<CoTask> tasks{{.type = 0, .curve = law(100, 0, 1, 8), .after = {}},
                                  {.type = 1, .curve = law(4, 0, 1, 8), .after = {}}};
  const CoSchedule schedule = co_run(tasks, {.cores = {.cores = 8}}, {});
  EXPECT_DOUBLE_EQ(schedule.total_ms, 100.0 / 8 + 8 + 2 + 2);
  EXPECT_EQ(schedule.most_at_once, 1);
}

TEST(CoRun, PutsAShortOpOnTheIdleCoresBesideALongOne) {
  const std::vector<CoTask> tasks{{.type = 0, .curve = law(36, 0, 1, 8), .after = {}},
                                  {.type = 1, .curve = law(4, 0, 1, 8), .after = {}},
                                  {.type = 2, .curve = law(4, 0, 1, 8), .after = {0, 1}}};
  const CoSchedule schedule = co_run(tasks, {.cores = {.cores = 8}}, {.co_run = true});
  EXPECT_DOUBLE_EQ(span_of(schedule, 0).start_ms, 0);
  EXPECT_DOUBLE_EQ(span_of(schedule, 1).start_ms, 0);
  EXPECT_EQ(span_of(schedule, 0).threads, 6);
  EXPECT_EQ(span_of(schedule, 1).threads, 1);  // the fewest of 2, 1 and 3 that end within 12 ms
  EXPECT_DOUBLE_EQ(schedule.total_ms, 12 + 4);
  EXPECT_EQ(schedule.most_at_once, 2);
}

TEST(CoRun, UsesSecondHardwareThreadsForSmallOpsOnly) {
  const std::vector<CoTask> tasks{{.type = 0, .curve = law(800, 0, 0, 8), .after = {}},
                                  {.type = 1, .curve = law(8, 0, 0.9, 8), .after = {}}};
  CoMachine machine{.cores = {.cores = 8, .hardware_threads = 2}, .throughput = {1, 1.3}};
  const CoSchedule without = co_run(tasks, machine, {.co_run = true});
  const CoSchedule with = co_run(tasks, machine, {.co_run = true, .smt = true});
  EXPECT_TRUE(span_of(with, 1).second);
  EXPECT_LT(with.total_ms, without.total_ms);
  machine.cores.hardware_threads = 1;
  EXPECT_EQ(co_run(tasks, machine, {.co_run = true, .smt = true}).total_ms, without.total_ms);
}

TEST(CoRun, MemoryThatIsShortSlowsThoseThatWantIt) {
  // Each alone moves 10 MB in 1 ms by one thread: the 10 GB/s that there are.
  const std::vector<CoTask> tasks{{.type = 0, .curve = points({{1, 1.0}}), .bytes = 1e7, .after = {}},
                                  {.type = 1, .curve = points({{1, 1.0}}), .bytes = 1e7, .after = {}},
                                  {.type = 2, .curve = points({{1, 1.0}}), .bytes = 0, .after = {}}};
  const CoMachine machine{.cores = {.cores = 4}, .memory_gb_per_s = 10};
  Interference found;
  const CoSchedule schedule = co_run(tasks, machine, {.inter_op = 3, .intra_op = 1}, nullptr, &found);
  EXPECT_DOUBLE_EQ(schedule.total_ms, 2);
  EXPECT_DOUBLE_EQ(span_of(schedule, 2).end_ms, 1);
  EXPECT_TRUE(found.conflict(0, 1));
  const CoSchedule conflicting = co_run(tasks, machine, {.co_run = true}, &found);
  EXPECT_GE(span_of(conflicting, 1).start_ms, span_of(conflicting, 0).end_ms);
}

// Random graphs: what must always hold, whatever the policy.
TEST(CoRun, KeepsDependenciesAndCoresAndIsNeverFasterThanItsBounds) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    auto uniform = [&](double low, double high) { return std::uniform_real_distribution<double>(low, high)(random); };
    const int cores = 1 + static_cast<int>(random() % 20), hardware = 1 + static_cast<int>(random() % 2);
    std::vector<CoTask> tasks;
    std::vector<double> longest;  // the path that ends with this task, at best
    double critical = 0, work = 0;
    for (int i = 0; i < 40; ++i) {
      CoTask task{.type = static_cast<int32_t>(random() % 5),
                  .curve = law(uniform(1, 100), uniform(0, 1), uniform(0, 1), cores),
                  .bytes = uniform(0, 1e7),
                  .after = {}};
      double before = 0;
      for (int32_t other = 0; other < i; ++other) {
        if (random() % 12 != 0) continue;
        task.after.push_back(other);
        before = std::max(before, longest[other]);
      }
      longest.push_back(before + task.curve.best_ms());
      critical = std::max(critical, longest.back());
      double least = 1e300;
      for (int p = 1; p <= cores; ++p) least = std::min(least, p * task.curve.time_ms(p));
      work += least;
      tasks.push_back(task);
    }
    const CoMachine machine{
        .cores = {.cores = cores, .hardware_threads = hardware}, .memory_gb_per_s = 50, .throughput = {1, 1.2}};
    const CoPolicy policies[] = {{},
                                 {.by_type = false},
                                 {.co_run = true},
                                 {.co_run = true, .smt = true},
                                 {.inter_op = 2, .intra_op = std::max(1, cores / 2)},
                                 {.inter_op = 3, .intra_op = cores},
                                 {.co_run = true, .threads = balanced_threads(tasks, cores, 0.5)},
                                 {.co_run = true, .threads = balanced_threads(tasks, cores, 1.5)}};
    for (const CoPolicy& policy : policies) {
      const CoSchedule schedule = co_run(tasks, machine, policy);
      ASSERT_EQ(schedule.spans.size(), tasks.size());
      EXPECT_GE(schedule.total_ms, critical * (1 - 1e-9));
      if (!policy.smt && policy.inter_op == 0) {
        EXPECT_GE(schedule.total_ms, work / cores * (1 - 1e-9));
      }
      for (const CoSpan& span : schedule.spans) {
        for (int32_t before : tasks[span.task].after) {
          EXPECT_LE(span_of(schedule, before).end_ms, span.start_ms + 1e-6);
        }
        if (policy.inter_op > 0) continue;
        int used = 0, second = 0;
        for (const CoSpan& other : schedule.spans) {
          if (other.start_ms > span.start_ms || other.end_ms <= span.start_ms + 1e-9) continue;
          (other.second ? second : used) += other.threads;
        }
        EXPECT_LE(used, cores);
        EXPECT_LE(used + second, cores * hardware);
      }
    }
    const ChosenSchedule best = best_schedule(tasks, machine, {.co_run = true, .smt = true});
    for (int i : {0, 1, 2, 3, 6})
      EXPECT_LE(best.schedule.total_ms, co_run(tasks, machine, policies[i]).total_ms * (1 + 1e-9));
  }
}

// Two cores, two independent ops at any time: both one thread each, unless memory is what they wait for.
TEST(BestSchedule, IsNeverPredictedSlowerThanOneOpAfterTheOther) {
  const CoMachine machine{.cores = {.cores = 2}, .memory_gb_per_s = 10};
  const std::vector<CoTask> compute{{.type = 0, .curve = points({{1, 10}, {2, 5.6}}), .after = {}},
                                    {.type = 0, .curve = points({{1, 10}, {2, 5.6}}), .after = {}}};
  const ChosenSchedule together = best_schedule(compute, machine, {.co_run = true});
  EXPECT_DOUBLE_EQ(together.schedule.total_ms, 10);
  EXPECT_EQ(together.policy.most_threads, 1);
  EXPECT_DOUBLE_EQ(together.schedule.mean_at_once, 1.5);  // 1 and 2 as they start, 2 and 1 as they end
  const std::vector<CoTask> streams{{.type = 0, .curve = points({{1, 10}, {2, 8}}), .bytes = 8e7, .after = {}},
                                    {.type = 0, .curve = points({{1, 10}, {2, 8}}), .bytes = 8e7, .after = {}}};
  const ChosenSchedule serial = best_schedule(streams, machine, {.co_run = true});
  EXPECT_DOUBLE_EQ(serial.schedule.total_ms, 16);
  EXPECT_EQ(serial.schedule.most_at_once, 1);
}

// A chain of ops that gain little from more than four cores, and beside each of them one that nobody waits for: as many
// cores for the chain as it gains from, and the rest for the others. Equal counts for all waste one or the other.
TEST(BestSchedule, GivesAChainAndWhatHangsOnItDifferentCounts) {
  const CoMachine machine{.cores = {.cores = 16}};
  std::vector<CoTask> tasks;
  for (int32_t i = 0; i < 40; i += 2) {
    const std::vector<int32_t> after = i == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{i - 2};
    tasks.push_back({.type = 0, .curve = law(12, 1, 0.01, 16), .after = after});
    tasks.push_back({.type = 1, .curve = law(10, 0.1, 0.01, 16), .after = after});
  }
  const ChosenSchedule best = best_schedule(tasks, machine, {.co_run = true});
  const int counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16};
  EXPECT_LT(best.schedule.total_ms, 0.97 * all_uniform_settings(tasks, machine, counts, counts).front().total_ms);
  ASSERT_EQ(best.policy.threads.size(), tasks.size());
  for (size_t i = 0; i < tasks.size(); i += 2) {
    const int chain = best.policy.threads[i], beside = best.policy.threads[i + 1];
    EXPECT_GE(chain, 10);
    EXPECT_LE(beside, 5);
    EXPECT_LE(chain + beside, 16);
  }
}

// Where the time with one thread is not known, it is told as a thousand times as long: nobody takes it.
TEST(Balanced, StartsFromTheLeastWork) {
  const std::vector<CoTask> tasks{{.type = 0, .curve = points({{1, 4000.0}, {8, 4.0}}), .after = {}},
                                  {.type = 0, .curve = law(12, 1, 0, 8), .after = {}}};
  EXPECT_EQ(balanced_threads(tasks, 8, 100), (std::vector<int>{8, 1}));
  EXPECT_TRUE(balanced_threads({}, 4, 1).empty());
}

// Nothing stands beside a chain, so each of its ops gets the count with which it is fastest; ops that do not depend on
// each other keep one.
TEST(Balanced, OpsOfAChainGetTheirFastestCountsAndIndependentOnesOneThread) {
  std::vector<CoTask> chain, loose;
  for (int32_t i = 0; i < 30; ++i) {
    chain.push_back({.type = 0,
                     .curve = law(20, 0, 0.5, 8),
                     .after = i == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{i - 1}});
    loose.push_back({.type = 0, .curve = law(20, 0, 0.5, 8), .after = {}});
  }
  for (int threads : balanced_threads(chain, 8, 0.5)) EXPECT_EQ(threads, 6);
  for (int threads : balanced_threads(loose, 8, 1)) EXPECT_EQ(threads, 1);
}

TEST(Strategies, AreNamedByNumber) {
  EXPECT_EQ(strategies_named("1,2,3,4"), Strategies{});
  EXPECT_EQ(strategies_named("3,1"), (Strategies{.each_op = true, .each_type = false, .co_run = true, .smt = false}));
  EXPECT_EQ(to_string(strategies_named("4,2")), "2,4");
  for (const char* bad : {"", "5", "1,", "0", "1;2", "12", "all"}) {
    try {
      strategies_named(bad);
      ADD_FAILURE() << "'" << bad << "' is taken";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("is no strategy; there are 1 (threads of each op)"), std::string::npos);
    }
  }
}

// Two ops of one type, whose optima differ, then many small ones that need not wait.
TEST(Strategies, EachCanBeSwitchedOff) {
  std::vector<CoTask> tasks;
  tasks.push_back({.type = 0, .curve = ThreadCurve::of(std::vector<double>{8, 4, 5, 6})});  // 2 threads are best
  tasks.push_back({.type = 0, .curve = ThreadCurve::of(std::vector<double>{40, 20, 15, 10}), .after = {0}});  // 4 are
  for (int i = 0; i < 4; ++i) tasks.push_back({.type = 1, .curve = ThreadCurve::of(std::vector<double>{1, 1.5, 2, 3})});
  const CoMachine machine{.cores = {.cores = 4, .hardware_threads = 2}, .throughput = {1, 1.5}};
  auto best = [&](bool each_op, bool each_type, bool co_run, bool second) {
    return best_schedule(tasks, machine, {.by_type = each_type, .each_op = each_op, .co_run = co_run, .smt = second})
        .schedule;
  };
  auto threads_of = [](const CoSchedule& schedule, int32_t task) {
    return std::find_if(schedule.spans.begin(), schedule.spans.end(), [&](const CoSpan& s) { return s.task == task; })
        ->threads;
  };
  EXPECT_EQ(threads_of(best(true, false, false, false), 0), 2);
  EXPECT_EQ(threads_of(best(false, true, false, false), 0), 4);
  EXPECT_EQ(threads_of(best(false, false, false, false), 2), 4);  // neither: all cores for all
  EXPECT_EQ(best(true, true, false, false).most_at_once, 1);
  EXPECT_GT(best(true, true, true, false).most_at_once, 1);
  const CoSchedule beside = best(true, true, false, true);
  EXPECT_TRUE(std::any_of(beside.spans.begin(), beside.spans.end(), [](const CoSpan& s) { return s.second; }));
  const CoSchedule without = best(true, true, true, false);
  EXPECT_TRUE(std::none_of(without.spans.begin(), without.spans.end(), [](const CoSpan& s) { return s.second; }));
  double last = 1e9;  // every further strategy may be used, and need not
  for (const CoSchedule& schedule :
       {best(false, false, false, false), best(false, true, false, false), best(true, true, false, false),
        best(true, true, true, false), best(true, true, true, true)}) {
    EXPECT_LE(schedule.total_ms, last);
    last = schedule.total_ms;
  }
}

}  // namespace
}  // namespace plimsoll
