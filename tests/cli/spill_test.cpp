// Spill files as a user meets them: none is left on any way out, not even kill -9; runs beside each other leave each
// other's alone; and one that is damaged from outside ends the training with its last checkpoint good.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "tests/cli/program.h"

namespace {

namespace fs = std::filesystem;
using plimsoll::testing::Cli;
using plimsoll::testing::Outcome;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class Spill : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    spill_ = folder_ / "spill";
    fs::create_directories(spill_);
  }

  std::string flags(int64_t steps) const {
    return fmt::format(
        "train lenet --data digits --batch 4 --memory 200KiB --spill {}:64MiB --exact --costs estimated --threads 1 "
        "--evaluate-every 0 --steps {} --json - ",
        spill_.string(), steps);
  }
  std::string kept(int64_t steps) const {
    return flags(steps) + "--checkpoint-every 5 --checkpoint " + path("c.safetensors");
  }

  // A training that goes on for long enough, and has saved a checkpoint.
  pid_t start_training(int64_t steps = 100000) {
    fs::remove(path("c.safetensors"));
    const pid_t child = start(kept(steps));
    for (int i = 0; i < 10000 && !fs::exists(path("c.safetensors")); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return child;
  }

  // The spill file of a process, by its link in /proc: it has no name, or none any more.
  std::optional<fs::path> spill_of(pid_t process) const {
    for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", process))) {
      std::error_code ignored;
      if (fs::read_symlink(entry.path(), ignored).string().starts_with(spill_.string())) return entry.path();
    }
    return std::nullopt;
  }

  static constexpr int64_t kSteps = 400;

  void touch(const std::string& name) const { std::ofstream(spill_ / name) << "x"; }

  // What was reached when the training stopped is in the checkpoint, and from there it ends as it would have.
  void expect_good_checkpoint() {
    const Outcome rest = run(flags(kSteps) + "--resume " + path("c.safetensors"));
    ASSERT_EQ(rest.code, 0) << rest.err;
    const Outcome whole = run(flags(kSteps));
    ASSERT_EQ(whole.code, 0) << whole.err;
    EXPECT_EQ(rest.lines().back().at("weights_sha256"), whole.lines().back().at("weights_sha256"));
  }

  fs::path spill_;
};

TEST_F(Spill, NothingIsLeftWhicheverWayTheTrainingEnds) {
  EXPECT_EQ(run(flags(5)).code, 0);
  EXPECT_TRUE(fs::is_empty(spill_));
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGABRT, SIGKILL}) {
    const pid_t child = start_training();
    EXPECT_TRUE(spill_of(child));
    ::kill(child, signal);
    if (signal == SIGHUP) ::kill(child, SIGTERM);  // with a checkpoint a hangup alone does not end it
    const Outcome stopped = wait(child);
    EXPECT_NE(stopped.code, 0);
    EXPECT_TRUE(fs::is_empty(spill_)) << "after signal " << signal;
  }
}

// Where the file system keeps no file without a name, a process that is killed in the wrong moment leaves one.
TEST_F(Spill, TheNextRunRemovesWhatAKilledOneLeft) {
  const pid_t killed = start_training();
  ::kill(killed, SIGKILL);
  wait(killed);
  const std::string left = fmt::format("plimsoll-{}-0000.spill", killed);
  touch(left);
  touch("notes.txt");
  EXPECT_EQ(run(flags(5)).code, 0);
  EXPECT_FALSE(fs::exists(spill_ / left));
  EXPECT_TRUE(fs::exists(spill_ / "notes.txt")) << "it is not ours";
}

TEST_F(Spill, RunsBesideEachOtherLeaveEachOthersFilesAlone) {
  const pid_t first = start_training();
  const std::string mine = fmt::format("plimsoll-{}-0000.spill", first);
  touch(mine);  // as it would be for a moment where files need names
  const fs::path out = folder_ / "second";
  const auto second = [&] {
    return ::system(fmt::format(PLIMSOLL_BINARY_DIR "/plimsoll {} > {} 2>&1", flags(200), out.string()).c_str());
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(second(), 0) << slurp(out);
  EXPECT_TRUE(fs::exists(spill_ / mine));
  EXPECT_TRUE(spill_of(first)) << "it is still running";
  ::kill(first, SIGINT);
  const Outcome stopped = wait(first);
  EXPECT_EQ(stopped.code, 5) << stopped.err;
  fs::remove(spill_ / mine);
  EXPECT_TRUE(fs::is_empty(spill_));
}

TEST_F(Spill, AFileThatIsCutShortEndsTheTrainingWithItsCheckpointGood) {
  const pid_t child = start_training(kSteps);
  const auto file = spill_of(child);
  ASSERT_TRUE(file);
  EXPECT_EQ(::truncate(file->c_str(), 0), 0);
  const Outcome stopped = wait(child);
  EXPECT_EQ(stopped.code, 4);
  EXPECT_THAT(stopped.err,
              AllOf(HasSubstr(spill_.string()), AnyOf(HasSubstr("the file ends early"), HasSubstr("checksum"))));
  EXPECT_TRUE(fs::is_empty(spill_));
  expect_good_checkpoint();
}

TEST_F(Spill, AFileThatAnotherWritesIntoEndsTheTrainingWithItsCheckpointGood) {
  const pid_t child = start_training(kSteps);
  const auto file = spill_of(child);
  ASSERT_TRUE(file);
  const int handle = ::open(file->c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(handle, 0);
  const std::string noise(4096, '?');
  for (int64_t at = 0; ::kill(child, 0) == 0 && at < 2000; ++at) {
    for (int64_t page = 0; page < 256; ++page) {
      if (::pwrite(handle, noise.data(), noise.size(), page * 4096) < 0) break;
    }
    int status = 0;
    if (::waitpid(child, &status, WNOHANG | WNOWAIT) == child) break;
  }
  ::close(handle);
  const Outcome stopped = wait(child);
  EXPECT_EQ(stopped.code, 4);
  EXPECT_THAT(stopped.err, AllOf(HasSubstr(spill_.string()), HasSubstr("checksum")));
  EXPECT_TRUE(fs::is_empty(spill_));
  expect_good_checkpoint();
}

TEST_F(Spill, TooSmallALimitOnFilesIsToldBeforeTheFirstStep) {
  const Outcome stopped = run_with_short_files(flags(5), 16384);
  EXPECT_EQ(stopped.code, 4);
  EXPECT_THAT(stopped.err, AllOf(HasSubstr("--spill " + spill_.string()), HasSubstr("File too large")));
  EXPECT_TRUE(fs::is_empty(spill_));
}

}  // namespace
