// Graphs of costs only, from the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "fuzz/cost_graph_seed.h"
#include "tests/cli/program.h"

namespace {

using nlohmann::json;
using plimsoll::testing::Cli;
using plimsoll::testing::Outcome;
using ::testing::HasSubstr;

// A chain forward and the same back: node i is read by the next, and by node 2n - 1 - i.
json chain(int64_t n) {
  json file{{"sources", {640}}, {"nodes", json::array()}, {"keep", {{2 * n - 1, 0}}}};
  for (int64_t i = 0; i < 2 * n; ++i) {
    json in = json::array();
    if (i == 0) in.push_back({"source", 0});
    if (i > 0) in.push_back({i - 1, 0});
    if (i > n) in.push_back({2 * n - 1 - i, 0});
    file["nodes"].push_back({{"ms", 1}, {"out", {6400}}, {"in", in}});
  }
  return file;
}

class CliCostGraph : public Cli {
 protected:
  std::string write(const char* name, const std::string& text) {
    std::ofstream(path(name)) << text;
    return path(name);
  }
};

TEST_F(CliCostGraph, IsPlannedWithinAShareOfItsPeak) {
  const std::string file = write("chain.json", chain(8).dump());
  const json all = run("plan --graph " + file + " --memory 100% --json -").lines().at(0);
  EXPECT_EQ(all.at("extra_time_percent"), 0);
  EXPECT_EQ(all.at("arena_bytes"), all.at("budget_bytes"));
  const Outcome outcome = run("plan --graph " + file + " --memory 60% --json -");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const json half = outcome.lines().at(0);
  EXPECT_EQ(half.at("budget_bytes").get<int64_t>(), all.at("budget_bytes").get<int64_t>() * 6 / 10);
  EXPECT_LE(half.at("arena_bytes"), half.at("budget_bytes"));
  EXPECT_GT(half.at("recompute_steps"), 0);
  EXPECT_EQ(half.at("step_time_ms").get<double>(), 16 + half.at("recompute_steps").get<double>());
  EXPECT_NEAR(half.at("extra_time_percent").get<double>(), 100 * half.at("recompute_steps").get<double>() / 16, 1e-9);
  EXPECT_EQ(half.at("verified"), true);
  const Outcome small = run("plan --graph " + file + " --memory 1%");
  EXPECT_EQ(small.code, 3);
}

TEST_F(CliCostGraph, IsSavedVerifiedAndExplained) {
  const std::string file = write("chain.json", chain(6).dump());
  const Outcome outcome = run("plan --graph " + file + " --memory 70% --save " + path("plan.json") + " --report " +
                              path("report.html") + " --save-graph " + path("ours.json") + " --explain 'node 2'");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("1 ms as the file says"));
  const Outcome verified = run("verify " + path("plan.json"));
  EXPECT_EQ(verified.code, 0) << verified.out;
  EXPECT_THAT(verified.out, HasSubstr("a graph of costs runs nothing"));
  EXPECT_THAT(slurp(path("report.html")), HasSubstr("as the file says"));
  EXPECT_EQ(json::parse(slurp(path("ours.json"))).at("format"), "plimsoll cost graph");
  const std::string how = " --memory 70% --json -";
  EXPECT_EQ(run("plan --graph " + path("ours.json") + how).lines().at(0).at("step_time_ms"),
            run("plan --graph " + file + how).lines().at(0).at("step_time_ms"));
  json other = chain(6);
  other["nodes"][3]["ms"] = 2;
  write("chain.json", other.dump());
  const Outcome changed = run("verify " + path("plan.json"));
  EXPECT_EQ(changed.code, 2);
  EXPECT_THAT(changed.out, HasSubstr("the graph is not that of its file"));
}

TEST_F(CliCostGraph, MoreSecondsNeverGiveASlowerPlanNorALowerBound) {
  const std::string plan = "plan --graph " + write("chain.json", chain(14).dump()) + " --json - --memory 45%";
  const json once = run(plan).lines().at(0), certified = run(plan + " --certify 2").lines().at(0);
  EXPECT_GT(once.at("extra_time_percent"), 0);
  EXPECT_LE(certified.at("extra_time_percent"), once.at("extra_time_percent"));
  EXPECT_GE(certified.at("bound_percent"), once.at("bound_percent"));
  EXPECT_LE(certified.at("bound_percent"), certified.at("extra_time_percent"));
  EXPECT_LE(certified.at("arena_bytes"), certified.at("budget_bytes"));
  EXPECT_EQ(certified.at("minimum_bytes"), once.at("minimum_bytes"));
  for (const char* wrong : {"-1", "soon", "nan"}) EXPECT_EQ(run(plan + " --certify " + wrong).code, 2) << wrong;
}

