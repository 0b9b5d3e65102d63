#include "passes/pointwise_linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "passes/passes.h"
#include "plimsoll/ops.h"
#include "tests/support/interpreter.h"

namespace plimsoll {
namespace {

// x[2,5,4] through a wide layer of 12 to a loss, as networks have it: rows or more dimensions, gated or not.
struct MlpCase {
  bool gated = false, rank3 = false, product = false, drops = false, adds_bias = false;
  std::string expression = "gelu_tanh(x0)";
  bool tells_inner = false;
  int64_t outputs = 3;
};

Network mlp(const MlpCase& c) {
  Network network;
  Graph& g = network.graph;
  std::vector<TensorId> parameters;
  const auto parameter = [&](const std::string& name, Shape shape) {
    parameters.push_back(g.add_source(name, std::move(shape), DType::f64, Role::parameter));
    return parameters.back();
  };
  const auto one = [&](const std::string& type, const std::string& name, std::vector<TensorId> inputs,
                       Attributes attributes = {}) {
    return g.output(g.add_op(type, name + "/forward", name, std::move(inputs), std::move(attributes)));
  };
  network.data = g.add_source("data", {2, 5, 4}, DType::f64, Role::input);
  const TensorId rows = one("Reshape", "rows", {network.data}, {{"shape", Shape{10, 4}}});
  const auto wide = [&](const std::string& name) {
    const TensorId y =
        one("FullyConnectedForward", name, {rows, parameter(name + ".w", {12, 4}), parameter(name + ".b", {12})});
    return c.rank3 ? one("Reshape", name + ".view", {y}, {{"shape", Shape{2, 5, 12}}}) : y;
  };
  std::vector<TensorId> operands{wide("fc1")};
  if (c.gated) operands.push_back(wide("gate"));
  if (c.adds_bias) operands.push_back(parameter("act.b", {12}));
  TensorId y = one("Pointwise", "act", operands, {{"expression", c.expression}});
  if (c.tells_inner) g.outputs.push_back(y);
  if (c.drops) {
    const TensorId step = g.add_source("step_number", {}, DType::i64, Role::hyperparameter);
    const TensorId seed = g.add_source("seed", {}, DType::i64, Role::hyperparameter);
    y = one("DropoutForward", "drop", {y, step, seed}, {{"p", 0.4}, {"salt", int64_t{3}}});
  }
  if (c.product) {
    y = one("MatMul", "fc2", {y, parameter("fc2.w", {12, c.outputs})});
    y = one("Reshape", "fc2.rows", {y}, {{"shape", Shape{10, c.outputs}}});
  } else {
    if (c.rank3) y = one("Reshape", "fc2.view", {y}, {{"shape", Shape{10, 12}}});
    y = one("FullyConnectedForward", "fc2", {y, parameter("fc2.w", {c.outputs, 12}), parameter("fc2.b", {c.outputs})});
  }
  const TensorId target = network.labels = g.add_source("target", {10, c.outputs}, DType::f64, Role::input);
  network.objectives = {{one("MeanSquaredErrorForward", "loss", {y, target}), parameters}};
  return network;
}

int ops_named(const Graph& graph, std::string_view type) {
  return static_cast<int>(std::ranges::count_if(graph.ops(), [&](const Op& op) { return op.type->name == type; }));
}

// The loss and the states that a training step leaves, by name.
std::map<std::string, std::vector<double>> results_of_parts(const Network& training) {
  Values values(training.graph);
  fill_sources(training.graph, values, 1);
  interpret(training.graph, values);
  std::map<std::string, std::vector<double>> result;
  const auto take = [&](const std::string& name, TensorId id) {
    for (int64_t i = 0; i < values[id].size(); ++i) result[name].push_back(values[id].at(i));
  };
  take("loss", training.objectives[0].loss);
  for (const State& state : training.graph.states) take(training.graph.tensor(state.before).name, state.after);
  return result;
}

void expect_same_step(const Network& fused, const Network& network) {
  const auto got = results_of_parts(make_training_step(fused, {})),
             expected = results_of_parts(make_training_step(network, {}));
  EXPECT_EQ(got.size(), expected.size());
  for (const auto& [name, values] : expected)
    EXPECT_THAT(got.at(name), ::testing::Pointwise(::testing::DoubleNear(1e-12), values)) << name;
}

TEST(PointwiseLinearPass, TakesTheExpressionIntoTheLayer) {
  for (const bool gated : {false, true}) {
    for (const bool rank3 : {false, true}) {
      for (const bool product : {false, true}) {
        for (const bool drops : {false, true}) {
          SCOPED_TRACE(::testing::Message() << gated << rank3 << product << drops);
          const Network network = mlp({.gated = gated,
                                       .rank3 = rank3,
                                       .product = product,
                                       .drops = drops,
                                       .expression = gated ? "mul(silu(x0),x1)" : "gelu_tanh(x0)"});
          Network fused = network;
          EXPECT_EQ(fuse_pointwise_linear(fused, {}, 0_B), 1);
          check(fused.graph);
          EXPECT_EQ(ops_named(fused.graph, "PointwiseLinearForward"), 1);
          EXPECT_EQ(ops_named(fused.graph, "Pointwise") + ops_named(fused.graph, "DropoutForward"), 0);
          const OpId op = fused.graph.find_op("act+fc2/forward");
          ASSERT_TRUE(op.valid());
          for (size_t i = 0; i < (gated ? 2 : 1); ++i) {  // not through a view
            const OpId from = fused.graph.tensor(fused.graph.op(op).inputs[i]).producer;
            EXPECT_EQ(fused.graph.op(from).type->name, "FullyConnectedForward");
          }
          EXPECT_EQ(ops_named(fused.graph, "Reshape"), product ? rank3 ? 3 : 2 : 1);
          const Network step = make_training_step(fused, {}), plain = make_training_step(network, {});
          EXPECT_EQ(ops_named(step.graph, "PointwiseLinearBackward"), 1);
          EXPECT_EQ(ops_named(plain.graph, "PointwiseLinearBackward"), 0);
          expect_same_step(fused, network);
        }
      }
    }
  }
}

// As fuse_pointwise leaves a bias before the activation.
TEST(PointwiseLinearPass, TakesABiasThatIsTheSameForEveryRow) {
  const Network network = mlp({.adds_bias = true, .expression = "gelu_tanh(add(x0,x1))"});
  Network fused = network;
  EXPECT_EQ(fuse_pointwise_linear(fused, {}, 0_B), 1);
  expect_same_step(fused, network);
}

TEST(PointwiseLinearPass, LeavesWhatOthersReadAndWhatIsSmall) {
  Network read = mlp({.tells_inner = true});
  EXPECT_EQ(fuse_pointwise_linear(read, {}, 0_B), 0);
  Network small = mlp({});
  run_fusion_passes(small);
  EXPECT_EQ(ops_named(small.graph, "PointwiseLinearForward"), 0);
}

// The sum alone would be kept, by the layer.
TEST(PointwiseLinearPass, LeavesAnExpressionWhoseOperandsNeedNotBeKept) {
  for (const std::string sum : {"add(x0,x1)", "tanh(add(x0,x1))"}) {
    Network network = mlp({.gated = true, .expression = sum});
    EXPECT_EQ(fuse_pointwise_linear(network, {}, 0_B), 0) << sum;
  }
}

TEST(PointwiseLinearPass, LeavesALayerThatIsToBeSplit) {
  const FusionOptions small{.off = {}, .split_above = 2000_B, .block_bytes = 100_B};
  for (const auto& [outputs, found] : {std::pair{int64_t{3}, 1}, {32, 0}}) {
    Network network = mlp({.outputs = outputs});
    EXPECT_EQ(fuse_pointwise_linear(network, small, 0_B), found) << outputs;
  }
}

}  // namespace
}  // namespace plimsoll
