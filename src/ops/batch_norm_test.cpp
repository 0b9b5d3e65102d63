#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/gradient_check.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

const Literal kX{{2, 2, 3}, {-0.3, 0.5, 1.3, -0.8, 0, 0.8, -1.3, -0.5, 0.3, 1.1, -1, -0.2}};
const Literal kResidual{{2, 2, 3}, {1.2, -0.9, -0.1, 0.7, -1.4, -0.6, 0.2, 1, -1.1, -0.3, 0.5, 1.3}};
const Literal kGamma{{2}, {1.5, -0.5}}, kBeta{{2}, {0.25, 0.1}}, kRunningMean{{2}, {0.5, -0.5}},
    kRunningVar{{2}, {2, 0.5}};

// relu(batch_norm(x) + residual) in PyTorch 1.13, double precision.
TEST(BatchNorm, AgreesWithPyTorchInTraining) {
  const auto out = run_op("BatchNormForward", {kX, kGamma, kBeta, kRunningMean, kRunningVar, kResidual},
                          {{"training", int64_t{1}}, {"activation", std::string("relu")}});
  ASSERT_EQ(out.size(), 6u);
  EXPECT_THAT(out[0], agrees_with({0.9029564357, 0.2617392738, 2.520522112, 1.310744549, 0, 0, 0, 0.3382607262, 0, 0,
                                   1.241147413, 1.519535958}));
  EXPECT_THAT(out[3], agrees_with({0.45, -0.4516666667}));
  EXPECT_THAT(out[4], agrees_with({1.8812, 0.5205666667}));
  EXPECT_EQ(out[5], (std::vector<double>{1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 1}));

  const Literal dy{{2, 2, 3}, {0.5, 1.3, -0.8, 0, 0.8, -1.3, -0.5, 0.3, 1.1, -1, -0.2, 0.6}};
  const auto back =
      run_op("BatchNormBackward", {kX, dy, kGamma, {{2}, out[1]}, {{2}, out[2]}, {{2, 2, 3}, out[5], DType::bit}},
             {{"activation", std::string("relu")}, {"residual", int64_t{1}}});
  ASSERT_EQ(back.size(), 4u);
  EXPECT_THAT(back[0],
              agrees_with({0.4236831711, 2.130383567, -1.451003826, 0.03092238508, 0.04373454115, 0.05654669723,
                           -0.7979530495, -0.002991927769, -0.3021179346, 0.06135125575, 0.1581222098, -0.350677089}));
  EXPECT_THAT(back[1], agrees_with({-0.8388001319, 0.1130158152}));
  EXPECT_THAT(back[2], agrees_with({1.3, 0.4}));
  EXPECT_THAT(back[3], agrees_with({0.5, 1.3, -0.8, 0, 0, 0, 0, 0.3, 0, 0, -0.2, 0.6}));
}

TEST(BatchNorm, AgreesWithPyTorchInEvaluation) {
  const auto out = run_op("BatchNormForward", {kX, kGamma, kBeta, kRunningMean, kRunningVar},
                          {{"training", int64_t{0}}, {"epsilon", 1e-3}});
  ASSERT_EQ(out.size(), 1u);
  EXPECT_THAT(out[0],
              agrees_with({-0.5983160849, 0.25, 1.098316085, 0.31192022, -0.2532003667, -0.8183209533, -1.658711191,
                           -0.8103951061, 0.03792097877, -1.030241173, 0.4532003667, -0.11192022}));
}

// Forms of the op: with and without activation, with and without residual, of images and of rows.
class BatchNormGradients : public ::testing::TestWithParam<std::tuple<bool, bool, Shape>> {};

