#include "cores/share_cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "plimsoll/verify.h"
#include "tests/support/core_case.h"

namespace plimsoll {
namespace {

using testing::CoreCase;
using ::testing::HasSubstr;

// What every plan of the stage keeps to.
void expect_whole(const CoreCase& c, const Plan& plan) {
  const auto violations = verify(c.input.graph, plan);
  EXPECT_TRUE(violations.empty()) << violations[0].message;
  Bytes end;
  for (const Stay& stay : plan.stays) end = std::max(end, stay.offset + stay.bytes);
  EXPECT_EQ(plan.arena, end);
  EXPECT_LE(plan.arena, plan.budget);
  if (plan.cores.inter_op == 1) return;
  std::set<StepIndex> order(plan.cores.order.begin(), plan.cores.order.end());
  EXPECT_EQ(order.size(), plan.steps.size());
  EXPECT_EQ(plan.cores.order.size(), plan.steps.size());
  EXPECT_EQ(*order.rbegin(), static_cast<StepIndex>(plan.steps.size()) - 1);
}

Bytes offset_of(const Plan& plan, TensorId id) {
  return std::find_if(plan.stays.begin(), plan.stays.end(), [&](const Stay& s) { return s.tensor == id; })->offset;
}

TEST(ShareCores, AutoRunsSideBySideWhatGainsLittleFromASecondThread) {
  const CoreCase c(1.1);
  const ChosenThreads chosen = c.choose();
  EXPECT_TRUE(chosen.measured);
  EXPECT_EQ(chosen.plan.cores.inter_op, 2);
  EXPECT_EQ(chosen.plan.cores.cores, 2);
  EXPECT_GT(chosen.narrowed, 10);
  EXPECT_LT(chosen.plan.predicted.step_time_ms, 0.95 * chosen.serial_ms);
  EXPECT_GT(chosen.plan.predicted.lower_bound_ms, 0.4 * chosen.serial_ms);
  EXPECT_LE(chosen.plan.predicted.lower_bound_ms, chosen.plan.predicted.step_time_ms);
  expect_whole(c, chosen.plan);
}

TEST(ShareCores, AutoLeavesAloneWhatASecondThreadMakesTwiceAsFastAndWhatIsNotMeasured) {
  const CoreCase twice(2);
  CoreCase unknown(1);
  unknown.costs = CostTable();
  for (const CoreCase* c : {&twice, &std::as_const(unknown)}) {
    const ChosenThreads chosen = c->choose();
    EXPECT_EQ(chosen.plan.cores, CoreSharing{});
    EXPECT_EQ(chosen.narrowed, 0);
    EXPECT_FALSE(shares_cores(chosen.plan));
    EXPECT_EQ(chosen.plan.predicted.step_time_ms, chosen.serial_ms);
    EXPECT_EQ(chosen.measured, c == &twice);
  }
}

TEST(ShareCores, OneAfterAnotherWithFewerThreadsIsTheSamePlanOtherwise) {
  const CoreCase c(1.1);
  const Plan one = serial_with(c.input, c.serial, 1);
  expect_whole(c, one);
  EXPECT_EQ(one.cores, CoreSharing{});
  EXPECT_EQ(one.stays, c.serial->stays);
  for (const Step& step : one.steps) EXPECT_EQ(step.threads, step.kernel.empty() ? 0 : 1);
  // Where a kernel needs more workspace for so many threads than the plan has for it, it keeps all.
  Plan tight = c.serial;
  for (Step& step : tight.steps) step.workspace = {};
  const Plan mixed = serial_with(c.input, tight, 1);
  int kept = 0, steps = 0;
  for (const Step& step : mixed.steps) {
    if (step.kernel.empty()) continue;
    const Op& op = c.input.graph.op(step.op);
    const bool needs = make_kernel(*c.device, c.input.graph, op, step.kernel, 1)->workspace().count > 0;
    EXPECT_EQ(step.threads, needs ? 0 : 1) << op.name;
    kept += needs;
    ++steps;
  }
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, steps);
  EXPECT_EQ(mixed.cores.cores, 2);
}

// Every op takes so long with two threads as with one: two at a time need little more than half.
TEST(ShareCores, ThereIsRoomMadeWithinTheBudgetForStepsSideBySide) {
  const CoreCase c(1, {.cores = 2, .inter_op = 2});
  const Plan packed = uniform(c.input, c.serial);
  const RelaxedPlan relaxed = relax(c.input, c.serial);
  EXPECT_EQ(relaxed.notice, "");
  EXPECT_GT(relaxed.plan.arena, c.serial->arena);
  const Plan plan = share_cores(c.input, c.serial).plan;
  EXPECT_EQ(plan.stays, relaxed.plan.stays);
  EXPECT_EQ(plan.cores.inter_op, 2);
  EXPECT_LT(plan.predicted.step_time_ms, 0.8 * packed.predicted.step_time_ms);
  for (const Plan* each : {&packed, &relaxed.plan, &plan}) {
    expect_whole(c, *each);
    for (const State& state : c.input.graph.states)
      EXPECT_EQ(offset_of(*each, state.before), offset_of(c.serial, state.before));
  }
}

TEST(ShareCores, ABudgetThatIsInTheWayIsKeptAndTold) {
  const CoreCase c(1, {.cores = 2, .inter_op = 2});
  Plan tight = c.serial;
  tight.budget = tight.arena;
  const SharedCores shared = share_cores(c.input, tight);
  ASSERT_EQ(shared.notices.size(), 1u);
  EXPECT_THAT(shared.notices[0], HasSubstr("--memory"));
  EXPECT_LE(shared.plan.predicted.step_time_ms, uniform(c.input, tight).predicted.step_time_ms);
  expect_whole(c, shared.plan);
}

TEST(ShareCores, UniformGivesEveryOpItsThreads) {
  const CoreCase c(1, {.cores = 2, .inter_op = 2});
  const Plan plan = uniform(c.input, c.serial);
  for (const Step& step : plan.steps) EXPECT_EQ(step.threads, step.kernel.empty() ? 0 : 1);
  EXPECT_EQ(plan.cores.cores, 2);
  const CoreCase one(1, {.cores = 2, .inter_op = 1});
  EXPECT_EQ(uniform(one.input, one.serial).cores, CoreSharing{});
}

TEST(ShareCores, StepsThatAreTooManyForTheCoresWait) {
  const CoreCase c(1, {.cores = 2, .intra_op = 2, .inter_op = 2});
  const Plan plan = uniform(c.input, c.serial);
  EXPECT_EQ(plan.cores.inter_op, 2);
  EXPECT_EQ(plan.cores.cores, 2);
  for (const Step& step : plan.steps) EXPECT_EQ(step.threads, 0);  // all there are
  EXPECT_GT(plan.predicted.step_time_ms, 0.99 * c.serial->predicted.step_time_ms);
  expect_whole(c, plan);
}

TEST(ShareCores, SerialTakesBackAllThatWasChosen) {
  const CoreCase c(1.1);
  const Plan plan = serial(c.input, c.choose().plan);
  EXPECT_EQ(plan.cores, CoreSharing{});
  EXPECT_FALSE(shares_cores(plan));
  EXPECT_EQ(plan.predicted.step_time_ms, c.serial->predicted.step_time_ms);
}

TEST(ShareCores, OneStepAfterAnotherNeedsNoRoom) {
  const CoreCase serial(1, {.cores = 4, .inter_op = 1});
  const CoreCase counts_only(1, {.cores = 4, .choose = true, .strategies = strategies_named("1,2")});
  for (const CoreCase* c : {&serial, &counts_only}) EXPECT_EQ(relax(c->input, c->serial).plan.stays, c->serial->stays);
}

TEST(ShareCores, OpsThatConflictDoNotMeetOnPaper) {
  const CoreCase c(1.1);
  OpPairs conflicts;
  for (OpId a{0}; a.index < c.input.graph.op_count(); ++a.index) {
    for (OpId b{a.index + 1}; b.index < c.input.graph.op_count(); ++b.index) conflicts.insert({a, b});
  }
  EXPECT_EQ(c.choose(conflicts).plan.cores.inter_op, 1);
}

TEST(ShareCores, ConflictsArePairsOfOpsByWhatWasFoundAndByTheirSignatures) {
  CoreCase c(1.1);
  const Graph& graph = c.input.graph;
  EXPECT_TRUE(conflicts_of(graph, c.serial, c.costs).empty());
  std::vector<OpId> convolutions;
  for (const Step& step : c.serial->steps) {
    if (graph.op(step.op).type->name == "ConvForward") convolutions.push_back(step.op);
  }
  const OpPair ends = std::minmax(convolutions.front(), convolutions.back());
  EXPECT_EQ(conflicts_of(graph, c.serial, c.costs, {ends}), std::vector<OpPair>{ends});
  c.costs.add_conflict(op_signature(graph, graph.op(ends.first)), op_signature(graph, graph.op(ends.second)));
  const std::vector<OpPair> pairs = conflicts_of(graph, c.serial, c.costs);
  EXPECT_NE(std::find(pairs.begin(), pairs.end(), ends), pairs.end());
  EXPECT_TRUE(std::is_sorted(pairs.begin(), pairs.end()));
  for (const auto& [first, second] : pairs) {
    EXPECT_LT(first, second);
    EXPECT_EQ(graph.op(first).type->name, "ConvForward");
    EXPECT_EQ(graph.op(second).type->name, "ConvForward");
  }
  const ChosenThreads chosen = c.choose();
  ASSERT_GT(chosen.plan.cores.inter_op, 1);
  EXPECT_EQ(chosen.plan.cores.conflicts, pairs);
}

TEST(ShareCores, OnlyTheStrategiesThatAreAskedForAreUsed) {
  for (const auto& [strategies, inter_op] :
       {std::pair("1,2", 1), {"3", 2}, {"4", 1}}) {  // there are no second hardware threads here
    EXPECT_EQ(CoreCase(1.1, {.strategies = strategies_named(strategies)}).choose().plan.cores.inter_op, inter_op)
        << strategies;
  }
}

// A step beside another, on the same core: only with second hardware threads.
TEST(ShareCores, SmallOpsRunOnSecondHardwareThreads) {
  const CoreCase c(2, {.strategies = strategies_named("1,2,4"),
                       .hardware_threads = 2});  // nothing is to be had from cores of their own
  const ChosenThreads chosen = c.choose();
  EXPECT_GT(chosen.smt, 0);
  EXPECT_GE(chosen.plan.cores.inter_op, 2);
  EXPECT_EQ(chosen.plan.cores.hardware_threads, 2);
  EXPECT_GT(chosen.plan.cores.smt_speed, 1);
  EXPECT_LT(chosen.plan.predicted.step_time_ms, chosen.serial_ms);
  expect_whole(c, chosen.plan);
  EXPECT_EQ(CoreCase(2, {.strategies = strategies_named("1,2"), .hardware_threads = 2}).choose().smt, 0);
}

}  // namespace
}  // namespace plimsoll
