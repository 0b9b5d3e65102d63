// Training with tiers behind the arena: the same weights in a fraction of the memory, from a checkpoint too, and what
// happens when a tier fails on the way.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>

#include "compile/plan_file.h"
#include "device/cpu/dnnl.h"
#include "device/tier/fault.h"
#include "plimsoll/checkpoint.h"
#include "plimsoll/cost.h"
#include "plimsoll/train.h"
#include "tests/support/short_training.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

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

TEST(Tiers, GiveTheSameWeightsInLessMemoryThanWeightsAndMomentumNeed) {
  const Folder folder;
  const DoneEvent plain = testing::run_training(small_run());
  for (const bool disk : {false, true}) {
    for (const bool check_memory : {false, true}) {
      TrainOptions options = tight_run(folder, disk);
      options.check_memory = check_memory;
      size_t homes = 0, copies = 0;
      const DoneEvent done = testing::run_training(
          options,
          {.planned = [&](const Program& p, const std::string&, const ProcessMemory&) { homes = p.plan->homes.size(); },
           .recorded = [&](const Program&, std::span<const StepRecord>, std::span<const StepRecord> records,
                           std::span<const StepRecord>) { copies = records.size(); }});
      EXPECT_EQ(done.weights_sha256, plain.weights_sha256) << (disk ? "disk" : "host");
      EXPECT_LE(done.peak, 200_KiB);
      EXPECT_GT(plain.peak, 250_KiB);
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
  const std::string whole = testing::run_training(options).weights_sha256;
  TrainOptions half = tight_run(folder, true);
  half.checkpoint = folder / "half.safetensors";
  testing::run_training(half);
  TrainOptions rest = tight_run(folder, false);
  rest.steps = 20;
  rest.resume = folder / "half.safetensors";
  EXPECT_EQ(testing::run_training(rest).weights_sha256, whole);
}

TEST(Tiers, AFailureOnTheWayEndsTheTrainingAndLeavesTheLastCheckpointGood) {
  const Folder folder;
  TrainOptions options = small_run();
  options.steps = 20;
  const std::string whole = testing::run_training(options).weights_sha256;
  for (const TierOperation operation : {TierOperation::write, TierOperation::read, TierOperation::corrupt}) {
    TrainOptions failing = tight_run(folder, true);
    failing.steps = 20;
    failing.checkpoint = folder / "last.safetensors";
    failing.checkpoint_every = 1;
    std::optional<TierFault> fault;
    std::string message;
    try {
      testing::run_training(failing, {.step = [&](const StepEvent& e) {
                              if (e.step == 8) fault.emplace(operation, 12, EIO);
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
    EXPECT_EQ(testing::run_training(rest).weights_sha256, whole);
  }
}

// Every kind of call to memory, oneDNN, tiers and threads: the first ones one by one, then in longer and longer
// strides.
class FailingTraining : public ::testing::Test {
 protected:
  FailingTraining() {
    ::setenv("PLIMSOLL_CACHE", (folder_ / "cache").c_str(), 1);
    CostDatabase(CostDatabase::default_path(), open_device("cpu", 1)->info()).save(MachineRates{});  // no probing
  }
  ~FailingTraining() override { ::unsetenv("PLIMSOLL_CACHE"); }

  TrainOptions options(bool disk = true) const {
    TrainOptions options = tight_run(folder_, disk);
    options.steps = 4;
    options.checkpoint = folder_ / "last.safetensors";
    options.checkpoint_every = 1;
    return options;
  }

  // A plan that was made once, since most of a short training is planning.
  fs::path plan_for(TrainOptions options) {
    const fs::path file = folder_ / (options.spill ? "disk.json" : "host.json");
    if (fs::exists(file)) return file;
    options.steps = 1;
    options.checkpoint.reset();
    testing::run_training(options, {.planned = [&](const Program& program, const std::string&, const ProcessMemory&) {
                            save_plan(file,
                                      {.model = options.model,
                                       .input = training_input(options),
                                       .optimizer = options.optimizer,
                                       .exact = options.exact,
                                       .memory = *options.memory,
                                       .host_memory = options.host_memory,
                                       .spill_size = options.spill_size,
                                       .threads = options.threads},
                                      program);
                          }});
    return file;
  }

  // Trains with a fault from its beginning, or from when there is a plan; returns whether it struck.
  template <class Begin, class Struck>
  bool train_with(TrainOptions options, bool planned, const Begin& begin, const Struck& struck) {
    fs::remove(*options.checkpoint);
    if (planned) options.plan = plan_for(options);
    std::string message, weights;
    if (!planned) begin();
    try {
      weights = testing::run_training(options, {.planned =
                                                    [&](const Program&, const std::string&, const ProcessMemory&) {
                                                      if (planned) begin();
                                                    }})
                    .weights_sha256;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::device_failure) << error.what();
      message = error.what();
    }
    const bool failed = struck();
    EXPECT_EQ(failed, !message.empty());
    EXPECT_TRUE(fs::is_empty(folder_.spill()));
    if (whole_.empty()) whole_ = testing::run_training(this->options()).weights_sha256;
    if (!failed) {
      EXPECT_EQ(weights, whole_);
    } else if (fs::exists(*options.checkpoint)) {
      TrainOptions rest = small_run();  // goes on without a limit, which is planned in no time
      rest.steps = options.steps;
      rest.resume = options.checkpoint;
      EXPECT_EQ(testing::run_training(rest).weights_sha256, whole_);
    }
    return failed;
  }

  const Folder folder_;
  std::string whole_;
};

class WhicheverCallFails : public FailingTraining, public ::testing::WithParamInterface<TierOperation> {};
TEST_P(WhicheverCallFails, TheTrainingSaysSoAndItsCheckpointIsGood) {
  for (const bool planned : {false, true}) {
    std::optional<TierFault> fault;
    int nth = 1;
    const auto struck = [&] {
      const bool result = fault && fault->struck();
      fault.reset();
      return result;
    };
    do {
      SCOPED_TRACE(fmt::format("call {}{}", nth, planned ? " with a plan" : ""));
      ASSERT_LT(nth, 1000000);
    } while (
        train_with(
            options(GetParam() != TierOperation::map), planned, [&] { fault.emplace(GetParam(), nth, EIO); }, struck) &&
        (nth += nth) > 0);
    EXPECT_GT(nth, 1);
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, WhicheverCallFails,
                         ::testing::Values(TierOperation::arena, TierOperation::map, TierOperation::open,
                                           TierOperation::allocate, TierOperation::buffers, TierOperation::thread,
                                           TierOperation::write, TierOperation::read, TierOperation::wait,
                                           TierOperation::short_read, TierOperation::corrupt),
                         [](const auto& info) { return fmt::format("kind{}", static_cast<int>(info.param)); });

TEST_F(FailingTraining, WhicheverCallOfOneDnnFailsSaysSoAndLeavesItsCheckpointGood) {
  int nth = 1;
  while (train_with(
      options(), true, [&] { cpu::fail_dnnl_call(nth); }, [] { return cpu::fail_dnnl_call(0); }))
    nth += nth;
  EXPECT_GT(nth, 100);
}

}  // namespace
}  // namespace plimsoll
