// Trainings with other processes' memory, which mpirun starts beside them on this machine: the same bits, one exit code,
// and ends that leave the checkpoint whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/cli/mpirun.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using plimsoll::testing::MpiCli;
using plimsoll::testing::Outcome;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RemoteMemoryCli : public MpiCli {
 protected:
  // "train ..." and how many of it, and the same of servers; `mpirun`: its own flags.
  static std::string both(int ranks, const std::string& train, int servers, const std::string& serve,
                          const std::string& mpirun) {
    const std::string program = std::string(" ") + kProgram + " ";
    return mpirun + " -n " + std::to_string(ranks) + program + train + " : -n " + std::to_string(servers) + program +
           serve;
  }
  pid_t start_both(int ranks, const std::string& train, int servers, const std::string& serve,
                   const std::string& mpirun = "") {
    return start_mpirun(both(ranks, train, servers, serve, mpirun));
  }
  Outcome run_both(int ranks, const std::string& train, int servers, const std::string& serve,
                   const std::string& mpirun = "") {
    return run_mpirun(both(ranks, train, servers, serve, mpirun));
  }
  // Flags for less memory than keeping every tensor takes, by the kernels that this machine has.
  std::string remote(const std::string& ranks = "") {
    const Outcome made = run(
        "plan resnet20 --data digits --batch 128 --policy liveness --exact --costs estimated --threads 1 --json - " +
        ranks);
    const int64_t arena = made.lines().at(0).at("arena_bytes");
    return "--memory " + std::to_string(arena / 10 * 9) + " --remote-memory 64MiB ";
  }
  json planned() const {
    std::ifstream in(path("json"));
    for (std::string line; std::getline(in, line);) {
      if (json event = json::parse(line); event["event"] == "plan") return event;
    }
    return {};
  }
};

// vdnn moves all that it may.
constexpr const char* kMoving =
    "train resnet20 --data digits --batch 128 --policy vdnn --exact --costs estimated --threads 1 --evaluate-every 0 ";

// By the network library's own choice, and by messages that the server has to answer.
TEST_F(RemoteMemoryCli, TheSameBitsAsWithoutALimit) {
  ASSERT_NO_FATAL_FAILURE(need_mpirun());
  if (IsSkipped()) return;
  const std::string flags = kMoving + std::string("--steps 5 --json ") + path("json") + " ";
  ASSERT_EQ(run(flags + "--memory 256MiB").code, 0);
  const std::string whole = weights_sha256(path("json"));
  for (const char* mpirun : {"", "--mca osc pt2pt", "--mca btl tcp,self --mca osc ^ucx"}) {
    const Outcome done = run_both(1, flags + remote(), 2, "serve-memory --size 40MiB", mpirun);
    ASSERT_EQ(done.code, 0) << mpirun << done.err;
    EXPECT_EQ(weights_sha256(path("json")), whole) << mpirun;
    const json plan = planned();
    EXPECT_EQ(plan["tiers"][0]["name"], "remote");
    EXPECT_GT(plan["offload_bytes"], 0);
    EXPECT_THAT(done.err, HasSubstr("spilling to memory of rank 1 ("));
  }
}

TEST_F(RemoteMemoryCli, SeveralRanksEachHaveTheirPart) {
  ASSERT_NO_FATAL_FAILURE(need_mpirun());
  if (IsSkipped()) return;
  const std::string flags = kMoving + std::string("--steps 5 --json ") + path("json") + " ";
  const auto two = [&](const std::string& memory) {
    const Outcome done = run_both(2, flags + memory, 1, "serve-memory --size 128MiB");
    EXPECT_EQ(done.code, 0) << done.err;
    return weights_sha256(path("json"));
  };
  const std::string whole = two("--memory 256MiB");
  EXPECT_EQ(two(remote("--ranks 2")), whole);
  EXPECT_GT(planned()["offload_bytes"], 0);
}

