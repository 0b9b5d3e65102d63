#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/gradient_check.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

const Literal kLinearX{{2, 2, 2}, {0.5, -1, 2, 0.25, -0.75, 1.5, 1, 1}};
const Literal kUp{{2, 2, 2}, {1, 0.5, -0.25, 2, 0.75, -1, 0.1, 3}};
const Literal kLinearWeights{{3, 2}, {0.1, 0.7, -0.3, 0.4, 0.9, -0.6}};
const Literal kLinearTurned{{2, 3}, {0.1, -0.3, 0.9, 0.7, 0.4, -0.6}};
const Literal kLinearBias{{3}, {0.2, -0.1, 0.05}};
const Literal kOfResult{{2, 2, 3}, {1, -1, 0.5, 2, 0.1, 0.3, -0.7, 0.4, 0.6, 1.1, -0.2, 0.9}};
const Literal kLinearStep{{}, {3}, DType::i64}, kLinearSeed{{}, {77}, DType::i64};
const Attributes kLinearDrop{{"p", 0.4}, {"salt", int64_t{9}}};

Attributes gated() { return {{"expression", std::string("mul(silu(x0),x1)")}, {"operands", int64_t{2}}}; }

// The ops one after the other: y, dx0, dx1, dw, dbias.
std::vector<std::vector<double>> gated_one_by_one(bool drops) {
  const auto rows = [](std::vector<double> values, int64_t width) { return Literal{{4, width}, std::move(values)}; };
  const auto drop = [&](std::vector<double> values) {
    return drops ? run_op("DropoutForward", {rows(std::move(values), 2), kLinearStep, kLinearSeed}, kLinearDrop)[0]
                 : values;
  };
  const auto pointwise = [](const std::string& text, const std::vector<Literal>& inputs) {
    return run_op("Pointwise", inputs, {{"expression", text}})[0];
  };
  const auto f = drop(pointwise("mul(silu(x0),x1)", {kLinearX, kUp}));
  const auto y = run_op("FullyConnectedForward", {rows(f, 2), kLinearWeights, kLinearBias})[0];
  const Literal dy = rows(kOfResult.elements, 3);
  const Literal df{kLinearX.shape, drop(run_op("FullyConnectedBackwardData", {dy, kLinearWeights})[0])};
  const auto dw = run_op("FullyConnectedBackwardWeights", {rows(f, 2), dy}, {{"bias", int64_t{1}}});
  return {y, pointwise("mul(mul(silu_derivative(x0),x1),x2)", {kLinearX, kUp, df}),
          pointwise("mul(silu(x0),x1)", {kLinearX, df}), dw[0], dw[1]};
}

TEST(PointwiseLinear, IsTheExpressionDropoutAndTheLayerBehindThem) {
  for (const bool drops : {false, true}) {
    const auto expected = gated_one_by_one(drops);
    Attributes attributes = gated();
    std::vector<Literal> inputs{kLinearX, kUp, kLinearWeights};
    if (drops) {
      attributes.set("p", 0.4);
      attributes.set("salt", int64_t{9});
      inputs.insert(inputs.end(), {kLinearStep, kLinearSeed});
    }
    std::vector<Literal> forward = inputs, backward = inputs;
    forward.push_back(kLinearBias);
    backward.push_back(kOfResult);
    EXPECT_THAT(run_op("PointwiseLinearForward", forward, attributes)[0], agrees_with(expected[0]));
    attributes.set("gradients", std::vector<int64_t>{0, 1, 2, 3});
    const auto all = run_op("PointwiseLinearBackward", backward, attributes);
    ASSERT_EQ(all.size(), 4);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_THAT(all[i], agrees_with(expected[i + 1])) << i;
    attributes.set("gradients", std::vector<int64_t>{1, 3});
    const auto some = run_op("PointwiseLinearBackward", backward, attributes);
    ASSERT_EQ(some.size(), 2);
    EXPECT_THAT(some[0], agrees_with(expected[2]));
    EXPECT_THAT(some[1], agrees_with(expected[4]));
  }
}

