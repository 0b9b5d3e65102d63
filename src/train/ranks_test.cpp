// A training by several ranks, which are threads here: against one process, and against itself under other budgets.
#include "train/ranks.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>

#include "plimsoll/checkpoint.h"
#include "tests/support/error_text.h"
#include "tests/support/local_transport.h"
#include "tests/support/short_training.h"
#include "tests/support/temporary_folder.h"

namespace plimsoll {
namespace {

using testing::as_ranks;
using ::testing::HasSubstr;
using testing::run_training;
using testing::short_training;

struct Learned {
  std::vector<double> losses;
  DoneEvent done;
};

Learned alone(const TrainOptions& options) {
  Learned run;
  TrainListener listener;
  listener.step = [&](const StepEvent& e) { run.losses.push_back(e.loss); };
  run.done = run_training(options, listener);
  return run;
}

// What the first rank tells; all end with the same weights, or train() throws.
Learned together(int ranks, const TrainOptions& options) {
  Learned run;
  as_ranks(ranks, [&](const std::shared_ptr<Communicator>& communicator) {
    TrainOptions mine = options;
    mine.communicator = communicator;
    TrainListener listener;
    if (communicator->is_first()) listener.step = [&](const StepEvent& e) { run.losses.push_back(e.loss); };
    DoneEvent done = run_training(mine, listener);
    if (communicator->is_first()) run.done = std::move(done);
  });
  return run;
}

double largest_difference(const Learned& a, const Learned& b) {
  EXPECT_EQ(a.losses.size(), b.losses.size());
  double most = 0;
  for (size_t i = 0; i < std::min(a.losses.size(), b.losses.size()); ++i)
    most = std::max(most, std::abs(a.losses[i] - b.losses[i]) / std::abs(a.losses[i]));
  return most;
}

TEST(Ranks, LearnAsOneProcessWithTheWholeBatch) {
  for (const int ranks : {2, 4}) {
    TrainOptions options = short_training("lenet");
    options.batch = 32;
    options.steps = 50;
    EXPECT_LT(largest_difference(alone(options), together(ranks, options)), 1e-4) << ranks;
  }
}

TEST(Ranks, EndWithTheSameBitsUnderEveryBudgetAndPolicy) {
  TrainOptions options = short_training("resnet20");
  options.batch = 16;
  options.steps = 4;
  const Learned first = together(2, options);
  EXPECT_EQ(together(2, options).done.weights_sha256, first.done.weights_sha256) << "again";
  for (const char* policy : {"liveness", "superneurons", "auto"}) {
    options.policy = policy;
    for (const int share : {100, 70}) {
      const Bytes memory{std::string_view(policy) == "liveness" ? first.done.peak.count * 100 / share
                                                                : first.done.peak.count * share / 100};
      options.memory = memory;
      options.host_memory = 64_MiB;
      options.check_memory = true;
      EXPECT_EQ(together(2, options).done.weights_sha256, first.done.weights_sha256)
          << policy << " in " << to_string(memory);
    }
  }
}

// The weights and running statistics that a training left, by name.
std::map<std::string, std::vector<float>> states_of(const std::filesystem::path& file) {
  std::map<std::string, std::vector<float>> result;
  const Checkpoint checkpoint(file);
  for (size_t i = 0; i < checkpoint.tensors().size(); ++i) {
    const CheckpointTensor& tensor = checkpoint.tensors()[i];
    if (tensor.dtype != DType::f32 || tensor.name.ends_with(".momentum")) continue;
    std::vector<float>& elements = result[tensor.name];
    elements.resize(element_count(tensor.shape));
    checkpoint.read(i, {}, std::as_writable_bytes(std::span(elements)));
  }
  return result;
}

TEST(Ranks, LearnAsOneProcessWithBatchNormOfTheWholeBatch) {
  const TemporaryFolder folder;
  TrainOptions options = short_training("resnet20");
  options.batch = 32;
  options.steps = 50;
  options.schedule.lr = 1e-4;  // with a higher one, a training drifts from itself with another number of threads
  options.checkpoint = folder.path() / "alone.safetensors";
  const Learned one = alone(options);
  const auto expected = states_of(*options.checkpoint);
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    options.checkpoint = folder.path() / fmt::format("{}.safetensors", ranks);
    options.optimizer.sync_batch_norm = true;
    EXPECT_LT(largest_difference(one, together(ranks, options)), 1e-4);
    const auto found = states_of(*options.checkpoint);
    ASSERT_EQ(found.size(), expected.size());
    int statistics = 0;
    for (const auto& [name, wanted] : expected) {
      const std::vector<float>& got = found.at(name);
      ASSERT_EQ(got.size(), wanted.size());
      double off = 0, size = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        off += (got[i] - wanted[i]) * (got[i] - wanted[i]);
        size += wanted[i] * wanted[i];
      }
      EXPECT_LT(std::sqrt(off), 1e-3 * std::sqrt(size) + 1e-5) << name;
      statistics += name.find("running_") != std::string::npos;
    }
    EXPECT_EQ(statistics, 38);
    options.optimizer.sync_batch_norm = false;
    EXPECT_GT(largest_difference(one, together(ranks, options)), 5e-3) << "each its own statistics: another training";
  }
}

