// Trainings that are interrupted, killed or short of disk, their checkpoints, and going on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/interrupts.h"
#include "tests/cli/program.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using plimsoll::testing::Cli;
using plimsoll::testing::Outcome;
using ::testing::HasSubstr;

TEST_F(Cli, GoesOnExactlyAfterCtrlCAndAfterKill) {
  const std::string flags =
      "train lenet --data digits --batch 16 --steps 3000 --memory 64MiB --exact --costs estimated --threads 1 --evaluate-every 0 --json " +
      path("json") + " ";
  ASSERT_EQ(run(flags).code, 0);
  const std::string whole = weights_sha256(path("json"));
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
    EXPECT_EQ(weights_sha256(path("json")), whole) << "after signal " << signal;
  }
}

// A thread may have its stack pointer in a workspace on the heap: in kernels of oneDNN.
TEST(Interrupts, AreHandledOnTheStackForSignals) {
  const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
  struct sigaction before[std::size(signals)] = {}, now{};
  ::signal(SIGHUP, SIG_DFL);  // nohup leaves it ignored
  for (size_t i = 0; i < std::size(signals); ++i) sigaction(signals[i], nullptr, &before[i]);
  plimsoll::cli::catch_interrupts();
  for (size_t i = 0; i < std::size(signals); ++i) {
    sigaction(signals[i], nullptr, &now);
    EXPECT_NE(now.sa_handler, SIG_DFL) << signals[i];
    EXPECT_NE(now.sa_flags & SA_ONSTACK, 0) << signals[i];
    sigaction(signals[i], &before[i], nullptr);
  }
}

// A training that would last for hours, with a step every few milliseconds.
constexpr const char* kLongTraining =
    "train mlp --data synthetic:8000000 --image-size 8 --batch 16 --threads 1 --costs estimated --evaluate-every 0 ";

TEST_F(Cli, AHangupSavesAndGoesOnWithACheckpointAndEndsWithoutOne) {
  const auto start_and_hang_up = [&](const std::string& flags, int signal = SIGHUP) {
    fs::remove(path("json"));
    const pid_t child = start(kLongTraining + flags + " --json " + path("json"));
    while (slurp(path("json")).find("\"event\":\"step\"") == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ::kill(child, signal);
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

  // What a scheduler warns with, and what ends a process that has had its time.
  const pid_t warned = start_and_hang_up("--checkpoint " + path("d.safetensors"), SIGUSR1);
  while (!fs::exists(path("d.safetensors"))) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_EQ(::kill(warned, SIGXCPU), 0);
  const Outcome ended = wait(warned);
  EXPECT_EQ(ended.code, 5) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("SIGUSR1: what was reached is saved, and training goes on"));
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
  EXPECT_TRUE(catches(child, SIGINT));
  ::kill(child, SIGINT);
  while (catches(child, SIGINT)) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // else the two are one
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
    EXPECT_THAT(outcome.out, ::testing::AllOf(HasSubstr("c.safetensors has done 5 steps already; raise --steps"),
                                              ::testing::Not(HasSubstr("peak 0 B"))));
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
    // Of the first version, whose header has no hash that would tell of the change first; its settings were texts.
    replace("\"plimsoll.header_sha256\"", std::string("\"plimsoll.header_sha256\":\"\",").size() + 64, "");
    replace("\\\"format_version\\\":3", std::string("\\\"format_version\\\":3").size(), "\\\"format_version\\\":1");
    const size_t settings = header.find("\\\"settings\\\":{");
    ASSERT_NE(settings, std::string::npos);
    header.replace(settings, header.find('}', settings) + 1 - settings, "\\\"settings\\\":{\\\"min_lr\\\":\\\"0\\\"}");
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

TEST_F(Cli, ResumesWithTheSeedOfTheCheckpoint) {
  const std::string flags =
      "train mlp --data synthetic:640 --image-size 8 --batch 16 --threads 1 --exact --costs estimated --evaluate-every 0 --seed 7 --json " +
      path("json") + " ";
  ASSERT_EQ(run(flags + "--steps 30").code, 0);
  const std::string whole = weights_sha256(path("json"));
  ASSERT_EQ(run(flags + "--steps 10 --checkpoint " + path("c.safetensors")).code, 0);
  const std::string more = "train --steps 30 --evaluate-every 0 --costs estimated --json " + path("json") +
                           " --resume " + path("c.safetensors");
  ASSERT_EQ(run(more).code, 0);
  EXPECT_EQ(weights_sha256(path("json")), whole);
  EXPECT_EQ(run(more + " --seed 8").code, 2);
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

}  // namespace
