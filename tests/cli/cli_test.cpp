// The program as a user meets it: exit codes, messages, JSON, interruption, kill -9.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "tests/cli/program.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using plimsoll::testing::Cli;
using plimsoll::testing::Outcome;
using testing::HasSubstr;

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
    EXPECT_THAT(outcome.out.substr(outcome.out.rfind("\nExample") + 1),
                testing::AllOf(testing::StartsWith("Example"), HasSubstr(std::string("plimsoll ") + command + " ")));
  }
}

TEST_F(Cli, HelpForACommandThatThereIsNotIsNoHelp) {
  for (const char* arguments : {"trian --help", "trian lenet --batch 3"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("unknown command 'trian'; did you mean 'train'?"));
  }
}

TEST_F(Cli, RefusesNumbersThatAreNone) {
  for (const char* flag : {"--lr", "--momentum", "--weight-decay", "--min-lr", "--warmup-lr", "--decay-rate"}) {
    for (const char* value : {"nan", "inf", "-1", "1e400", "''", "1x", "-nan"}) {
      const Outcome outcome = run(std::string("train lenet ") + flag + " " + value);
      EXPECT_EQ(outcome.code, 2) << flag << " " << value;
      EXPECT_THAT(outcome.err, testing::StartsWith(std::string("plimsoll: ") + flag + ": a number ")) << value;
      EXPECT_LT(outcome.err.size(), 120u);
    }
  }
  for (const char* flag : {"--seed", "--batch", "--threads", "--epochs", "--steps", "--workers", "--evaluate-every"}) {
    for (const char* value : {"-1", "18446744073709551616", "1.5", "''", "nan"}) {
      const Outcome outcome = run(std::string("train lenet ") + flag + " " + value);
      EXPECT_EQ(outcome.code, 2) << flag << " " << value;
      EXPECT_THAT(outcome.err, testing::StartsWith(std::string("plimsoll: ") + flag + ": a whole number from "))
          << value;
      EXPECT_LT(outcome.err.size(), 140u);
    }
  }
}

TEST_F(Cli, RefusesEmptyNames) {
  for (const char* flag : {"--resume", "--checkpoint", "--json", "--trace", "--report", "--plan", "--data"}) {
    const Outcome outcome = run(std::string("train lenet --steps 1 ") + flag + " ''");
    EXPECT_EQ(outcome.code, 2) << flag;
    EXPECT_THAT(outcome.err, HasSubstr(std::string(flag) + ": it is empty"));
  }
  for (const char* flag : {"--save", "--json", "--trace", "--report", "--explain"}) {
    const Outcome outcome = run(std::string("plan lenet ") + flag + " ''");
    EXPECT_EQ(outcome.code, 2) << flag;
    EXPECT_THAT(outcome.err, HasSubstr(std::string(flag) + ": it is empty"));
  }
}

TEST_F(Cli, OutputThatCannotBeWrittenIsAFailure) {
  for (const char* arguments :
       {"models", "--help", "--version", "plan lenet --batch 4", "plan lenet --batch 4 --json -"}) {
    const int status = std::system(
        (std::string(PLIMSOLL_BINARY_DIR "/plimsoll ") + arguments + " > /dev/full 2> " + path("err")).c_str());
    EXPECT_EQ(WEXITSTATUS(status), 4) << arguments;
    EXPECT_THAT(slurp(path("err")), HasSubstr("No space left on device")) << arguments;
  }
}

TEST_F(Cli, MessagesThatCannotBeWrittenDoNotChangeTheExitCode) {
  const std::pair<const char*, int> cases[] = {
      {"trian", 2}, {"plan lenet --memory 1KiB", 3}, {"verify nowhere.json", 2}, {"profile mlp --batch 2", 0}};
  for (const auto& [arguments, code] : cases) {
    for (const char* closed : {"2> /dev/full", "2>&-"}) {
      const int status =
          std::system((std::string(PLIMSOLL_BINARY_DIR "/plimsoll ") + arguments + " > /dev/null " + closed).c_str());
      EXPECT_TRUE(WIFEXITED(status)) << arguments << closed;
      EXPECT_EQ(WEXITSTATUS(status), code) << arguments << closed;
    }
  }
}

