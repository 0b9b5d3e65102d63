// A training by several ranks, which are threads here: against one process, and against itself under other budgets.
#include "train/ranks.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <map>
#include <random>

#include "device/collectives.h"
#include "plimsoll/checkpoint.h"
#include "plimsoll/models.h"
#include "plimsoll/training_step.h"
#include "tests/support/error_text.h"
#include "tests/support/local_transport.h"
#include "tests/support/short_training.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/write_inputs.h"
#include "train/network_step.h"

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

TEST(Ranks, GoOnTogetherOrNotAtAll) {
  as_ranks(3, [](const std::shared_ptr<Communicator>& ranks) {
    EXPECT_TRUE(plimsoll::together(ranks.get(), [] { return true; }));
    EXPECT_FALSE(plimsoll::together(ranks.get(), [&] { return ranks->rank() != 2; }));
    try {
      plimsoll::together(ranks.get(), [&]() -> bool {
        if (ranks->rank() > 0) throw Error(ErrorCode::unsupported, "an op of " + std::to_string(ranks->rank()));
        return true;
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      const std::string wanted =
          ranks->rank() == 0 ? ranks->name(1) + ": an op of 1" : "an op of " + std::to_string(ranks->rank());
      EXPECT_EQ(error.what(), wanted);
    }
    ranks->barrier();
  });
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

// Dropout between two layers, behind attention that drops as well, for the digits.
std::string write_network_that_drops(const std::filesystem::path& file) {
  std::ofstream(file) << R"({
    "format": "plimsoll network", "version": 1, "name": "drops", "batch": 4,
    "training": {
      "tensors": [
        {"name": "x", "shape": ["batch", 1, 8, 8], "dtype": "f32", "role": "input"},
        {"name": "y", "shape": ["batch"], "dtype": "i32", "role": "input"},
        {"name": "a.weight", "shape": [30, 64], "dtype": "f32", "role": "parameter",
         "init": {"kind": "normal", "mean": 0, "scale": 0.2}},
        {"name": "b.weight", "shape": [10, 30], "dtype": "f32", "role": "parameter",
         "init": {"kind": "normal", "mean": 0, "scale": 0.2}},
        {"name": "step_number", "shape": [], "dtype": "i64", "role": "hyperparameter"},
        {"name": "seed", "shape": [], "dtype": "i64", "role": "hyperparameter"}
      ],
      "ops": [
        {"type": "AttentionForward", "name": "attention", "inputs": ["x", "x", "x", "step_number", "seed"],
         "outputs": ["mixed", "log_sum"], "attributes": {"dropout": 0.2, "salt": 2}},
        {"type": "Reshape", "name": "flatten", "inputs": ["mixed"], "outputs": ["flat"],
         "attributes": {"shape": ["batch", 64]}},
        {"type": "FullyConnectedForward", "name": "a", "inputs": ["flat", "a.weight"], "outputs": ["hidden"]},
        {"type": "DropoutForward", "name": "drop", "inputs": ["hidden", "step_number", "seed"], "outputs": ["dropped"],
         "attributes": {"p": 0.5, "salt": 1}},
        {"type": "FullyConnectedForward", "name": "b", "inputs": ["dropped", "b.weight"], "outputs": ["scores"]},
        {"type": "SoftmaxCrossEntropyForward", "name": "loss", "inputs": ["scores", "y"],
         "outputs": ["loss", "probabilities", "correct"]}
      ],
      "objectives": [{"loss": "loss"}],
      "data": "x", "labels": "y", "correct": "correct", "outputs": ["scores"]
    }
  })";
  return "graph:" + file.string();
}

TEST(Ranks, DropWhatOneProcessDrops) {
  const TemporaryFolder folder;
  TrainOptions options = short_training(write_network_that_drops(folder.path() / "drops.json"));
  options.batch = 28;  // 7 rows of 30: parts do not begin where four draws do
  options.steps = 50;
  const Learned one = alone(options);
  for (const int ranks : {2, 4}) EXPECT_LT(largest_difference(one, together(ranks, options)), 1e-4) << ranks;
  options.seed = 1;
  EXPECT_GT(largest_difference(one, alone(options)), 1e-2);
}

TEST(Ranks, EndWithTheSameBitsUnderEveryBudgetAndPolicy) {
  TrainOptions options = short_training("resnet20");
  options.batch = 8;
  options.steps = 2;
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

// What of a part of a batch depends on its rank.
void feed_part(TrainingStep& step, int64_t rows, int rank) {
  std::mt19937 random(static_cast<uint32_t>(rank));
  std::normal_distribution<float> draw(static_cast<float>(rank), 1);
  std::vector<float> data(rows * 3 * 16 * 16);
  for (float& x : data) x = draw(random);
  step.feed(data, std::vector<int32_t>(rows, rank));
}

// By name, of states of which there are such.
std::map<std::string, std::vector<std::byte>> statistics_of(const TrainingStep& step) {
  std::map<std::string, std::vector<std::byte>> result;
  for (const CheckpointTensor& tensor : step.states()) {
    if (tensor.role == Role::statistic) result[tensor.name] = step.state(tensor.name).elements;
  }
  return result;
}

TEST(Ranks, HaveTheFirstOnesRunningStatisticsAfterEveryStep) {
  const auto network = [] {
    return build_model("resnet20",
                       {.batch = 4, .channels = 3, .height = 16, .width = 16, .classes = 10, .training = true});
  };
  TrainOptions options;
  options.model.clear();
  options.threads = 1;
  options.exact = true;
  options.costs = "estimated";
  for (const int accumulate : {1, 3}) {
    options.optimizer.accumulate = accumulate;
    const auto open = [&](const std::shared_ptr<Communicator>& communicator) {
      TrainOptions mine = options;
      mine.communicator = communicator;
      return std::get<std::unique_ptr<NetworkStep>>(NetworkStep::open(network(), mine));
    };
    const auto run_step = [&](NetworkStep& step, int rank) {
      for (int i = 0; i < accumulate; ++i) {
        feed_part(step.step(), 4, rank);
        step.step().run(0.05);
      }
    };
    const auto one = open(nullptr);
    run_step(*one, 0);
    const auto alone = statistics_of(one->step());  // of the first rank's part, by the first weights
    ASSERT_EQ(alone.size(), 38u);
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} batches a step", ranks, accumulate));
      std::vector<std::map<std::string, std::vector<std::byte>>> first(ranks), third(ranks);
      as_ranks(ranks, [&](const std::shared_ptr<Communicator>& communicator) {
        const int rank = communicator->rank();
        const auto step = open(communicator);
        run_step(*step, rank);
        first[rank] = statistics_of(step->step());
        for (int i = 0; i < 2; ++i) run_step(*step, rank);
        third[rank] = statistics_of(step->step());
      });
      for (int r = 0; r < ranks; ++r) {
        EXPECT_EQ(first[r], alone) << "rank " << r;
        EXPECT_EQ(third[r], third[0]) << "rank " << r;
      }
      EXPECT_NE(third[0], first[0]);
    }
  }
}

