#include "train/interference_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/core_case.h"

namespace plimsoll {
namespace {

using testing::CoreCase;
using ::testing::HasSubstr;

// What a step took when each of its ops takes `ms` and starts with its neighbour.
std::vector<StepRecord> in_pairs(const Plan& plan, double ms) {
  std::vector<StepRecord> records(plan.steps.size());
  size_t n = 0;
  for (size_t s = 0; s < records.size(); ++s) {
    if (plan.steps[s].kernel.empty()) continue;
    const double start = static_cast<double>(n++ / 2) * ms;
    records[s] = {start, start + ms};
  }
  return records;
}

InterferenceMonitor monitor_of(const CoreCase& c, const CheckedPlan& chosen) {
  return {c.input, {c.serial, c.serial}, chosen};
}

TEST(InterferenceMonitor, WhatTurnsOutSlowerSideBySideIsTakenBack) {
  const CoreCase c(1.1);
  CheckedPlan plan = c.chosen_plan();
  ASSERT_EQ(plan->cores.inter_op, 2);
  InterferenceMonitor monitor = monitor_of(c, plan);
  std::string said;
  int steps = 0;
  for (; plan->cores.inter_op > 1 && steps < 200; ++steps) {
    const auto change = monitor.after_step(in_pairs(plan, 5));
    if (!change) continue;
    plan = change->plan;
    said = change->notice;
  }
  EXPECT_LT(steps, 60);
  EXPECT_THAT(said, HasSubstr("back to that"));
  EXPECT_TRUE(monitor.over());
  EXPECT_FALSE(shares_cores(plan));
}

TEST(InterferenceMonitor, WhatIsAsFastAsPredictedIsLeftAlone) {
  const CoreCase c(1.1);
  const CheckedPlan plan = c.chosen_plan();
  ASSERT_EQ(plan->cores.inter_op, 2);
  InterferenceMonitor monitor = monitor_of(c, plan);
  for (int step = 0; step < 50; ++step) EXPECT_FALSE(monitor.after_step(in_pairs(plan, 1.1)));
  EXPECT_TRUE(monitor.over());
}

TEST(InterferenceMonitor, PairsThatAnEarlierTrainingFoundSlowDoNotMeet) {
  CoreCase c(1.1);
  CheckedPlan plan = c.chosen_plan();
  ASSERT_EQ(plan->cores.inter_op, 2);
  InterferenceMonitor monitor = monitor_of(c, plan);
  for (int step = 0; step < 30 && monitor.found().empty(); ++step) monitor.after_step(in_pairs(plan, 5));
  const auto found = monitor.found();
  ASSERT_FALSE(found.empty());
  for (const auto& [a, b] : found) c.costs.add_conflict(a, b);
  ASSERT_EQ(c.costs.conflicts(), found);
  plan = c.chosen_plan();
  const Graph& graph = c.input.graph;
  auto signature = [&](const EngineSpan& s) { return op_signature(graph, graph.op(plan->steps[s.index].op)); };
  for (const EngineSpan& a : plan->predicted.timeline) {
    for (const EngineSpan& b : plan->predicted.timeline) {
      if (&a == &b || a.start_ms >= b.end_ms - 1e-9 || b.start_ms >= a.end_ms - 1e-9) continue;
      EXPECT_FALSE(found.contains(std::minmax(signature(a), signature(b)))) << a.index << " and " << b.index;
    }
  }
}

}  // namespace
}  // namespace plimsoll
