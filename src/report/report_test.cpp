#include "report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "plimsoll/models.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

using nlohmann::json;

TEST(Trace, HasABarForEveryStepButViewsAndCountersInTheOrderOfTime) {
  const auto device = open_device("cpu", 1);
  const auto compiled = compile_training(build_model("lenet", {.batch = 4}), *device, CostTable{}, {});
  const Program& program = std::get<Program>(compiled);
  const Graph& graph = program.network.graph;
  const Plan& plan = program.plan;

  // As the executor records: nothing for views, which run nothing.
  std::vector<StepRecord> records(plan.steps.size());
  std::set<StepIndex> timed;
  double now = 3;
  for (size_t s = 0; s < records.size(); ++s) {
    if (graph.op(plan.steps[s].op).type->is_view) continue;
    timed.insert(static_cast<StepIndex>(s));
    records[s] = {now, now + 0.5};
    now += 0.75;
  }
  ASSERT_LT(timed.size(), plan.steps.size());

  const json trace = json::parse(trace_json(graph, plan, records));
  const std::vector<Bytes> live = live_bytes(plan);
  Bytes most_twice;  // bytes that several stays share
  for (StepIndex s = 0; s < static_cast<StepIndex>(plan.steps.size()); ++s) {
    Bytes stays;
    for (const Stay* stay : live_at(plan, s)) stays += stay->bytes;
    most_twice = std::max(most_twice, stays - live[s]);
  }
  EXPECT_GT(most_twice, 0_B);
  // When each step runs, in milliseconds, and what the trace must therefore say.
  std::map<StepIndex, std::pair<double, double>> times[2];
  for (const EngineSpan& span : plan.predicted.timeline) {
    if (span.engine == 0 && timed.contains(span.index)) times[0][span.index] = {span.start_ms, span.end_ms};
  }
  for (const StepIndex s : timed) times[1][s] = {records[s].start_ms, records[s].end_ms};
  for (const int process : {1, 2}) {
    SCOPED_TRACE(process);
    const auto& expected = times[process - 1];
    std::set<StepIndex> bars;
    std::vector<double> counters;
    for (const json& event : trace.at("traceEvents")) {
      if (event.at("pid") != process) continue;
      if (event.at("ph") == "C") {
        ASSERT_LT(counters.size(), live.size());
        EXPECT_DOUBLE_EQ(event.at("args").at("MiB").get<double>() * 1048576,
                         static_cast<double>(live[counters.size()].count));
        counters.push_back(event.at("ts"));
      }
      if (event.at("ph") != "X") continue;
      const json& args = event.at("args");
      const StepIndex s = args.at("step");
      ASSERT_TRUE(bars.insert(s).second) << "two bars for step " << s;
      ASSERT_TRUE(expected.contains(s)) << s;
      EXPECT_DOUBLE_EQ(event.at("ts"), expected.at(s).first * 1000);
      EXPECT_NEAR(event.at("dur"), (expected.at(s).second - expected.at(s).first) * 1000, 1e-6);
      const Step& step = plan.steps[s];
      const Op& op = graph.op(step.op);
      EXPECT_EQ(event.at("name"), op.name);
      EXPECT_EQ(event.at("cat"), to_string(op.phase));
      EXPECT_EQ(args.at("op"), op.type->name);
      EXPECT_EQ(args.at("layer"), op.layer);
      EXPECT_EQ(args.at("kernel"), step.kernel);
      EXPECT_EQ(args.at("workspace_bytes"), step.workspace.count);
      EXPECT_EQ(args.at("threads"), step.threads);
      EXPECT_EQ(args.at("recompute"), false);
    }
    EXPECT_EQ(bars, timed);
    // One a step: where the step starts, or for a view where the step before it ends.
    std::vector<double> starts;
    double end = 0;
    for (StepIndex s = 0; s < static_cast<StepIndex>(plan.steps.size()); ++s) {
      starts.push_back(expected.contains(s) ? expected.at(s).first * 1000 : end);
      if (expected.contains(s)) end = expected.at(s).second * 1000;
    }
    EXPECT_THAT(counters, ::testing::Pointwise(::testing::DoubleEq(), starts));
  }
}