TEST_F(Cli, MessagesDoNotEndUpInFilesWhenStandardErrorIsClosed) {
  const std::string arguments =
      "train mlp --data digits --batch 16 --steps 40 --evaluate-every 0 --costs estimated --json " + path("json") +
      " --checkpoint " + path("c.safetensors");
  const int status = std::system(
      (std::string("exec " PLIMSOLL_BINARY_DIR "/plimsoll ") + arguments + " > /dev/null <&- 2>&-").c_str());
  EXPECT_EQ(WEXITSTATUS(status), 0);
  std::istringstream lines(slurp(path("json")));
  for (std::string line; std::getline(lines, line);) EXPECT_TRUE(json::accept(line)) << line;
  EXPECT_EQ(run("train --steps 41 --evaluate-every 0 --resume " + path("c.safetensors")).code, 0);
}

TEST_F(Cli, NamesTheNearestOfUnknownNames) {
  const std::pair<const char*, const char*> cases[] = {
      {"trian", "did you mean 'train'?"},
      {"train --memroy 1GiB", "did you mean '--memory'?"},
      {"plan resnet51 --batch 2", "did you mean 'resnet50'?"},
      {"plan lenet --policy livenes", "did you mean 'liveness'?"},
      {"plan lenet --placement offlin", "did you mean 'offline'?"},
      {"plan lenet --device cpuu", "did you mean 'cpu'?"},
      {"train lenet --data digit", "did you mean 'digits'?"},
      {"train lenet --optimizer sgdd", "did you mean 'sgd'?"},
      {"train lenet --sched cosin", "did you mean 'cosine'?"},
  };
  for (const auto& [arguments, expected] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr(expected)) << arguments;
  }
}

TEST_F(Cli, MessagesSayWhatHappenedAndWhatToDo) {
  const std::string long_text(5000, 'x');
  const std::pair<std::string, const char*> cases[] = {
      {"train mlp:hidden=-1", "option 'hidden': '-1' is no list of whole numbers from 1 on, with a '-' between two"},
      {"plan mlp --batch 4 --batch 5", "--batch was given 2 times; give it once"},
      {"plan mlp --batch", "--batch needs a value after it; `plimsoll plan --help` has examples"},
      {"plan", "MODEL is missing; `plimsoll plan --help` has examples"},
      {"plan vgg", "unknown model 'vgg'; did you mean vgg11"},
      {"plan mlp --seed 3", "unknown argument '--seed'; it is a flag of train"},
      {"--seed 3", "unknown argument '--seed'; it is a flag of train: plimsoll train --seed ..."},
      {"plan " + long_text, "unknown model 'xxx"},
      {"plan mlp --" + long_text, "unknown argument '--xxx"},
      {"plan mlp --memory " + long_text, "--memory: 'xxx"},
      {"train mlp --data " + long_text, "unknown data 'xxx"},
      {"train --resume " + long_text, "xxx"},
      {"plan mlp --policy " + long_text, "unknown policy 'xxx"},
      {"plan mlp --costs measured --device k40c", "--costs measured: device 'k40c' is simulated"},
      {"plan mlp --costs measured --lowering paper", "--costs measured: the papers' layer model"},
  };
  for (const auto& [arguments, expected] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr(expected)) << arguments;
    EXPECT_LT(outcome.err.size(), 800U) << outcome.err;
  }
}

TEST_F(Cli, PlansWithCostsThatItMeasures) {
  const Outcome estimated = run("plan mlp --data digits --batch 16 --threads 1 --json -");
  EXPECT_GT(estimated.lines().at(0).at("estimated_share").get<double>(), 0.5);
  const Outcome measured = run("plan mlp --data digits --batch 16 --threads 1 --costs measured --json -");
  EXPECT_EQ(measured.code, 0) << measured.err;
  EXPECT_LT(measured.lines().at(0).at("estimated_share").get<double>(), 0.5);
}

TEST_F(Cli, RefusesImpossibleSizes) {
  for (const char* size : {"12GiBB", "-1", "0", "", "GiB", "1e400", "nan", "99999999999999999999GiB"}) {
    const Outcome outcome = run(std::string("plan lenet --batch 4 --memory '") + size + "'");
    EXPECT_EQ(outcome.code, 2) << size;
    EXPECT_THAT(outcome.err, HasSubstr("--memory")) << size;
  }
  EXPECT_EQ(run("plan lenet --batch 0").code, 2);
  EXPECT_EQ(run("plan lenet --batch -3").code, 2);
  EXPECT_EQ(run("plan lenet --batch many").code, 2);
}

