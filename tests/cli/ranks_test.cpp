// Trainings by several processes that mpirun starts on this machine: one output, one checkpoint, one exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "tests/cli/mpirun.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using plimsoll::testing::MpiCli;
using plimsoll::testing::Outcome;
using ::testing::HasSubstr;
using ::testing::Not;

class RanksCli : public MpiCli {
 protected:
  void SetUp() override {
    MpiCli::SetUp();
    need_mpirun();
  }

  static std::string of(int ranks, const std::string& arguments) {
    return "-n " + std::to_string(ranks) + " " + kProgram + " " + arguments;
  }
  pid_t start_ranks(int ranks, const std::string& arguments) { return start_mpirun(of(ranks, arguments)); }
  Outcome run_ranks(int ranks, const std::string& arguments) { return run_mpirun(of(ranks, arguments)); }

  void wait_for(const std::string& file, const std::string& text) {
    for (int i = 0; i < 6000 && slurp(path(file.c_str())).find(text) == std::string::npos; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  static json last_json(const std::string& lines) {
    std::istringstream in(lines);
    std::string last;
    for (std::string line; std::getline(in, line);) last = line;
    return json::parse(last);
  }
  static int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }
};

constexpr const char* kShort =
    "train lenet --data digits --memory 64MiB --exact --costs estimated --threads 1 --evaluate-every 0 ";
constexpr const char* kLong =
    "train mlp --data synthetic:8000000 --image-size 8 --batch 16 --threads 1 --costs estimated --evaluate-every 0 ";

TEST_F(RanksCli, OneOutputAndTheLossesOfOneProcess) {
  const Outcome alone = run(kShort + std::string("--batch 32 --steps 50 --json -"));
  ASSERT_EQ(alone.code, 0) << alone.err;
  for (const int ranks : {2, 4}) {
    const Outcome together = run_ranks(ranks, kShort + std::string("--batch 32 --steps 50 --json -"));
    ASSERT_EQ(together.code, 0) << together.err;
    const std::vector<json> one = alone.lines(), all = together.lines();
    ASSERT_EQ(one.size(), all.size()) << together.out;
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(one[i]["event"], all[i]["event"]);
      if (one[i]["event"] != "step") continue;
      const double a = one[i]["loss"], b = all[i]["loss"];
      EXPECT_LT(std::abs(a - b), 1e-4 * std::abs(a));
    }
  }
}

TEST_F(RanksCli, BatchNormOfTheWholeBatchLearnsAsOneProcessAndIsKeptInTheCheckpoint) {
  const std::string flags =
      "train resnet20 --data digits --memory 128MiB --exact --costs estimated --threads 1 --evaluate-every 0 --lr 0.01 "
      "--batch 32 ";
  const auto losses = [](const Outcome& outcome) {
    std::vector<double> result;
    for (const json& line : outcome.lines()) {
      if (line["event"] == "step") result.push_back(line["loss"]);
    }
    return result;
  };
  const std::vector<double> alone = losses(run(flags + "--steps 10 --json -"));
  ASSERT_EQ(alone.size(), 10u);
  EXPECT_EQ(losses(run(flags + "--steps 10 --json - --sync-batch-norm")), alone) << "one process: nothing changes";
  const std::string file = path("c.safetensors");
  const Outcome first = run_ranks(2, flags + "--steps 5 --json - --sync-batch-norm --checkpoint " + file);
  ASSERT_EQ(first.code, 0) << first.err;
  const Outcome rest = run_ranks(2, flags + "--steps 10 --json - --resume " + file);  // the flag comes with it
  ASSERT_EQ(rest.code, 0) << rest.err;
  std::vector<double> together = losses(first);
  const std::vector<double> more = losses(rest);
  together.insert(together.end(), more.begin(), more.end());
  ASSERT_EQ(together.size(), alone.size());
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(together[i], alone[i], 1e-3 * alone[i]) << i;
  const std::vector<double> apart = losses(run_ranks(2, flags + "--steps 1 --json -"));
  ASSERT_EQ(apart.size(), 1u);
  EXPECT_GT(std::abs(apart[0] - alone[0]), 1e-3 * alone[0]) << "each its own statistics";
}

