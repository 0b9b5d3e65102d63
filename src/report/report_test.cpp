#include "report/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
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
        ++counters;
      }
    }
    EXPECT_EQ(bars, timed) << "process " << process;
    EXPECT_EQ(counters, plan.steps.size());
  }
}

}  // namespace
}  // namespace plimsoll
