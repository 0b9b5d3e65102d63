// Training with tiers behind the arena: the same weights in a fraction of the memory, from a checkpoint too, and what
// happens when a tier fails on the way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "device/tier/fault.h"
#include "plimsoll/checkpoint.h"
#include "plimsoll/train.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("plimsoll_tiers_" + std::to_string(::getpid()))) {
    fs::create_directories(path_ / "spill");
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path spill() const { return path_ / "spill"; }
  fs::path operator/(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

TrainOptions small_run() {
  TrainOptions options{.model = "lenet", .data = "digits", .batch = 4, .policy = "liveness", .steps = 12};
  options.schedule.lr = 0.05;
  options.threads = 1;
  options.costs = "estimated";
  options.exact = true;
  options.evaluate_every = 0;
  return options;
}

// About half of what liveness needs: too little even for the weights and their momentum.
TrainOptions tight_run(const Folder& folder, bool disk) {
  TrainOptions options = small_run();
  options.policy = "auto";
  options.memory = 200_KiB;
  if (disk) {
    options.spill = folder.spill();
    options.spill_size = 64_MiB;
  } else {
    options.host_memory = 64_MiB;
  }
  return options;
}

DoneEvent run(const TrainOptions& options, const TrainListener& listener = {}) {
  auto result = train(options, listener);
  if (auto* infeasible = std::get_if<Infeasible>(&result)) throw Error(ErrorCode::infeasible, to_text(*infeasible));
  return std::get<DoneEvent>(result);
}

TEST(Tiers, GiveTheSameWeightsInLessMemoryThanWeightsAndMomentumNeed) {
  const Folder folder;
  const DoneEvent plain = run(small_run());
  for (const bool disk : {false, true}) {
    for (const bool check_memory : {false, true}) {
      TrainOptions options = tight_run(folder, disk);
      options.check_memory = check_memory;
      size_t homes = 0, copies = 0;
      const DoneEvent done =
          run(options, {.planned = [&](const Program& p, const std::string&) { homes = p.plan.homes.size(); },
                        .recorded = [&](const Program&, std::span<const StepRecord>,
                                        std::span<const StepRecord> records) { copies = records.size(); }});
      EXPECT_EQ(done.weights_sha256, plain.weights_sha256) << (disk ? "disk" : "host");
      EXPECT_LE(done.peak, 200_KiB);
      EXPECT_GT(plain.peak, 300_KiB);
      EXPECT_GT(homes, 0u);
      EXPECT_GT(copies, 0u);
    }
  }
  EXPECT_TRUE(fs::is_empty(folder.spill()));
}

TEST(Tiers, HoldTheSameCheckpointAndGoOnFromIt) {
  const Folder folder;
  TrainOptions options = small_run();
  options.steps = 20;
  const std::string whole = run(options).weights_sha256;
  TrainOptions half = tight_run(folder, true);
  half.checkpoint = folder / "half.safetensors";
  run(half);
  TrainOptions rest = tight_run(folder, false);
  rest.steps = 20;
  rest.resume = folder / "half.safetensors";
  EXPECT_EQ(run(rest).weights_sha256, whole);
}

TEST(Tiers, AFailureOnTheWayEndsTheTrainingAndLeavesTheLastCheckpointGood) {
  const Folder folder;
  TrainOptions options = small_run();
  options.steps = 20;
  const std::string whole = run(options).weights_sha256;
  for (const TierOperation operation : {TierOperation::write, TierOperation::read, TierOperation::corrupt}) {
    TrainOptions failing = tight_run(folder, true);
    failing.steps = 20;
    failing.checkpoint = folder / "last.safetensors";
    failing.checkpoint_every = 1;
    std::optional<TierFault> fault;
    std::string message;
    try {
      run(failing, {.step = [&](const StepEvent& e) {
            if (e.step == 8) fault.emplace(operation, 40, EIO);
          }});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::device_failure);
      message = error.what();
    }
    ASSERT_TRUE(fault && fault->struck()) << static_cast<int>(operation);
    fault.reset();
    EXPECT_THAT(message, AllOf(HasSubstr("'"), HasSubstr(folder.spill().string()), HasSubstr("byte")));
    EXPECT_TRUE(fs::is_empty(folder.spill()));
    const Checkpoint saved(folder / "last.safetensors");
    saved.check_contents();
    EXPECT_GE(saved.state().step, 8);
    TrainOptions rest = tight_run(folder, true);
    rest.steps = 20;
    rest.resume = folder / "last.safetensors";
    EXPECT_EQ(run(rest).weights_sha256, whole);
  }
}

}  // namespace
}  // namespace plimsoll
