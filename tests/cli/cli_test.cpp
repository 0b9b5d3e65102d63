// The program as a user meets it: what it tells, as text, JSON and HTML.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/cli/program.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using plimsoll::testing::Cli;
using plimsoll::testing::Outcome;
using ::testing::HasSubstr;

TEST_F(Cli, HelpTeaches) {
  const Outcome help = run("--help");
  EXPECT_EQ(help.code, 0);
  for (const char* word : {"train", "plan", "verify", "profile", "models", "policies", "devices", "Exit codes"}) {
    EXPECT_THAT(help.out, HasSubstr(word));
  }
  for (const char* code : {"0  done", "2  bad usage", "3  no plan", "4  the device", "5  interrupted"})
    EXPECT_THAT(help.out, HasSubstr(code));
  for (const char* command :
       {"train", "plan", "verify", "profile", "models", "policies", "devices", "place", "convolutions"}) {
    const Outcome outcome = run(std::string(command) + " --help");
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(
        outcome.out.substr(outcome.out.rfind("\nExample") + 1),
        ::testing::AllOf(::testing::StartsWith("Example"), HasSubstr(std::string("plimsoll ") + command + " ")));
  }
}

TEST_F(Cli, HelpForACommandThatThereIsNotIsNoHelp) {
  for (const char* arguments : {"trian --help", "trian lenet --batch 3"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("unknown command 'trian'; did you mean 'train'?"));
  }
}

TEST_F(Cli, PlansWithCostsThatItMeasures) {
  const Outcome estimated = run("plan mlp --data digits --batch 16 --threads 1 --json -");
  EXPECT_GT(estimated.lines().at(0).at("estimated_share").get<double>(), 0.5);
  const Outcome measured = run("plan mlp --data digits --batch 16 --threads 1 --costs measured --json -");
  EXPECT_EQ(measured.code, 0) << measured.err;
  EXPECT_LT(measured.lines().at(0).at("estimated_share").get<double>(), 0.5);
}

TEST_F(Cli, InfeasibleNamesTheLeastThatWouldDoTheStepAndTheTensors) {
  const Outcome outcome = run("plan lenet --batch 64 --memory 64KiB --json -");
  EXPECT_EQ(outcome.code, 3);
  const json object = outcome.lines().at(0);
  EXPECT_EQ(object.at("feasible"), false);
  EXPECT_EQ(object.at("peak_op"), "pool1");
  const json& tensors = object.at("peak_tensors");
  EXPECT_EQ(tensors.at(0).at("tensor"), "relu1/y");
  EXPECT_EQ(tensors.at(0).at("bytes"), 64 * 6 * 28 * 28 * 4);
  EXPECT_EQ(tensors.at(1).at("tensor"), "pool1/y");
  EXPECT_EQ(tensors.at(1).at("bytes"), 64 * 6 * 14 * 14 * 4);
  const int64_t least = object.at("minimum_bytes");
  EXPECT_THAT(outcome.err, HasSubstr("--memory"));
  EXPECT_EQ(run("plan lenet --batch 64 --memory " + std::to_string(least)).code, 0);
  EXPECT_EQ(run("plan lenet --batch 64 --memory " + std::to_string(least * 3 / 4)).code, 3);
}

TEST_F(Cli, TrainJsonEndsWithDone) {
  const Outcome outcome =
      run("train lenet --data digits --batch 16 --steps 5 --memory 64MiB --threads 1 --costs estimated --json -");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const auto lines = outcome.lines();
  EXPECT_EQ(lines.front().at("event"), "plan");
  EXPECT_EQ(lines.back().at("event"), "done");
  const json done = lines.back();
  EXPECT_EQ(done.at("interrupted"), false);
  EXPECT_EQ(done.at("steps"), 5);
  EXPECT_EQ(done.at("step"), 5);
  EXPECT_EQ(done.at("budget_bytes"), 64 << 20);
  EXPECT_EQ(done.at("peak_bytes"), lines.front().at("peak_bytes")) << "as planned";
  EXPECT_GT(done.at("process_peak_bytes"), done.at("peak_bytes"));
  EXPECT_EQ(done.at("predicted_step_time_ms"), lines.front().at("step_time_ms"));
  const double step_ms = done.at("step_time_ms"), images_per_second = done.at("images_per_second"),
               seconds = done.at("training_seconds");
  EXPECT_GT(step_ms, 0);
  EXPECT_LT(step_ms, 1000 * seconds);
  EXPECT_GE(images_per_second, 5 * 16 / seconds) << "evaluation and saving are not counted";
  EXPECT_NEAR(done.at("wall_time_ms").get<double>() * images_per_second, 16 * 1000, 1e-3);
  EXPECT_GE(done.at("data_wait_percent"), 0);
  for (const json& line : lines) {
    if (line.at("event") != "step") continue;
    EXPECT_GT(line.at("step_time_ms"), 0);
    EXPECT_GT(line.at("wall_time_ms"), line.at("step_time_ms")) << "data included";
  }
  EXPECT_LT(done.at("data_wait_percent"), 100);
  EXPECT_NEAR(done.at("loss"), std::log(10), 0.5) << "as of a guess, so early";
  EXPECT_GE(done.at("accuracy"), 0);
  EXPECT_LE(done.at("accuracy"), 1);
  EXPECT_THAT(done.at("weights_sha256").get<std::string>(), ::testing::MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(done.at("weights_sha256").get<std::string>().size(), 64U);
}

TEST_F(Cli, SaysWhenMeasuredTimesCannotBeKept) {
  std::ofstream(path("file")) << "x";
  ::setenv("PLIMSOLL_CACHE", path("file/cache").c_str(), 1);
  const Outcome outcome = run("train mlp --data digits --batch 16 --steps 2 --evaluate-every 0");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, ::testing::AllOf(HasSubstr("plimsoll: measured "), HasSubstr(", for this run only: "),
                                            ::testing::Not(HasSubstr("kept in"))));
}

