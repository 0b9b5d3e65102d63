// Plans that are saved, verified, edited and run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/cli/program.h"

namespace {

using nlohmann::json;
using plimsoll::testing::Cli;
using plimsoll::testing::Outcome;
using ::testing::HasSubstr;

// The largest number of bytes that the stays of a saved plan cover in one step, counted in cells of 64 bytes.
int64_t most_covered(const json& plan) {
  size_t most = 0;
  for (size_t step = 0; step < plan.at("steps").size(); ++step) {
    std::set<int64_t> cells;
    for (const json& stay : plan.at("stays")) {
      if (stay.at("first") > step || stay.at("last") < step) continue;
      const int64_t begin = stay.at("offset"), end = begin + stay.at("bytes").get<int64_t>();
      for (int64_t at = begin; at < end; at += 64) cells.insert(at / 64);
    }
    most = std::max(most, cells.size());
  }
  return static_cast<int64_t>(most) * 64;
}

TEST_F(Cli, PlanJsonSaysOfThePlanWhatTheSavedPlanHolds) {
  const Outcome outcome = run("plan lenet --batch 8 --memory 64MiB --json - --save " + path("plan.json"));
  EXPECT_EQ(outcome.code, 0);
  ASSERT_EQ(outcome.lines().size(), 1u);
  const json object = outcome.lines()[0];
  const json plan = json::parse(slurp(path("plan.json"))).at("plan");
  int64_t end = 0, weights = 0;
  for (const json& stay : plan.at("stays")) {
    end = std::max(end, stay.at("offset").get<int64_t>() + stay.at("bytes").get<int64_t>());
    if (stay.value("tensor", "").ends_with(".weight")) weights += stay.at("bytes").get<int64_t>();
  }
  EXPECT_EQ(object.at("feasible"), true);
  EXPECT_EQ(object.at("verified"), true);
  EXPECT_EQ(object.at("policy"), "auto");
  EXPECT_EQ(object.at("budget_bytes"), 64 << 20);
  EXPECT_EQ(object.at("steps"), plan.at("steps").size());
  EXPECT_EQ(object.at("arena_bytes"), end);
  EXPECT_EQ(object.at("peak_bytes"), most_covered(plan));
  EXPECT_LE(object.at("lower_bound_bytes"), object.at("minimum_bytes"));
  EXPECT_LE(object.at("minimum_bytes"), object.at("arena_bytes"));
  EXPECT_GT(weights, 0);
  EXPECT_GT(object.at("lower_bound_bytes"), weights);
  EXPECT_GT(object.at("step_time_ms"), 0);
  EXPECT_GT(object.at("plan_time_ms"), 0);
  for (const char* field : {"offload_bytes", "prefetch_bytes", "recompute_steps"})
    EXPECT_EQ(object.at(field), 0) << field << ": all of it fits";
}

TEST_F(Cli, ASavedPlanVerifiesAndRuns) {
  ASSERT_EQ(run("plan lenet --batch 8 --num-classes 10 --memory 64MiB --save " + path("plan.json")).code, 0);
  EXPECT_EQ(run("verify " + path("plan.json")).code, 0);
  ASSERT_EQ(
      run("plan resnet20 --data digits --batch 64 --memory 32MiB --policy liveness --save " + path("digits.json")).code,
      0);
  const std::string with_plan =
      "train resnet20 --data digits --batch 64 --steps 2 --evaluate-every 0 --costs estimated --plan " +
      path("digits.json");
  const Outcome ran = run(with_plan);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(run(with_plan + " --memory 1MiB").code, 3);
  EXPECT_EQ(run("train --steps 2 --evaluate-every 0 --memory 40MiB --policy liveness --costs estimated --plan " +
                path("digits.json"))
                .code,
            0);
  const Outcome other =
      run("train resnet32 --data digits --batch 64 --steps 2 --costs estimated --plan " + path("digits.json"));
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("is a plan for resnet20"));
  json plan = json::parse(slurp(path("plan.json")));
  plan["plan"]["stays"].erase(plan["plan"]["stays"].size() / 2);
  std::ofstream(path("broken.json")) << plan;
  const Outcome broken = run("verify " + path("broken.json"));
  EXPECT_EQ(broken.code, 2);
  std::ofstream(path("truncated.json")) << slurp(path("plan.json")).substr(0, 5000);
  const Outcome truncated = run("verify " + path("truncated.json"));
  EXPECT_EQ(truncated.code, 2);
  EXPECT_THAT(truncated.err, HasSubstr("truncated.json"));
  EXPECT_EQ(run("verify " + path("absent.json")).code, 2);
}