TEST_F(Cli, RefusesHugeImagesAndBatchesWithTheirShapes) {
  for (const char* network : {"mlp", "lenet", "resnet20", "vgg11"}) {
    for (const char* command : {"plan ", "train --data synthetic:64 "}) {
      const Outcome outcome = run(std::string(command) + network + " --image-size 65536");
      EXPECT_EQ(outcome.code, 2) << command << network << outcome.err;
      EXPECT_THAT(outcome.err, testing::AllOf(testing::ContainsRegex("op '.*x(65536x65536|4294967296)[: ]"),
                                              HasSubstr("--image-size")));
    }
  }
  EXPECT_EQ(run("plan resnet18 --batch 1048576").code, 2);
  EXPECT_EQ(run("plan mlp --batch 1048576 --num-classes 16777216").code, 2);
}

TEST_F(Cli, InfeasibleNamesTheLeastThatWouldDoTheStepAndTheTensors) {
  const Outcome outcome = run("plan lenet --batch 64 --memory 64KiB --json -");
  EXPECT_EQ(outcome.code, 3);
  const json object = outcome.lines().at(0);
  EXPECT_EQ(object.at("feasible"), false);
  EXPECT_EQ(object.at("peak_op"), "conv1+relu1/forward");  // again, since its output was let go
  const json& tensors = object.at("peak_tensors");
  EXPECT_EQ(tensors.at(0).at("tensor"), "pool1/backward:0");
  EXPECT_EQ(tensors.at(1).at("tensor"), "relu1/y");
  for (int i : {0, 1}) EXPECT_EQ(tensors.at(i).at("bytes"), 64 * 6 * 28 * 28 * 4);
  const int64_t least = object.at("minimum_bytes");
  EXPECT_THAT(outcome.err, HasSubstr("--memory"));
  EXPECT_EQ(run("plan lenet --batch 64 --memory " + std::to_string(least)).code, 0);
  EXPECT_EQ(run("plan lenet --batch 64 --memory " + std::to_string(least - 1)).code, 3);
}

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
      EXPECT_THAT(outcome.out + outcome.err,
                  testing::AllOf(HasSubstr("changed.json"), HasSubstr(verified), testing::Not(HasSubstr("exception"))));
    }
    const Outcome outcome = run("train --steps 1 --costs estimated --plan " + path("changed.json"));
    EXPECT_EQ(outcome.code, 2) << place;
    EXPECT_THAT(outcome.err, testing::AllOf(HasSubstr("changed.json"), HasSubstr(trained)));
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
  EXPECT_NEAR(done.at("loss"), std::log(10), 0.5) << "as of a guess, so early";
  EXPECT_GE(done.at("accuracy"), 0);
  EXPECT_LE(done.at("accuracy"), 1);
  EXPECT_THAT(done.at("weights_sha256").get<std::string>(), testing::MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(done.at("weights_sha256").get<std::string>().size(), 64U);
}

TEST_F(Cli, GoesOnExactlyAfterCtrlCAndAfterKill) {
  const std::string flags =
      "train lenet --data digits --batch 16 --steps 3000 --memory 64MiB --exact --costs estimated --threads 1 --evaluate-every 0 --json " +
      path("json") + " ";
  ASSERT_EQ(run(flags).code, 0);
  auto sha_of = [&] {
    std::ifstream in(path("json"));
    std::string line, last;
    while (std::getline(in, line)) last = line;
    return json::parse(last).value("weights_sha256", "");
  };
  const std::string whole = sha_of();
  const std::string with_checkpoint = flags + "--checkpoint-every 50 --checkpoint " + path("c.safetensors");

  for (const int signal : {SIGINT, SIGKILL}) {
    fs::remove(path("c.safetensors"));
    const pid_t child = start(with_checkpoint);
    while (!fs::exists(path("c.safetensors"))) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    ::kill(child, signal);
    const Outcome stopped = wait(child);
    EXPECT_TRUE(stopped.code == (signal == SIGINT ? 5 : -SIGKILL) || stopped.code == 0) << stopped.code << stopped.err;
    const Outcome resumed = run(with_checkpoint + " --resume " + path("c.safetensors"));
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(sha_of(), whole) << "after signal " << signal;
  }
}