TEST_F(Cli, TheDefaultLearnsTheDigitsBelowWhatBaselineNeeds) {
  const Outcome outcome = run("train --json -");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const auto lines = outcome.lines();
  EXPECT_LT(lines.front().at("budget_bytes").get<int64_t>(), lines.front().at("baseline_bytes").get<int64_t>());
  EXPECT_GE(lines.back().at("accuracy").get<double>(), 0.97);
  EXPECT_LE(lines.back().at("peak_bytes").get<int64_t>(), lines.back().at("budget_bytes").get<int64_t>());
}

TEST_F(Cli, ReportsInHtmlThatNeedsNothingElse) {
  ASSERT_EQ(run("plan lenet --batch 8 --memory 64MiB --report " + path("plan.html")).code, 0);
  EXPECT_THAT(slurp(path("plan.html")), ::testing::AllOf(HasSubstr("lenet, batch 8"), HasSubstr("would do"),
                                                         HasSubstr("</html>"), ::testing::Not(HasSubstr("http"))));
  ASSERT_EQ(run("train lenet --data digits --batch 16 --steps 3 --memory 64MiB --costs estimated --report " +
                path("train.html"))
                .code,
            0);
  EXPECT_THAT(slurp(path("train.html")),
              ::testing::AllOf(HasSubstr("data digits"), HasSubstr("measured step time"), HasSubstr("accuracy")));
  const Outcome nowhere = run("plan lenet --batch 8 --report " + path("absent/plan.html"));
  EXPECT_NE(nowhere.code, 0);
  EXPECT_THAT(nowhere.err, HasSubstr("absent"));
}

TEST_F(Cli, ExplainsATensorAnOpAndALayer) {
  const Outcome tensor = run("plan lenet --batch 8 --explain conv1.weight");
  EXPECT_EQ(tensor.code, 0) << tensor.err;
  EXPECT_THAT(tensor.out, ::testing::AllOf(HasSubstr("tensor conv1.weight"), HasSubstr("read by")));
  EXPECT_THAT(run("plan lenet --batch 8 --explain conv1").out,
              ::testing::AllOf(HasSubstr("layer conv1"), HasSubstr("the device offers")));
  const Outcome wrong = run("plan lenet --batch 8 --explain conv1.wieght");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("did you mean 'conv1.weight'?"));
}

TEST_F(Cli, ListsWhatThereIs) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"models --json -", {"lenet", "alexnet", "vgg16", "resnet50", "densenet121", "inception4"}},
      {"policies --json -", {"baseline", "liveness", "vdnn", "superneurons", "dymem", "auto"}},
      {"devices --json -", {"cpu", "k40c", "p100"}},
  };
  for (const auto& [command, some] : cases) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.code, 0);
    std::vector<std::string> names;
    for (const json& line : outcome.lines()) {
      names.push_back(line.at("name"));
      EXPECT_FALSE(line.at("description").get<std::string>().empty()) << names.back();
    }
    EXPECT_THAT(names, ::testing::IsSupersetOf(some)) << command;
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size()) << command << ": a name twice";
  }
}

TEST_F(Cli, PlaceGivesOffsetsAndTellsImpossibleFromNotFound) {
  const std::string problem = path("problem.csv"), placed = path("placed.csv");
  std::ofstream(problem) << "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n";
  Outcome outcome = run("place " + problem + " --capacity 12 --json - --output " + placed);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  ASSERT_EQ(outcome.lines().size(), 1U);
  json line = outcome.lines()[0];
  EXPECT_EQ(line["status"], "optimal");
  EXPECT_EQ(line["height"], 12);
  EXPECT_EQ(line["lower_bound"], 12);
  EXPECT_GE(line["seconds"], 0.0);
  EXPECT_THAT(slurp(placed), ::testing::StartsWith("id,lower,upper,size,offset\nb1,0,3,4,"));

  outcome = run("place " + problem + " --capacity 11 --json - --output " + path("none.csv"));
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.lines()[0]["status"], "proven impossible");
  EXPECT_FALSE(fs::exists(path("none.csv")));

  const std::string hard = PLIMSOLL_SOURCE_DIR "/data/placement/E.1048576.csv";
  outcome = run("place " + hard + " --method first_fit --capacity 1MiB --json -");
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.lines()[0]["status"], "not found");
  outcome = run("place " + hard + " --method best_fit");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("feasible"));

  std::ofstream(problem) << "id,lower,upper,size\nb1,3,3,4\n";
  outcome = run("place " + problem);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("problem.csv, line 2: upper 3"));
  for (const char* wrong : {"--capacity 0", "--capacity 12q", "--capacity 11.5", "--timeout -1", "--timeout nan",
                            "--method worst_fit", "--output /nowhere/x.csv"}) {
    outcome = run("place " + hard + " " + wrong);
    EXPECT_EQ(outcome.code, 2) << wrong << ": " << outcome.err;
  }
}

}  // namespace
