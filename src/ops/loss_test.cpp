#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_text.h"
#include "tests/support/gradient_check.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

const Literal kLogits{{4, 3}, {-1, -0.2, 0.6, 1.4, -0.7, 0.1, 0.9, -1.2, -0.4, 0.4, 1.2, -0.9}};
const Literal kClasses{{4}, {2, -1, 0, 1}, DType::i32};
const std::vector<double> kProbabilities{0.1222707136,  0.2721184774, 0.605610809,  0.7168519309,
                                         0.08778312704, 0.1953649421, 0.7168519309, 0.08778312704,
                                         0.1953649421,  0.2858717013, 0.6362191714, 0.07790912732};
const Literal kOneLoss{{}, {1}};

// cross_entropy(reduction="sum", ignore_index=-1) / 4 in PyTorch 1.13, double precision.
TEST(SoftmaxCrossEntropy, AgreesWithPyTorch) {
  const auto out = run_op("SoftmaxCrossEntropyForward", {kLogits, kClasses});
  EXPECT_NEAR(out[0][0], 0.3216539666, kPrintedDigits);
  EXPECT_THAT(out[1], agrees_with(kProbabilities));
  EXPECT_EQ(out[2][0], 3);
  const auto back = run_op("SoftmaxCrossEntropyBackward", {{{4, 3}, out[1]}, kClasses, kOneLoss});
  EXPECT_THAT(back[0], agrees_with({0.0305676784, 0.06802961936, -0.09859729776, 0, 0, 0, -0.07078701728, 0.02194578176,
                                    0.04884123552, 0.07146792531, -0.09094520714, 0.01947728183}));
}

TEST(SoftmaxCrossEntropy, AgreesWithPyTorchWithSmoothedLabels) {
  const Attributes smoothing{{"label_smoothing", 0.1}};
  const auto out = run_op("SoftmaxCrossEntropyForward", {kLogits, kClasses}, smoothing);
  EXPECT_NEAR(out[0][0], 0.3941539666, kPrintedDigits);
  const auto back = run_op("SoftmaxCrossEntropyBackward", {{{4, 3}, out[1]}, kClasses, kOneLoss}, smoothing);
  EXPECT_THAT(back[0], agrees_with({0.02223434506, 0.05969628603, -0.08193063109, 0, 0, 0, -0.05412035061,
                                    0.01361244843, 0.04050790218, 0.06313459198, -0.07427854048, 0.0111439485}));
}

// cross_entropy(ignore_index=-100, label_smoothing=0.1) in PyTorch 2.15, double precision.
TEST(SoftmaxCrossEntropy, AgreesWithPyTorchByEveryReduction) {
  const Literal labels{{4}, {2, -100, 0, 1}, DType::i64};
  Attributes attributes{{"label_smoothing", 0.1}, {"ignore_index", int64_t{-100}}, {"reduction", std::string("mean")}};
  auto out = run_op("SoftmaxCrossEntropyForward", {kLogits, labels}, attributes);
  EXPECT_NEAR(out[0][0], 0.5255386221, kPrintedDigits);
  EXPECT_EQ(out[2][0], 3);
  EXPECT_THAT(run_op("SoftmaxCrossEntropyBackward", {{{4, 3}, out[1]}, labels, kOneLoss}, attributes)[0],
              agrees_with({0.02964579342, 0.07959504804, -0.1092408415, 0, 0, 0, -0.07216046748, 0.01814993124,
                           0.05401053624, 0.08417945597, -0.09903805397, 0.014858598}));
  attributes.set("reduction", std::string("sum"));
  out = run_op("SoftmaxCrossEntropyForward", {kLogits, labels}, attributes);
  EXPECT_NEAR(out[0][0], 1.576615866, kPrintedDigits);
  EXPECT_THAT(run_op("SoftmaxCrossEntropyBackward", {{{4, 3}, out[1]}, labels, kOneLoss}, attributes)[0],
              agrees_with({0.08893738026, 0.2387851441, -0.3277225244, 0, 0, 0, -0.2164814024, 0.05444979371,
                           0.1620316087, 0.2525383679, -0.2971141619, 0.04457579399}));
}

TEST(SoftmaxCrossEntropy, IgnoresOneStatedLabel) {
  EXPECT_EQ(testing::error_text(ErrorCode::invalid_input,
                                [] {
                                  run_op("SoftmaxCrossEntropyForward", {kLogits, {{4}, {0, -1, 1, 2}, DType::i32}},
                                         {{"ignore_index", int64_t{1}}});
                                }),
            "row 1 has the label -1, but there are 3 classes");
  EXPECT_THAT(refusal("SoftmaxCrossEntropyForward", {kLogits, kClasses}, {{"reduction", std::string("none")}}),
              HasSubstr("reduction is 'none'; 'mean' or 'sum' is expected"));
}

TEST(SoftmaxCrossEntropy, DoesNotOverflow) {
  const auto out = run_op("SoftmaxCrossEntropyForward", {{{2, 2}, {1e4, -1e4, 1e4, -1e4}}, {{2}, {0, 1}, DType::i32}});
  EXPECT_EQ(out[0][0], 1e4);  // the mean of 0 and 2e4
  EXPECT_EQ(out[1], (std::vector<double>{1, 0, 1, 0}));
  EXPECT_EQ(out[2][0], 1);
}

