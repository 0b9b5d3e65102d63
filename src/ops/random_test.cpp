#include "base/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/gradient_check.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

Literal counter(double value) { return {{}, {value}, DType::i64}; }

TEST(Dropout, KeepsAShareAndScalesItUp) {
  const int64_t n = 20000;
  const Literal ones{{n}, std::vector<double>(n, 1)};
  const auto y = run_op("DropoutForward", {ones, counter(3), counter(7)}, {{"p", 0.2}, {"salt", int64_t{1}}})[0];
  int64_t kept = 0;
  for (double v : y) {
    ASSERT_TRUE(v == 0 || v == 1.25);
    kept += v != 0 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(kept), 0.8 * n, 5 * std::sqrt(0.16 * n));
}

TEST(Dropout, DrawsTheSameMaskBackwardsAndAnotherInEveryStepLayerAndSeed) {
  const Literal ones{{4, 8}, std::vector<double>(32, 1)};
  const auto mask = [&](std::string_view type, double step, double seed, int64_t salt) {
    return run_op(type, {ones, counter(step), counter(seed)}, {{"p", 0.5}, {"salt", salt}})[0];
  };
  const auto forward = mask("DropoutForward", 3, 7, 1);
  EXPECT_EQ(mask("DropoutBackward", 3, 7, 1), forward);
  EXPECT_NE(mask("DropoutForward", 4, 7, 1), forward);
  EXPECT_NE(mask("DropoutForward", 3, 8, 1), forward);
  EXPECT_NE(mask("DropoutForward", 3, 7, 2), forward);
}

// Written out, so that a change of the draws, which would change every training run, does not pass unseen.
TEST(Dropout, FollowsTheGeneratorElementByElement) {
  const Literal x{{2, 3}, {1, 2, 3, 4, 5, 6}};
  const auto y = run_op("DropoutForward", {x, counter(9), counter(5)}, {{"p", 0.5}, {"salt", int64_t{2}}})[0];
  for (uint32_t i = 0; i < 6; ++i) {
    const uint32_t draw = philox4x32({i / 4, 2, 9, 0}, {5, 0})[i % 4];
    EXPECT_EQ(y[i], draw >= 0x80000000u ? 2 * (i + 1) : 0) << i;
  }
}

TEST(Dropout, PartsOfABatchDropWhatTheWholeBatchDoes) {
  const int64_t parts = 5, columns = 7;
  const auto ones = [&](int64_t rows) {
    return Literal{{rows, columns}, std::vector<double>(static_cast<size_t>(rows * columns), 1)};
  };
  const Attributes attributes = {{"p", 0.5}, {"salt", int64_t{1}}};
  const auto whole = run_op("DropoutForward", {ones(3 * parts), counter(3), counter(7)}, attributes)[0];
  std::vector<double> together;
  for (int64_t part = 0; part < parts; ++part) {
    const Literal seed{{2}, {7, static_cast<double>(part)}, DType::i64};
    const auto own = run_op("DropoutForward", {ones(3), counter(3), seed}, attributes)[0];
    together.insert(together.end(), own.begin(), own.end());
  }
  EXPECT_EQ(together, whole);
}

TEST(Dropout, GradientAgreesWithFiniteDifferences) {
  for (double p : {0.0, 0.3, 0.9}) {
    Graph graph;
    const TensorId x = graph.add_source("x", {3, 7}, DType::f64, Role::input);
    const TensorId step = graph.add_source("step_number", {}, DType::i64, Role::hyperparameter);
    const TensorId seed = graph.add_source("seed", {}, DType::i64, Role::hyperparameter);
    const OpId op = graph.add_op("DropoutForward", "drop", "drop", {x, step, seed}, {{"p", p}, {"salt", int64_t{3}}});
    EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {x}), "") << p;
  }
}

TEST(Dropout, NamesWhatDoesNotFit) {
  const Literal x{{4}, {}};
  EXPECT_THAT(refusal("DropoutForward", {x, counter(0), counter(0)}, {{"p", 1.0}}),
              HasSubstr("p is 1; the share that falls lies in [0, 1)"));
  EXPECT_THAT(refusal("DropoutForward", {x, {{}, {0}, DType::f32}, counter(0)}, {{"p", 0.5}}),
              HasSubstr("'in1' is f32 scalar; an i64 scalar is expected"));
}

TEST(Bernoulli, DrawsOnesWhereDropoutWithTheOtherShareKeeps) {
  const Shape shape{3, 67};
  const Attributes attributes = {{"shape", shape}, {"p", 0.3}, {"salt", int64_t{4}}};
  const auto drawn = run_op("Bernoulli", {counter(3), counter(7)}, attributes)[0];
  const auto kept = run_op("DropoutForward", {{shape, std::vector<double>(201, 0.3)}, counter(3), counter(7)},
                           {{"p", 0.7}, {"salt", int64_t{4}}})[0];
  for (size_t i = 0; i < drawn.size(); ++i) {
    EXPECT_EQ(drawn[i], kept[i] != 0 ? 1 : 0) << i;
  }
  EXPECT_NE(run_op("Bernoulli", {counter(4), counter(7)}, attributes)[0], drawn);
}

TEST(Bernoulli, HasTheShareOfOnesAskedFor) {
  for (const double p : {0.0, 0.001, 0.25, 1.0}) {
    const double n = 20000;
    double ones = 0;
    const auto drawn = run_op("Bernoulli", {counter(1), counter(2)}, {{"shape", Shape{100, 200}}, {"p", p}})[0];
    for (double v : drawn) ones += v;
    EXPECT_NEAR(ones, p * n, 5 * std::sqrt(p * (1 - p) * n)) << p;
  }
}

TEST(Bernoulli, NamesWhatDoesNotFit) {
  const Attributes shape = {{"shape", Shape{2}}};
  const auto with = [&](double p) {
    Attributes attributes = shape;
    attributes.set("p", p);
    return attributes;
  };
  EXPECT_THAT(refusal("Bernoulli", {counter(0), counter(0)}, with(1.5)),
              HasSubstr("p is 1.5; the share of ones lies in [0, 1]"));
  EXPECT_THAT(refusal("Bernoulli", {counter(0), {{}, {0}, DType::f32}}, with(0.5)),
              HasSubstr("'in1' is f32 scalar; an i64 scalar is expected"));
  EXPECT_THAT(refusal("Bernoulli", {counter(0), {{3}, {0, 0, 0}, DType::i64}}, with(0.5)),
              HasSubstr("'in1' is i64 3; an i64 scalar is expected"));
  EXPECT_THAT(refusal("Bernoulli", {counter(0), counter(0)}, shape), HasSubstr("'p'"));
}

TEST(RandomNormal, HasTheMeanAndDeviationAskedFor) {
  const auto z = run_op("RandomNormal", {counter(1), counter(2)},
                        {{"shape", Shape{100, 100}}, {"mean", 3.0}, {"stddev", 0.5}, {"salt", int64_t{1}}})[0];
  double sum = 0, squares = 0;
  for (double v : z) sum += v;
  const double mean = sum / static_cast<double>(z.size());
  for (double v : z) squares += (v - mean) * (v - mean);
  EXPECT_NEAR(mean, 3, 0.02);
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(z.size())), 0.5, 0.02);
}

}  // namespace
}  // namespace plimsoll