TEST(PointwiseLinear, TakesWeightsThatAreTurnedOver) {
  Attributes turned = gated();
  turned.set("transposed", int64_t{1});
  EXPECT_THAT(run_op("PointwiseLinearForward", {kLinearX, kUp, kLinearTurned}, turned)[0],
              agrees_with(run_op("PointwiseLinearForward", {kLinearX, kUp, kLinearWeights}, gated())[0]));
}

TEST(PointwiseLinear, GradientsAgreeWithFiniteDifferences) {
  for (const int64_t transposed : {0, 1}) {
    for (const bool drops : {false, true}) {
      Graph graph;
      const auto source = [&](const std::string& name, Shape shape, DType dtype = DType::f64) {
        return graph.add_source(name, std::move(shape), dtype, Role::parameter);
      };
      const TensorId gate = source("gate", {5, 4}), up = source("up", {5, 4}), bias = source("bias", {6});
      const TensorId w = source("w", transposed != 0 ? Shape{4, 6} : Shape{6, 4});
      Attributes attributes = gated();
      attributes.set("transposed", transposed);
      std::vector<TensorId> inputs{gate, up, w};
      if (drops) {
        attributes.set("p", 0.3);
        inputs.push_back(source("step", {}, DType::i64));
        inputs.push_back(source("seed", {}, DType::i64));
      }
      inputs.push_back(bias);
      const TensorId y = graph.output(graph.add_op("PointwiseLinearForward", "mlp", "mlp", inputs, attributes));
      EXPECT_EQ(check_gradients(graph, {y}, {gate, up, w, bias}), "");
      EXPECT_EQ(check_gradients(graph, {y}, {up}), "");
      EXPECT_EQ(check_gradients(graph, {y}, {w}), "");
    }
  }
}

TEST(PointwiseLinear, SumsTheGradientOfAnOperandThatIsOneRow) {
  Graph graph;
  const TensorId bias = graph.add_source("bias", {4}, DType::f64, Role::parameter);
  const TensorId x = graph.add_source("x", {2, 3, 4}, DType::f64, Role::parameter);
  const TensorId w = graph.add_source("w", {5, 4}, DType::f64, Role::parameter);
  const TensorId y =
      graph.output(graph.add_op("PointwiseLinearForward", "mlp", "mlp", {bias, x, w},
                                {{"expression", std::string("gelu(add(x1,x0))")}, {"operands", int64_t{2}}}));
  EXPECT_EQ(graph.tensor(y).shape, (Shape{2, 3, 5}));
  EXPECT_EQ(check_gradients(graph, {y}, {bias, x, w}), "");
  EXPECT_EQ(check_gradients(graph, {y}, {bias}), "");
}

TEST(PointwiseLinear, NamesWhatDoesNotFit) {
  EXPECT_THAT(refusal("PointwiseLinearForward", {kLinearX, kUp, {{3, 4}, {}}}, gated()),
              HasSubstr("'in0' has 2 features; the weights take 4"));
  EXPECT_THAT(refusal("PointwiseLinearForward", {kLinearX, kUp, kLinearWeights, {{2}, {}}}, gated()),
              HasSubstr("'in3' is 2; one number for each of 3 outputs is expected"));
  EXPECT_THAT(refusal("PointwiseLinearForward", {kLinearX, kLinearWeights},
                      {{"expression", std::string("mul(x0,x1)")}, {"operands", int64_t{1}}}),
              HasSubstr("reads x1, but there are 1 operands"));
  Attributes backward = gated();
  backward.set("gradients", std::vector<int64_t>{1, 0});
  EXPECT_THAT(refusal("PointwiseLinearBackward", {kLinearX, kUp, kLinearWeights, kOfResult}, backward),
              HasSubstr("gradients has 0 after 1; they rise, to 3 at most"));
  EXPECT_THAT(refusal("PointwiseLinearBackward", {kLinearX, kUp, kLinearWeights, kLinearX}, gated()),
              HasSubstr("2x2x3 is expected"));
}

}  // namespace
}  // namespace plimsoll