TEST_F(RanksCli, ANetworkWithoutBatchNormTrainsAsWithoutTheFlag) {
  const std::string flags = kShort + std::string("--batch 32 --steps 3 --json ") + path("json");
  ASSERT_EQ(run_ranks(2, flags).code, 0);
  const std::string plain = weights_sha256(path("json"));
  const Outcome sync = run_ranks(2, flags + " --sync-batch-norm");
  ASSERT_EQ(sync.code, 0) << sync.err;
  EXPECT_EQ(weights_sha256(path("json")), plain);
}

TEST_F(RanksCli, OneCheckpointFromWhichAnyNumberGoesOn) {
  const std::string file = path("c.safetensors");
  const std::string flags = kShort + std::string("--batch 32 --json ") + path("json") + " ";
  ASSERT_EQ(run_ranks(2, flags + "--steps 20").code, 0);
  const std::string whole = weights_sha256(path("json"));
  ASSERT_EQ(run_ranks(2, flags + "--steps 10 --checkpoint " + file).code, 0);
  const fs::path copy = path("copy.safetensors");
  fs::copy_file(file, copy);
  const Outcome same = run_ranks(2, flags + "--steps 20 --resume " + file);
  ASSERT_EQ(same.code, 0) << same.err;
  EXPECT_EQ(weights_sha256(path("json")), whole) << "as many ranks: the same bits";
  for (const int ranks : {1, 4}) {
    fs::copy_file(copy, file, fs::copy_options::overwrite_existing);
    const Outcome other = ranks == 1 ? run(flags + "--steps 20 --resume " + file)
                                     : run_ranks(ranks, flags + "--steps 20 --resume " + file);
    EXPECT_EQ(other.code, 0) << ranks << ": " << other.err;
  }
}