TEST_F(Cli, FlagsMayNotSayOtherwiseThanThePlan) {
  ASSERT_EQ(run("plan mlp --data digits --batch 16 --policy liveness --save " + path("plan.json")).code, 0);
  const std::pair<const char*, const char*> cases[] = {
      {"--policy baseline", "by policy 'liveness', which --policy baseline cannot change"},
      {"--placement best_fit", "which --placement best_fit cannot change"},
      {"--exact", "made without --exact"},
      {"--momentum 0.5", "was made with --momentum 0.9, which --momentum 0.5 cannot change"},
      {"--optimizer adam", "was made with --optimizer sgd, which --optimizer adam cannot change"},
      {"--weight-decay 0.1", "was made with --weight-decay 0, which --weight-decay 0.1 cannot change"},
      {"--nesterov", "was made with --nesterov false, which --nesterov true cannot change"},
      {"--threads 7", ", which --threads 7 cannot change; make another plan, or leave the flag out"},
      {"--inter-op 2", "with how many threads, without --inter-op"},
      {"--device k40c", "was made with --device cpu, which --device k40c cannot change"},
      {"--batch 8", "with batch 16, not for mlp with batch 8"},
      {"--data synthetic", "made for another graph"},
      {"--resume c.safetensors", "--resume excludes --plan"},
  };
  for (const auto& [flag, expected] : cases) {
    const Outcome outcome = run("train --costs estimated --steps 1 --plan " + path("plan.json") + " " + flag);
    EXPECT_EQ(outcome.code, 2) << flag;
    EXPECT_THAT(outcome.err, HasSubstr(expected)) << flag;
  }
}

TEST_F(Cli, AChangedPlanIsRefusedBeforeItRuns) {
  ASSERT_EQ(run("plan lenet --data digits --batch 16 --memory 64MiB --save " + path("plan.json")).code, 0);
  const json plan = json::parse(slurp(path("plan.json")));
  const std::tuple<const char*, json, const char*, const char*> cases[] = {
      {"/plan/steps/0/kernel", "nonsense", "kernel 'nonsense'", "kernel 'nonsense'"},
      {"/plan/steps/0/threads", 2000000000, "bad_threads: step 0 is to run by 2000000000 threads",
       "2000000000 threads"},
      {"/plan/stays/3/offset", 1 << 30, "out_of_arena", "ends beyond the arena"},
      {"/plan/graph/fingerprint", "0123456789abcdef", "the plan was made for graph", "the plan was made for graph"},
      {"/request/batch", "x", "request.batch: an integer from 1 to 16777216 was expected, not \"x\"", "request.batch"},
      {"/request", 7, "request: an object was expected, not 7", "request: an object"},
      {"/layout", "blokked", "did you mean 'blocked'?", "did you mean 'blocked'?"},
      {"/plan/steps/0/op", 5, "plan: steps[0].op: a text was expected, not 5", "steps[0].op"},
  };
  for (const auto& [place, value, verified, trained] : cases) {
    json changed = plan;
    changed[json::json_pointer(place)] = value;
    std::ofstream(path("changed.json")) << changed;
    if (verified != nullptr) {
      const Outcome outcome = run("verify " + path("changed.json"));
      EXPECT_EQ(outcome.code, 2) << place;
      EXPECT_THAT(outcome.out + outcome.err, ::testing::AllOf(HasSubstr("changed.json"), HasSubstr(verified),
                                                              ::testing::Not(HasSubstr("exception"))));
    }
    const Outcome outcome = run("train --steps 1 --costs estimated --plan " + path("changed.json"));
    EXPECT_EQ(outcome.code, 2) << place;
    EXPECT_THAT(outcome.err, ::testing::AllOf(HasSubstr("changed.json"), HasSubstr(trained)));
  }
  json without = plan;
  without.erase("request");
  std::ofstream(path("changed.json")) << without;
  EXPECT_THAT(run("verify " + path("changed.json")).err, HasSubstr("\"request\" is missing"));
}

TEST_F(Cli, APlanBringsTheThreadsThatItWasMadeFor) {
  const std::string plan = "plan mlp --data digits --batch 16 --policy liveness --save " + path("plan.json");
  const std::string train = "train --costs estimated --steps 1 --evaluate-every 0 --plan " + path("plan.json");
  for (const char* flags : {" --threads 1", " --threads 3", " --threads 2 --inter-op 2", " --exact"}) {
    ASSERT_EQ(run(plan + flags).code, 0) << flags;
    EXPECT_EQ(run(train).code, 0) << flags;
  }
  ASSERT_EQ(run(plan + " --threads 1").code, 0);
  const Outcome other = run(train + " --threads 2");
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("plan.json was made with --threads 1, which --threads 2 cannot change"));
  EXPECT_EQ(run(train + " --threads 1").code, 0);

  // Without the flag, a plan is made for the processors that there are, and run with as many threads elsewhere.
  const std::string program = PLIMSOLL_BINARY_DIR "/plimsoll ";
  ASSERT_EQ(std::system(("taskset -c 0 " + program + plan + " > /dev/null").c_str()), 0);
  const Outcome elsewhere = run(train);
  EXPECT_EQ(elsewhere.code, 0) << elsewhere.err;
}

}  // namespace
