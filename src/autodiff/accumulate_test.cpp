// Gradients that are accumulated over batches: the step of a network, by the reference kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "plimsoll/autodiff.h"
#include "plimsoll/models.h"
#include "tests/support/error_text.h"
#include "tests/support/interpreter.h"

namespace plimsoll {
namespace {

using testing::error_text;
using ::testing::HasSubstr;

constexpr int64_t kPixels = 9, kClasses = 3;

Network mlp(int64_t batch) {
  return build_model("mlp:8", {.batch = batch, .channels = 1, .height = 3, .width = 3, .classes = kClasses});
}

// A training by the interpreter: states go from step to step.
class Trainer {
 public:
  explicit Trainer(const Network& step) : step_(step), values_(step.graph) { fill_sources(step.graph, values_, 5); }

  // Samples `first` and those behind it; they do not depend on the batch.
  void feed(int64_t first) {
    const int64_t batch = step_.graph.tensor(step_.data).shape[0];
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t i = 0; i < kPixels; ++i)
        values_[step_.data].set(n * kPixels + i, static_cast<double>((first + n) * 7 + i * 3 % 11) / 50 - 0.5);
      values_[step_.labels].set(n, static_cast<double>((first + n) % kClasses));
    }
  }
  void set(const char* name, double value) {
    const TensorId id = step_.graph.find_tensor(name);
    ASSERT_TRUE(id.valid()) << name;
    values_[id].set(0, value);
  }
  void clear_optimizer_states() {
    for (const State& s : step_.graph.states) {
      if (step_.graph.tensor(s.before).role != Role::optimizer_state) continue;
      const bool sum = step_.graph.tensor(s.before).name.ends_with(".gradient_sum");
      for (int64_t i = 0; i < values_[s.before].size(); ++i) values_[s.before].set(i, sum ? 1e9 : 0);
    }
  }
  void run() {
    interpret(step_.graph, values_);
    for (const State& s : step_.graph.states) values_[s.before].data = values_[s.after].data;
  }
  // By name: those that both graphs have.
  std::vector<double> state(std::string_view name) const {
    const TensorId id = step_.graph.find_tensor(name);
    std::vector<double> result;
    for (int64_t i = 0; i < values_[id].size(); ++i) result.push_back(values_[id].at(i));
    return result;
  }
  double norm() const { return values_[step_.gradient_norm].at(0); }

 private:
  const Network& step_;
  Values values_;
};

class Accumulate : public ::testing::TestWithParam<OptimizerOptions> {};

TEST_P(Accumulate, GivesWhatABatchSoManyTimesAsLargeGives) {
  const OptimizerOptions plain = GetParam();
  OptimizerOptions sums = plain;
  sums.accumulate = 3;
  const Network large = make_training_network(mlp(6), plain), small = make_training_network(mlp(2), sums);
  check(small.graph);
  EXPECT_EQ(small.accumulate, 3);
  Trainer one(large), many(small);
  for (Trainer* trainer : {&one, &many}) {
    trainer->set("learning_rate", 0.1);
    trainer->clear_optimizer_states();
  }
  for (int64_t update = 0; update < 3; ++update) {
    one.feed(update * 6);
    if (plain.name != "sgd") {
      one.set("step_number", static_cast<double>(update));
      many.set("update_number", static_cast<double>(update));
    }
    one.run();
    for (int64_t batch = 0; batch < 3; ++batch) {
      const auto before = many.state("fc1.weight");
      many.feed(update * 6 + batch * 2);
      many.set("accumulated", static_cast<double>(batch));
      many.set("gradient_scale", batch == 2 ? 1.0 / 3 : -1);
      many.run();
      if (batch < 2) {
        EXPECT_EQ(many.state("fc1.weight"), before) << "no update yet";
      }
    }
    if (plain.clip_grad_norm > 0) {
      EXPECT_NEAR(many.norm(), one.norm(), 1e-5 * one.norm());
    }
    for (const State& s : large.graph.states) {
      const std::string& name = large.graph.tensor(s.before).name;
      EXPECT_THAT(many.state(name), ::testing::Pointwise(::testing::DoubleNear(2e-5), one.state(name))) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Accumulate,
                         ::testing::Values(OptimizerOptions{.momentum = 0}, OptimizerOptions{.weight_decay = 0.1},
                                           OptimizerOptions{.nesterov = true}, OptimizerOptions{.clip_grad_norm = 0.05},
                                           OptimizerOptions{.freeze = {"fc1.*"}, .clip_grad_norm = 0.05},
                                           OptimizerOptions{.name = "adamw", .weight_decay = 0.1},
                                           OptimizerOptions{.name = "adam", .clip_grad_norm = 1}));

TEST(AccumulatedStep, HasASumForWhatIsTrainedAndForNothingElse) {
  const Network forward = build_model("resnet20", {.batch = 2, .channels = 1, .height = 8, .width = 8});
  const Graph plain = make_training_network(forward, {.freeze = {"layer1.*"}}).graph;
  const Graph sums = make_training_network(forward, {.freeze = {"layer1.*"}, .accumulate = 2}).graph;
  std::set<std::string> added, wanted;
  for (const State& s : sums.states) {
    if (!plain.find_tensor(sums.tensor(s.before).name).valid()) added.insert(sums.tensor(s.before).name);
  }
  for (const State& s : plain.states) {
    const Tensor& t = plain.tensor(s.before);
    if (t.role == Role::parameter && !t.name.starts_with("layer1.")) wanted.insert(t.name + ".gradient_sum");
  }
  EXPECT_EQ(added, wanted);
  EXPECT_FALSE(added.empty());
}

// So a plan holds for any number of batches.
TEST(AccumulatedStep, IsTheSameForAnyNumberOfBatches) {
  const auto print = [](int64_t accumulate) {
    return fingerprint(make_training_network(mlp(2), {.accumulate = accumulate}).graph);
  };
  EXPECT_EQ(print(2), print(64));
  EXPECT_NE(print(2), print(1));
  EXPECT_EQ(print(1), fingerprint(make_training_network(mlp(2), {}).graph));
}

TEST(AccumulatedStep, EveryNetworkOfTheZooHasIt) {
  for (const ModelListing& listing : list_models()) {
    SCOPED_TRACE(listing.name);
    for (const double clip : {0.0, 1.0}) {
      const Network step =
          make_training_network(build_model(listing.name, {.batch = 2}), {.clip_grad_norm = clip, .accumulate = 2});
      check(step.graph);
      const auto count = [&](std::string_view type) {
        return std::count_if(step.graph.ops().begin(), step.graph.ops().end(),
                             [&](const Op& op) { return op.type->name == type; });
      };
      EXPECT_EQ(count("AccumulateGradient"), count("SgdUpdate"));
      EXPECT_EQ(count("ScaleGradient"), 0) << "the updates scale";
    }
  }
}

TEST(AccumulatedStep, RefusesLessThanOneBatch) {
  EXPECT_THAT(error_text(ErrorCode::invalid_input, [] { make_training_network(mlp(2), {.accumulate = 0}); }),
              HasSubstr("--accumulate 0: an update takes at least 1 batch"));
}

}  // namespace
}  // namespace plimsoll