TEST(Ranks, LearnAsOneProcessWithBatchNormOfTheWholeBatch) {
  const TemporaryFolder folder;
  TrainOptions options = short_training("resnet20");
  options.batch = 32;
  options.steps = 50;
  // Rounding grows over the steps: with another number of threads, one process drifts from itself by 5e-5, and further with a higher rate.
  options.schedule.lr = 1e-4;
  options.checkpoint = folder.path() / "alone.safetensors";
  const Learned one = alone(options);
  const auto expected = states_of(*options.checkpoint);
  for (const int ranks : {2, 4}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    options.checkpoint = folder.path() / fmt::format("{}.safetensors", ranks);
    options.optimizer.sync_batch_norm = true;
    EXPECT_LT(largest_difference(one, together(ranks, options)), 5e-4);
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
      EXPECT_LT(std::sqrt(off), 2e-3 * std::sqrt(size) + 1e-4) << name;
      statistics += name.find("running_") != std::string::npos;
    }
    EXPECT_EQ(statistics, 38);
    options.optimizer.sync_batch_norm = false;
    EXPECT_GT(largest_difference(one, together(ranks, options)), 5e-3) << "each its own statistics: another training";
  }
}

TEST(Ranks, EndWithTheSameBitsWithBatchNormOfTheWholeBatch) {
  TrainOptions options = short_training("resnet20");
  options.batch = 6;
  options.steps = 2;
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

// The division of states changes no bit, nor does the budget that a divided training has.
TEST(Ranks, EndWithTheSameBitsHoweverStatesAreDivided) {
  for (const int variant : {0, 1, 2}) {
    TrainOptions options = short_training("resnet20");
    options.batch = 12;
    options.steps = 2;
    if (variant == 1) options.optimizer.clip_grad_norm = 0.5;
    if (variant == 2) {
      options.optimizer.accumulate = 2;
      options.optimizer.name = "adamw";
      options.schedule.lr = 0.001;
    }
    options.check_memory = true;
    const int ranks = variant == 1 ? 3 : 2;
    options.zero = 0;
    const Learned whole = together(ranks, options);
    for (int stage = 1; stage <= kMostShardingStage; ++stage) {
      options.zero = stage;
      options.memory = 512_MiB;
      options.host_memory.reset();
      const Learned divided = together(ranks, options);
      EXPECT_EQ(divided.done.weights_sha256, whole.done.weights_sha256) << "variant " << variant << ", stage " << stage;
      if (variant != stage - 1) continue;  // each stage in one tight budget
      options.memory = Bytes{divided.done.peak.count * 7 / 10};
      options.host_memory = 64_MiB;
      EXPECT_EQ(together(ranks, options).done.weights_sha256, whole.done.weights_sha256)
          << "variant " << variant << ", stage " << stage << ", in " << to_string(*options.memory);
    }
  }
}

TEST(Ranks, SaveStatesWholeHoweverTheyAreDivided) {
  const TemporaryFolder folder;
  TrainOptions options = short_training("resnet20");
  options.batch = 24;
  options.evaluate_every = 1;
  options.steps = 6;
  options.zero = 0;
  const Learned whole = together(2, options);
  options.steps = 3;
  options.checkpoint = folder.path() / "whole.safetensors";
  together(2, options);
  const auto elements = [](const std::filesystem::path& file) {
    const Checkpoint checkpoint(file);
    std::map<std::string, std::vector<std::byte>> all;
    for (size_t i = 0; i < checkpoint.tensors().size(); ++i) {
      std::vector<std::byte>& bytes = all[checkpoint.tensors()[i].name];
      bytes.resize(checkpoint.tensors()[i].bytes().count);
      checkpoint.read(i, {}, bytes);
    }
    return all;
  };
  const auto wanted = elements(*options.checkpoint);
  for (const int stage : {1, 3}) {
    options.zero = stage;
    options.resume.reset();
    options.steps = 3;
    options.checkpoint = folder.path() / fmt::format("{}.safetensors", stage);
    together(2, options);
    EXPECT_TRUE(elements(*options.checkpoint) == wanted) << "stage " << stage;
    options.resume = options.checkpoint;
    options.checkpoint.reset();
    options.steps = 6;
    EXPECT_EQ(together(2, options).done.weights_sha256, whole.done.weights_sha256) << "stage " << stage;
    options.zero.reset();  // as the file says
    EXPECT_EQ(together(2, options).done.weights_sha256, whole.done.weights_sha256) << "stage " << stage;
    EXPECT_EQ(together(3, options).done.steps, 3) << "other ranks";
    EXPECT_EQ(alone(options).done.steps, 3) << "one process";
  }
}

// Each rank plans its evaluations by itself. Once that was by the costs of its own, which differ where only the first has measured: then
// one of them waited for another message.
TEST(Ranks, PlanEvaluationsByTheFirstOnesCosts) {
  ModelInput input{.batch = 8, .channels = 3, .height = 32, .width = 32, .classes = 10};
  const auto device =
      with_ranks(open_device("cpu", 1), {.ranks = 2, .latency_us = 30, .gb_per_s = 0.3, .compute_share = 0.1}, nullptr);
  CompileOptions options;
  options.optimizer.ranks = 2;
  options.zero = kMostShardingStage;
  const Program training =
      std::get<Program>(compile_training(build_model("resnet20", input), *device, CostTable(), options));
  input.training = false;
  const auto planned = [&](const CostTable& costs) {
    return std::get<Program>(compile_evaluation(build_model("resnet20", input), training, *device, costs, options));
  };
  const MachineRates fast{.gflops = 1000, .memory_gb_per_s = 100, .launch_us = 1};
  const MachineRates slow{.gflops = 1, .memory_gb_per_s = 0.1, .launch_us = 5, .busy = true};
  EXPECT_NE(planned(CostTable(fast)).plan->collectives.size(), planned(CostTable(slow)).plan->collectives.size());
  as_ranks(2, [&](const std::shared_ptr<Communicator>& ranks) {
    CostTable own(ranks->is_first() ? fast : slow);
    own.put({.signature = "an op", .kernel = "own"},
            {.source = Cost::Source::measured, .time_ms = 0.1 + ranks->rank()});
    EXPECT_THAT(testing::error_text(ErrorCode::internal, [&] { check_same_collectives(*ranks, planned(own)); }),
                HasSubstr("has another plan"));
    const CostTable common = common_costs(*ranks, own, device->info());
    EXPECT_EQ(common.find({.signature = "an op", .kernel = "own"})->time_ms, 0.1);
    EXPECT_EQ(common.rates().gflops, fast.gflops);
    check_same_collectives(*ranks, planned(common));
  });
}

// Networks drawn at random, in budgets drawn at random.
TEST(Ranks, RandomNetworksEndWithTheBitsOfUndividedOnes) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](int64_t least, int64_t most) {
      return std::uniform_int_distribution<int64_t>(least, most)(random);
    };
    const int ranks = static_cast<int>(draw(2, 4));
    const auto network = [&] {
      std::mt19937_64 same(seed + 100);
      const auto pick = [&](int64_t least, int64_t most) {
        return std::uniform_int_distribution<int64_t>(least, most)(same);
      };
      Builder b("random", {.batch = pick(1, 5), .channels = 3, .height = 8, .width = 8, .classes = 10});
      TensorId x = b.data();
      const int64_t layers = pick(1, 4);
      int64_t channels = pick(3, 40);
      for (int64_t i = 0; i < layers; ++i) {
        const std::string name = fmt::format("conv{}", i);
        const TensorId y = b.relu(name + "/relu", b.conv(name, x, {.channels = channels, .kernel = 3, .padding = 1}));
        x = i > 0 && pick(0, 1) == 1 && b.shape(x) == b.shape(y) ? b.add(name + "/add", {x, y}) : y;
        if (pick(0, 2) == 0) channels = pick(3, 70);
      }
      x = b.relu("fc1/relu", b.fully_connected("fc1", b.flatten("flat", x), {.channels = pick(20, 130)}));
      return std::move(b).finish_classifier(b.fully_connected("fc2", x, {.channels = 10}));
    };
    CompileOptions options{.exact = true};
    options.optimizer.ranks = ranks;
    options.optimizer.name = draw(0, 1) == 1 ? "adam" : "sgd";
    options.optimizer.accumulate = draw(0, 2) == 0 ? 2 : 1;
    options.optimizer.clip_grad_norm = draw(0, 1) == 1 ? 0.3 : 0;
    std::map<std::string, std::vector<std::byte>> wanted;
    for (int stage = 0; stage <= kMostShardingStage; ++stage) {
      const double share = static_cast<double>(draw(0, 10)) / 10;
      as_ranks(ranks, [&](const std::shared_ptr<Communicator>& communicator) {
        const LinkInfo link{.ranks = ranks, .latency_us = 20, .gb_per_s = 0.2};
        const auto device = with_ranks(open_device("cpu", 1), link, communicator);
        CompileOptions mine = options;
        mine.zero = stage;
        mine.name_minimum = true;
        auto compiled = compile_training(network(), *device, CostTable(), mine);
        const Bytes least = *std::get<Program>(compiled).minimum, most = std::get<Program>(compiled).plan->arena;
        mine.memory = {least.count + static_cast<int64_t>(share * static_cast<double>(most.count - least.count))};
        mine.name_minimum = false;
        compiled = compile_training(network(), *device, CostTable(), mine);
        TrainingStep step(std::get<Program>(std::move(compiled)), *device, {.check_memory = true});
        step.initialize(seed);
        step.start_at(0, seed);
        for (int batch = 0; batch < 4; ++batch) {
          write_inputs(step.executor(), step.program().network.graph, 10 * batch + communicator->rank());
          step.run(0.05);
        }
        for (const CheckpointTensor& state : step.states()) {
          const StateTensor now = step.state(state.name);
          if (!communicator->is_first()) continue;
          auto [known, is_new] = wanted.try_emplace(state.name, now.elements);
          EXPECT_TRUE(is_new == (stage == 0) && known->second == now.elements)
              << "seed " << seed << ", " << ranks << " ranks, stage " << stage << ": " << state.name;
        }
      });
    }
  }
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

