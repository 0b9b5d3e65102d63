// What the whole process takes, by the kernel's account, against what was said before the first step: for several
// networks, budgets, tiers and settings. And a training under a hard limit, as a user's control group sets one.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "tests/cli/images.h"
#include "tests/cli/program.h"
#include "tests/support/sanitizer.h"

namespace plimsoll::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

std::string mib(int64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kMiB); }

// The memory that a control group counts as a process's own: anonymous and shared. 0: the process is gone.
int64_t own_memory(pid_t process) {
  std::ifstream rollup(fmt::format("/proc/{}/smaps_rollup", process));
  int64_t sum = 0;
  for (std::string line; std::getline(rollup, line);) {
    for (const char* field : {"Anonymous:", "Pss_Shmem:"}) {
      if (line.starts_with(field)) sum += std::stoll(line.substr(std::strlen(field))) * 1024;
    }
  }
  return sum;
}

// A control group of this test's own, with a memory limit (version 1).
class HardLimit {
 public:
  explicit HardLimit(int64_t bytes)
      : group_(fs::path("/sys/fs/cgroup/memory") / fmt::format("plimsoll_test_{}", ::getpid())) {
    std::error_code error;
    usable_ = fs::exists("/sys/fs/cgroup/memory/memory.limit_in_bytes") && fs::create_directory(group_, error) &&
              write("memory.limit_in_bytes", bytes);
    write("memory.swappiness", 0);
  }
  ~HardLimit() {
    for (int i = 0; i < 100 && fs::exists(group_) && ::rmdir(group_.c_str()) != 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  HardLimit(const HardLimit&) = delete;
  HardLimit& operator=(const HardLimit&) = delete;
  bool usable() const { return usable_; }
  std::string procs() const { return (group_ / "cgroup.procs").string(); }
  int64_t peak() const {
    std::ifstream file(group_ / "memory.max_usage_in_bytes");
    int64_t bytes = 0;
    file >> bytes;
    return bytes;
  }

 private:
  bool write(const char* file, int64_t value) const {
    std::ofstream out(group_ / file);
    out << value << std::flush;
    return out.good();
  }
  fs::path group_;
  bool usable_ = false;
};

struct Setting {
  std::string name, network;  // with batch and data
  double share = 1;           // of what the policy liveness takes
  std::string more;           // flags
};

class ProcessMemory : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    if (kSanitizer) GTEST_SKIP() << "sanitizers take memory of their own";
    fs::create_directories(folder_ / "spill");
  }
  std::string with_folder(std::string flags) const {
    for (size_t at = flags.find("SPILL"); at != std::string::npos; at = flags.find("SPILL", at))
      flags.replace(at, 5, (folder_ / "spill").string());
    return flags;
  }

  struct Watched : Outcome {
    int64_t own = 0;  // the most that was seen
  };
  Watched watch(const std::string& arguments) {
    const pid_t child = start(arguments);
    int64_t most = 0;
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      most = std::max(most, own_memory(child));
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    return {{WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), slurp(path("out")), slurp(path("err"))},
            most};
  }

  // Trains, and holds the process to what it said. Returns what it took.
  void expect_kept(const std::string& arguments, const std::string& what, std::optional<int64_t> stated = {}) {
    const Watched done = watch("train " + arguments + " --json -");
    ASSERT_EQ(done.code, 0) << done.err;
    const json plan = done.lines().front(), end = done.lines().back();
    const int64_t said = end.at("process_bytes"), peak = end.at("process_peak_bytes");
    ASSERT_GT(said, 0);
    if (stated) {
      EXPECT_EQ(said, *stated);
      EXPECT_LE(plan.at("process_bytes").get<int64_t>(), *stated);
    }
    const int64_t arena = plan.at("arena_bytes");
    fmt::print(
        "[ measured ] {}: arena {}, process {} (beside {}), of its own {} (beside {}); said {} (beside {}): {}\n", what,
        mib(arena), mib(peak), mib(peak - arena), mib(done.own), mib(done.own - arena), mib(said),
        mib(plan.at("beside_arena_bytes")), plan.at("beside_arena").dump());
    EXPECT_LE(peak, said) << mib(peak) << " of " << mib(said);
    EXPECT_LE(done.own, said);
    EXPECT_THAT(done.err, ::testing::Not(HasSubstr("more than the")));
  }

  int64_t liveness(const Setting& setting) {
    return run("plan " + setting.network + " --policy liveness --json -").lines().at(0).at("arena_bytes");
  }
};

class Settings : public ProcessMemory, public ::testing::WithParamInterface<Setting> {};

// --memory is of the arena: what the process takes beside it is what the plan said.
TEST_P(Settings, TakeNoMoreThanThePlanSays) {
  const Setting& setting = GetParam();
  const auto memory = static_cast<int64_t>(static_cast<double>(liveness(setting)) * setting.share);
  expect_kept(fmt::format("{} {} --memory {}", setting.network, with_folder(setting.more), memory), setting.name);
}