TEST_F(RanksCli, WhatIsWrongIsSaidOnceWithOneExitCode) {
  const auto expect = [&](const std::string& arguments, int code, const std::string& text) {
    const Outcome outcome = run_ranks(3, arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(count(outcome.err, text), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  };
  expect("train lenet --bogus", 2, "unknown argument '--bogus'");
  expect("train resnet20 --sync-batchnorm --batch 30", 2, "unknown argument '--sync-batchnorm'");
  expect("train lenet --batch 32 --steps 1 --costs estimated", 2, "take 30 or 33");
  expect("train nonesuch --batch 30 --steps 1", 2, "unknown model 'nonesuch'");
  expect("train lenet --batch 30 --steps 1 --costs estimated --memory 1KiB", 3, "no plan by policy");
  expect("train lenet --batch 30 --steps 1 --costs estimated --inter-op auto", 2, "--inter-op");
}

TEST_F(RanksCli, ACtrlCSavesAndEndsWithFive) {
  const std::string file = path("c.safetensors");
  const pid_t launcher = start_ranks(2, kLong + std::string("--checkpoint ") + file + " --json " + path("json"));
  wait_for("json", "\"event\":\"step\"");
  const std::vector<pid_t> ranks = children_of(launcher);
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[1], SIGTERM);  // to one of them
  const Outcome outcome = wait_for_mpirun(launcher);
  EXPECT_EQ(outcome.code, 5) << outcome.err;
  EXPECT_TRUE(fs::exists(file));
}

TEST_F(RanksCli, AKilledRankEndsAllIsNamedAndLeavesTheCheckpointWhole) {
  const std::string file = path("c.safetensors");
  for (const int victim : {0, 1, 2}) {
    fs::remove(file);
    const std::string flags =
        kShort + std::string("--epochs 10000 --batch 30 --checkpoint-every 20 --checkpoint ") + file;
    const pid_t launcher = start_ranks(3, flags);
    for (int i = 0; i < 6000 && !fs::exists(file); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::vector<pid_t> ranks = children_of(launcher);
    ASSERT_EQ(ranks.size(), 3u);
    const auto begin = std::chrono::steady_clock::now();
    ::kill(ranks[victim], SIGKILL);
    const Outcome outcome = wait_for_mpirun(launcher);
    EXPECT_NE(outcome.code, 0);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
    const Outcome resumed = run(kShort + std::string("--batch 30 --steps 1 --resume ") + file);
    EXPECT_EQ(resumed.code, 0) << resumed.err;
  }
}

TEST_F(RanksCli, ARankThatHangsEndsAllWithinTheTimeout) {
  const pid_t launcher =
      start_ranks(3, kShort + std::string("--epochs 10000 --batch 30 --timeout 2 --json ") + path("json"));
  wait_for("json", "\"event\":\"step\"");
  const std::vector<pid_t> ranks = children_of(launcher);
  ASSERT_EQ(ranks.size(), 3u);
  ::kill(ranks[2], SIGSTOP);
  const Outcome outcome = wait_for_mpirun(launcher);
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_EQ(count(outcome.err, "rank 2 ("), 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("--timeout"));
}

TEST_F(RanksCli, DividedStatesAreSavedWholeAndGiveTheSameWeights) {
  std::set<std::string> weights;
  for (const std::string stage : {"0", "1", "2", "3", "auto"}) {
    const std::string file = path("z.safetensors");
    const Outcome outcome = run_ranks(2, kShort + std::string("--batch 32 --steps 6 --opt adamw --lr 0.001 --zero ") +
                                             stage + " --checkpoint " + file + " --json -");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    weights.insert(last_json(outcome.out).at("weights_sha256").get<std::string>());
    const Outcome resumed = run(kShort + std::string("--batch 32 --steps 7 --resume ") + file);
    EXPECT_EQ(resumed.code, 0) << resumed.err;
  }
  EXPECT_EQ(weights.size(), 1u);
}

TEST_F(RanksCli, RunASavedPlanOfAsMany) {
  const Outcome usual = run_ranks(2, kShort + std::string("--batch 32 --steps 5 --json -"));
  ASSERT_EQ(usual.code, 0) << usual.err;
  const std::string planning = "plan lenet --data digits --batch 32 --memory 64MiB --exact --threads 1 --save ";
  const std::string file = path("two.json");
  ASSERT_EQ(run(planning + file + " --ranks 2 --zero 3").code, 0);
  const std::string train = "train --costs estimated --evaluate-every 0 --steps 5 --json - --plan ";
  const Outcome planned = run_ranks(2, train + file);
  ASSERT_EQ(planned.code, 0) << planned.err;
  EXPECT_EQ(planned.lines()[0].at("zero_stage"), 3);
  EXPECT_EQ(last_json(planned.out).at("weights_sha256"), last_json(usual.out).at("weights_sha256"));
  const auto refused = [&](int ranks, const std::string& flags, const std::string& why) {
    const Outcome outcome = run_ranks(ranks, train + flags);
    EXPECT_EQ(count(outcome.err, why), 1) << outcome.err;
    EXPECT_TRUE(outcome.out.empty()) << outcome.out;
  };
  refused(4, file, "is a plan for 2 ranks, but there are 4 ranks here");
  refused(2, file + " --batch 64", "is a plan for lenet with batch 32, not for lenet with batch 64");
  refused(2, file + " --zero 1", "was made with --zero 3, which --zero 1 cannot change");
  const std::string alone = path("one.json");
  ASSERT_EQ(run(planning + alone).code, 0);
  refused(2, alone, "is a plan for one process, but there are 2 ranks here");
}

TEST_F(RanksCli, MeasureTheLinkAndKernelsAheadOfTraining) {
  const Outcome alone = run_ranks(2, "profile --again --json -");
  ASSERT_EQ(alone.code, 0) << alone.err;
  ASSERT_EQ(alone.lines().size(), 1u) << alone.out;
  const json link = alone.lines()[0].at("link");
  EXPECT_EQ(link.at("ranks"), 2);
  EXPECT_GT(link.at("gb_per_s"), 0.0);
  const Outcome network = run_ranks(2, "profile mlp --batch 32 --image-size 8 --threads 1 --json -");
  ASSERT_EQ(network.code, 0) << network.err;
  ASSERT_EQ(network.lines().size(), 1u) << network.out;
  EXPECT_GT(network.lines()[0].at("measured"), 0);
  EXPECT_GT(network.lines()[0].at("step_time_ms"), 0.0);
  const Outcome odd = run_ranks(2, "profile mlp --batch 33 --image-size 8");
  EXPECT_EQ(count(odd.err, "--batch 33 cannot be divided equally among 2 ranks"), 1) << odd.err;
  EXPECT_EQ(count(run_ranks(2, "profile --export " + path("costs.json")).err, "--export: with one process only"), 1);
}

TEST_F(RanksCli, APlanForSeveralRanksNeedsNoneOfThem) {
  const std::string plan = "plan resnet20 --batch 32 --ranks 4 --json - ";
  const json whole = last_json(run(plan).out);
  EXPECT_EQ(whole.at("ranks"), 4);
  EXPECT_EQ(whole.at("zero_stage"), 0);
  EXPECT_GT(whole.at("message_bytes"), 0);
  EXPECT_GT(whole.at("efficiency"), 0.0);
  EXPECT_LE(whole.at("efficiency"), 1.1);
  const int64_t least = whole.at("minimum_bytes");
  const json tight = last_json(run(plan + "--memory " + std::to_string(least)).out);
  EXPECT_EQ(tight.at("zero_stage"), 3);
  const std::string file = path("plan.json");
  const Outcome saved = run("plan resnet20 --batch 32 --ranks 4 --zero 3 --save " + file);
  ASSERT_EQ(saved.code, 0) << saved.err;
  EXPECT_THAT(saved.out, HasSubstr("ZeRO stage 3"));
  const Outcome verified = run("verify " + file);
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
  const Outcome alone = run("train resnet20 --data digits --batch 8 --plan " + file);
  EXPECT_EQ(alone.code, 2);
  EXPECT_THAT(alone.err, HasSubstr("is a plan for 4 ranks, but there is one process here"));
  for (const std::string wrong : {"--ranks 0", "--ranks 5", "--ranks 2 --zero 4", "--ranks 2 --link-bandwidth 0",
                                  "--ranks 2 --link-latency -1", "--ranks 2 --inter-op 2"}) {
    EXPECT_EQ(run("plan resnet20 --batch 32 " + wrong).code, 2) << wrong;
  }
}

// Two hosts, which are network namespaces.
class TwoHosts : public RanksCli {
 protected:
  void SetUp() override {
    RanksCli::SetUp();
    if (IsSkipped()) return;
    const std::string script = PLIMSOLL_SOURCE_DIR "/tests/support/two_hosts";
    if (std::system((script + " --check 2> " + path("why")).c_str()) != 0) GTEST_SKIP() << slurp(path("why"));
    launcher_ = "timeout 120 " + script + " ";
  }
};

TEST_F(TwoHosts, LearnWhatRanksOfOneHostLearn) {
  const std::string flags = kShort + std::string("--batch 32 --steps 10 --zero 3 --json ") + path("json");
  ASSERT_EQ(run_ranks(2, flags).code, 0) << slurp(path("err"));
  const std::string over_the_link = last_json(slurp(path("json"))).at("weights_sha256");
  launcher_.clear();
  ASSERT_EQ(run_ranks(2, flags).code, 0) << slurp(path("err"));
  EXPECT_EQ(over_the_link, last_json(slurp(path("json"))).at("weights_sha256"));
}

TEST_F(TwoHosts, ALinkThatIsGoneEndsBothWithinTheTimeoutAndTheCheckpointIsWhole) {
  const std::string file = path("c.safetensors");
  launcher_ += "--cut-after " + file + " ";
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = run_ranks(
      2, kShort + std::string("--epochs 1000000 --batch 32 --timeout 3 --checkpoint-every 20 --checkpoint ") + file);
  EXPECT_NE(outcome.code, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(90));
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 (second) has not answered")) << outcome.err;
  launcher_.clear();
  EXPECT_EQ(run(kShort + std::string("--batch 32 --steps 1 --resume ") + file).code, 0);
}

// GPUs, behind a module that stands for CUDA and NCCL (tests/cuda/fake_module.cpp).
class RanksOnGpus : public RanksCli {
 protected:
  void SetUp() override {
    RanksCli::SetUp();
    ::setenv("PLIMSOLL_CUDA_MODULE", PLIMSOLL_BINARY_DIR "/libplimsoll_cuda_fake.so", 1);
    ::setenv("PLIMSOLL_FAKE_DEVICES", "2", 1);
  }
  void TearDown() override {
    for (const char* name : {"PLIMSOLL_CUDA_MODULE", "PLIMSOLL_FAKE_DEVICES", "PLIMSOLL_FAKE_NCCL",
                             "PLIMSOLL_FAKE_UUID", "PLIMSOLL_FAKE_FAIL"})
      ::unsetenv(name);
    RanksCli::TearDown();
  }
  Outcome run_gpus(const std::string& arguments) {
    const std::string folder = path("meet");
    fs::create_directory(folder);
    ::setenv("PLIMSOLL_FAKE_NCCL", folder.c_str(), 1);
    return run_ranks(2, kOnGpus + arguments);
  }
  static json done(const Outcome& outcome) {
    for (const json& line : outcome.lines()) {
      if (line.at("event") == "done") return line;
    }
    return nullptr;
  }
  static constexpr const char* kOnGpus = "train lenet --data digits --batch 8 --exact --steps 3 --json - ";
  static constexpr const char* kPlain = "--device cuda --costs estimated --evaluate-every 0 ";
};

TEST_F(RanksOnGpus, TrainTheSameWeightsInEveryBudgetAndDivision) {
  const Outcome plain = run_gpus(std::string(kPlain) + "--memory 64MiB");
  ASSERT_EQ(plain.code, 0) << plain.err;
  const json first = done(plain);
  EXPECT_FALSE(first.at("captured").get<bool>());
  for (const char* more : {"--memory 64MiB --zero 2", "--memory 400KiB --host-memory 64MiB"}) {
    const Outcome other = run_gpus(std::string(kPlain) + more);
    ASSERT_EQ(other.code, 0) << more << ": " << other.err;
    EXPECT_EQ(done(other).at("weights_sha256"), first.at("weights_sha256")) << more;
  }
}

TEST_F(RanksOnGpus, MeasureKernelsOnTheFirstAloneAndEvaluateTogether) {
  const Outcome outcome = run_gpus("--device cuda --memory 64MiB --zero 3 --evaluate-every 1");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST_F(RanksOnGpus, MeasureTheLinkOnce) {
  const auto sends_of_a_run = [&](bool& kept) {
    const std::string file = path("calls");
    ::setenv("PLIMSOLL_FAKE_CALLS", file.c_str(), 1);
    const Outcome outcome = run_gpus(std::string(kPlain) + "--memory 64MiB");
    ::unsetenv("PLIMSOLL_FAKE_CALLS");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    kept = outcome.err.find("the link between the ranks") == std::string::npos;  // else: others keep the machine busy
    std::ifstream in(file);
    int sends = 0, calls = 0;
    for (std::string name; in >> name >> calls;) sends += name == "ncclSend" ? calls : 0;
    std::filesystem::remove(file);
    return sends;
  };
  bool kept = false, ignored = false;
  int measured = 0;
  for (int run = 0; run < 5 && !kept; ++run) measured = sends_of_a_run(kept);
  if (!kept) GTEST_SKIP() << "others keep this machine busy, so that the link is measured at every start";
  const int second = sends_of_a_run(ignored), third = sends_of_a_run(ignored);
  EXPECT_LT(second, measured);
  EXPECT_EQ(third, second);
}

TEST_F(RanksOnGpus, NeedAGpuEachAndNccl) {
  Outcome outcome = run_gpus("--costs estimated --device cuda:1");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("have the same GPU (Fake GPU), but each needs its own"));
  ::setenv("PLIMSOLL_FAKE_UUID", "7", 1);  // a system that hides all but one GPU from each process, and the same one
  outcome = run_gpus(kPlain);
  EXPECT_EQ(outcome.code, 2);
  ::unsetenv("PLIMSOLL_FAKE_UUID");
  ::unsetenv("PLIMSOLL_FAKE_NCCL");
  outcome = run_ranks(2, std::string(kOnGpus) + kPlain);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("need NCCL"));
  EXPECT_EQ(count(outcome.err, "need NCCL"), 1);
  EXPECT_THAT(run_ranks(2, std::string(kOnGpus) + "--device k40c").err,
              HasSubstr("several ranks train on cpu and cuda"));
}

TEST_F(RanksOnGpus, ACallThatFailsEndsAllOfThem) {
  ::setenv("PLIMSOLL_FAKE_FAIL", "ncclGroupEnd:24", 1);
  const Outcome outcome = run_gpus(std::string(kPlain) + "--memory 64MiB");
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("ncclGroupEnd"));
}

}  // namespace
