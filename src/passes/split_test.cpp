#include "passes/split.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "passes/passes.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "tests/support/interpreter.h"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Bytes weights(int64_t rows, int64_t columns) { return {rows * columns * 4}; }

TEST(Split, LargeWeightsBecomeEqualBlocksOfAtMostSoManyBytes) {
  const FusionOptions usual;
  const RowBounds vgg = row_bounds(4096, weights(4096, 25088), usual);  // 392 MiB: 13 blocks at least, 16 equal ones
  ASSERT_EQ(vgg.size(), 17u);
  for (size_t i = 0; i < vgg.size(); ++i) EXPECT_EQ(vgg[i], 256 * static_cast<int64_t>(i));
  EXPECT_EQ(row_bounds(4096, weights(4096, 9216), usual).size(), 9u);  // AlexNet: 8 of 18 MiB
  EXPECT_THAT(row_bounds(4096, weights(4096, 4096), usual), ElementsAre(0, 2048, 4096));
  EXPECT_THAT(row_bounds(1000, weights(1000, 4096), usual), IsEmpty());  // 16 MiB
}

TEST(Split, BlocksHaveMultiplesOf16RowsAndTheLastOneTheRest) {
  const FusionOptions small{.off = {}, .split_above = 1000_B, .block_bytes = 1024_B};
  EXPECT_THAT(row_bounds(50, weights(50, 8), small), ElementsAre(0, 32, 50));
  EXPECT_THAT(row_bounds(100, weights(100, 16), small), ElementsAre(0, 16, 32, 48, 64, 80, 96, 100));
  EXPECT_THAT(row_bounds(16, weights(16, 1000), small), IsEmpty());
  EXPECT_THAT(row_bounds(1, weights(1, 1000), small), IsEmpty());
}

// x [3, 8] -> fc1 [40, 8] with a ReLU -> fc2 [17, 40] without a bias -> loss; all in f64.
Network two_layers() {
  Network network;
  Graph& graph = network.graph;
  auto parameter = [&](const std::string& name, Shape shape) {
    return graph.add_source(name, std::move(shape), DType::f64, Role::parameter);
  };
  TensorId x = network.data = graph.add_source("data", {3, 8}, DType::f64, Role::input);
  const TensorId w1 = parameter("fc1.weight", {40, 8}), b1 = parameter("fc1.bias", {40});
  x = graph.output(graph.add_op("FullyConnectedForward", "fc1/forward", "fc1", {x, w1, b1}));
  x = graph.output(graph.add_op("ReluForward", "relu1/forward", "relu1", {x}, {}, Phase::forward, {"hidden"}));
  const TensorId w2 = parameter("fc2.weight", {17, 40});
  x = graph.output(graph.add_op("FullyConnectedForward", "fc2/forward", "fc2", {x, w2}));
  const TensorId target = graph.add_source("target", {3, 17}, DType::f64, Role::input);
  const TensorId loss = graph.output(
      graph.add_op("MeanSquaredErrorForward", "loss/forward", "loss", {x, target}, {}, Phase::forward, {"loss"}));
  graph.outputs.push_back(loss);
  network.objectives.push_back({loss, {w1, b1, w2}});
  return network;
}

const FusionOptions kSmall{.off = {}, .split_above = 1000_B, .block_bytes = 1024_B};

TEST(Split, ALayerBecomesABlockOfRowsEachAndAConcat) {
  Network network = two_layers();
  const auto reports = run_fusion_passes(network, kSmall);
  EXPECT_EQ(reports.back().name, "split_fully_connected");
  EXPECT_EQ(reports.back().rewrites, 2);
  std::vector<std::string> lines;
  for (const Op& op : network.graph.ops()) {
    lines.push_back(fmt::format("{} {} {} {}", op.name, op.type->name, op.layer, op.attributes.text("activation", "")));
  }
  EXPECT_THAT(lines, ElementsAre("fc1+relu1[0:16]/forward FullyConnectedForward fc1+relu1 relu",
                                 "fc1+relu1[16:32]/forward FullyConnectedForward fc1+relu1 relu",
                                 "fc1+relu1[32:40]/forward FullyConnectedForward fc1+relu1 relu",
                                 "fc1+relu1/join Concat fc1+relu1 ", "fc2[0:16]/forward FullyConnectedForward fc2 ",
                                 "fc2[16:17]/forward FullyConnectedForward fc2 ", "fc2/join Concat fc2 ",
                                 "loss/forward MeanSquaredErrorForward loss "));
  const Tensor& block = network.graph.tensor(network.graph.find_tensor("fc1.weight[16:32]"));
  EXPECT_EQ(block.shape, (Shape{16, 8}));
  EXPECT_EQ(block.block, (RowBlock{"fc1.weight", 16, 40}));
  EXPECT_TRUE(network.graph.find_tensor("fc1.bias[32:40]").valid());
  EXPECT_TRUE(network.graph.find_tensor("hidden").valid());
  EXPECT_EQ(network.objectives[0].parameters.size(), 8u);
  for (const PassReport& report : run_fusion_passes(network, kSmall)) EXPECT_EQ(report.rewrites, 0) << report.name;
}

