#include "passes/pointwise.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "passes/passes.h"
#include "plimsoll/ops.h"
#include "tests/support/interpreter.h"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using Ints = std::vector<int64_t>;

// A network in f64 with a loss that every element counts in differently.
struct PointwiseNetwork {
  Network network;
  std::vector<TensorId> parameters;

  TensorId parameter(const std::string& name, Shape shape) {
    parameters.push_back(network.graph.add_source(name, std::move(shape), DType::f64, Role::parameter));
    return parameters.back();
  }
  TensorId input(const std::string& name, Shape shape) {
    return network.graph.add_source(name, std::move(shape), DType::f64, Role::input);
  }
  TensorId op(const std::string& type, const std::string& name, std::vector<TensorId> inputs,
              Attributes attributes = {}) {
    return network.graph.output(network.graph.add_op(type, name, name, std::move(inputs), std::move(attributes)));
  }
  TensorId pointwise(const std::string& name, const std::string& text, std::vector<TensorId> inputs) {
    return op("Pointwise", name, std::move(inputs), {{"expression", text}});
  }
  Network finish(TensorId x) {
    const TensorId target = input("target", network.graph.tensor(x).shape);
    const TensorId loss = op("MeanSquaredErrorForward", "loss", {x, target});
    network.graph.outputs.push_back(loss);
    network.objectives.push_back({loss, parameters});
    network.data = target;
    return network;
  }
};

std::vector<std::string> pointwise_lines(const Graph& graph, Phase phase) {
  std::vector<std::string> lines;
  for (const Op& op : graph.ops()) {
    if (op.phase != phase || op.type->name != "Pointwise") continue;
    std::vector<std::string> inputs;
    for (TensorId id : op.inputs) inputs.push_back(graph.tensor(id).name);
    lines.push_back(fmt::format("{}: {} of {}", op.layer, op.attributes.text("expression"), fmt::join(inputs, " ")));
  }
  return lines;
}

// The loss and the parameters that a step leaves.
std::map<std::string, std::vector<double>> after_a_step(const Network& training) {
  Values values(training.graph);
  fill_sources(training.graph, values, 1);
  interpret(training.graph, values);
  std::map<std::string, std::vector<double>> results;
  const auto take = [&](const std::string& name, TensorId id) {
    for (int64_t i = 0; i < values[id].size(); ++i) results[name].push_back(values[id].at(i));
  };
  for (TensorId id : training.graph.outputs) take(training.graph.tensor(id).name, id);
  for (const State& state : training.graph.states) take(training.graph.tensor(state.before).name, state.after);
  return results;
}

// Fused before and after autodiff, it trains as it does without.
Network fused_step(const Network& network) {
  Network forward = network;
  fuse_pointwise(forward, Phase::forward);
  check(forward.graph);
  Network training = make_training_network(forward, {.momentum = 0});
  fuse_pointwise(training, Phase::backward);
  check(training.graph);
  const auto plain = after_a_step(make_training_network(network, {.momentum = 0})), fused = after_a_step(training);
  EXPECT_EQ(plain.size(), fused.size());
  for (const auto& [name, numbers] : plain) {
    EXPECT_TRUE(fused.contains(name)) << name;
    if (fused.contains(name)) {
      EXPECT_THAT(fused.at(name), ::testing::Pointwise(::testing::DoubleNear(1e-12), numbers)) << name;
    }
  }
  return training;
}

TEST(FusePointwise, MakesOneOpOfAChain) {
  PointwiseNetwork net;
  const TensorId x = net.parameter("x", {3, 4}), u = net.parameter("u", {3, 4}), b = net.parameter("b", {4});
  const TensorId shifted = net.pointwise("bias", "add(x0,x1)", {x, b});
  const TensorId y = net.pointwise("mul", "mul(x0,x1)", {net.pointwise("silu", "silu(x0)", {shifted}), u});
  const Network step = fused_step(net.finish(net.pointwise("half", "mul(x0,0.5)", {y})));
  EXPECT_THAT(pointwise_lines(step.graph, Phase::forward),
              ElementsAre("bias+silu+mul+half: mul(mul(silu(add(x0,x1)),x2),0.5) of x b u"));
}