// A training that would last for hours, with a step every few milliseconds.
constexpr const char* kLongTraining =
    "train mlp --data synthetic:8000000 --image-size 8 --batch 16 --threads 1 --costs estimated --evaluate-every 0 ";

TEST_F(Cli, AHangupSavesAndGoesOnWithACheckpointAndEndsWithoutOne) {
  const auto start_and_hang_up = [&](const std::string& flags) {
    fs::remove(path("json"));
    const pid_t child = start(kLongTraining + flags + " --json " + path("json"));
    while (slurp(path("json")).find("\"event\":\"step\"") == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ::kill(child, SIGHUP);
    return child;
  };
  const Outcome without = wait(start_and_hang_up(""));
  EXPECT_EQ(without.code, 5) << without.err;
  EXPECT_THAT(without.out, HasSubstr("interrupted"));

  const pid_t child = start_and_hang_up("--checkpoint " + path("c.safetensors"));
  while (!fs::exists(path("c.safetensors"))) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ASSERT_EQ(::kill(child, SIGTERM), 0);
  const Outcome with = wait(child);
  EXPECT_EQ(with.code, 5) << with.err;
  EXPECT_THAT(with.err, HasSubstr("SIGHUP: the terminal is gone; what was reached is saved, and training goes on"));
}

TEST_F(Cli, AClosedStandardOutputSavesAndIsAFailure) {
  for (const char* flags : {"--json -", "--epochs 100 --data digits"}) {
    fs::remove(path("c.safetensors"));
    const std::string training = std::string(PLIMSOLL_BINARY_DIR "/plimsoll ") +
                                 (flags[2] == 'j' ? kLongTraining : "train mlp --batch 16 --costs estimated ") + flags +
                                 " --checkpoint " + path("c.safetensors") + " 2> " + path("err");
    const std::string script = "bash -c '" + training + " | head -n 1 > /dev/null; exit ${PIPESTATUS[0]}'";
    EXPECT_EQ(WEXITSTATUS(std::system(script.c_str())), 4) << slurp(path("err"));
    EXPECT_THAT(slurp(path("err")), HasSubstr("standard output was closed"));
    EXPECT_EQ(run("train --steps 1 --evaluate-every 0 --resume " + path("c.safetensors")).code, 0);
  }
}

TEST_F(Cli, AFullDiskDuringASaveIsSaidAndTheNextSaveTriesAgain) {
  const fs::path checkpoint = path("c.safetensors");
  const auto limit_files_of = [](pid_t child, rlim_t bytes) {
    const struct rlimit limit { bytes, RLIM_INFINITY };
    return ::prlimit(child, RLIMIT_FSIZE, &limit, nullptr) == 0;
  };
  const auto wait_for = [](const auto& condition) {
    for (int i = 0; i < 2000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return condition();
  };
  const std::string flags = kLongTraining + std::string("--checkpoint-every 20 --checkpoint ") + checkpoint.string();
  pid_t child = start(flags);
  ASSERT_TRUE(wait_for([&] { return fs::exists(checkpoint); }));
  ASSERT_TRUE(limit_files_of(child, 4096));
  EXPECT_TRUE(wait_for([&] {
    return slurp(path("err"))
               .find(
                   "File too large; training goes on, and the next save tries again. The checkpoint "
                   "there is of step ") != std::string::npos;
  }));
  const auto failed_at = fs::last_write_time(checkpoint);
  ASSERT_TRUE(limit_files_of(child, RLIM_INFINITY));
  EXPECT_TRUE(wait_for([&] { return slurp(path("err")).find("saved again, at step ") != std::string::npos; }));
  EXPECT_NE(fs::last_write_time(checkpoint), failed_at);
  ASSERT_TRUE(limit_files_of(child, 4096));
  ::kill(child, SIGTERM);
  const Outcome outcome = wait(child);
  EXPECT_EQ(outcome.code, 4) << "the last save failed too";
  EXPECT_EQ(run("train --steps 1 --evaluate-every 0 --resume " + checkpoint.string()).code, 0) << "it is whole";
}

TEST_F(Cli, ASecondInterruptEndsAtOnce) {
  const pid_t child =
      start("train alexnet --data synthetic:1000 --batch 32 --threads 1 --costs estimated --evaluate-every 0 --json " +
            path("json"));
  while (slurp(path("json")).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto catches_interrupts = [&] {
    const std::string status = slurp("/proc/" + std::to_string(child) + "/status");
    const size_t at = status.find("SigCgt:");
    return at != std::string::npos && (std::stoull(status.substr(at + 7), nullptr, 16) >> (SIGINT - 1) & 1) != 0;
  };
  EXPECT_TRUE(catches_interrupts());
  ::kill(child, SIGINT);
  while (catches_interrupts()) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // else the two are one
  ::kill(child, SIGINT);
  EXPECT_EQ(wait(child).code, -SIGINT);
}

// Without --exact kernels are chosen by their costs and the budget. The checkpoint pins those that were, so neither new
// costs nor another budget change a bit of what follows.
TEST_F(Cli, GoesOnExactlyAfterKillWithKernelsThatWereChosenByCost) {
  const std::string flags =
      "train lenet --data digits --batch 16 --steps 2000 --threads 1 --evaluate-every 0 --costs estimated --memory 64MiB ";
  const auto kernels_in = [&](const char* checkpoint) {
    const std::string bytes = slurp(path(checkpoint));
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    const json header = json::parse(bytes.substr(8, length));
    return json::parse(header.at("__metadata__").at("plimsoll").get<std::string>()).at("kernels");
  };
  const auto sha_of = [](const Outcome& outcome) { return outcome.lines().back().value("weights_sha256", ""); };
  // Both runs that are compared choose by the same speeds, on a busy machine as well, where speeds are not kept unasked.
  ASSERT_EQ(run("profile mlp --data digits --batch 16 --threads 1 --again").code, 0);
  const Outcome whole = run(flags + "--json - --checkpoint " + path("whole.safetensors"));
  ASSERT_EQ(whole.code, 0) << whole.err;

  const pid_t child = start(flags + "--checkpoint-every 50 --checkpoint " + path("c.safetensors"));
  while (!fs::exists(path("c.safetensors"))) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ::kill(child, SIGKILL);
  wait(child);
  fs::remove_all(folder_ / "cache");
  const Outcome resumed =
      run("train --costs measured --evaluate-every 0 --memory 3MiB --json - --resume " + path("c.safetensors"));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  ASSERT_EQ(kernels_in("c.safetensors"), kernels_in("whole.safetensors"));
  EXPECT_EQ(sha_of(resumed), sha_of(whole));
}

TEST_F(Cli, ResumingWhatIsDoneSaysSo) {
  ASSERT_EQ(
      run("train mlp --data digits --batch 16 --steps 5 --costs estimated --checkpoint " + path("c.safetensors")).code,
      0);
  for (const char* more : {"", " --steps 3"}) {
    const Outcome outcome = run("train --evaluate-every 0 --resume " + path("c.safetensors") + more);
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.out, testing::AllOf(HasSubstr("c.safetensors has done 5 steps already; raise --steps"),
                                            testing::Not(HasSubstr("peak 0 B"))));
  }
}

TEST_F(Cli, RefusesACheckpointOfAnImpossibleTraining) {
  ASSERT_EQ(
      run("train mlp --data digits --batch 16 --steps 2 --costs estimated --checkpoint " + path("c.safetensors")).code,
      0);
  const std::string whole = slurp(path("c.safetensors"));
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"\\\"learning_rate\\\":0.05", "\\\"learning_rate\\\":-0.5", "field 'learning_rate': expected a number from 0"},
      {"\\\"epoch\\\":0", "\\\"epoch\\\":4611686018427387904", "field 'epoch': expected a whole number up to"},
      {"\\\"step\\\":2", "\\\"step\\\":4611686018427387904", "field 'step': expected a whole number up to"},
      {"\\\"step\\\":2", "\\\"step\\\":3", "there is no such place"},
      {"\\\"batch\\\":16", "\\\"batch\\\":0", "batch must be between 1"},
      {"\\\"min_lr\\\":\\\"0\\\"", "\\\"min_lr\\\":\\\"nan\\\"", "setting 'min_lr'"},
  };
  for (const auto& [from, to, expected] : cases) {
    std::string bytes = whole;
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    std::string header = bytes.substr(8, length);
    const auto replace = [&](const std::string& old, size_t count, const std::string& with) {
      const size_t begin = header.find(old);
      ASSERT_NE(begin, std::string::npos) << old;
      header.replace(begin, count, with);
    };
    // Of the first version, whose header has no hash that would tell of the change first.
    replace("\"plimsoll.header_sha256\"", std::string("\"plimsoll.header_sha256\":\"\",").size() + 64, "");
    replace("\\\"format_version\\\":2", std::string("\\\"format_version\\\":2").size(), "\\\"format_version\\\":1");
    const size_t at = header.find(from);
    ASSERT_NE(at, std::string::npos) << from << header.substr(0, 2000);
    header.replace(at, std::string(from).size(), to);
    length = header.size();
    // The tensors follow the old header.
    uint64_t old_length = 0;
    std::memcpy(&old_length, whole.data(), sizeof old_length);
    bytes = std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + whole.substr(8 + old_length);
    std::ofstream(path("x.safetensors")) << bytes;
    const Outcome outcome = run("train --steps 4 --costs estimated --resume " + path("x.safetensors"));
    EXPECT_EQ(outcome.code, 2) << to;
    EXPECT_THAT(outcome.err, HasSubstr(expected)) << to;
  }
}