// --memory is of the process: the least that is named is enough, and never exceeded.
TEST_P(Settings, KeepWithinTheLeastProcessThatIsNamed) {
  const Setting& setting = GetParam();
  const std::string flags = setting.network + " " + with_folder(setting.more) + " --memory-is process --memory ";
  const Outcome refused = run("train " + flags + "1MiB --json -");
  ASSERT_EQ(refused.code, 3) << refused.err;
  const int64_t least = refused.lines().back().at("minimum_bytes");
  EXPECT_THAT(refused.err, HasSubstr("--memory-is process"));
  expect_kept(flags + fmt::to_string(least), setting.name, least);
  // By this machine's times a plan may need a little less.
  const Outcome less = run("train " + flags + fmt::to_string(least - 1) + " --json -");
  if (less.code == 0) {
    EXPECT_LT(less.lines().back().at("process_peak_bytes"), least);
  } else {
    EXPECT_EQ(less.code, 3) << less.err;
    EXPECT_EQ(less.lines().back().at("minimum_bytes"), least) << "the same whatever was asked";
  }
}

const std::string kQuick = " --costs estimated --steps 2";
INSTANTIATE_TEST_SUITE_P(
    Networks, Settings,
    ::testing::Values(Setting{"lenet", "lenet --data digits --batch 16", 1, kQuick},
                      Setting{"lenet_spill", "lenet --data digits --batch 16", 0.5, " --spill SPILL:64MiB" + kQuick},
                      Setting{"lenet_measured", "lenet --data digits --batch 16", 1, "--steps 2"},
                      Setting{"resnet20", "resnet20 --data digits --batch 64", 0.5, kQuick},
                      Setting{"resnet20_adam_host", "resnet20 --data digits --batch 64 --optimizer adam", 0.4,
                              " --host-memory 64MiB" + kQuick},
                      Setting{"resnet18_spill", "resnet18 --data synthetic:40 --batch 8", 0.35,
                              "--spill SPILL:4GiB --evaluate-every 0" + kQuick},
                      Setting{"resnet18_checkpoint", "resnet18 --data synthetic:40 --batch 4", 0.5,
                              "--spill SPILL:4GiB --host-memory 32MiB --checkpoint SPILL/c.safetensors" + kQuick},
                      Setting{"densenet", "densenet:depth=40,growth=12 --data synthetic:64 --batch 16", 0.4, kQuick}),
    [](const auto& info) { return info.param.name; });

TEST_F(ProcessMemory, ATrainingWithSpillLivesUnderAHardLimitOfWhatItSays) {
  const std::string flags = with_folder(
      "resnet18 --data synthetic:40 --batch 8 --spill SPILL:4GiB --evaluate-every 0 --costs estimated --steps 3 --json - ");
  const int64_t least = run("train " + flags + "--memory-is process --memory 1MiB").lines().back().at("minimum_bytes");
  const HardLimit limit(least);
  if (!limit.usable()) GTEST_SKIP() << "no control group can be made here";
  const std::string command =
      fmt::format("echo $$ > {} && exec {}/plimsoll train {} --memory-is process --memory {} > {} 2> {}", limit.procs(),
                  PLIMSOLL_BINARY_DIR, flags, least, path("out"), path("err"));
  const int status = ::system(command.c_str());
  ASSERT_EQ(WEXITSTATUS(status), 0) << slurp(path("err"));
  fmt::print("[ measured ] under a hard limit of {}: {}\n", mib(least), mib(limit.peak()));
  EXPECT_LE(limit.peak(), least);
}

// The file is sparse: it takes no room on the disk either.
TEST_F(ProcessMemory, AFileOfTokensTakesNoMemoryHoweverLargeItIs) {
  std::ofstream(path("huge.bin"));
  std::error_code error;
  fs::resize_file(path("huge.bin"), int64_t{100} << 30, error);
  if (error) GTEST_SKIP() << "no file of 100 GiB here: " << error.message();
  const std::string flags = fmt::format(
      "gpt2:layers=1,width=32,heads=2,context=1024,vocab=64 --data tokens:{} --batch 4 --costs estimated --steps 5 "
      "--evaluate-every 0 --memory-is process --memory ",
      path("huge.bin"));
  const int64_t least = run("train " + flags + "1MiB --json -").lines().back().at("minimum_bytes");
  expect_kept(flags + fmt::to_string(least), "tokens", least);
}

