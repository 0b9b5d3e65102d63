#include "train/session.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/simulate.h"
#include "plan/together.h"
#include "plimsoll/models.h"
#include "tests/support/local_transport.h"
#include "tests/support/temporary_folder.h"
#include "train/sample_inputs.h"

namespace plimsoll {
namespace {

// A session on one thread, on a machine of which others take so much.
struct SessionCase {
  TemporaryFolder folder;
  double others = 0;
  cpu::ProcessorTimes times;
  Session session;
  const Network network =
      build_model("lenet", {.batch = 2, .channels = 1, .height = 28, .width = 28, .classes = 10, .training = true});

  SessionCase() {
    session.device = open_device("cpu", 1);
    session.database = std::make_unique<CostDatabase>(folder.path() / "costs.sqlite", session.device->info());
    session.load = LoadMeter([this] { return times; });
  }
  void pass_a_second() {
    times.wall += 1;
    times.all += 1;
    times.busy += others;
    session.load.restart();
    times.wall += 1;
    times.all += 1;
    times.busy += others;
  }
  Measured measure(bool busy) {
    return measure_missing(session, network, {}, {.tolerance = 1e6, .busy = [busy] { return busy; }});
  }
};

TEST(Session, NoLaterRunIsPromisedWhereMeasurementsAreNotKept) {
  SessionCase c;
  c.session.database = std::make_unique<CostDatabase>(c.folder.path(), c.session.device->info());
  const Measured measured = c.measure(true);
  ASSERT_GT(measured.busy, 10);
  const std::string text = busy_text(measured, *c.session.database);
  EXPECT_THAT(text, ::testing::HasSubstr("busy: their times may be off, and are of this run only"));
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("next run")));
}

TEST(Session, TimesOfABusyMachineAreMeasuredAnewByTheRunThatFindsItQuiet) {
  SessionCase c;
  c.others = 0.5;
  c.pass_a_second();
  const Measured first = c.measure(true);
  ASSERT_GT(first.kernels, 10);
  EXPECT_EQ(first.busy, first.kernels);
  EXPECT_EQ(first.again, 0);
  EXPECT_EQ(
      busy_text(first, *c.session.database),
      std::to_string(first.kernels) + " of these " + std::to_string(first.kernels) +
          " kernels were measured while other processes kept the machine busy: their times are kept apart, and the "
          "next run that finds the machine quiet measures them anew");

  c.session.costs = c.session.database->load();  // the next run, on a machine that is as busy
  EXPECT_FALSE(forget_busy_times(c.session));
  EXPECT_EQ(c.measure(true).kernels, 0) << "they are the best that is known";

  c.others = 0.05;
  c.pass_a_second();
  EXPECT_TRUE(forget_busy_times(c.session));
  const Measured again = c.measure(false);
  EXPECT_EQ(again.kernels, first.kernels);
  EXPECT_EQ(again.busy, 0);
  EXPECT_EQ(again.again, first.kernels);
  EXPECT_EQ(busy_text(again, *c.session.database), "");

  c.session.costs = c.session.database->load();
  for (const auto& [key, cost] : c.session.costs.entries()) EXPECT_FALSE(cost.busy);
  EXPECT_TRUE(forget_busy_times(c.session));
  EXPECT_EQ(c.measure(true).kernels, 0);
}

TEST(Session, WhatStepsTakeIsKnownAfterTheFirstFewOfThem) {
  SessionCase c;
  Program program = std::get<Program>(compile_training(c.network, *c.session.device, c.session.costs, {.exact = true}));
  Executor executor(program.network.graph, program.plan, *c.session.device, {.record_times = true});
  const SampleInputs inputs(program.network.graph);
  StepTimes times;
  times.keep(c.session, program);
  EXPECT_TRUE(c.session.costs.in_step_entries().empty()) << "nothing ran";
  int steps = 0;
  bool enough = false;
  while (!enough && steps < 100) {
    inputs.write(executor);
    executor.run_step();
    ++steps;
    enough = times.add(program.plan, executor);
  }
  EXPECT_EQ(steps, 6);
  times.keep(c.session, program);
  const CostTable kept = c.session.database->load();
  EXPECT_FALSE(kept.in_step_entries().empty());
  for (const Step& step : program.plan->steps) {
    if (step.kernel.empty()) continue;
    const auto cost =
        kept.find_in_step({op_signature(program.network.graph, program.network.graph.op(step.op)), step.kernel, 0});
    ASSERT_TRUE(cost.has_value()) << step.kernel;
    EXPECT_GE(cost->runs, 5);
  }
}

