#include "train/crowd_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/core_case.h"

namespace plimsoll {
namespace {

using ::testing::AllOf;
using testing::CoreCase;
using ::testing::HasSubstr;

// A machine of two processors in a time of its own: how much of them others take, and how long a step takes with two
// threads and with one.
struct Machine {
  double others = 0, waiting = 0, throttled = 0;  // of every second
  double two_threads_ms = 100, one_thread_ms = 160;
  cpu::ProcessorTimes times;

  double step_ms(int threads) const { return threads == 1 ? one_thread_ms : two_threads_ms; }
  void pass(double ms) {
    const double seconds = ms / 1000, own = std::max(0.2, (2 - others - throttled)) * seconds;
    times.wall += seconds;
    times.all += 2 * seconds;
    times.own += own;
    times.busy += own + others * seconds;
    times.waiting += waiting * seconds;
    times.throttled += throttled * seconds;
  }
  void crowd() {
    others = 1.5;
    waiting = 1.5;
    two_threads_ms = 200;
    one_thread_ms = 40;
  }
  void calm() { *this = {.times = times}; }
};

// A training of steps on it.
struct TrainingOnIt {
  explicit TrainingOnIt(CrowdOptions options = {}) {
    options.threads = 2;
    if (options.stays.empty()) {
      options.fewer = [this](int threads) {
        asked.push_back(threads);
        return check_plan(c.input.graph, serial_with(c.input, c.serial, threads));
      };
    }
    monitor.emplace(plan, options, LoadMeter([this] { return machine.times; }));
  }

  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      const double ms = machine.step_ms(threads());
      machine.pass(ms);
      if (auto change = monitor->after_step(ms)) {
        changes += &*change->plan != &*plan;
        plan = change->plan;
        if (!change->notice.empty()) notices.push_back(change->notice);
      }
    }
  }
  // That the last kernel runs with.
  int threads() const {
    for (const Step& step : plan->steps) {
      if (!step.kernel.empty()) return step.threads == 0 ? 2 : step.threads;
    }
    return 0;
  }

  CoreCase c{1.1};
  Machine machine;
  CheckedPlan plan = c.serial;
  std::vector<int> asked;
  std::vector<std::string> notices;
  int changes = 0;
  std::optional<CrowdMonitor> monitor;
};

TEST(CrowdMonitor, LeavesAQuietTrainingAlone) {
  TrainingOnIt run;
  run.steps(500);
  run.machine.others = 0.25;  // of two processors: little
  run.machine.waiting = 1;    // of threads of its own, as readers of images are
  run.steps(500);
  EXPECT_EQ(run.changes, 0);
  EXPECT_TRUE(run.notices.empty());
}

TEST(CrowdMonitor, TakesFewerThreadsWhereTheyAreFasterAndSaysSoOnce) {
  TrainingOnIt run;
  run.steps(20);
  run.machine.crowd();
  run.steps(60);
  EXPECT_EQ(run.threads(), 1);
  EXPECT_EQ(run.asked, std::vector<int>{1});
  ASSERT_EQ(run.notices.size(), 1U);
  EXPECT_EQ(
      run.notices[0],
      "other processes take 75 % of the processors: a step takes 200 ms with 2 threads for an op, and 40 ms with 1 "
      "thread; it goes on with 1 until the machine is quiet (--threads N keeps N, --exact the bits of the result)");
  for (const Step& step : run.plan->steps) EXPECT_EQ(step.threads, step.kernel.empty() ? 0 : 1);
}

TEST(CrowdMonitor, ABusyStartDoesNotSlowDownALongTraining) {
  TrainingOnIt run;
  run.machine.crowd();
  run.steps(200);
  EXPECT_EQ(run.threads(), 1);
  run.machine.calm();
  run.steps(30);  // of 160 ms
  EXPECT_EQ(run.threads(), 2);
  EXPECT_EQ(&*run.plan, &*run.c.serial);
  const int changes = run.changes;
  run.steps(1000);
  EXPECT_EQ(run.changes, changes);
  ASSERT_EQ(run.notices.size(), 2U);
  EXPECT_EQ(run.notices[1], "the machine is quiet again: it goes on with 2 threads");
}

TEST(CrowdMonitor, GoesOnWithAllThreadsWhereFewerAreNotFasterAndTriesLessAndLess) {
  TrainingOnIt run;
  run.machine.crowd();
  run.machine.one_thread_ms = 250;
  run.steps(40);
  EXPECT_EQ(run.threads(), 2);
  EXPECT_GE(run.changes, 3) << "it was tried";
  EXPECT_TRUE(run.notices.empty());
  int steps_with_one = 0;
  for (int i = 0; i < 3000; ++i) {
    run.steps(1);
    steps_with_one += run.threads() == 1;
  }
  EXPECT_GT(steps_with_one, 9);
  EXPECT_LE(steps_with_one, 50);
  EXPECT_TRUE(run.notices.empty());
}

// Else a load that became light would keep a training at half its speed.
TEST(CrowdMonitor, TriesAllThreadsAgainWhereTheLoadStaysButBecomesLight) {
  TrainingOnIt run;
  run.machine.crowd();
  run.steps(100);
  EXPECT_EQ(run.threads(), 1);
  run.machine.others = 0.4;
  run.machine.two_threads_ms = 110;
  run.machine.one_thread_ms = 160;
  run.steps(300);
  EXPECT_EQ(run.threads(), 2);
}

TEST(CrowdMonitor, AQuotaIsACrowdThatDoesNotEnd) {
  TrainingOnIt run;
  run.machine.throttled = 0.6;
  run.machine.two_threads_ms = 200;
  run.steps(60);
  EXPECT_EQ(run.threads(), 1);
  ASSERT_EQ(run.notices.size(), 1U);
  EXPECT_THAT(
      run.notices[0],
      AllOf(HasSubstr("the control group's CPU quota stops threads for 30 % of the time that they want: a step"),
            HasSubstr("it goes on with 1 (--threads")));
  run.machine.throttled = 0;  // one thread is within the quota
  const int changes = run.changes;
  run.steps(100);
  EXPECT_EQ(run.changes, changes);
}

TEST(CrowdMonitor, OnlyTellsWhereTheNumberOfThreadsIsToStay) {
  TrainingOnIt run({.stays = "--exact"});
  run.machine.crowd();
  run.steps(500);
  run.machine.calm();
  run.steps(100);
  run.machine.crowd();
  run.steps(500);
  EXPECT_EQ(run.changes, 0);
  ASSERT_EQ(run.notices.size(), 1U);
  EXPECT_EQ(
      run.notices[0],
      "other processes take 75 % of the processors, so the 2 threads of an op wait for each other: fewer (--threads) "
      "may be faster; they stay, as --exact says");
}

}  // namespace
}  // namespace plimsoll
