// --accumulate: a step of several batches is one of a batch so many times as large, in any memory, and across
// interruptions.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "plimsoll/checkpoint.h"
#include "plimsoll/train.h"
#include "tests/support/error_text.h"
#include "tests/support/short_training.h"
#include "tests/support/temporary_folder.h"

namespace plimsoll {
namespace {

using testing::error_text;
using ::testing::HasSubstr;

TrainOptions small_run(const std::string& model, int64_t batch, int64_t accumulate) {
  TrainOptions options = testing::short_training(model);
  options.batch = batch;
  options.steps = 10;
  options.optimizer.accumulate = accumulate;
  return options;
}

std::map<std::string, std::vector<float>> parameters(const std::filesystem::path& file) {
  const Checkpoint checkpoint(file);
  std::map<std::string, std::vector<float>> result;
  for (size_t i = 0; i < checkpoint.tensors().size(); ++i) {
    const CheckpointTensor& tensor = checkpoint.tensors()[i];
    if (tensor.role != Role::parameter) continue;
    std::vector<float>& elements = result[tensor.name];
    elements.resize(static_cast<size_t>(tensor.bytes().count) / sizeof(float));
    checkpoint.read(i, {}, std::as_writable_bytes(std::span(elements)));
  }
  return result;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
  return most;
}

TEST(AccumulatedTraining, FourBatchesOf8AreABatchOf32) {
  const TemporaryFolder folder;
  for (const char* model : {"mlp", "lenet"}) {
    for (const double clip : {0.0, 0.5}) {
      SCOPED_TRACE(fmt::format("{} clip {}", model, clip));
      std::vector<double> losses[2];
      std::map<std::string, std::vector<float>> weights[2], drawn;
      for (const int which : {0, 1}) {
        TrainOptions options = small_run(model, which == 0 ? 32 : 8, which == 0 ? 1 : 4);
        options.optimizer.clip_grad_norm = clip;
        options.checkpoint = folder.path() / "c.safetensors";
        const DoneEvent done =
            testing::run_training(options, {.step = [&](const StepEvent& e) { losses[which].push_back(e.loss); }});
        EXPECT_EQ(done.step, 10);
        weights[which] = parameters(*options.checkpoint);
        options.steps = 1;
        options.schedule.lr = 1e-30;
        testing::run_training(options);
        drawn = parameters(*options.checkpoint);
      }
      ASSERT_EQ(losses[0].size(), 10U);
      EXPECT_THAT(losses[1], ::testing::Pointwise(::testing::DoubleNear(2e-4), losses[0]));
      for (const auto& [name, elements] : weights[0]) {
        EXPECT_LT(largest_difference(elements, weights[1].at(name)), 2e-5) << name;
        EXPECT_GT(largest_difference(elements, drawn.at(name)), 1e-3) << name << " was trained";
      }
    }
  }
}

// 1437 digits in batches of 16 are 89 batches: 22 steps of 4, and one of the last.
TEST(AccumulatedTraining, TheLastStepOfAnEpochTakesTheBatchesThatAreLeft) {
  TrainOptions options = small_run("mlp", 16, 4);
  options.steps = 0;
  options.epochs = 2;
  std::vector<int64_t> steps_of_epochs;
  int64_t asked = 0, total = 0;
  const DoneEvent done =
      testing::run_training(options, {.step = [&](const StepEvent& e) { total = e.total_steps; },
                                      .epoch = [&](const EpochEvent& e) { steps_of_epochs.push_back(e.step); },
                                      .stop =
                                          [&] {
                                            ++asked;
                                            return false;
                                          }});
  EXPECT_EQ(total, 46);
  EXPECT_EQ(steps_of_epochs, (std::vector<int64_t>{23, 46}));
  EXPECT_EQ(done.step, 46);
  EXPECT_EQ(asked, 2 * 89) << "between batches, too";
}

// In the middle of a step the sums are part of what is saved.
TEST(AccumulatedTraining, ResumesBitForBitFromAnyBatch) {
  const TemporaryFolder folder;
  TrainOptions options = small_run("resnet20", 16, 4);  // batch norm, whose statistics advance with every batch
  options.steps = 30;                                   // more than an epoch of 23
  options.optimizer.clip_grad_norm = 1;
  const std::string whole = testing::run_training(options).weights_sha256;
  for (const int64_t batches : {2, 4, 90, 91}) {
    SCOPED_TRACE(batches);
    TrainOptions first = options;
    first.checkpoint = folder.path() / "c.safetensors";
    int64_t seen = 0;
    EXPECT_TRUE(testing::run_training(first, {.stop = [&] { return ++seen == batches; }}).interrupted);
    const TrainingState saved = Checkpoint(*first.checkpoint).state();
    EXPECT_EQ(saved.step, batches < 89 ? batches / 4 : 23 + (batches - 89) / 4);
    TrainOptions second = first;
    second.resume = second.checkpoint;
    EXPECT_EQ(testing::run_training(second).weights_sha256, whole);
  }
  TrainOptions other = options;
  other.resume = folder.path() / "c.safetensors";
  other.optimizer.accumulate = 2;
  EXPECT_THAT(error_text(ErrorCode::invalid_input, [&] { testing::run_training(other); }),
              HasSubstr("was saved with --accumulate 4, but 2 is asked for now"));
}

TEST(AccumulatedTraining, GivesTheSameWeightsInAnyMemory) {
  for (const std::string optimizer : {"sgd", "adam"}) {
    SCOPED_TRACE(optimizer);
    TrainOptions options = small_run("lenet", 16, 3);
    options.steps = 4;
    options.optimizer.name = optimizer;
    options.optimizer.freeze = {"conv1.*"};
    options.optimizer.clip_grad_norm = 0.5;
    const DoneEvent free = testing::run_training(options);
    TrainOptions small = options;
    small.memory = 64_KiB;
    const auto refused = train(small);
    const Bytes least = std::get<Infeasible>(refused).minimum;
    for (const Bytes memory : {least, Bytes{(least.count + free.peak.count) / 2}}) {
      small.memory = memory;
      small.check_memory = true;
      EXPECT_EQ(testing::run_training(small).weights_sha256, free.weights_sha256) << to_string(memory);
    }
    // Behind the arena: sums of gradients lie there between the batches, as other states do.
    small.host_memory = 64_MiB;
    small.memory = 64_KiB;
    const auto refused_with_host = train(small);
    ASSERT_TRUE(std::holds_alternative<Infeasible>(refused_with_host));
    small.memory = std::get<Infeasible>(refused_with_host).minimum;
    EXPECT_LT(*small.memory, least);
    size_t sums = 0;
    const DoneEvent done =
        testing::run_training(small, {.planned = [&](const Program& p, const std::string&, const ProcessMemory&) {
                                for (const Home& home : p.plan->homes)
                                  sums += p.network.graph.tensor(home.tensor).name.ends_with(".gradient_sum") ? 1 : 0;
                              }});
    EXPECT_GT(sums, 0U);
    EXPECT_EQ(done.weights_sha256, free.weights_sha256);
  }
}

}  // namespace
}  // namespace plimsoll