TEST_F(CliCostGraph, WhatIsFoundUntilAnInterruptIsToldAndSaved) {
  json graph = chain(40);
  for (size_t i = 0; i < graph["nodes"].size(); i += 3) graph["nodes"][i]["out"] = {9984};
  const std::string plan = "plan --graph " + write("chain.json", graph.dump()) +
                           " --memory 30% --certify 3000 --json " + path("json") + " --save " + path("plan.json");
  for (const int signal : {SIGINT, SIGTERM}) {
    const pid_t child = start(plan);
    while (!catches(child, signal)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ::kill(child, signal);
    const Outcome outcome = wait(child);
    EXPECT_EQ(outcome.code, 5) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("interrupted: plan and bound are what --certify had found until then"));
    EXPECT_GT(json::parse(slurp(path("json"))).at("extra_time_percent"), 0);
    EXPECT_EQ(run("verify " + path("plan.json")).code, 0);
  }
}

TEST_F(CliCostGraph, CannotBeRun) {
  const std::string file = write("chain.json", chain(4).dump());
  run("plan --graph " + file + " --save " + path("plan.json"));
  for (const std::string& command : {"train --graph " + file, "train --plan " + path("plan.json"),
                                     "profile --graph " + file, "heaps --graph " + file}) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.code, 2) << command;
    EXPECT_THAT(outcome.err, HasSubstr("the file holds a graph of costs only: it can be planned")) << command;
  }
  EXPECT_THAT(run("compare --run --graph " + file).err, HasSubstr("--run: a graph of costs is planned, never run"));
  EXPECT_THAT(run("plan --exact --graph " + file).err,
              HasSubstr("--exact: '" + file + "' holds a graph of costs only"));
  EXPECT_THAT(run("plan --costs measured --graph " + file).err,
              HasSubstr("--costs measured: a graph of costs reads no data"));
}

TEST_F(CliCostGraph, IsComparedByPolicyAndGrownByItsBatch) {
  const std::string file = write("small.json", plimsoll::fuzz::cost_graph_seed());
  const std::vector<json> rows =
      run("compare --graph " + file + " --memory 100% --policies auto liveness baseline --json -").lines();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[1].at("feasible"), false) << "64 bytes for the 4 of the loss";
  EXPECT_EQ(rows[2].at("feasible"), false);
  const json largest = run("max --graph " + file + " --memory 1MiB --json - 2> /dev/null").lines().at(0);
  const int64_t batch = largest.at("batch");
  EXPECT_GT(batch, 100);
  const auto fits = [&](int64_t n) {
    return run("plan --graph " + file + " --memory 1MiB --batch " + std::to_string(n)).code == 0;
  };
  EXPECT_TRUE(fits(batch));
  EXPECT_FALSE(fits(batch + batch / 8));
  EXPECT_EQ(run("max --graph " + write("chain.json", chain(4).dump()) + " --memory 1MiB").code, 2);
}

TEST_F(CliCostGraph, WithoutABatchHasNoneToLower) {
  const std::string file = write("chain.json", chain(8).dump());
  for (const char* command : {"plan --graph ", "compare --policies auto liveness --graph "}) {
    const std::vector<json> rows = run(command + file + " --memory 10KiB --json -").lines();
    ASSERT_FALSE(rows.empty());
    for (const json& row : rows) {
      EXPECT_EQ(row.at("feasible"), false);
      const std::string suggestion = row.at("suggestion");
      EXPECT_THAT(suggestion, HasSubstr("raise --memory"));
      EXPECT_THAT(suggestion, ::testing::Not(HasSubstr("--batch")));
    }
  }
}

TEST_F(CliCostGraph, LeavesTheArenaForTiers) {
  const std::string file = write("chain.json", chain(8).dump());
  const json plan =
      run("plan --graph " + file + " --memory 40% --device k40c --host-memory 1MiB --json -").lines().at(0);
  EXPECT_EQ(plan.at("feasible"), true);
  EXPECT_GT(plan.at("offload_bytes"), 0);
}

TEST_F(CliCostGraph, OfANetworkIsTheSameProblem) {
  const json network =
      run("plan resnet20 --batch 16 --device k40c --host-memory 1MiB --memory 70% --json - --save-graph " +
          path("resnet20.json"))
          .lines()
          .at(0);
  const std::string budget = std::to_string(network.at("budget_bytes").get<int64_t>()) + "B";
  const Outcome outcome =
      run("plan --graph " + path("resnet20.json") + " --device k40c --host-memory 1MiB --json - --memory " + budget);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NEAR(outcome.lines().at(0).at("step_time_ms").get<double>(), network.at("step_time_ms").get<double>(),
              0.01 * network.at("step_time_ms").get<double>());
}

TEST_F(CliCostGraph, ThatIsDamagedIsRefusedWithItsPlace) {
  for (const auto& [text, what] :
       {std::pair{"", "the text ends inside a value"}, std::pair{"{}", "this is no graph"},
        std::pair{R"({"nodes": []})", "there are no ops in it"},
        std::pair{R"({"nodes": [{"ms": -1, "out": [], "in": []}]})", "nodes[0].ms: milliseconds"}}) {
    const Outcome outcome = run("plan --graph " + write("bad.json", text));
    EXPECT_EQ(outcome.code, 2) << text;
    EXPECT_THAT(outcome.err, HasSubstr(what));
    EXPECT_THAT(outcome.err, HasSubstr("bad.json: "));
  }
  EXPECT_EQ(run("plan --graph " + path("nowhere.json")).code, 2);
}

}  // namespace
