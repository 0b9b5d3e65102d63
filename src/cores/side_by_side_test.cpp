#include "cores/side_by_side.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "plimsoll/verify.h"
#include "train/ab_trial.h"

namespace plimsoll {
namespace {

using testing::HasSubstr;

Program program_of(const Device& device) {
  const ModelInput input{.batch = 2, .channels = 3, .height = 32, .width = 32, .classes = 10, .training = true};
  const CompileOptions options{.policy = "liveness", .exact = true, .family = LayoutFamily::plain};
  return std::get<Program>(compile_training(build_model("resnet20", input), device, CostTable(), options));
}

// Every kernel takes 1 ms with two threads, and so much with one.
CostTable costs_of(const Program& program, double one_thread_ms) {
  CostTable costs;
  const Graph& graph = program.network.graph;
  for (const Step& step : program.plan.steps) {
    if (step.kernel.empty()) continue;
    const std::string signature = op_signature(graph, graph.op(step.op));
    costs.put({signature, step.kernel, 0}, {.source = Cost::Source::measured, .time_ms = 1, .runs = 5});
    costs.put({signature, step.kernel, 1}, {.source = Cost::Source::measured, .time_ms = one_thread_ms, .runs = 5});
  }
  return costs;
}

TEST(Sharing, AutoRunsSideBySideWhatGainsLittleFromASecondThread) {
  const auto device = open_device("cpu", 2);
  Program program = program_of(*device);
  const ChosenSharing chosen = choose_sharing(program, *device, costs_of(program, 1.1));
  EXPECT_TRUE(chosen.measured);
  EXPECT_EQ(chosen.inter_op, 2);
  EXPECT_GT(chosen.narrowed, 10);
  EXPECT_LT(chosen.together_ms, 0.95 * chosen.serial_ms);
  EXPECT_EQ(program.plan.cores.inter_op, 2);
  EXPECT_EQ(program.plan.predicted.step_time_ms, chosen.together_ms);
  EXPECT_GT(program.plan.predicted.lower_bound_ms, 0.4 * chosen.serial_ms);
  EXPECT_LE(program.plan.predicted.lower_bound_ms, chosen.together_ms);
  EXPECT_TRUE(verify(program.network.graph, program.plan).empty());
}

TEST(Sharing, AutoLeavesAloneWhatASecondThreadMakesTwiceAsFastAndWhatIsNotMeasured) {
  const auto device = open_device("cpu", 2);
  Program program = program_of(*device);
  for (const ChosenSharing& chosen :
       {choose_sharing(program, *device, costs_of(program, 2)), choose_sharing(program, *device, CostTable())}) {
    EXPECT_EQ(chosen.inter_op, 1);
    EXPECT_EQ(chosen.narrowed, 0);
    EXPECT_EQ(program.plan.cores.inter_op, 1);
    EXPECT_EQ(chosen.together_ms, chosen.serial_ms);
  }
}

// Every op takes so long with two threads as with one: two at a time need little more than half.
TEST(Sharing, ThereIsRoomMadeWithinTheBudgetForStepsSideBySide) {
  const auto device = open_device("cpu", 1);
  Program packed = program_of(*device);
  const CostTable costs = costs_of(packed, 1);
  const Sharing sharing{.cores = 2, .inter_op = 2};
  const Plan before = packed.plan;
  set_sharing(packed, sharing, costs);

  Program roomy = program_of(*device);
  EXPECT_EQ(relax_program(roomy, sharing, costs), "");
  EXPECT_EQ(roomy.plan.stays, before.stays);  // until they are wanted
  EXPECT_GT(roomy.plan.arena, before.arena);
  EXPECT_LE(roomy.plan.arena, roomy.plan.budget);
  set_sharing(roomy, sharing, costs);
  EXPECT_LT(roomy.plan.predicted.step_time_ms, 0.8 * packed.plan.predicted.step_time_ms);
  EXPECT_TRUE(verify(roomy.network.graph, roomy.plan).empty());
  run_serially(roomy, costs);
  EXPECT_EQ(roomy.plan.stays, before.stays);
  EXPECT_GT(roomy.plan.arena, before.arena);  // it may still be wanted
  shrink_arena(roomy);
  EXPECT_EQ(roomy.plan.arena, before.arena);

  Program tight = program_of(*device);
  tight.plan.budget = tight.plan.arena;
  EXPECT_THAT(relax_program(tight, sharing, costs), HasSubstr("--memory"));
  EXPECT_LE(tight.plan.arena, tight.plan.budget);
  set_sharing(tight, sharing, costs);
  EXPECT_LE(tight.plan.predicted.step_time_ms, packed.plan.predicted.step_time_ms);
  EXPECT_TRUE(verify(tight.network.graph, tight.plan).empty());
}

TEST(Sharing, OneStepAfterAnotherNeedsNoRoom) {
  const auto device = open_device("cpu", 1);
  Program program = program_of(*device);
  const Plan before = program.plan;
  const CostTable costs = costs_of(program, 1);
  relax_program(program, {.cores = 4, .inter_op = 1}, costs);
  relax_program(program, {.cores = 4, .choose = true, .strategies = strategies_named("1,2")}, costs);
  EXPECT_TRUE(program.loose.empty());
  EXPECT_EQ(program.plan.arena, before.arena);
}

TEST(Sharing, OpsThatAreHeldApartDoNotMeetOnPaper) {
  const auto device = open_device("cpu", 2);
  Program program = program_of(*device);
  const CostTable costs = costs_of(program, 1.1);
  OpPairs conflicts;
  for (int32_t a = 0; a < program.network.graph.op_count(); ++a) {
    for (int32_t b = a; b < program.network.graph.op_count(); ++b) conflicts.insert({a, b});
  }
  const ChosenSharing chosen = choose_sharing(program, *device, costs, {}, conflicts);
  EXPECT_EQ(chosen.inter_op, 1);
}

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

TEST(Sharing, WhatTurnsOutSlowerSideBySideIsTakenBack) {
  const auto device = open_device("cpu", 2);
  Program program = program_of(*device);
  const CostTable costs = costs_of(program, 1.1);
  ASSERT_EQ(choose_sharing(program, *device, costs).inter_op, 2);
  InterferenceMonitor watch(program, *device, costs);
  std::string said;
  int steps = 0;
  for (; program.plan.cores.inter_op > 1 && steps < 200; ++steps) {
    if (watch.sees(in_pairs(program.plan, 5))) said = watch.correct();
  }
  EXPECT_LT(steps, 60);
  EXPECT_THAT(said, HasSubstr("back to that"));
  for (const Step& step : program.plan.steps) EXPECT_EQ(step.threads, 0);
}

TEST(Sharing, WhatIsAsFastAsPredictedIsLeftAlone) {
  const auto device = open_device("cpu", 2);
  Program program = program_of(*device);
  const CostTable costs = costs_of(program, 1.1);
  ASSERT_EQ(choose_sharing(program, *device, costs).inter_op, 2);
  InterferenceMonitor watch(program, *device, costs);
  for (int step = 0; step < 50; ++step) EXPECT_FALSE(watch.sees(in_pairs(program.plan, 1.1)));
}

// Runs a trial over steps that take so long as chosen and one after another; returns what was said at the end.
std::string try_out(Program& program, const CostTable& costs, double chosen_ms, double serial_ms) {
  AbTrial trial(program, costs);
  std::string said;
  int steps = 0;
  for (; !trial.over() && steps < 200; ++steps) {
    const bool slow_start = steps % 5 == 0;  // the first step after a turn
    const double ms = program.plan.cores.inter_op > 1 ? chosen_ms : serial_ms;
    if (trial.sees(slow_start ? 100 * ms : ms)) said = trial.turn();
  }
  EXPECT_LT(steps, 60);
  EXPECT_FALSE(trial.sees(1));
  return said;
}

TEST(Sharing, AChoiceThatIsSlowerThanOneAfterAnotherWhenBothAreTriedIsGivenUp) {
  const auto device = open_device("cpu", 2);
  Program program = program_of(*device);
  const CostTable costs = costs_of(program, 1.1);
  ASSERT_EQ(choose_sharing(program, *device, costs).inter_op, 2);
  EXPECT_THAT(try_out(program, costs, 5.1, 5), HasSubstr("it goes on so"));
  EXPECT_EQ(program.plan.cores.inter_op, 1);
  for (const Step& step : program.plan.steps) EXPECT_EQ(step.threads, 0);
}

TEST(Sharing, AChoiceThatIsFasterWhenBothAreTriedIsKept) {
  const auto device = open_device("cpu", 2);
  Program program = program_of(*device);
  const CostTable costs = costs_of(program, 1.1);
  ASSERT_EQ(choose_sharing(program, *device, costs).inter_op, 2);
  const Plan chosen = program.plan;
  EXPECT_EQ(try_out(program, costs, 4.9, 5), "");
  EXPECT_EQ(program.plan.cores.inter_op, 2);
  for (size_t s = 0; s < chosen.steps.size(); ++s) {
    EXPECT_EQ(program.plan.steps[s].threads, chosen.steps[s].threads);
    EXPECT_EQ(program.plan.steps[s].affinity, chosen.steps[s].affinity);
  }
  EXPECT_EQ(program.plan.predicted.step_time_ms, chosen.predicted.step_time_ms);
}

TEST(Sharing, PairsThatAnEarlierTrainingFoundSlowDoNotMeet) {
  const auto device = open_device("cpu", 2);
  Program program = program_of(*device);
  CostTable costs = costs_of(program, 1.1);
  ASSERT_EQ(choose_sharing(program, *device, costs).inter_op, 2);
  InterferenceMonitor watch(program, *device, costs);
  for (int step = 0; step < 30 && watch.found().empty(); ++step) {
    if (watch.sees(in_pairs(program.plan, 5))) watch.correct();
  }
  const auto found = watch.found();
  ASSERT_FALSE(found.empty());
  for (const auto& [a, b] : found) costs.add_conflict(a, b);
  ASSERT_EQ(costs.conflicts(), found);
  choose_sharing(program, *device, costs);
  const Graph& graph = program.network.graph;
  for (const EngineSpan& a : program.plan.predicted.timeline) {
    for (const EngineSpan& b : program.plan.predicted.timeline) {
      if (&a == &b || a.start_ms >= b.end_ms - 1e-9 || b.start_ms >= a.end_ms - 1e-9) continue;
      auto signature = [&](const EngineSpan& s) { return op_signature(graph, graph.op(program.plan.steps[static_cast<size_t>(s.index)].op)); };
      EXPECT_FALSE(found.contains(std::minmax(signature(a), signature(b)))) << a.index << " and " << b.index;
    }
  }
}

TEST(Sharing, StepsOfPairsThatAreKeptApartAreNamed) {
  const auto device = open_device("cpu", 2);
  const Program program = program_of(*device);
  const Graph& graph = program.network.graph;
  CostTable costs = costs_of(program, 1.1);
  EXPECT_TRUE(conflicting_steps(program, costs).empty());
  std::vector<StepIndex> convolutions;
  for (StepIndex s = 0; s < static_cast<StepIndex>(program.plan.steps.size()); ++s) {
    if (graph.op(program.plan.steps[static_cast<size_t>(s)].op).type->name == "ConvForward") convolutions.push_back(s);
  }
  const auto op_of = [&](StepIndex s) { return program.plan.steps[static_cast<size_t>(s)].op; };
  const StepIndex a = convolutions.front(), b = convolutions.back();
  EXPECT_EQ(conflicting_steps(program, costs, {std::minmax(op_of(a).index, op_of(b).index)}), (std::vector<std::pair<StepIndex, StepIndex>>{{a, b}}));
  costs.add_conflict(op_signature(graph, graph.op(op_of(a))), op_signature(graph, graph.op(op_of(b))));
  const auto pairs = conflicting_steps(program, costs);
  EXPECT_NE(std::find(pairs.begin(), pairs.end(), std::pair(a, b)), pairs.end());
  for (const auto& [first, second] : pairs) {
    EXPECT_LT(first, second);
    EXPECT_EQ(graph.op(op_of(first)).type->name, "ConvForward");
  }
}

TEST(Sharing, OnlyTheStrategiesThatAreAskedForAreUsed) {
  const auto device = open_device("cpu", 2);
  Program program = program_of(*device);
  const CostTable costs = costs_of(program, 1.1);
  EXPECT_EQ(choose_sharing(program, *device, costs, {.strategies = strategies_named("1,2")}).inter_op, 1);
  EXPECT_EQ(choose_sharing(program, *device, costs, {.strategies = strategies_named("3")}).inter_op, 2);
  EXPECT_EQ(choose_sharing(program, *device, costs, {.strategies = strategies_named("4")}).inter_op, 1);  // no second ones here
}

// A step beside another, on the same core: only with second hardware threads.
TEST(Sharing, SmallOpsRunOnSecondHardwareThreads) {
  const auto device = open_device("cpu", 2);
  Program program = program_of(*device);
  const CostTable costs = costs_of(program, 2);  // nothing is to be had from cores of their own
  const ChosenSharing chosen = choose_sharing(program, *device, costs, {.strategies = strategies_named("1,2,4"), .hardware_threads = 2});
  EXPECT_GT(chosen.second, 0);
  EXPECT_GE(chosen.inter_op, 2);
  EXPECT_LT(chosen.together_ms, chosen.serial_ms);
  EXPECT_TRUE(verify(program.network.graph, program.plan).empty());
  EXPECT_EQ(choose_sharing(program, *device, costs, {.strategies = strategies_named("1,2"), .hardware_threads = 2}).second, 0);
}

TEST(Sharing, SecondHardwareThreadsAreUsedWhereEveryCoreHasOne) {
  const CoreShape two_each{.cores = 4, .cores_a_cache = 4, .hardware_threads = 2}, one_each{.cores = 4, .cores_a_cache = 4};
  const SharingOptions any{.inter_op = 0}, asked{.inter_op = 0, .strategies = Strategies{}};
  const Sharing found = share_cores("cpu", any, false, two_each);
  EXPECT_EQ(found.cores, 4);  // and not 8: second threads are for Strategy 4
  EXPECT_EQ(found.op_threads, 4);
  EXPECT_EQ(found.hardware_threads, 2);
  EXPECT_EQ(found.notice, "");
  EXPECT_EQ(share_cores("cpu", any, false, one_each).hardware_threads, 1);
  EXPECT_EQ(share_cores("cpu", any, false, one_each).notice, "");
  EXPECT_EQ(share_cores("cpu", asked, false, one_each).notice,
            "--strategies 4: the cores here have one hardware thread each; it goes on without");
  EXPECT_THAT(share_cores("cpu", {.threads = 2, .inter_op = 0, .strategies = Strategies{}}, false, two_each).notice,
              HasSubstr("only with all of the machine's 4 cores, not with 2 threads"));
  EXPECT_EQ(share_cores("cpu", {.inter_op = 0, .strategies = strategies_named("1,3")}, false, two_each).hardware_threads, 1);
  EXPECT_EQ(share_cores("cpu", any, false, {.cores = 68, .hardware_threads = 4}).climb_interval, 4);
}

TEST(Sharing, SaysWhenExactResultsDependOnTheThreadsOfAnOp) {
  EXPECT_THAT(share_cores("cpu", {.threads = 4, .inter_op = 2}, true).notice,
              HasSubstr("threads of an op: 2 here, 4 without --inter-op"));
  EXPECT_EQ(share_cores("cpu", {.threads = 4, .inter_op = 2, .intra_op = 2}, true).notice, "");
  EXPECT_EQ(share_cores("cpu", {.threads = 4, .inter_op = 2}, false).notice, "");
  EXPECT_EQ(share_cores("cpu", {.threads = 1}, true).notice, "");
}

TEST(Sharing, CoresAreDividedAmongOpsUnlessToldOtherwise) {
  EXPECT_EQ(share_cores("cpu", {.threads = 8}, false).op_threads, 8);
  EXPECT_EQ(share_cores("cpu", {.threads = 8, .inter_op = 3}, false).op_threads, 2);
  EXPECT_EQ(share_cores("cpu", {.threads = 2, .inter_op = 4}, false).op_threads, 1);
  const Sharing given = share_cores("cpu", {.threads = 8, .inter_op = 2, .intra_op = 3}, false);
  EXPECT_EQ(given.op_threads, 3);
  EXPECT_EQ(given.cores, 8);
  EXPECT_EQ(given.notice, "");
  const Sharing crowded = share_cores("cpu", {.threads = 4, .inter_op = 2, .intra_op = 4}, false);
  EXPECT_EQ(crowded.cores, 8);
  EXPECT_THAT(crowded.notice, HasSubstr("take turns"));
}

}  // namespace
}  // namespace plimsoll
