#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "cores/strategies.h"

namespace plimsoll {
namespace {

HillClimb climb(const ClimbOptions& options, const std::function<double(ThreadCase)>& time_ms) {
  HillClimb result(options);
  while (const auto next = result.next()) result.record(time_ms(*next));
  return result;
}

HillClimb climb(int cores, int interval, const std::function<double(int)>& time_ms) {
  return climb({.interval = interval, .cores = {.cores = cores}}, [&](ThreadCase at) { return time_ms(at.threads); });
}

// The paper's table V has 98.13, 95.45, 83.42 and 31.12 % for ResNet-50.
TEST(HillClimbing, InterpolatesAPerfectlyScalingOpAsWellAsArithmeticAllows) {
  const auto perfect = [](int threads) { return 1.0 / threads; };
  const std::pair<int, double> expected[] = {{2, 98.51}, {4, 95.08}, {8, 82.17}, {16, 32.50}};
  for (const auto& [interval, accuracy] : expected) {
    const ThreadCurve curve = climb(68, interval, perfect).curve();
    EXPECT_NEAR(100 * interpolation_accuracy(curve, perfect, 68), accuracy, 0.0051) << interval;
  }
  EXPECT_EQ(interpolation_accuracy(climb(68, 1, perfect).curve(), perfect, 68), 1);
}

// A random convex curve: slopes that never fall.
std::vector<double> convex_curve(std::mt19937_64& random, int cores) {
  std::uniform_real_distribution<double> slope_of(-1, 1);
  std::vector<double> slopes;
  for (int i = 1; i < cores; ++i) slopes.push_back(slope_of(random));
  std::sort(slopes.begin(), slopes.end());
  std::vector<double> ms{static_cast<double>(2 * cores)};
  for (double slope : slopes) ms.push_back(ms.back() + slope);
  return ms;
}

TEST(HillClimbing, FindsTheOptimumOfEveryConvexCurve) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const int cores = 1 + static_cast<int>(random() % 100);
    const std::vector<double> ms = convex_curve(random, cores);
    const auto truth = std::min_element(ms.begin(), ms.end());
    const auto time_ms = [&](int threads) { return ms[threads - 1]; };
    EXPECT_EQ(climb(cores, 1, time_ms).curve().best().threads, truth - ms.begin() + 1);
    for (int interval : {2, 4, 8, 16}) {
      const HillClimb found = climb(cores, interval, time_ms);
      EXPECT_LT(std::abs(found.curve().best().threads - (truth - ms.begin() + 1)), interval);
      EXPECT_GE(found.curve().best_ms(), *truth);
    }
  }
}

TEST(HillClimbing, TriesSharedCachesAndCachesOfTheirOwn) {
  const ClimbOptions options{.interval = 4, .cores = {.cores = 68, .cores_a_cache = 2}};
  // Threads that share read each other's data up to 30; spread they are slower, and there are 34 caches only.
  std::vector<ThreadCase> tried;
  const HillClimb found = climb(options, [&](ThreadCase at) {
    tried.push_back(at);
    const double ms = 100.0 / at.threads + 0.12 * at.threads;
    return at.affinity == Affinity::close ? ms : ms * 1.1;
  });
  EXPECT_EQ(found.curve().best(), (ThreadCase{29, Affinity::close}));
  for (const ThreadCase& at : tried) EXPECT_TRUE(at.threads <= 34 || at.affinity == Affinity::close) << at.threads;
  EXPECT_EQ(std::count(tried.begin(), tried.end(), ThreadCase{5, Affinity::spread}), 1);
  EXPECT_EQ(std::count(tried.begin(), tried.end(), ThreadCase{5, Affinity::close}), 1);
  EXPECT_EQ(std::count_if(tried.begin(), tried.end(), [](ThreadCase at) { return at.threads > 33; }), 0);
  EXPECT_LT(found.curve().time_ms({13, Affinity::close}), found.curve().time_ms({13, Affinity::spread}));
}

TEST(HillClimbing, NeedsNoMoreThanTwoStepsForEveryInterval) {
  for (int cores : {8, 16, 34, 64, 68, 128}) {
    for (int group : {1, 2, 4}) {
      for (int interval = 1; 4 * interval <= cores; ++interval) {
        HillClimb found = climb({.interval = interval, .cores = {.cores = cores, .cores_a_cache = group}},
                                [](ThreadCase at) { return 1.0 / at.threads; });
        EXPECT_LE(found.tries() * interval, 2 * cores) << cores << " cores by " << group << ", interval " << interval;
      }
    }
  }
}

TEST(HillClimbing, DoesNotTakeNoiseForARise) {
  const auto noisy = [](int threads) { return 100.0 / threads * (threads == 5 ? 1.9 : 1); };
  HillClimb strict({.interval = 2, .cores = {.cores = 16}}),
      tolerant({.interval = 2, .cores = {.cores = 16}, .rise = 0.2});
  while (const auto next = strict.next()) strict.record(noisy(next->threads));
  while (const auto next = tolerant.next()) tolerant.record(noisy(next->threads));
  EXPECT_EQ(strict.curve().best().threads, 3);
  EXPECT_EQ(tolerant.curve().best().threads, 16);
}

TEST(ProfilingSteps, EndWhenTheLastClimbEnds) {
  ProfilingSteps profiling(2, {.interval = 4, .cores = {.cores = 16}});
  std::vector<std::vector<int>> tried;
  while (!profiling.done()) {
    std::vector<int> threads;
    for (const ThreadCase& at : profiling.next()) threads.push_back(at.threads);
    tried.push_back(threads);
    const double ms[] = {100.0 / threads[0], 1.0 * threads[1]};  // one op scales, the other is best alone
    profiling.record(ms);
  }
  EXPECT_EQ(tried, (std::vector<std::vector<int>>{{1, 1}, {5, 5}, {9, 1}, {13, 1}, {16, 1}}));
  EXPECT_EQ(profiling.steps(), 5);
  EXPECT_EQ(profiling.curve(0).best().threads, 16);
  EXPECT_EQ(profiling.curve(1).best().threads, 1);
}

TEST(ThreadCurve, IsALineBetweenWhatWasMeasuredAndAfterIt) {
  ThreadCurve curve;
  curve.put({1, Affinity::spread}, 10);
  curve.put({4, Affinity::spread}, 4);
  EXPECT_DOUBLE_EQ(curve.time_ms(2), 8);
  EXPECT_DOUBLE_EQ(curve.time_ms(3), 6);
  EXPECT_DOUBLE_EQ(curve.time_ms(6), 4);  // not below what was seen
  curve.put({8, Affinity::spread}, 6);
  EXPECT_DOUBLE_EQ(curve.time_ms(10), 7);
  EXPECT_EQ(curve.best().threads, 4);
  EXPECT_EQ(curve.most_threads(), 8);
}

}  // namespace
}  // namespace plimsoll