// The first steps may fall into a slow moment: times by them give way to those of the usual step.
TEST(Session, TimesOfStepsThatAreNotUsualAreCorrected) {
  SessionCase c;
  const Program program =
      std::get<Program>(compile_training(c.network, *c.session.device, c.session.costs, {.exact = true}));
  const Graph& graph = program.network.graph;
  Executor executor(graph, program.plan, *c.session.device, {.record_times = true});
  SampleInputs(graph).write(executor);
  executor.run_step();
  const std::vector<bool> together = ran_together(executor);
  const auto predicted = [&] {
    Plan plan = *program.plan;
    predict(graph, plan, c.session.costs);
    return plan.predicted.step_time_ms;
  };
  keep_step_times(c.session, program, std::vector<std::vector<double>>(together.size(), {9.0}), together, false);
  const double slow_ms = predicted();
  double last_ms = 0;
  for (const StepRecord& record : executor.records()) last_ms = std::max(last_ms, record.end_ms);
  correct_step_times(c.session, program, executor, last_ms * 3, false);
  EXPECT_EQ(predicted(), slow_ms) << "a step that was unlike the usual ones tells nothing";
  for (const double usual_ms : {last_ms * 1.5, last_ms * 0.75}) {
    correct_step_times(c.session, program, executor, usual_ms, false);
    EXPECT_GT(predicted(), 0.3 * usual_ms);  // what passes between the steps is in a usual one as well
    EXPECT_LT(predicted(), 1.01 * usual_ms);
  }
  keep_step_times(c.session, program, std::vector<std::vector<double>>(together.size(), {9.0}), together, false);
  correct_step_times(c.session, program, executor, 1.05 * slow_ms, false);
  EXPECT_EQ(predicted(), slow_ms);
}

// What a busy machine says of a plan's steps is told, and gives way to what a quiet one says.
TEST(Session, StepsWithTimesOfABusyMachineAreCounted) {
  SessionCase c;
  const Program program =
      std::get<Program>(compile_training(c.network, *c.session.device, c.session.costs, {.exact = true}));
  int kernels = 0;
  for (const Step& step : program.plan->steps) kernels += !step.kernel.empty();
  const std::vector<std::vector<double>> slow(program.plan->steps.size(), {9.0}), fast(slow.size(), {1.0});
  const std::vector<bool> apart(slow.size(), false);
  EXPECT_EQ(busy_steps(program, c.session.costs), 0);
  keep_step_times(c.session, program, slow, apart, true);
  EXPECT_EQ(busy_steps(program, c.session.costs), kernels);
  keep_step_times(c.session, program, fast, apart, false);
  EXPECT_EQ(busy_steps(program, c.session.costs), 0);
  keep_step_times(c.session, program, slow, apart, true);
  EXPECT_EQ(busy_steps(program, c.session.database->load()), 0);
}

// What a step took as a part of one launch with others is no time of its kernel alone.
TEST(Session, SharesOfOneLaunchAreKeptApart) {
  SessionCase c;
  const Program program =
      std::get<Program>(compile_training(c.network, *c.session.device, c.session.costs, {.exact = true}));
  const Graph& graph = program.network.graph;
  std::vector<bool> together = steps_together(graph, program.plan);
  const auto first = std::ranges::find(together, true);
  ASSERT_NE(first, together.end());
  const Step& step = program.plan->steps[first - together.begin()];
  const std::vector<std::vector<double>> times(together.size(), {0.25});
  keep_step_times(c.session, program, times, together, false);
  const CostTable kept = c.session.database->load();
  const std::string signature = op_signature(graph, graph.op(step.op));
  EXPECT_FALSE(kept.find_in_step({signature, step.kernel}).has_value());
  EXPECT_EQ(kept.find_in_step({signature, kernel_together(step.kernel)})->time_ms, 0.25);
}

TEST(Session, OpensTheLinkAsTheFirstRankKnowsIt) {
  const TemporaryFolder folder;
  const TierInfo known{.out_gb_per_s = 3.5, .in_gb_per_s = 3.5, .latency_us = 17, .compute_share = 0.25};
  testing::as_ranks(2, [&](const std::shared_ptr<Communicator>& ranks) {
    Session session;
    session.device = open_device("cpu", 1);
    const std::string file = fmt::format("{}.sqlite", ranks->rank());  // as of two machines
    session.database = std::make_unique<CostDatabase>(folder.path() / file, session.device->info());
    const auto wire = open_wire(*session.device, ranks);
    EXPECT_EQ(wire->key(), fmt::format("2 of {} threads{}", ranks->host(0), network_settings()));
    if (ranks->is_first()) session.database->save(link_key(*wire), known);
    EXPECT_EQ(open_link(session, *wire, 64_MiB, {}),
              (LinkInfo{.ranks = 2, .latency_us = 17, .gb_per_s = 3.5, .compute_share = 0.25}));
  });
}

}  // namespace
}  // namespace plimsoll