TEST_F(Cli, SaysWhenMeasuredTimesCannotBeKept) {
  std::ofstream(path("file")) << "x";
  ::setenv("PLIMSOLL_CACHE", path("file/cache").c_str(), 1);
  const Outcome outcome = run("train mlp --data digits --batch 16 --steps 2 --evaluate-every 0");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err,
              testing::AllOf(HasSubstr("kernels, for this run only: "), testing::Not(HasSubstr("kept in"))));
}

TEST_F(Cli, TheDefaultLearnsTheDigitsBelowWhatBaselineNeeds) {
  const Outcome outcome = run("train --json -");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const auto lines = outcome.lines();
  EXPECT_LT(lines.front().at("budget_bytes").get<int64_t>(), lines.front().at("baseline_bytes").get<int64_t>());
  EXPECT_GE(lines.back().at("accuracy").get<double>(), 0.97);
  EXPECT_LE(lines.back().at("peak_bytes").get<int64_t>(), lines.back().at("budget_bytes").get<int64_t>());
}

TEST_F(Cli, ResumesWithTheSeedOfTheCheckpoint) {
  const std::string flags =
      "train mlp --data synthetic:640 --image-size 8 --batch 16 --threads 1 --exact --costs estimated --evaluate-every 0 --seed 7 --json " +
      path("json") + " ";
  auto sha_of = [&] {
    std::ifstream in(path("json"));
    std::string line, last;
    while (std::getline(in, line)) last = line;
    return json::parse(last).value("weights_sha256", "");
  };
  ASSERT_EQ(run(flags + "--steps 30").code, 0);
  const std::string whole = sha_of();
  ASSERT_EQ(run(flags + "--steps 10 --checkpoint " + path("c.safetensors")).code, 0);
  const std::string more = "train --steps 30 --evaluate-every 0 --costs estimated --json " + path("json") +
                           " --resume " + path("c.safetensors");
  ASSERT_EQ(run(more).code, 0);
  EXPECT_EQ(sha_of(), whole);
  EXPECT_EQ(run(more + " --seed 8").code, 2);
}