TEST_F(RemoteMemoryCli, ACheckpointGoesOnWithItAndWithout) {
  ASSERT_NO_FATAL_FAILURE(need_mpirun());
  if (IsSkipped()) return;
  const std::string file = path("c.safetensors"), log = " --json " + path("json");
  ASSERT_EQ(run_both(1, kMoving + remote() + "--steps 8" + log, 1, "serve-memory --size 64MiB").code, 0);
  const std::string whole = weights_sha256(path("json"));
  ASSERT_EQ(
      run_both(1, kMoving + remote() + "--steps 4 --checkpoint " + file + log, 1, "serve-memory --size 64MiB").code, 0);
  fs::copy_file(file, path("copy"));
  const std::string resume = "train --steps 8 --evaluate-every 0 --costs estimated" + log + " --resume ";
  const Outcome with = run_both(1, resume + file, 1, "serve-memory --size 64MiB");
  EXPECT_EQ(with.code, 0) << with.err;
  EXPECT_EQ(weights_sha256(path("json")), whole);
  const Outcome without = run(resume + path("copy") + " --memory 256MiB");
  EXPECT_EQ(without.code, 0) << without.err;
  EXPECT_THAT(without.err, HasSubstr("nobody serves memory now, so it goes on without"));
  EXPECT_EQ(weights_sha256(path("json")), whole);
}

TEST_F(RemoteMemoryCli, WhatIsWrongIsSaidWithItsExitCode) {
  const auto alone = [&](const std::string& arguments, const std::string& text, int code = 2) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, code) << arguments << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(text)) << arguments;
  };
  alone("serve-memory --size 64MiB", "it was started alone");
  alone("serve-memory", "--size is missing");
  alone("serve-memory --size 0", "0 B are too few to serve");
  alone("serve-memory --size -1GiB", "it is negative");
  alone("serve-memory --size much", "--size: 'much' is not a size");
  alone("train lenet --steps 1 --remote-memory 64MiB", "no process serves memory; start it as in `mpirun");
  alone("train lenet --steps 1 --remote-memory 0", "--remote-memory: '0' is no memory at all");
  alone("train lenet --steps 1 --remote-memory -64MiB", "it is negative");
  alone("train lenet --steps 1 --remote-memory 1MiB", "8.00 MiB at least");
  alone("plan lenet --device k40c --memory 1GiB --remote-memory 64MiB", "has no network");
  alone("heaps lenet --remote-memory 64MiB", "--remote-memory: heaps are compared");
  ASSERT_NO_FATAL_FAILURE(need_mpirun());
  if (IsSkipped()) return;
  const auto both = [&](const std::string& train, const std::string& serve, const std::string& text, int code = 2) {
    const Outcome outcome = run_both(1, train, 2, serve);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(text));
  };
  both("train lenet --steps 1 --costs estimated --remote-memory 200MiB", "serve-memory --size 64MiB",
       "but serve-memory has 128.0 MiB (2 processes of it)");
  both("train lenet --steps 1 --bogus", "serve-memory --size 64MiB", "unknown argument '--bogus'");
  both("train lenet --steps 1 --costs estimated", "serve-memory --sze 64MiB", "did you mean '--size'?");
  both("train lenet --steps 1 --costs estimated", "serve-memory --size 900TiB", "this machine has", 4);
  both("train lenet --steps 1 --costs estimated --memory 1KiB --remote-memory 64MiB", "serve-memory --size 64MiB",
       "no plan by policy", 3);
  both("train lenet --steps 1 --costs estimated --inter-op bogus", "serve-memory --size 64MiB", "--inter-op");
  both("train mlp --steps 1 --costs estimated --evaluate-every 0", "serve-memory --size 64MiB", "serves nobody", 0);
  both("serve-memory --size 64MiB", "serve-memory --size 64MiB", "no process trains");
}