TEST(Ranks, EndWithTheSameBitsWithBatchNormOfTheWholeBatch) {
  TrainOptions options = short_training("resnet20");
  options.batch = 12;
  options.steps = 3;
  options.optimizer.sync_batch_norm = true;
  const Learned first = together(3, options);
  EXPECT_EQ(together(3, options).done.weights_sha256, first.done.weights_sha256) << "again";
  for (const char* policy : {"liveness", "vdnn:layers=all", "mxnet:recompute=sublinear", "superneurons", "auto"}) {
    options.policy = policy;
    options.host_memory = 64_MiB;
    options.check_memory = true;
    options.memory = {std::string_view(policy) == "auto" ? first.done.peak.count * 6 / 10 : first.done.peak.count * 2};
    EXPECT_EQ(together(3, options).done.weights_sha256, first.done.weights_sha256) << policy;
  }
}

TEST(Ranks, ChangeNothingAloneOrWithoutBatchNormByItsStatistics) {
  for (const int ranks : {1, 2}) {
    TrainOptions options = short_training(ranks == 1 ? "resnet20" : "lenet");
    options.batch = 8;
    options.steps = 2;
    const Learned plain = ranks == 1 ? alone(options) : together(ranks, options);
    options.optimizer.sync_batch_norm = true;
    const Learned sync = ranks == 1 ? alone(options) : together(ranks, options);
    EXPECT_EQ(plain.done.weights_sha256, sync.done.weights_sha256);
  }
}

TEST(Ranks, SumGradientsOverBatchesAndClipThemTogether) {
  TrainOptions options = short_training("lenet");
  options.batch = 16;
  options.steps = 12;
  options.optimizer.accumulate = 3;
  options.optimizer.clip_grad_norm = 0.5;
  options.check_memory = true;
  EXPECT_LT(largest_difference(alone(options), together(2, options)), 1e-4);
}

TEST(Ranks, EvaluateThePartsOfTheTestSetAndAgree) {
  TrainOptions options = short_training("lenet");
  options.batch = 32;
  options.steps = 40;
  options.evaluate_every = 1;
  const Learned one = alone(options), three = together(4, options);
  ASSERT_TRUE(one.done.accuracy && three.done.accuracy);
  EXPECT_NEAR(*one.done.accuracy, *three.done.accuracy, 0.02);
}

TEST(Ranks, GoOnFromTheFirstOnesCheckpointWithTheSameBits) {
  const TemporaryFolder folder;
  TrainOptions options = short_training("resnet20");
  options.batch = 16;
  options.steps = 6;
  const Learned whole = together(2, options);
  options.steps = 3;
  options.checkpoint = folder.path() / "c.safetensors";
  together(2, options);
  options.resume = options.checkpoint;
  options.steps = 6;
  EXPECT_EQ(together(2, options).done.weights_sha256, whole.done.weights_sha256);
}

TEST(Ranks, RefuseWhatCannotBeShared) {
  const auto refusal = [](ErrorCode code, const std::function<void(TrainOptions&)>& change) {
    return testing::error_text(code, [&] {
      as_ranks(3, [&](const std::shared_ptr<Communicator>& communicator) {
        TrainOptions options = short_training("lenet");
        options.batch = 12;
        options.steps = 1;
        options.communicator = communicator;
        change(options);
        run_training(options);
      });
    });
  };
  EXPECT_THAT(refusal(ErrorCode::invalid_input, [](TrainOptions& o) { o.batch = 13; }), HasSubstr("take 12 or 15"));
  EXPECT_THAT(refusal(ErrorCode::invalid_input, [](TrainOptions& o) { o.batch = 2; }), HasSubstr("take 3"));
  EXPECT_THAT(refusal(ErrorCode::unsupported, [](TrainOptions& o) { o.inter_op = 0; }), HasSubstr("--inter-op"));
  EXPECT_THAT(refusal(ErrorCode::infeasible, [](TrainOptions& o) { o.memory = 1_KiB; }), HasSubstr("no plan"));
}

TEST(Ranks, StopTogetherWhenOneIsAskedTo) {
  std::atomic<int> stopped = 0;
  as_ranks(3, [&](const std::shared_ptr<Communicator>& communicator) {
    TrainOptions options = short_training("lenet");
    options.batch = 12;
    options.steps = 1000;
    options.communicator = communicator;
    TrainListener listener;
    int asked = 0;
    if (communicator->rank() == 2) listener.stop = [&asked] { return ++asked >= 5; };
    const DoneEvent done = run_training(options, listener);
    EXPECT_TRUE(done.interrupted);
    EXPECT_LT(done.steps, 10);
    ++stopped;
  });
  EXPECT_EQ(stopped, 3);
}

}  // namespace
}  // namespace plimsoll
