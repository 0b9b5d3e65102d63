// Split fully connected layers from the first value to the last checkpoint: files know whole tensors only.
#include <gtest/gtest.h>

#include <cmath>

#include "plimsoll/models.h"
#include "plimsoll/training_step.h"
#include "tests/support/temporary_folder.h"
#include "train/resume.h"

namespace plimsoll {
namespace {

Network small_classifier() {
  Builder net("small", {.batch = 4, .channels = 1, .height = 4, .width = 4, .classes = 7});
  TensorId x = net.relu("relu1", net.fully_connected("fc1", net.flatten("flatten", net.data()), {.channels = 72}));
  x = net.dropout("drop", x, 0.25);
  return std::move(net).finish_classifier(net.fully_connected("fc2", x, {.channels = 7}));
}

// A training of the small classifier, split or not, somewhere in memory.
class Training {
 public:
  explicit Training(bool split, const TrainingState* pinned = nullptr) : device_(open_device("cpu", 1)) {
    CompileOptions options{.policy = "liveness", .optimizer = {.name = "adam"}};
    options.fusion.split_above = split ? 1000_B : 1_GiB;
    options.fusion.block_bytes = 1_KiB;
    if (pinned != nullptr) pin(options, *pinned);
    step_ = std::make_unique<TrainingStep>(
        std::get<Program>(compile_training(small_classifier(), *device_, CostTable(), options)), *device_,
        ExecuteOptions{.check_memory = true});
    step_->initialize(3);
  }

  void run(int64_t first, int64_t end) {
    step_->start_at(first, 3);
    for (int64_t step = first; step < end; ++step) {
      data_.resize(64);
      labels_ = {1, 3, 5, static_cast<int32_t>(step % 7)};
      for (size_t i = 0; i < data_.size(); ++i) data_[i] = static_cast<float>((i * 37 + step * 11) % 101) / 50 - 1;
      step_->feed(data_, labels_);
      step_->run(0.01);
    }
  }
  TrainingState state() const { return state_to_save({.model = "small"}, step_->program(), device_->info().key); }
  void save(const std::filesystem::path& file) const {
    save_checkpoint(file, state(), step_->states(), step_->state_source());
  }
  void load(const std::filesystem::path& file) { step_->load(Checkpoint(file)); }
  std::string sha256() const { return step_->weights_sha256(); }
  const Graph& graph() const { return step_->program().network.graph; }
  const TrainingStep& step() const { return *step_; }

  std::vector<float> values() const {
    std::vector<float> all;
    for (size_t i = 0; i < step_->states().size(); ++i) {
      std::vector<float> one(element_count(step_->states()[i].shape));
      step_->state_source()(i, {}, std::as_writable_bytes(std::span(one)));
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<TrainingStep> step_;
  std::vector<float> data_;
  std::vector<int32_t> labels_;
};

double farthest(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
  return most;
}

TEST(SplitTraining, StartsFromTheSameValuesAndStepsTheSameWithinRounding) {
  Training whole(false), split(true);
  ASSERT_TRUE(whole.graph().find_tensor("fc1.weight").valid());
  ASSERT_TRUE(split.graph().find_tensor("fc1.weight[16:32]").valid());
  ASSERT_TRUE(split.graph().find_tensor("fc1.weight.exp_avg[16:32]").valid());
  EXPECT_EQ(split.sha256(), whole.sha256());
  EXPECT_EQ(split.values(), whole.values());
  whole.run(0, 3);
  split.run(0, 3);
  EXPECT_LT(farthest(split.values(), whole.values()), 2e-5);
}

TEST(SplitTraining, ACheckpointHasWholeTensorsAndResumesBitForBit) {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "split.safetensors";
  Training straight(true);
  straight.run(0, 2);
  straight.save(file);
  straight.run(2, 4);

  const Checkpoint checkpoint(file);
  EXPECT_EQ(checkpoint.tensors().size(), 12u);
  checkpoint.find("fc1.weight", {72, 16}, DType::f32);
  checkpoint.find("fc1.bias", {72}, DType::f32);
  checkpoint.find("fc1.weight.exp_avg_sq", {72, 16}, DType::f32);
  EXPECT_TRUE(checkpoint.state().state_layouts.contains("fc1.weight[0:16]"));

  Training resumed(true, &checkpoint.state());
  resumed.load(file);
  EXPECT_EQ(resumed.sha256(), checkpoint.state().weights_sha256);
  resumed.run(2, 4);
  EXPECT_EQ(resumed.sha256(), straight.sha256());
  EXPECT_EQ(resumed.values(), straight.values());
}

TEST(SplitTraining, ACheckpointFromBeforeALayerWasSplitGoesOnAndTheOtherWayRound) {
  const TemporaryFolder folder;
  for (bool before : {false, true}) {
    const std::filesystem::path file = folder.path() / "before.safetensors";
    Training old(before);
    old.run(0, 2);
    old.save(file);
    const Checkpoint checkpoint(file);
    Training now(!before, &checkpoint.state());
    now.load(file);
    EXPECT_EQ(now.sha256(), checkpoint.state().weights_sha256);
    EXPECT_EQ(now.values(), old.values());
    old.run(2, 4);
    now.run(2, 4);
    EXPECT_LT(farthest(now.values(), old.values()), 2e-5);
  }
}

TEST(SplitTraining, PartsOfAStateAreReadAcrossBlocks) {
  Training split(true);
  const std::vector<float> whole = split.values();
  size_t at = 0;
  for (size_t i = 0; i < split.step().states().size(); ++i) {
    const size_t count = element_count(split.step().states()[i].shape);
    for (size_t length : {size_t{1}, size_t{7}, size_t{301}}) {
      for (size_t first = 0; first + length <= count; first += 1 + length / 2) {
        std::vector<float> some(length);
        split.step().state_source()(i, {static_cast<int64_t>(first) * 4}, std::as_writable_bytes(std::span(some)));
        ASSERT_TRUE(std::equal(some.begin(), some.end(), whole.begin() + static_cast<std::ptrdiff_t>(at + first)));
      }
    }
    at += count;
  }
}

}  // namespace
}  // namespace plimsoll