TEST_P(BatchNormGradients, AgreeWithFiniteDifferences) {
  const auto [relu, residual, shape] = GetParam();
  Graph graph;
  std::vector<TensorId> inputs{graph.add_source("x", shape, DType::f64, Role::input)};
  for (const char* name : {"gamma", "beta", "running_mean", "running_var"}) {
    inputs.push_back(graph.add_source(name, {shape[1]}, DType::f64, Role::input));
  }
  if (residual) inputs.push_back(graph.add_source("residual", shape, DType::f64, Role::input));
  const OpId op = graph.add_op("BatchNormForward", "norm", "norm", inputs,
                               {{"training", int64_t{1}}, {"activation", std::string(relu ? "relu" : "none")}});
  std::vector<TensorId> wanted{inputs[0], inputs[1], inputs[2]};
  if (residual) wanted.push_back(inputs[5]);
  EXPECT_EQ(check_gradients(graph, {graph.output(op)}, wanted), "");
}

INSTANTIATE_TEST_SUITE_P(Forms, BatchNormGradients,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool(),
                                            ::testing::Values(Shape{3, 2, 4, 3}, Shape{7, 3}, Shape{2, 1, 1, 1})));

TEST(BatchNorm, NeedsAMaskOnlyWhereAReluIsTrained) {
  Graph graph;
  const TensorId x = graph.add_source("x", {4, 3, 2, 2}, DType::f32, Role::input);
  std::vector<TensorId> inputs{x};
  for (const char* name : {"gamma", "beta", "mean", "var"}) {
    inputs.push_back(graph.add_source(name, {3}, DType::f32, Role::parameter));
  }
  const Attribute relu = std::string("relu");
  const OpId trained = graph.add_op("BatchNormForward", "a", "a", inputs, {{"activation", relu}});
  EXPECT_EQ(graph.tensor(graph.output(trained, 5)).dtype, DType::bit);
  EXPECT_EQ(graph.tensor(graph.output(trained, 3)).role, Role::statistic);
  const OpId evaluated =
      graph.add_op("BatchNormForward", "b", "b", inputs, {{"activation", relu}, {"training", int64_t{0}}});
  EXPECT_EQ(graph.op(evaluated).outputs.size(), 1u);
}

TEST(BatchNorm, NamesWhatDoesNotFit) {
  const Literal x{{2, 3, 4, 4}, {}}, c{{3}, {}}, wrong{{4}, {}};
  EXPECT_THAT(refusal("BatchNormForward", {x, c, wrong, c, c}),
              HasSubstr("'in2' is 4; one value for each of the 3 channels of 'in0' is expected"));
  EXPECT_THAT(refusal("BatchNormForward", {{{1, 3, 1, 1}, {}}, c, c, c, c}),
              HasSubstr("'in0' is 1x3x1x1: one value a channel has no variance; a larger batch is needed"));
  EXPECT_THAT(refusal("BatchNormForward", {x, c, c, c, c, {{2, 3, 4, 5}, {}}}),
              HasSubstr("'in0' is 2x3x4x4 but 'in5' is 2x3x4x5"));
  EXPECT_THAT(refusal("BatchNormForward", {x, c, c, c, c}, {{"activation", std::string("tanh")}}),
              HasSubstr("activation is 'tanh'; 'none' or 'relu' is expected"));
  EXPECT_EQ(refusal("BatchNormForward", {{{1, 3, 1, 1}, {}}, c, c, c, c}, {{"training", int64_t{0}}}), "");
}

TEST(BatchNorm, HasNoGradientInEvaluation) {
  Graph graph;
  std::vector<TensorId> inputs{graph.add_source("x", {4, 3}, DType::f64, Role::input)};
  for (const char* name : {"gamma", "beta", "mean", "var"}) {
    inputs.push_back(graph.add_source(name, {3}, DType::f64, Role::input));
  }
  const OpId op = graph.add_op("BatchNormForward", "bn1", "bn1", inputs, {{"training", int64_t{0}}});
  try {
    check_gradients(graph, {graph.output(op)}, {inputs[0]});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.what(), HasSubstr("op 'bn1': batch norm has a gradient in training only"));
  }
}

}  // namespace
}  // namespace plimsoll
