#include "papers/scaling.h"

#include <gtest/gtest.h>

#include <cmath>

namespace plimsoll {
namespace {

TEST(Scaling, TimesOfOneAndTwoThreadsAreKept) {
  const ThreadCurve curve = extended_curve(10, 6, 0, 20, {.thread_ms = 0.01}, 16);
  EXPECT_DOUBLE_EQ(curve.time_ms(1), 10);
  EXPECT_DOUBLE_EQ(curve.time_ms(2), 6);
}

// 10 ms with one thread and 6 with two: 2 of them are serial.
TEST(Scaling, TheSerialPartStays) {
  const ThreadCurve curve = extended_curve(10, 6, 0, 20, {}, 16);
  EXPECT_NEAR(curve.time_ms(8), 2 + 8.0 / 8, 1e-9);
  EXPECT_NEAR(curve.time_ms(16), 2 + 8.0 / 16, 1e-9);
}

// Two threads took 8 ms because 160 MB take 8 ms at 20 GB/s. At 80 GB/s they take 2 ms, and nothing is serial.
TEST(Scaling, WaitingForMemoryIsNotSerial) {
  const ThreadCurve curve = extended_curve(10, 8, 160e6, 20, {.memory_gb_per_s = 80}, 16);
  EXPECT_NEAR(curve.time_ms(4), 10.0 / 4, 1e-9);
  EXPECT_NEAR(curve.time_ms(16), 2, 1e-9);
  // With memory busy for 6 of the 8 ms it is something else that they wait for.
  EXPECT_GT(extended_curve(10, 8, 120e6, 20, {.memory_gb_per_s = 80}, 16).time_ms(16), 6);
  const ThreadCurve as_if_serial = extended_curve(10, 8, 160e6, 1e9, {.memory_gb_per_s = 80}, 16);
  EXPECT_GT(as_if_serial.time_ms(16), 6);
}

TEST(Scaling, AThreadMoreCostsSoThatTheCurveTurnsUp) {
  const ThreadCurve curve = extended_curve(1, 0.6, 0, 20, {.thread_ms = 0.05}, 16);
  EXPECT_LT(curve.best().threads, 8);
  EXPECT_GT(curve.time_ms(16), curve.best_ms());
}

// The optimum and its time are given; nothing on the curve is below it.
TEST(Scaling, TheCurveWithAnOptimumHasIt) {
  for (int best : {1, 7, 26, 68}) {
    const ThreadCurve curve = curve_with_optimum(best, 20, 0.0497, 68);
    EXPECT_EQ(curve.best().threads, best);
    if (best > 1) {
      EXPECT_NEAR(curve.best_ms(), 20, 1e-9);
    }
  }
}

TEST(Scaling, ByWorkNothingIsFasterThanTheMemoryOfAllCores) {
  const ScalingLaw law{
      .gflops_a_core = 100, .gb_per_s_a_core = 10, .memory_gb_per_s = 40, .serial_share = 0, .start_ms = 0.1};
  const ThreadCurve curve = scaled_curve({.flops = 1e9, .bytes = 400e6}, law, 32);
  EXPECT_NEAR(curve.time_ms(1), 0.1 + 40, 1e-9);   // one core moves 400 MB in 40 ms
  EXPECT_NEAR(curve.time_ms(32), 0.1 + 10, 1e-9);  // all of them in 10
}

}  // namespace
}  // namespace plimsoll
