#include "report/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <map>
#include <set>

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
    most_twice = std::max(most_twice, stays - live[static_cast<size_t>(s)]);
  }
  EXPECT_GT(most_twice, 0_B);
  for (const int process : {1, 2}) {
    std::set<StepIndex> bars;
    double last = 0;
    size_t counters = 0;
    for (const json& event : trace.at("traceEvents")) {
      if (event.at("pid") != process) continue;
      if (event.at("ph") == "X") {
        bars.insert(event.at("args").at("step").get<StepIndex>());
        EXPECT_GE(event.at("ts").get<double>(), process == 2 ? 3000 : 0);
      }
      if (event.at("ph") == "C") {
        EXPECT_GE(event.at("ts").get<double>(), last);
        last = event.at("ts").get<double>();
        EXPECT_DOUBLE_EQ(event.at("args").at("MiB").get<double>() * 1048576, static_cast<double>(live[counters].count));
        ++counters;
      }
    }
    EXPECT_EQ(bars, timed) << "process " << process;
    EXPECT_EQ(counters, plan.steps.size());
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
  std::map<int, double> bars;
  std::set<std::string> rows;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("pid") != 2) continue;
    if (event.at("ph") == "X" && event.at("tid") != 0) bars[event.at("tid")] = event.at("dur");
    if (event.at("name") == "thread_name") rows.insert(event.at("args").at("name"));
  }
  EXPECT_EQ(bars, (std::map<int, double>{{1, 1000}, {2, 3000}}));
  EXPECT_EQ(rows, (std::set<std::string>{"compute", "to host", "from host"}));
}

// y takes x's place, so that the two megabytes that are booked are one.
TEST(Trace, CountsBytesThatTwoTensorsShareOnce) {
  Graph graph;
  const TensorId x = graph.add_source("x", {262144}, DType::f32, Role::input);
  const OpId first = graph.add_op("ReluForward", "first", "first", {x});
  const OpId second = graph.add_op("ReluForward", "second", "second", {graph.output(first)});
  Plan plan;
  plan.steps = {{.op = first, .kernel = "own"}, {.op = second, .kernel = "own"}};
  plan.stays = {{x, 0_B, 1_MiB, 0, 0}, {graph.output(first), 0_B, 1_MiB, 0, 1}, {graph.output(second), 1_MiB, 1_MiB, 1, 1}};
  const std::vector<StepRecord> records{{1, 2}, {2, 3}};
  std::vector<double> live;
  for (const json& event : json::parse(trace_json(graph, plan, records)).at("traceEvents")) {
    if (event.at("pid") == 2 && event.at("ph") == "C") live.push_back(event.at("args").at("MiB"));
  }
  EXPECT_EQ(live, (std::vector<double>{1, 2}));
}

}  // namespace
}  // namespace plimsoll