// Without MPI: with a speed that is said to be assumed.
TEST_F(RemoteMemoryCli, APlanKnowsTheTier) {
  const std::string plan = "plan resnet20 --batch 128 --data digits --policy vdnn --memory 5MiB --costs estimated ";
  const Outcome made = run(plan + "--remote-memory 64MiB --json - --save " + path("plan.json"));
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.err, HasSubstr("--remote-memory: its speed is assumed, 1 GB/s each way"));
  const json object = made.lines()[0];
  EXPECT_EQ(object["tiers"][0]["name"], "remote");
  EXPECT_EQ(object["tiers"][0]["capacity_bytes"], 64 << 20);
  EXPECT_EQ(run("verify " + path("plan.json")).code, 0);
  const Outcome nowhere = run("train --steps 1 --evaluate-every 0 --plan " + path("plan.json"));
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("--remote-memory 64.0 MiB: no process serves memory"));
  ASSERT_NO_FATAL_FAILURE(need_mpirun());
  if (IsSkipped()) return;
  const Outcome done =
      run_both(1, "train --steps 1 --evaluate-every 0 --plan " + path("plan.json"), 1, "serve-memory --size 64MiB");
  EXPECT_EQ(done.code, 0) << done.err;
}

// mpirun itself ends what is left, and has a code of its own for a process that was killed.
TEST_F(RemoteMemoryCli, AKilledServerOrTrainerEndsAllAndLeavesTheCheckpointWhole) {
  ASSERT_NO_FATAL_FAILURE(need_mpirun());
  if (IsSkipped()) return;
  const std::string file = path("c.safetensors");
  for (const char* mpirun : {"", "--mca osc pt2pt"}) {
    for (const int victim : {0, 1}) {
      fs::remove(file);
      const pid_t launcher =
          start_both(1, kMoving + remote() + "--epochs 10000 --checkpoint-every 5 --checkpoint " + file, 1,
                     "serve-memory --size 64MiB", mpirun);
      wait_for_file(file);
      const std::vector<pid_t> processes = children_of(launcher);
      ASSERT_EQ(processes.size(), 2u);
      const auto begin = std::chrono::steady_clock::now();
      ::kill(processes[victim], SIGKILL);
      const Outcome outcome = wait_for_mpirun(launcher);
      EXPECT_NE(outcome.code, 0);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
      const Outcome read = run("eval --checkpoint " + file + " --data digits --memory 256MiB");
      EXPECT_EQ(read.code, 0) << read.err;
    }
  }
}

TEST_F(RemoteMemoryCli, AServerThatHangsIsNamedWithinTheTimeout) {
  ASSERT_NO_FATAL_FAILURE(need_mpirun());
  if (IsSkipped()) return;
  const std::string file = path("c.safetensors");
  const pid_t launcher = start_both(1, kMoving + remote() + "--epochs 10000 --timeout 2 --checkpoint " + file, 1,
                                    "serve-memory --size 64MiB", "--mca osc pt2pt");
  wait_for_file(file);
  const std::vector<pid_t> processes = children_of(launcher);
  ASSERT_EQ(processes.size(), 2u);
  ::kill(processes[1], SIGSTOP);
  const Outcome outcome = wait_for_mpirun(launcher);
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("rank 1 ("), HasSubstr("serve-memory) has not answered"), HasSubstr("--timeout")));
  EXPECT_EQ(run("eval --checkpoint " + file + " --data digits --memory 256MiB").code, 0);
}

TEST_F(RemoteMemoryCli, ACtrlCSavesWhatLiesThereToo) {
  ASSERT_NO_FATAL_FAILURE(need_mpirun());
  if (IsSkipped()) return;
  const std::string file = path("c.safetensors");
  const pid_t launcher =
      start_both(1, kMoving + remote() + "--epochs 10000 --checkpoint " + file, 1, "serve-memory --size 64MiB");
  wait_for_file(file);
  const std::vector<pid_t> processes = children_of(launcher);
  ASSERT_EQ(processes.size(), 2u);
  for (const pid_t process : {processes[1], processes[0]}) ::kill(process, SIGTERM);
  const Outcome outcome = wait_for_mpirun(launcher);
  EXPECT_EQ(outcome.code, 5) << outcome.err;
  EXPECT_EQ(run("eval --checkpoint " + file + " --data digits --memory 256MiB").code, 0);
}

}  // namespace