// What a rank has summed is its own, so a step whose sums are begun is finished first.
TEST(Ranks, GoOnWithTheSameBitsFromWhereverTheyStopped) {
  const TemporaryFolder folder;
  TrainOptions options = short_training("lenet");
  options.batch = 12;
  options.steps = 6;
  options.optimizer.accumulate = 3;
  const Learned whole = together(2, options);
  for (const bool saves : {false, true}) {
    for (const int batches : {1, 2, 3, 4}) {
      TrainOptions first = options;
      first.checkpoint = folder.path() / fmt::format("{}{}.safetensors", saves, batches);
      if (saves) first.steps = 2;
      as_ranks(2, [&](const std::shared_ptr<Communicator>& communicator) {
        TrainOptions mine = first;
        mine.communicator = communicator;
        TrainListener listener;
        int asked = 0;
        const auto ask = [&] { return ++asked == batches; };
        if (communicator->rank() == 1) (saves ? listener.save : listener.stop) = ask;
        run_training(mine, listener);
        EXPECT_EQ(asked >= batches, communicator->rank() == 1);
      });
      TrainOptions rest = options;
      rest.resume = first.checkpoint;
      EXPECT_EQ(together(2, rest).done.weights_sha256, whole.done.weights_sha256) << batches;
    }
  }
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