TEST_F(ProcessMemory, WhatCannotMeanTheProcessIsRefused) {
  const auto refusal = [&](const std::string& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(refusal("plan lenet --batch 4 --memory-is process"), HasSubstr("with --memory SIZE"));
  EXPECT_THAT(refusal("train lenet --data digits --batch 4 --memory-is process"), HasSubstr("with --memory SIZE"));
  EXPECT_THAT(refusal("plan lenet --batch 4 --memory 1GiB --memory-is process --device k40c"),
              HasSubstr("device 'k40c' has memory of its own"));
  EXPECT_THAT(refusal("plan lenet --batch 4 --memory 1GiB --memory-is heap"), HasSubstr("--memory-is"));
  EXPECT_THAT(refusal("profile lenet --batch 4 --memory 1GiB --memory-is process"), HasSubstr("leave the flag out"));
  EXPECT_THAT(refusal("heaps lenet --batch 4 --memory 1GiB --memory-is process"), HasSubstr("leave the flag out"));
}

// plan, max and compare count as train does.
TEST_F(ProcessMemory, EveryCommandMeansTheSameProcess) {
  const std::string flags = " resnet20 --batch 16 --memory-is process --json - ";
  const Outcome refused = run("plan" + flags + "--memory 1MiB");
  ASSERT_EQ(refused.code, 3) << refused.err;
  const int64_t least = refused.lines().at(0).at("minimum_bytes");
  const json plan = run("plan" + flags + "--memory " + fmt::to_string(least)).lines().at(0);
  EXPECT_LE(plan.at("minimum_bytes"), least);
  EXPECT_LE(plan.at("process_bytes"), least);
  EXPECT_EQ(plan.at("memory_is"), "process");
  int64_t sum = 0;
  for (const auto& [what, bytes] : plan.at("beside_arena").items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(plan.at("beside_arena_bytes"), sum);
  const json row = run("compare" + flags + "--policies auto --memory " + fmt::to_string(least)).lines().at(0);
  EXPECT_EQ(row.at("process_bytes"), plan.at("process_bytes"));
  const int64_t too_little = least - plan.at("arena_bytes").get<int64_t>() / 4;
  const json none = run("compare" + flags + "--policies auto --memory " + fmt::to_string(too_little)).lines().at(0);
  EXPECT_EQ(none.at("minimum_bytes"), least);
}

// A trained network answers in the least process that is named, with any tier, and takes no more.
TEST_F(ProcessMemory, EvalAndPredictKeepWithinTheLeastProcessThatIsNamed) {
  const Outcome trained =
      run("train resnet20 --data digits --batch 16 --steps 1 --costs estimated --evaluate-every 0 --checkpoint " +
          path("c.safetensors"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  write_png(folder_ / "image.png", 0, 0, 200, 8);
  const std::string eval = "eval --checkpoint " + path("c.safetensors"),
                    predict = "predict " + path("image.png") + " --checkpoint " + path("c.safetensors");
  for (const std::string& asked : {eval, eval + " --batch 64", eval + " --batch 64 --spill SPILL:1GiB",
                                   eval + " --batch 64 --host-memory 8MiB", predict, predict + " --spill SPILL:1GiB"}) {
    const std::string command = with_folder(asked) + " --memory-is process --memory ";
    SCOPED_TRACE(command);
    const Outcome refused = run(command + "1MiB");
    const int64_t least = bytes_needed(refused);
    EXPECT_THAT(refused.err, HasSubstr("--memory-is process"));
    EXPECT_THAT(refused.err, HasSubstr("no plan by policy 'auto' fits"));
    for (int again = 0; again < 2; ++again) {
      const Watched done = watch(command + fmt::to_string(least));
      ASSERT_EQ(done.code, 0) << done.err;
      EXPECT_THAT(done.err, ::testing::Not(HasSubstr("more than the")));
      EXPECT_LE(done.own, least);
    }
    EXPECT_EQ(bytes_needed(run(command + fmt::to_string(least / 2))), least) << "the same whatever was asked";
  }
  write_png(folder_ / "poster.png", 0, 0, 200, 4000);
  const Watched done = watch(predict + " " + path("poster.png") + " --memory-is process --memory 192MiB");
  EXPECT_EQ(done.code, 2);
  EXPECT_THAT(done.err,
              HasSubstr("poster.png: would be decoded to 4000x4000 pixels, and there is memory for 12 million"));
  EXPECT_THAT(done.err, ::testing::Not(HasSubstr("more than the")));
  EXPECT_THAT(done.out, HasSubstr("image.png: "));
  EXPECT_EQ(run(predict + " " + path("poster.png")).code, 0);
}

TEST_F(ProcessMemory, AResumedTrainingKeepsToTheSameProcess) {
  const std::string flags =
      "train lenet --data digits --batch 16 --costs estimated --json - --checkpoint " + path("c.safetensors");
  const Outcome first = run(flags + " --steps 2 --memory-is process --memory 400MiB");
  ASSERT_EQ(first.code, 0) << first.err;
  const Outcome resumed = run("train --resume " + path("c.safetensors") + " --steps 4 --costs estimated --json -");
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(resumed.lines().front().at("memory_is"), "process");
  EXPECT_EQ(resumed.lines().back().at("process_bytes"), 400 * kMiB);
  const Outcome contradiction =
      run("train --resume " + path("c.safetensors") + " --steps 6 --memory-is arena --json -");
  EXPECT_EQ(contradiction.code, 2);
  EXPECT_THAT(contradiction.err, HasSubstr("with --memory of the process"));
  const Outcome evaluated = run("eval --checkpoint " + path("c.safetensors") +
                                " --memory-is process --memory 300MiB --json " + path("eval.json"));
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  const json result = json::parse(slurp(path("eval.json")));
  EXPECT_EQ(result.at("process_bytes"), 300 * kMiB);
  EXPECT_LE(result.at("process_peak_bytes"), 300 * kMiB);
}

}  // namespace
}  // namespace plimsoll::testing