TEST(FusePointwise, LeavesWhatOthersRead) {
  PointwiseNetwork net;
  const TensorId x = net.parameter("x", {3, 4});
  const TensorId a = net.pointwise("a", "exp(x0)", {x});
  const TensorId b = net.pointwise("b", "sin(x0)", {a});
  const TensorId c = net.op("Reduce", "c", {a}, {{"function", std::string("max")}, {"keep_dims", int64_t{1}}});
  const Network step = fused_step(net.finish(net.pointwise("d", "add(x0,x1)", {b, c})));
  EXPECT_THAT(pointwise_lines(step.graph, Phase::forward),
              ElementsAre("a: exp(x0) of x", "b+d: add(sin(x0),x1) of a:0 c:0"));
}

// t is read by two ops that become one: then it has one reader.
TEST(FusePointwise, TakesWhatItsOwnPartsShare) {
  PointwiseNetwork net;
  const TensorId x = net.parameter("x", {3, 4});
  const TensorId t = net.pointwise("t", "mul(x0,2)", {x});
  const TensorId s = net.pointwise("s", "sigmoid(x0)", {t});
  const Network step = fused_step(net.finish(net.pointwise("y", "mul(x0,x1)", {s, t})));
  EXPECT_THAT(pointwise_lines(step.graph, Phase::forward), ElementsAre("t+s+y: silu(mul(x0,2)) of x"));
}

TEST(FusePointwise, DoesNotMakeTheBackwardPassKeepMore) {
  PointwiseNetwork net;
  // Made, so that they would have to be kept.
  const TensorId a = net.op("TanhForward", "a", {net.parameter("p", {3, 4})});
  const TensorId b = net.op("TanhForward", "b", {net.parameter("q", {3, 4})});
  const TensorId sum = net.pointwise("sum", "add(x0,x1)", {a, b});
  const Network step = fused_step(net.finish(net.pointwise("gelu", "gelu(x0)", {sum})));
  EXPECT_THAT(pointwise_lines(step.graph, Phase::forward),
              ElementsAre("sum: add(x0,x1) of a:0 b:0", "gelu: gelu(x0) of sum:0"));
  PointwiseNetwork relu;
  const TensorId c = relu.op("TanhForward", "a", {relu.parameter("p", {3, 4})});
  const TensorId d = relu.op("TanhForward", "b", {relu.parameter("q", {3, 4})});
  const TensorId added = relu.op("Add", "sum", {c, d});
  const Network fused = fused_step(relu.finish(relu.pointwise("relu", "relu(x0)", {added})));
  EXPECT_THAT(pointwise_lines(fused.graph, Phase::forward), ElementsAre("sum+relu: relu(add(x0,x1)) of a:0 b:0"));
}

TEST(FusePointwise, StretchesAndConvertsByItself) {
  PointwiseNetwork net;
  const TensorId x = net.parameter("x", {3, 4}), g = net.parameter("g", {4});
  const TensorId wide = net.op("Expand", "wide", {g}, {{"shape", Ints{3, 4}}});
  const Network step = fused_step(net.finish(net.pointwise("y", "mul(x0,x1)", {x, wide})));
  EXPECT_THAT(pointwise_lines(step.graph, Phase::forward), ElementsAre("y: mul(x0,x1) of x g"));
  EXPECT_FALSE(step.graph.find_op("wide").valid());
  // Where nothing else has the shape, the Expand stays.
  PointwiseNetwork alone;
  const TensorId v = alone.parameter("v", {4});
  const TensorId rows = alone.op("Expand", "rows", {v}, {{"shape", Ints{3, 4}}});
  EXPECT_TRUE(fused_step(alone.finish(alone.pointwise("y", "exp(x0)", {rows}))).graph.find_op("rows").valid());
}

