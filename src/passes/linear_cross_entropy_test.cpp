#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "passes/linear_cross_entropy.h"
#include "passes/passes.h"
#include "plimsoll/ops.h"
#include "tests/support/interpreter.h"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;

const FusionOptions kNone{.off = {"fuse_linear_cross_entropy"}};

enum class Head : uint8_t { linear, product };

// Tokens of 2 x 5 positions, each of 4 numbers, predict one of 6: `shifted` as causal models do, where the logits of the
// last position are left out.
Network language_model(Head head, bool shifted, bool tells_logits = false) {
  Network network;
  Graph& g = network.graph;
  const TensorId x = network.data = g.add_source("data", {2, 5, 4}, DType::f64, Role::input);
  const Shape weights = head == Head::linear ? Shape{6, 4} : Shape{4, 6};
  const TensorId w = g.add_source("w", weights, DType::f64, Role::parameter);
  const TensorId scale = g.add_source("scale", {2, 5, 4}, DType::f64, Role::parameter);
  const TensorId labels = network.labels = g.add_source("labels", {shifted ? 8 : 10}, DType::i64, Role::input);
  const auto one = [&](const std::string& type, const std::string& name, std::vector<TensorId> inputs,
                       Attributes attributes = {}) {
    return g.output(g.add_op(type, name + "/forward", name, std::move(inputs), std::move(attributes)));
  };
  TensorId y = one("Add", "hidden", {x, scale});
  if (head == Head::linear) {
    y = one("FullyConnectedForward", "head", {one("Reshape", "rows", {y}, {{"shape", Shape{10, 4}}}), w});
    y = one("Reshape", "logits", {y}, {{"shape", Shape{2, 5, 6}}});
  } else {
    y = one("MatMul", "head", {y, w});
  }
  if (tells_logits) g.outputs.push_back(y);
  if (shifted) y = one("Slice", "shift", {y}, {{"axis", int64_t{1}}, {"begin", int64_t{0}}, {"size", int64_t{4}}});
  y = one("Reshape", "flat", {y}, {{"shape", Shape{shifted ? 8 : 10, 6}}});
  const OpId loss = g.add_op("SoftmaxCrossEntropyForward", "loss/forward", "loss", {y, labels});
  network.correct = g.output(loss, 2);
  network.objectives = {{g.output(loss), {w, scale}}};
  g.states = {{w, w}, {scale, scale}};
  return network;
}

std::vector<std::string> types(const Graph& graph) {
  std::vector<std::string> result;
  for (const Op& op : graph.ops()) result.push_back(op.type->name);
  return result;
}
int ops_of_type(const Graph& graph, std::string_view type) {
  const auto all = types(graph);
  return static_cast<int>(std::count(all.begin(), all.end(), type));
}

// The outputs and the states that a training step leaves, in order.
std::vector<double> results_by_rows(const Network& training) {
  Values values(training.graph);
  fill_sources(training.graph, values, 1);
  for (int64_t i = 0; i < values[training.labels].size(); ++i)
    values[training.labels].set(i, i % 3 == 2 ? -1 : static_cast<double>(i % 6));
  interpret(training.graph, values);
  std::vector<double> result{values[training.objectives[0].loss].at(0), values[training.correct].at(0)};
  for (const State& state : training.graph.states) {
    for (int64_t i = 0; i < values[state.after].size(); ++i) result.push_back(values[state.after].at(i));
  }
  return result;
}

TEST(LinearCrossEntropyPass, TakesTheLayerIntoTheLoss) {
  for (const Head head : {Head::linear, Head::product}) {
    for (const bool shifted : {false, true}) {
      const Network network = language_model(head, shifted);
      Network fused = network;
      EXPECT_EQ(fuse_linear_cross_entropy(fused, 0_B), 1);
      check(fused.graph);
      EXPECT_EQ(ops_of_type(fused.graph, "LinearCrossEntropyForward"), 1);
      EXPECT_EQ(ops_of_type(fused.graph, "FullyConnectedForward") + ops_of_type(fused.graph, "MatMul"), 0);
      EXPECT_EQ(ops_of_type(fused.graph, "SoftmaxCrossEntropyForward"), 0);
      EXPECT_EQ(ops_of_type(fused.graph, "Slice"), shifted ? 1 : 0);
      for (const Tensor& tensor : fused.graph.tensors()) {
        const bool is_logits = !tensor.shape.empty() && tensor.shape.back() == 6 && tensor.role == Role::activation;
        EXPECT_FALSE(is_logits) << tensor.name;
      }
      const Network step = make_training_step(fused, {}), plain = make_training_step(network, {}, kNone);
      EXPECT_EQ(ops_of_type(step.graph, "LinearCrossEntropyTraining"), 1);
      EXPECT_EQ(
          ops_of_type(step.graph, "LinearCrossEntropyForward") + ops_of_type(step.graph, "LinearCrossEntropyBackward"),
          0);
      EXPECT_THAT(results_by_rows(step), ::testing::Pointwise(::testing::DoubleNear(1e-12), results_by_rows(plain)));
    }
  }
}

TEST(LinearCrossEntropyPass, LeavesLogitsThatOthersReadAndSmallOnes) {
  Network read = language_model(Head::linear, true, true);
  EXPECT_EQ(fuse_linear_cross_entropy(read, 0_B), 0);
  Network small = language_model(Head::linear, true);
  run_fusion_passes(small);
  EXPECT_EQ(ops_of_type(small.graph, "LinearCrossEntropyForward"), 0);
}

// The gradient of the loss is its value, which the forward op makes: so they stay two, and the logits are made twice.
TEST(LinearCrossEntropyPass, KeepsTheOpsApartWhereTheGradientDependsOnTheLoss) {
  Network network = language_model(Head::linear, false);
  Graph& g = network.graph;
  const TensorId loss = network.objectives[0].loss;
  network.objectives[0].loss =
      g.output(g.add_op("Pointwise", "square/forward", "square", {loss}, {{"expression", std::string("mul(x0,x0)")}}));
  const Network plain = make_training_step(network, {}, kNone);
  EXPECT_EQ(fuse_linear_cross_entropy(network, 0_B), 1);
  const Network step = make_training_step(network, {});
  EXPECT_EQ(ops_of_type(step.graph, "LinearCrossEntropyTraining"), 0);
  EXPECT_EQ(ops_of_type(step.graph, "LinearCrossEntropyBackward"), 1);
  EXPECT_THAT(results_by_rows(step), ::testing::Pointwise(::testing::DoubleNear(1e-12), results_by_rows(plain)));
}

}  // namespace
}  // namespace plimsoll