TEST(SoftmaxCrossEntropy, GradientAgreesWithFiniteDifferences) {
  for (double smoothing : {0.0, 0.1}) {
    Graph graph;
    const TensorId logits = graph.add_source("logits", {5, 4}, DType::f64, Role::input);
    const TensorId labels = graph.add_source("labels", {5}, DType::i32, Role::input);
    const OpId op =
        graph.add_op("SoftmaxCrossEntropyForward", "loss", "loss", {logits, labels}, {{"label_smoothing", smoothing}});
    EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {logits}, {.values = {{"labels", {3, 0, -1, 2, 1}}}}), "");
  }
  for (const std::string reduction : {"mean", "sum"}) {
    Graph graph;
    const TensorId logits = graph.add_source("logits", {5, 4}, DType::f64, Role::input);
    const TensorId labels = graph.add_source("labels", {5}, DType::i64, Role::input);
    const OpId op = graph.add_op("SoftmaxCrossEntropyForward", "loss", "loss", {logits, labels},
                                 {{"reduction", reduction}, {"ignore_index", int64_t{2}}});
    EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {logits}, {.values = {{"labels", {3, 0, 1, 2, 1}}}}), "");
  }
}

TEST(SoftmaxCrossEntropy, NamesWhatDoesNotFit) {
  EXPECT_THAT(refusal("SoftmaxCrossEntropyForward", {kLogits, {{3}, {}, DType::i32}}),
              HasSubstr("'in1' is 3; one label for each of the 4 rows of 'in0' is expected"));
  EXPECT_THAT(refusal("SoftmaxCrossEntropyForward", {kLogits, {{4}, {}, DType::u8}}),
              HasSubstr("'in1' is u8; labels are i32 or i64"));
  EXPECT_THAT(refusal("SoftmaxCrossEntropyForward", {kLogits, kClasses}, {{"label_smoothing", 1.5}}),
              HasSubstr("label_smoothing is 1.5; it lies in [0, 1)"));
  EXPECT_EQ(testing::error_text(ErrorCode::invalid_input,
                                [] {
                                  run_op("SoftmaxCrossEntropyForward", {kLogits, {{4}, {0, 1, 2, 3}, DType::i32}});
                                }),
            "row 3 has the label 3, but there are 3 classes");
}

TEST(MeanSquaredError, AgreesWithPyTorch) {
  const Literal x{{6}, {-0.3, 0.5, 1.3, -0.8, 0, 0.8}}, target{{6}, {0.1, 0.9, -1.2, -0.4, 0.4, 1.2}};
  EXPECT_NEAR(run_op("MeanSquaredErrorForward", {x, target})[0][0], 1.175, kPrintedDigits);
  const double d = -0.1333333333;
  EXPECT_THAT(run_op("MeanSquaredErrorBackward", {x, target, kOneLoss})[0], agrees_with({d, d, 0.8333333333, d, d, d}));
}

TEST(MeanSquaredError, GradientsAgreeWithFiniteDifferences) {
  Graph graph;
  const TensorId x = graph.add_source("x", {3, 2}, DType::f64, Role::input);
  const TensorId target = graph.add_source("target", {3, 2}, DType::f64, Role::input);
  const OpId op = graph.add_op("MeanSquaredErrorForward", "loss", "loss", {x, target});
  EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {x, target}), "");
}

TEST(SigmoidCrossEntropy, AgreesWithPyTorch) {
  const Literal logits{{6}, {-0.3, 0.5, 1.3, -0.8, 0, 0.8}};
  const Attributes target{{"target", 0.9}};
  EXPECT_NEAR(run_op("SigmoidCrossEntropyForward", {logits}, target)[0][0], 0.6591315325, kPrintedDigits);
  EXPECT_THAT(
      run_op("SigmoidCrossEntropyBackward", {logits, kOneLoss}, target)[0],
      agrees_with({-0.0790737528, -0.04625677813, -0.01902750283, -0.09832908019, -0.06666666667, -0.03500425315}));
  EXPECT_EQ(run_op("SigmoidCrossEntropyForward", {{{2}, {1e4, -1e4}}}, {{"target", 1.0}})[0][0], 5e3);
}

TEST(SigmoidCrossEntropy, GradientAgreesWithFiniteDifferences) {
  for (double target : {0.0, 0.3, 1.0}) {
    Graph graph;
    const TensorId logits = graph.add_source("logits", {5, 1}, DType::f64, Role::input);
    const OpId op = graph.add_op("SigmoidCrossEntropyForward", "loss", "loss", {logits}, {{"target", target}});
    EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {logits}), "");
  }
}

TEST(SigmoidCrossEntropy, NamesATargetThatIsNoProbability) {
  EXPECT_THAT(refusal("SigmoidCrossEntropyForward", {{{4, 1}, {}}}, {{"target", 2.0}}),
              HasSubstr("target is 2; it lies in [0, 1]"));
}

}  // namespace
}  // namespace plimsoll