TEST_F(Cli, FindsBadOutputPathsBeforeTheWork) {
  for (const char* flag : {"--checkpoint", "--trace"}) {
    const Outcome outcome = run(std::string("train lenet --data digits ") + flag + " " + path("nowhere/file"));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(flag));
  }
}

TEST_F(Cli, FindsCheckpointsThatCannotBeWrittenBeforeAnyMeasuring) {
  const std::pair<std::string, const char*> cases[] = {
      {"/dev/null", "--checkpoint: /dev/null: cannot write: it is a device"},
      {"/proc/x", "--checkpoint: /proc/.x.partial: cannot create: "},
      {folder_.string(), "it is a folder"},
      {path(std::string(250, 'n').c_str()), "the name is too long"},
      {path("absent/c.safetensors"), "there is no folder"},
  };
  for (const auto& [file, expected] : cases) {
    const Outcome outcome = run("train mlp --data digits --batch 16 --steps 2 --checkpoint " + file);
    EXPECT_EQ(outcome.code, 2) << file << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(expected));
    EXPECT_FALSE(fs::exists(path("cache"))) << "nothing was measured";
  }
  std::ofstream(path("old")) << "old";
  EXPECT_EQ(run("plan mlp --batch 16 --memory 1KiB --save " + path("old")).code, 3);
  EXPECT_EQ(slurp(path("old")), "old");
}