// The mean's gradient is one number, which the gelu's reads as it is.
TEST(FusePointwise, JoinsTheBackwardPass) {
  PointwiseNetwork net;
  const TensorId x = net.parameter("x", {3, 4});
  const TensorId y = net.pointwise("gelu", "gelu(x0)", {x});
  const TensorId z =
      net.pointwise("tanh", "tanh(x0)", {net.op("Reduce", "mean", {y}, {{"function", std::string("mean")}})});
  const Network step = fused_step(net.finish(z));
  for (const Op& op : step.graph.ops()) EXPECT_NE(op.type->name, "Expand") << op.name;
  PointwiseNetwork fork;
  const TensorId w = fork.parameter("w", {3, 4});
  const TensorId left = fork.pointwise("left", "exp(x0)", {w});
  const TensorId kept = fork.op("TanhForward", "kept", {left});
  const TensorId right = fork.op("TanhForward", "right", {left});
  const Network joined = fused_step(fork.finish(fork.op("Add", "sum", {kept, right})));
  EXPECT_THAT(pointwise_lines(joined.graph, Phase::backward),
              ElementsAre("left: mul(add(x0,x1),exp(x2)) of right/backward:0 kept/backward:0 w"));
}

// Networks of random ops on tensors that stretch over each other, some of them outputs.
TEST(FusePointwise, KeepsTheResultsOfRandomNetworks) {
  int went = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const auto draw = [&](size_t n) -> size_t { return random() % n; };
    PointwiseNetwork net;
    std::vector<TensorId> pool = {net.parameter("a", {2, 3}), net.parameter("b", {3}), net.input("c", {2, 1}),
                                  net.parameter("d", {})};
    const size_t count = 3 + draw(14);
    for (size_t i = 0; i < count; ++i) {
      const TensorId x = draw(2) > 0 ? pool.back() : pool[draw(pool.size())];
      const TensorId y = pool[draw(pool.size())], z = pool[draw(pool.size())];
      const std::string name = fmt::format("op{}", i);
      const bool equal = net.network.graph.tensor(x).shape == net.network.graph.tensor(y).shape;
      switch (draw(8)) {
        case 0: pool.push_back(net.pointwise(name, "tanh(mul(x0,x1))", {x, y})); break;
        case 1: pool.push_back(net.pointwise(name, "where(gt(x0,0),x1,mul(x2,0.3))", {x, y, z})); break;
        case 2: pool.push_back(net.pointwise(name, "silu(x0)", {x})); break;
        case 3: pool.push_back(net.pointwise(name, "sub(x0,sin(x1))", {x, y})); break;
        case 4:
          pool.push_back(net.op(equal ? "Add" : "TanhForward", name, equal ? std::vector{x, y} : std::vector{x}));
          break;
        case 5: pool.push_back(net.op("Expand", name, {x}, {{"shape", Ints{2, 3}}})); break;
        case 6: pool.push_back(net.op("Reduce", name, {x}, {{"function", std::string("mean")}})); break;
        case 7: pool.push_back(net.op("Reduce", name, {x}, {{"function", std::string("max")}})); break;
      }
      if (draw(10) == 0) net.network.graph.outputs.push_back(pool.back());
    }
    // All that there is leads to the loss.
    TensorId sum = pool[0];
    for (size_t i = 1; i < pool.size(); ++i)
      sum = net.pointwise(fmt::format("sum{}", i), "add(x0,mul(x1,0.1))", {sum, pool[i]});
    const Network network = net.finish(sum);
    const Network step = fused_step(network);
    went += make_training_network(network, {.momentum = 0}).graph.op_count() - step.graph.op_count();
    if (HasFailure()) return;
  }
  EXPECT_GT(went, 600);
}

}  // namespace
}  // namespace plimsoll
