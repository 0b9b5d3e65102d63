// The whole flow by its C++ API: budgets, policies and interruptions must not change a bit of the result.
#include "plimsoll/train.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <stdexcept>

#include "base/files.h"
#include "plimsoll/checkpoint.h"
#include "tests/support/short_training.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

TrainOptions small_training(const std::string& model = "resnet20") {
  TrainOptions options = testing::short_training(model);
  options.batch = 16;
  options.policy = "liveness";
  options.steps = 20;
  return options;
}

class TrainFolder {
 public:
  TrainFolder() : path_(fs::temp_directory_path() / ("plimsoll_train_" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~TrainFolder() { fs::remove_all(path_); }
  fs::path operator/(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

TEST(Train, GivesTheSameWeightsWhateverThePolicyAndTheRun) {
  TrainOptions options = small_training();
  const std::string liveness = testing::run_training(options).weights_sha256;
  EXPECT_EQ(testing::run_training(options).weights_sha256, liveness);
  options.policy = "baseline";
  EXPECT_EQ(testing::run_training(options).weights_sha256, liveness);
  options.policy = "auto";
  options.placement = "first_fit";
  EXPECT_EQ(testing::run_training(options).weights_sha256, liveness);
}

TEST(Train, ReadsNothingThatThePlanCallsDead) {
  for (const char* model : {"resnet20", "lenet", "mlp"}) {
    TrainOptions options = small_training(model);
    options.steps = 5;
    const std::string plain = testing::run_training(options).weights_sha256;
    options.check_memory = true;
    EXPECT_EQ(testing::run_training(options).weights_sha256, plain) << model;
  }
}

// What is measured is what kernels use: under baseline less than what the plan holds.
TEST(Train, PeaksAtTheByteThatWasPredicted) {
  for (const char* policy : {"baseline", "liveness", "auto"}) {
    TrainOptions options = small_training();
    options.policy = policy;
    options.steps = 2;
    Bytes predicted;
    const DoneEvent done =
        testing::run_training(options, {.planned = [&](const Program& p, const std::string&, const ProcessMemory&) {
                                predicted = p.plan->predicted.peak;
                              }});
    if (policy == std::string_view("baseline")) {
      EXPECT_LT(done.peak, predicted);
    } else {
      EXPECT_EQ(done.peak, predicted) << policy;
    }
  }
}

TEST(Train, ResumesBitForBitFromTheMiddleOfAnEpoch) {
  const TrainFolder folder;
  TrainOptions options = small_training();
  options.steps = 120;  // more than an epoch of 89 steps
  const std::string whole = testing::run_training(options).weights_sha256;

  options.checkpoint = folder / "half.safetensors";
  int64_t seen = 0;
  const DoneEvent first = testing::run_training(
      options, {.step = [&](const StepEvent& e) { seen = e.step; }, .stop = [&] { return seen == 97; }});
  EXPECT_TRUE(first.interrupted);
  options.resume = options.checkpoint;
  const DoneEvent second = testing::run_training(options);
  EXPECT_EQ(first.steps + second.steps, 120);
  EXPECT_EQ(second.weights_sha256, whole);
  EXPECT_EQ(Checkpoint(*options.checkpoint).state().weights_sha256, whole);
}

TEST(Train, TellsOfAnEpochThatWasInterruptedBehindItsLastBatch) {
  const TrainFolder folder;
  TrainOptions options = small_training("mlp");
  options.steps = 120;  // more than an epoch of 89 steps
  options.checkpoint = folder / "c.safetensors";
  std::vector<EpochEvent> epochs;
  int64_t seen = 0;
  const TrainListener listener{.step = [&](const StepEvent& e) { seen = e.step; },
                               .epoch = [&](const EpochEvent& e) { epochs.push_back(e); },
                               .stop = [&] { return seen == 89; }};
  EXPECT_TRUE(testing::run_training(options, listener).interrupted);
  options.resume = options.checkpoint;
  seen = 0;
  EXPECT_FALSE(testing::run_training(options, listener).interrupted);
  ASSERT_EQ(epochs.size(), 2U);
  EXPECT_EQ(epochs[0].epoch, 1);
  EXPECT_EQ(epochs[0].step, 89);
  EXPECT_FALSE(epochs[0].test_loss);
  EXPECT_EQ(epochs[1].epoch, 2);
}

TEST(Train, GoesOnWhenASaveFailsAndSaysSo) {
  const TrainFolder folder;
  TrainOptions options = small_training("mlp");
  options.steps = 6;
  options.checkpoint = folder / "c.safetensors";
  options.checkpoint_every = 2;
  std::vector<std::string> notices;
  const TrainListener listener{.notice = [&](const std::string& text) {  // a busy machine has more to say
    if (text.starts_with(options.checkpoint->string())) notices.push_back(text);
  }};
  const FileFault fault(FileOperation::write, 1, ENOSPC);
  const DoneEvent done = testing::run_training(options, listener);
  EXPECT_TRUE(fault.struck());
  ASSERT_EQ(notices.size(), 2U);
  EXPECT_EQ(notices[1], options.checkpoint->string() + ": saved again, at step 4");
  EXPECT_EQ(notices[0], options.checkpoint->string() +
                            ": cannot write: No space left on device; training goes on, and the next save tries again. "
                            "Nothing of this run is saved yet");
  const Checkpoint saved(*options.checkpoint);
  EXPECT_EQ(saved.state().step, 6);
  EXPECT_EQ(saved.state().weights_sha256, done.weights_sha256);
}

TEST(Train, FailsWhenTheLastSaveFailsAndKeepsTheOneBefore) {
  const TrainFolder folder;
  TrainOptions options = small_training("mlp");
  options.steps = 3;
  options.checkpoint = folder / "c.safetensors";
  options.checkpoint_every = 2;
  const FileFault fault(FileOperation::rename, 2, ENOSPC);
  try {
    testing::run_training(options);
    ADD_FAILURE() << "nothing failed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device_failure);
    EXPECT_EQ(error.what(),
              options.checkpoint->string() +
                  ": cannot rename the temporary file: No space left on device; so step 3, where training "
                  "ended, is not saved. The checkpoint there is of step 2");
  }
  EXPECT_EQ(Checkpoint(*options.checkpoint).state().step, 2);
}

TEST(Train, SavesWhatWasReachedWhenTheListenerThrows) {
  const TrainFolder folder;
  TrainOptions options = small_training("mlp");
  options.checkpoint = folder / "c.safetensors";
  const TrainListener listener{.step = [](const StepEvent& e) {
    if (e.step == 3) throw std::runtime_error("the output is gone");
  }};
  EXPECT_THROW(testing::run_training(options, listener), std::runtime_error);
  EXPECT_EQ(Checkpoint(*options.checkpoint).state().step, 3);
}

TEST(Train, LearnsTheDigits) {
  TrainOptions options = small_training();
  options.batch = 64;
  options.steps = 0;
  options.epochs = 6;
  options.evaluate_every = 6;
  const DoneEvent done = testing::run_training(options);
  ASSERT_TRUE(done.accuracy.has_value());
  EXPECT_GT(*done.accuracy, 0.93);
}

TEST(Train, SaysTheLeastMemoryThatWouldDoAndItDoes) {
  TrainOptions options = small_training();
  options.steps = 1;
  options.memory = 1_MiB;
  auto result = train(options);
  ASSERT_TRUE(std::holds_alternative<Infeasible>(result));
  const Bytes least = std::get<Infeasible>(result).minimum;
  options.memory = least;
  EXPECT_LE(testing::run_training(options).peak, least);
  options.memory = {least.count * 3 / 4};  // with a little less there may be a plan by this machine's times
  result = train(options);
  ASSERT_TRUE(std::holds_alternative<Infeasible>(result));
  EXPECT_EQ(std::get<Infeasible>(result).minimum, least);
}

}  // namespace
}  // namespace plimsoll
