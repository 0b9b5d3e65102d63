#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/gradient_check.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

const Literal kRowsX{{4, 2}, {0.5, -1, 2, 0.25, -0.75, 1.5, 1, 1}};
const Literal kRowsWeights{{3, 2}, {0.1, 0.7, -0.3, 0.4, 0.9, -0.6}};
const Literal kRowsTurned{{2, 3}, {0.1, -0.3, 0.9, 0.7, 0.4, -0.6}};
const Literal kRowsLabels{{4}, {2, 0, 7, 1}, DType::i64};
const Literal kRowsBias{{3}, {0.2, -0.1, 0.05}};
const Literal kRowsHalf{{}, {0.5}};

// What the layer, the loss and their backward ops give one after the other: loss, correct, dx, dw, dbias.
std::vector<std::vector<double>> one_by_one(const Attributes& attributes) {
  const auto logits = run_op("FullyConnectedForward", {kRowsX, kRowsWeights, kRowsBias})[0];
  const auto loss = run_op("SoftmaxCrossEntropyForward", {{{4, 3}, logits}, kRowsLabels}, attributes);
  const auto dz = run_op("SoftmaxCrossEntropyBackward", {{{4, 3}, loss[1]}, kRowsLabels, kRowsHalf}, attributes)[0];
  const auto dx = run_op("FullyConnectedBackwardData", {{{4, 3}, dz}, kRowsWeights})[0];
  const auto dw = run_op("FullyConnectedBackwardWeights", {kRowsX, {{4, 3}, dz}}, {{"bias", int64_t{1}}});
  return {loss[0], loss[2], dx, dw[0], dw[1]};
}

TEST(LinearCrossEntropy, IsTheLayerAndTheLossBehindIt) {
  for (const double smoothing : {0.0, 0.1}) {
    for (const std::string reduction : {"mean", "sum"}) {
      Attributes attributes{{"label_smoothing", smoothing}, {"reduction", reduction}, {"ignore_index", int64_t{7}}};
      const auto expected = one_by_one(attributes);
      const auto forward =
          run_op("LinearCrossEntropyForward", {kRowsX, kRowsWeights, kRowsLabels, kRowsBias}, attributes);
      EXPECT_THAT(forward[0], agrees_with(expected[0]));
      EXPECT_THAT(forward[1], agrees_with(expected[1]));
      attributes.set("gradients", std::string("xwb"));
      const auto both =
          run_op("LinearCrossEntropyTraining", {kRowsX, kRowsWeights, kRowsLabels, kRowsHalf, kRowsBias}, attributes);
      ASSERT_EQ(both.size(), 5);
      for (size_t i = 0; i < both.size(); ++i) EXPECT_THAT(both[i], agrees_with(expected[i])) << i;
      attributes.set("gradients", std::string("wb"));
      const auto back =
          run_op("LinearCrossEntropyBackward", {kRowsX, kRowsWeights, kRowsLabels, kRowsHalf, kRowsBias}, attributes);
      ASSERT_EQ(back.size(), 2);
      for (size_t i = 0; i < back.size(); ++i) EXPECT_THAT(back[i], agrees_with(expected[i + 3])) << i;
    }
  }
}

TEST(LinearCrossEntropy, TakesWeightsThatAreTurnedOver) {
  const Attributes attributes{{"ignore_index", int64_t{7}}};
  Attributes turned = attributes;
  turned.set("transposed", int64_t{1});
  EXPECT_THAT(run_op("LinearCrossEntropyForward", {kRowsX, kRowsTurned, kRowsLabels}, turned)[0],
              agrees_with(run_op("LinearCrossEntropyForward", {kRowsX, kRowsWeights, kRowsLabels}, attributes)[0]));
}

TEST(LinearCrossEntropy, GradientsAgreeWithFiniteDifferences) {
  for (const int64_t transposed : {0, 1}) {
    Graph graph;
    const Shape weights = transposed != 0 ? Shape{4, 6} : Shape{6, 4};
    const TensorId x = graph.add_source("x", {5, 4}, DType::f64, Role::input);
    const TensorId w = graph.add_source("w", weights, DType::f64, Role::parameter);
    const TensorId labels = graph.add_source("labels", {5}, DType::i32, Role::input);
    const TensorId bias = graph.add_source("bias", {6}, DType::f64, Role::parameter);
    const OpId op =
        graph.add_op("LinearCrossEntropyForward", "loss", "loss", {x, w, labels, bias},
                     {{"transposed", transposed}, {"label_smoothing", 0.2}, {"reduction", std::string("mean")}});
    EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {x, w, bias}, {.values = {{"labels", {0, 5, -1, 2, 2}}}}), "");
    EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {x}, {.values = {{"labels", {0, 5, -1, 2, 2}}}}), "");
  }
}

TEST(LinearCrossEntropy, NamesWhatDoesNotFit) {
  EXPECT_THAT(refusal("LinearCrossEntropyForward", {kRowsX, {{3, 4}, {}}, kRowsLabels}),
              HasSubstr("'in0' has 2 features; the weights take 4"));
  EXPECT_THAT(refusal("LinearCrossEntropyForward", {kRowsX, kRowsWeights, kRowsLabels, {{2}, {}}}),
              HasSubstr("'in3' is 2; one number for each of the 3 classes is expected"));
  EXPECT_THAT(refusal("LinearCrossEntropyBackward", {kRowsX, kRowsWeights, kRowsLabels, kRowsHalf},
                      {{"gradients", std::string("b")}}),
              HasSubstr("gradients is 'b'; 'x', 'w' and, with a bias, 'b' are possible"));
  EXPECT_THAT(refusal("LinearCrossEntropyForward", {kRowsX, kRowsWeights, {{3}, {}, DType::i64}}),
              HasSubstr("one label for each of the 4 rows of 'in0' is expected"));
}

}  // namespace
}  // namespace plimsoll
