#include "cost/load.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace plimsoll {
namespace {

// Two processors for ten seconds, of which this process computed 8.
cpu::ProcessorTimes after_ten_seconds(double busy, double waiting, double throttled) {
  return {.wall = 110, .all = 520, .busy = 300 + busy, .own = 48, .waiting = 7 + waiting, .throttled = 3 + throttled};
}

Load load_of(const cpu::ProcessorTimes& now) {
  cpu::ProcessorTimes times{.wall = 100, .all = 500, .busy = 300, .own = 40, .waiting = 7, .throttled = 3};
  LoadMeter meter([&] { return times; });
  times = now;
  return meter.load();
}

TEST(Load, OthersAreWhoComputedBesidesThisProcess) {
  const Load quiet = load_of(after_ten_seconds(8.5, 0.1, 0));
  EXPECT_NEAR(quiet.others, 0.025, 1e-9);
  EXPECT_FALSE(is_busy(quiet));
  EXPECT_NEAR(quiet.seconds, 10, 1e-9);
  EXPECT_NEAR(quiet.processors, 0.8, 1e-9);
  const Load busy = load_of(after_ten_seconds(20, 24, 0));
  EXPECT_NEAR(busy.others, 0.6, 1e-9);
  EXPECT_TRUE(is_busy(busy));
  EXPECT_NEAR(busy.waited, 24 / 32.0, 1e-9);
  EXPECT_EQ(busy.throttled, 0);
}

TEST(Load, AQuotaIsTheProcesssOwnAndNotOthers) {
  const Load load = load_of(after_ten_seconds(8, 0, 8));
  EXPECT_FALSE(is_busy(load));
  EXPECT_NEAR(load.throttled, 0.5, 1e-9);
}

TEST(Load, WhatEndedThreadsWaitedIsNotNegative) { EXPECT_EQ(load_of(after_ten_seconds(8, -5, -1)).waited, 0); }

TEST(Load, IsAskedForOneStretchAfterAnother) {
  cpu::ProcessorTimes times;
  const auto busy = asks_whether_busy(LoadMeter([&] { return times; }));
  auto pass = [&](double others) {
    times.wall += 1;
    times.all += 2;
    times.busy += 2 * others;
  };
  pass(0.9);
  EXPECT_TRUE(busy());
  pass(0.1);
  EXPECT_FALSE(busy());
  pass(0.2);
  EXPECT_TRUE(busy());
}

TEST(Load, IsReadFromTheSystemsFiles) {
  const TemporaryFolder root;
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int mine = 0;
  while (!CPU_ISSET(mine, &allowed)) ++mine;
  auto write = [&](const char* file, const std::string& text) {
    const std::filesystem::path path = root.path() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  };
  write("proc/stat", "cpu  1000 0 100 5000 50 0 0 150 0 0\n" +
                         fmt::format("cpu{} 100 20 30 400 50 1 2 47 0 0\n", mine) +
                         "cpu4000 900 0 0 0 0 0 0 0 0 0\n"  // none of the process's own
                         "intr 12\n");
  write("proc/self/task/7/schedstat", "5000000000 1500000000 12\n");
  write("proc/self/task/8/schedstat", "1 500000000 3\n");
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/cpu.stat", "usage_usec 5\nnr_throttled 2\nthrottled_usec 250000\n");
  const cpu::ProcessorTimes times = cpu::processor_times(root.path().string());
  EXPECT_NEAR(times.all, 6.5, 1e-9);
  EXPECT_NEAR(times.busy, 2.0, 1e-9);
  EXPECT_NEAR(times.waiting, 2.0, 1e-9);
  EXPECT_NEAR(times.throttled, 0.25, 1e-9);
  EXPECT_GT(times.wall, 0);
  write("proc/self/cgroup", "3:cpu,cpuacct:/job\n");
  std::filesystem::remove_all(root.path() / "sys");
  write("sys/fs/cgroup/cpu/job/cpu.stat", "nr_periods 10\nthrottled_time 750000000\n");
  EXPECT_NEAR(cpu::processor_times(root.path().string()).throttled, 0.75, 1e-9);
}

TEST(Load, OtherRanksOfThisTrainingAreNoOthers) {
  const TemporaryFolder root;
  const std::filesystem::path folder = root.path() / "proc" / "4711";
  std::filesystem::create_directories(folder);
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  std::ofstream(folder / "stat") << "4711 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 300 40 50 60\n";
  const double before = cpu::processor_times(root.path().string()).own;
  const int64_t processes[] = {4711, 4712, getpid()};  // the second has ended; this one is counted once
  cpu::count_as_own(processes);
  EXPECT_NEAR(cpu::processor_times(root.path().string()).own, before + 340 / ticks, 0.5 / ticks + 0.2);
  cpu::count_as_own({});
  EXPECT_NEAR(cpu::processor_times(root.path().string()).own, before, 0.2);
}

TEST(Load, OfThisMachineIsWithinItsBounds) {
  LoadMeter meter;
  const Load load = meter.load();
  EXPECT_GE(load.others, 0);
  EXPECT_LE(load.others, 1);
  EXPECT_GE(load.waited, 0);
  EXPECT_LE(load.waited, 1);
}

}  // namespace
}  // namespace plimsoll