TEST_F(Cli, UsageErrorsComeBeforeAnyProbing) {
  const std::pair<std::string, const char*> cases[] = {
      {"plan mlp --host-memory 3",
       "--host-memory: '3' without a unit is 3 bytes, too little for any tensor; say 3GiB or"},
      {"plan mlp --memory 12", "--memory: '12' without a unit is 12 bytes"},
      {"train mlp --spill " + folder_.string() + ":3", "is no room at all; give a number and a unit"},
      {"plan mlp --lowering papr", "unknown --lowering 'papr'; did you mean 'paper'?"},
      {"plan mlp --memory 1GiBB", "--memory"},
      {"plan mlp --optimizer sdg", "did you mean 'sgd'?"},
      {"plan mlp --workspace x", "--workspace"},
      {"plan mlp --optimizer adam --momentum 0.5", "--momentum is of sgd; adam has none"},
      {"train mlp --optimizer adam --momentum 0.5", "--momentum is of sgd; adam has none"},
      {"train mlp --optimizer adam --nesterov", "--nesterov is a form of sgd's momentum, which adam does not have"},
      {"train mlp --nesterov --momentum 0", "--nesterov needs a --momentum above 0"},
      {"profile mlp --batch-sizes som", "--batch-sizes"},
      {"profile mlp --import " + path("absent"), "absent: cannot open for reading"},
      {"compare mlp --run --device k40c", "--run: device 'k40c' is simulated"},
      {"compare mlp --run --lowering paper", "--run: the papers' layer model is planned"},
      {"compare mlp --host-memory x", "--host-memory"},
      {"heaps mlp --device k40c", "device 'k40c' is simulated"},
      {"heaps mlp --memory x", "--memory"},
      {"max mlp --what depth", "--what depth: write N in the network's name"},
      {"max mlpp", "did you mean 'mlp'?"},
      {"convolutions " + path("absent"), "absent"},
      {"train mlp --data digits --batch 5000", "too few for a batch of 5000: lower --batch"},
      {"train mlp --data digits --batch 64 --epochs 3 --warmup-epochs 4",
       "--warmup-epochs 4: an epoch has 22 steps and the training 66 in all"},
      {"train mlp --data digits --batch 64 --steps 21 --warmup-epochs 1", "lower it, or raise --steps"},
  };
  for (const auto& [arguments, expected] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(expected)) << arguments;
    EXPECT_FALSE(fs::exists(path("cache"))) << arguments << ": something was measured";
    fs::remove_all(path("cache"));
  }
}

TEST_F(Cli, ThreadsThatCannotBeStartedAreAClearFailure) {
  for (const char* arguments : {"train mlp --steps 1 --threads 4096", "plan mlp --threads 4096",
                                "profile mlp --threads-list 1,4096", "train mlp --threads 4096 --inter-op 2"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 4) << arguments;
    EXPECT_THAT(outcome.err, testing::AllOf(HasSubstr("threads were asked for, but the process may use"),
                                            HasSubstr("lower --threads")));
  }
  std::string limited = "prlimit --nproc=4 " PLIMSOLL_BINARY_DIR "/plimsoll ";
  if (::geteuid() == 0) {  // whom no limit on processes holds
    if (std::system("setpriv --reuid 65534 --regid 65534 --clear-groups " PLIMSOLL_BINARY_DIR
                    "/plimsoll --version > /dev/null 2>&1") != 0)
      GTEST_SKIP() << "there is no setpriv, or nobody may not run the program";
    limited = "setpriv --reuid 65534 --regid 65534 --clear-groups " + limited;
  }
  const int status =
      std::system((limited + "train mlp --steps 1 --threads 40 > " + path("out") + " 2> " + path("err")).c_str());
  EXPECT_EQ(WEXITSTATUS(status), 4);
  EXPECT_THAT(slurp(path("err")),
              testing::AllOf(testing::StartsWith("plimsoll: 40 threads are needed, but the system lets this process "
                                                 "start only "),
                             HasSubstr("ulimit -u")));
}