// The states of `whole` by name, whole, after `steps` steps from values that depend on the whole's name and element.
std::map<std::string, std::vector<double>> trained(const Network& forward, const std::string& optimizer, int steps) {
  const Network network = make_training_network(forward, {.name = optimizer, .momentum = 0.9, .weight_decay = 0.01});
  const Graph& graph = network.graph;
  Values values(graph);
  fill_sources(graph, values, 1);
  for (const WholeState& whole : whole_states(graph)) {
    Graph alone;
    const TensorId id = alone.add_source(whole.name, whole.shape, whole.dtype, Role::parameter);
    Values drawn(alone);
    fill_sources(alone, drawn, 2);
    int64_t at = 0;
    for (TensorId part : whole.parts) {
      const bool moment = whole.role == Role::optimizer_state;
      for (int64_t i = 0; i < values[part].size(); ++i) values[part].set(i, moment ? 0 : drawn[id].at(at++));
    }
  }
  for (int step = 0; step < steps; ++step) {
    interpret(graph, values);
    advance_states(graph, values);
  }
  std::map<std::string, std::vector<double>> result;
  for (const WholeState& whole : whole_states(graph)) {
    for (TensorId part : whole.parts) {
      for (int64_t i = 0; i < values[part].size(); ++i) result[whole.name].push_back(values[part].at(i));
    }
  }
  return result;
}

TEST(Split, StepsEqualThoseOfTheWholeNetwork) {
  for (const char* optimizer : {"sgd", "adam"}) {
    Network split = two_layers();
    ASSERT_EQ(split_fully_connected(split, kSmall), 2);
    const auto expected = trained(two_layers(), optimizer, 3), found = trained(split, optimizer, 3);
    ASSERT_EQ(found.size(), expected.size());
    EXPECT_TRUE(found.contains(optimizer == std::string("sgd") ? "fc1.weight.momentum" : "fc2.weight.exp_avg_sq"));
    for (const auto& [name, numbers] : expected) {
      ASSERT_EQ(found.at(name).size(), numbers.size()) << name;
      for (size_t i = 0; i < numbers.size(); ++i) {
        // One training in f32 hyperparameters, sums of f64: rounding alone.
        EXPECT_NEAR(found.at(name)[i], numbers[i], 1e-9) << optimizer << " " << name << "[" << i << "]";
      }
    }
  }
}

TEST(Split, WeightsThatSeveralOpsReadStayWhole) {
  Network network = two_layers();
  Graph& graph = network.graph;
  const TensorId again = graph.output(
      graph.add_op("FullyConnectedForward", "again", "again", {network.data, graph.find_tensor("fc1.weight")}));
  graph.outputs.push_back(again);
  EXPECT_EQ(split_fully_connected(network, kSmall), 1);
  EXPECT_TRUE(network.graph.find_tensor("fc1.weight").valid());
  EXPECT_FALSE(network.graph.find_tensor("fc2.weight").valid());
}

TEST(Split, BlocksNeedNotBeSmallerThanAQuarterOfWhatStaysWhole) {
  Network network = two_layers();
  Graph& graph = network.graph;
  const TensorId table = graph.add_source("words", {100, 20}, DType::f64, Role::parameter);  // 16000 bytes
  graph.outputs.push_back(graph.output(graph.add_op("ReluForward", "words/relu", "words", {table})));
  graph.states.push_back({table, table});
  const FusionOptions sizes = split_sizes(network, kSmall);
  EXPECT_EQ(sizes.split_above, 4000_B);
  EXPECT_EQ(sizes.block_bytes, 4000_B);
  EXPECT_EQ(split_fully_connected(network, kSmall), 1) << "of 2560 and 5440 bytes";
  EXPECT_TRUE(network.graph.find_tensor("fc1.weight").valid());
  EXPECT_TRUE(network.graph.find_tensor("fc2.weight[16:17]").valid());
}

TEST(Split, TheStatesOfAlexNetAndVggAreWholeAgainInTheirOldOrder) {
  for (const char* model : {"alexnet", "vgg16"}) {
    Network split = build_model(model, {.batch = 2});
    const Network training = make_training_network(split, {});
    EXPECT_EQ(split_fully_connected(split, {}), 2);
    auto listed = [](const Graph& graph) {
      std::vector<std::string> lines;
      for (const WholeState& state : whole_states(graph)) {
        lines.push_back(fmt::format("{} {} {}", state.name, to_string(state.shape), to_string(state.role)));
      }
      return lines;
    };
    EXPECT_EQ(listed(make_training_network(split, {}).graph), listed(training.graph)) << model;
  }
}

}  // namespace
}  // namespace plimsoll