TEST(Trace, HasARowForEachEngineAndABarForEachCopyAsMeasured) {
  const auto device = open_device("cpu", 1);
  const auto compiled = compile_training(build_model("lenet", {.batch = 4}), *device, CostTable{}, {});
  const Program& program = std::get<Program>(compiled);
  Plan plan = program.plan;
  plan.tiers = {{.tier = {.name = "host", .capacity = 1_MiB}, .used = 8_KiB}};
  plan.moves = {{Move::Direction::out, {2}, 0, 0_B, 1, 3}, {Move::Direction::in, {2}, 0, 0_B, 3, 5}};
  const std::vector<StepRecord> steps(plan.steps.size(), {1, 2}), copies{{2.5, 3.5}, {4, 7}};
  const json trace = json::parse(trace_json(program.network.graph, plan, steps, copies));
  std::map<int, json> bars;  // by row
  std::map<int, std::string> rows;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("pid") != 2) continue;
    if (event.at("ph") == "X" && event.at("tid") != 0) bars[event.at("tid")] = event;
    if (event.at("name") == "thread_name") rows[event.at("tid")] = event.at("args").at("name");
  }
  EXPECT_EQ(rows, (std::map<int, std::string>{{0, "compute"}, {1, "to host"}, {2, "from host"}}));
  ASSERT_EQ(bars.size(), 2U);
  const Tensor& moved = program.network.graph.tensor({2});
  for (const auto& [row, start, duration] : {std::tuple{1, 2500.0, 1000.0}, {2, 4000.0, 3000.0}}) {
    const json& bar = bars.at(row);
    EXPECT_EQ(bar.at("ts"), start);
    EXPECT_EQ(bar.at("dur"), duration);
    EXPECT_EQ(bar.at("name"), moved.name);
    EXPECT_EQ(bar.at("args").at("bytes"), moved.bytes().count);
    EXPECT_EQ(bar.at("args").at("tier"), 0);
  }
}

TEST(Trace, TellsTapsAndStridesOfConvolutions) {
  Graph graph;
  const TensorId x = graph.add_source("x", {1, 4, 8, 8}, DType::f32, Role::input);
  const TensorId each = graph.add_source("each", {4, 1, 1, 5, 3}, DType::f32, Role::parameter);
  const TensorId all = graph.add_source("all", {2, 4, 3, 3}, DType::f32, Role::parameter);
  const OpId grouped = graph.add_op("ConvForward", "grouped", "grouped", {x, each}, {{"groups", int64_t{4}}});
  const OpId strided =
      graph.add_op("ConvForward", "strided", "strided", {x, all}, {{"stride", std::vector<int64_t>{2, 1}}});
  Plan plan;
  plan.steps = {{.op = grouped, .kernel = "own"}, {.op = strided, .kernel = "own"}};
  const json trace = json::parse(trace_json(graph, plan, std::vector<StepRecord>{{1, 2}, {2, 3}}));
  json told;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("pid") != 2 || event.at("ph") != "X") continue;
    told[event.at("name").get<std::string>()] = {event.at("args").at("taps"), event.at("args").at("stride")};
  }
  EXPECT_EQ(told, (json{{"grouped", {{5, 3}, {1, 1}}}, {"strided", {{3, 3}, {2, 1}}}}));
}

// y takes x's place, so that the two megabytes that are booked are one.
TEST(Trace, CountsBytesThatTwoTensorsShareOnce) {
  Graph graph;
  const TensorId x = graph.add_source("x", {262144}, DType::f32, Role::input);
  const OpId first = graph.add_op("ReluForward", "first", "first", {x});
  const OpId second = graph.add_op("ReluForward", "second", "second", {graph.output(first)});
  Plan plan;
  plan.steps = {{.op = first, .kernel = "own"}, {.op = second, .kernel = "own"}};
  plan.stays = {
      {x, 0_B, 1_MiB, 0, 0}, {graph.output(first), 0_B, 1_MiB, 0, 1}, {graph.output(second), 1_MiB, 1_MiB, 1, 1}};
  const std::vector<StepRecord> records{{1, 2}, {2, 3}};
  std::vector<double> live;
  const json trace = json::parse(trace_json(graph, plan, records));
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("pid") == 2 && event.at("ph") == "C") live.push_back(event.at("args").at("MiB"));
  }
  EXPECT_EQ(live, (std::vector<double>{1, 2}));
}

// What ops overwrite in place, and views, share bytes with others: under baseline for the whole step.
TEST(MemoryByRole, AddsUpToTheLiveBytesOfEveryStep) {
  const auto device = open_device("k40c");
  for (const char* model : {"vgg11", "alexnet", "mlp", "resnet20", "densenet:depth=40,growth=12", "dcgan"}) {
    for (const char* policy : {"baseline", "liveness", "superneurons"}) {
      SCOPED_TRACE(std::string(model) + " " + policy);
      const auto compiled =
          compile_training(build_model(model, {.batch = 8}), *device, CostTable{}, {.policy = policy});
      const Program& program = std::get<Program>(compiled);
      const Plan& plan = program.plan;
      const std::vector<Bytes> live = live_bytes(plan);
      for (StepIndex s = 0; s < std::ssize(plan.steps); ++s) {
        Bytes sum;
        for (const MemoryShare& share : memory_by_role(program.network.graph, plan, s)) sum += share.bytes;
        ASSERT_EQ(sum, live[s]) << "step " << s;
      }
      int64_t shown = 0;
      const json all = plan_json(program, {});
      for (const auto& [role, bytes] : all.at("peak_by_role").items()) shown += bytes.get<int64_t>();
      EXPECT_EQ(shown, plan.predicted.peak.count);
    }
  }
}