TEST_F(Cli, RefusesACheckpointWithFlippedBits) {
  ASSERT_EQ(run("train mlp --data digits --batch 16 --steps 2 --memory 64MiB --costs estimated --checkpoint " +
                path("c.safetensors"))
                .code,
            0);
  std::string bytes = slurp(path("c.safetensors"));
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  std::ofstream(path("f.safetensors")) << bytes;
  const Outcome outcome =
      run("train mlp --data digits --batch 16 --steps 4 --costs estimated --resume " + path("f.safetensors"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("f.safetensors"));
}

TEST_F(Cli, SaysWhichFileIsDamagedAndHow) {
  ASSERT_EQ(run("train mlp --data digits --batch 16 --steps 2 --memory 64MiB --costs estimated --checkpoint " +
                path("c.safetensors"))
                .code,
            0);
  const std::string whole = slurp(path("c.safetensors"));
  std::ofstream(path("t.safetensors")) << whole.substr(0, whole.size() - 100);
  const Outcome outcome =
      run("train mlp --data digits --batch 16 --steps 4 --costs estimated --resume " + path("t.safetensors"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("t.safetensors"));
  const Outcome absent = run("train mlp --data mnist:" + path("nowhere"));
  EXPECT_EQ(absent.code, 2);
  EXPECT_THAT(absent.err, HasSubstr("nowhere"));
}

TEST_F(Cli, ReportsInHtmlThatNeedsNothingElse) {
  ASSERT_EQ(run("plan lenet --batch 8 --memory 64MiB --report " + path("plan.html")).code, 0);
  EXPECT_THAT(slurp(path("plan.html")), testing::AllOf(HasSubstr("lenet, batch 8"), HasSubstr("would do"),
                                                       HasSubstr("</html>"), testing::Not(HasSubstr("http"))));
  ASSERT_EQ(run("train lenet --data digits --batch 16 --steps 3 --memory 64MiB --costs estimated --report " +
                path("train.html"))
                .code,
            0);
  EXPECT_THAT(slurp(path("train.html")),
              testing::AllOf(HasSubstr("data digits"), HasSubstr("measured step time"), HasSubstr("accuracy")));
  const Outcome nowhere = run("plan lenet --batch 8 --report " + path("absent/plan.html"));
  EXPECT_NE(nowhere.code, 0);
  EXPECT_THAT(nowhere.err, HasSubstr("absent"));
}

TEST_F(Cli, ExplainsATensorAnOpAndALayer) {
  const Outcome tensor = run("plan lenet --batch 8 --explain conv1.weight");
  EXPECT_EQ(tensor.code, 0) << tensor.err;
  EXPECT_THAT(tensor.out, testing::AllOf(HasSubstr("tensor conv1.weight"), HasSubstr("read by")));
  EXPECT_THAT(run("plan lenet --batch 8 --explain conv1").out,
              testing::AllOf(HasSubstr("layer conv1"), HasSubstr("the device offers")));
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
    EXPECT_THAT(names, testing::IsSupersetOf(some)) << command;
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size()) << command << ": a name twice";
  }
}

TEST_F(Cli, RefusesByNameWhatIsNoRegularFile) {
  const std::string pipe = path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_directories(path("images/cat"));
  fs::create_directories(path("images/dog"));
  std::ofstream(path("images/cat/1.jpg")) << "never read";
  ASSERT_EQ(::mkfifo(path("images/dog/1.jpg").c_str(), 0600), 0);
  for (const std::string& arguments :
       {"train --resume " + pipe, "train --plan " + pipe, "verify " + pipe, "profile --import " + pipe, "place " + pipe,
        "convolutions " + pipe, "train alexnet --data images:" + path("images")}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.err, testing::AnyOf(HasSubstr(pipe + ": cannot read: it is a pipe, not a regular file"),
                                            HasSubstr("dog/1.jpg: is no regular file but a pipe")))
        << arguments;
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
  EXPECT_THAT(slurp(placed), testing::StartsWith("id,lower,upper,size,offset\nb1,0,3,4,"));

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
  for (const char* wrong : {"--capacity 0", "--capacity 12q", "--timeout -1", "--timeout nan", "--method worst_fit",
                            "--output /nowhere/x.csv"}) {
    outcome = run("place " + hard + " " + wrong);
    EXPECT_EQ(outcome.code, 2) << wrong << ": " << outcome.err;
  }
}

}  // namespace