TEST(LiveRows, AWorkspaceSaysWhoseItIsAndForWhichKernel) {
  Graph graph;
  const TensorId x = graph.add_source("x", {262144}, DType::f32, Role::input);
  const OpId op = graph.add_op("ReluForward", "relu1/forward", "relu1", {x});
  Plan plan;
  plan.steps = {{.op = op, .kernel = "fast*8+slow*4", .workspace = 2_MiB}};
  plan.stays = {{x, 0_B, 1_MiB, 0, 0}, {{}, 1_MiB, 2_MiB, 0, 0}, {graph.output(op), 0_B, 1_MiB, 0, 0}};
  const std::vector<LiveRow> rows = live_rows(graph, plan, 0);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].name, "of relu1/forward, kernel fast*8+slow*4");
  EXPECT_EQ(rows[0].bytes, 2_MiB);
  EXPECT_THAT(peak_tensors_text(graph, plan, 1), ::testing::HasSubstr("of relu1/forward, kernel fast*8+slow*4"));
}

TEST(LiveRows, SlicesOfOneTensorAreOneRowAndNamesWithOtherBracketsAreNot) {
  Graph graph;
  Plan plan;
  Bytes at;
  for (const char* name : {"fc.weight[0:512]", "fc.weight[512:1024]", "fc.weight[0:512].next", "list[0]", "list[1]"}) {
    plan.stays.push_back({graph.add_source(name, {256}, DType::f32, Role::parameter), at, 1_KiB, 0, 0});
    at += 1_KiB;
  }
  const TensorId gradient = graph.add_source("fc.weight[1024:1536]", {256}, DType::f32, Role::gradient);
  plan.stays.push_back({gradient, at, 1_KiB, 0, 0});
  plan.steps.resize(1);
  std::map<std::string, size_t> slices;
  for (const LiveRow& row : live_rows(graph, plan, 0)) slices[row.name] = row.stays.size();
  EXPECT_EQ(slices, (std::map<std::string, size_t>{{"fc.weight", 2},
                                                   {"fc.weight[0:512].next", 1},
                                                   {"list[0]", 1},
                                                   {"list[1]", 1},
                                                   {"fc.weight[1024:1536]", 1}}));
  EXPECT_THAT(peak_tensors_text(graph, plan, 9),
              ::testing::HasSubstr("2.00 KiB  parameter       fc.weight in 2 slices"));
}

// In the step of the update the old weight and the new one are the same bytes.
TEST(LiveRows, AWeightIsOneRowWhetherItsSlicesAreUpdatedOrNot) {
  Graph graph;
  Plan plan;
  const auto add = [&](const char* name, Bytes at) {
    const TensorId id = graph.add_source(name, {256}, DType::f32, Role::parameter);
    plan.stays.push_back({id, at, 1_KiB, 0, 0});
    return id;
  };
  const TensorId first = add("fc.weight[0:8]", 0_B), second = add("fc.weight[8:16]", 1_KiB);
  const TensorId first_next = add("fc.weight[0:8].next", 0_B), third_next = add("fc.weight[16:24].next", 2_KiB);
  const TensorId third = graph.add_source("fc.weight[16:24]", {256}, DType::f32, Role::parameter);
  graph.states = {{first, first_next}, {second, second}, {third, third_next}};
  plan.steps.resize(1);
  const std::vector<LiveRow> rows = live_rows(graph, plan, 0);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].name, "fc.weight");
  EXPECT_EQ(rows[0].stays.size(), 3u);
  EXPECT_EQ(rows[0].bytes, 3_KiB);
}

TEST(CoresText, SaysHowStepsShareTheCores) {
  Plan plan;
  plan.steps.resize(3);
  EXPECT_EQ(cores_text(plan), "");
  plan.cores = {.inter_op = 2, .cores = 4, .conflicts = {{{0}, {1}}}, .order = {2, 1, 0}};
  plan.steps[0].threads = 1;
  plan.steps[1].threads = 3;
  plan.steps[1].affinity = Affinity::smt;
  EXPECT_EQ(
      cores_text(plan),
      "2 steps at once on 4 cores, ops with 1 to 3 threads, 1 of them on second hardware threads, 1 pair never run "
      "at once, in an order of their own");
}

}  // namespace
}  // namespace plimsoll
