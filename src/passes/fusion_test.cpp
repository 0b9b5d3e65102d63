#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "passes/passes.h"
#include "passes/sync_batch_norm.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "tests/support/interpreter.h"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A network in f64, put together a layer a call.
struct Builder {
  Network network;

  TensorId data(Shape shape) {
    return network.data = network.graph.add_source("data", std::move(shape), DType::f64, Role::input);
  }

  TensorId norm(const std::string& name, TensorId x, bool training = true) {
    Graph& graph = network.graph;
    const Shape channels{graph.tensor(x).shape[1]};
    std::vector<TensorId> inputs{x};
    for (const char* value : {"weight", "bias"}) {
      inputs.push_back(graph.add_source(name + "." + value, channels, DType::f64, Role::parameter));
    }
    for (const char* value : {"running_mean", "running_var"}) {
      inputs.push_back(graph.add_source(name + "." + value, channels, DType::f64, Role::statistic,
                                        {.mean = value == std::string("running_var") ? 1.0 : 0.0}));
    }
    const OpId op =
        graph.add_op("BatchNormForward", name + "/forward", name, inputs, {{"training", int64_t{training}}});
    for (State& state : graph.states) {
      if (training && state.before == inputs[3]) state.after = graph.output(op, 3);
      if (training && state.before == inputs[4]) state.after = graph.output(op, 4);
    }
    return graph.output(op);
  }

  TensorId weighted(const std::string& type, const std::string& name, TensorId x, Shape weight,
                    Attributes attributes = {}) {
    const TensorId w = network.graph.add_source(name + ".weight", weight, DType::f64, Role::parameter);
    const TensorId b = network.graph.add_source(name + ".bias", {weight[0]}, DType::f64, Role::parameter);
    return one(type, name, {x, w, b}, std::move(attributes));
  }

  TensorId one(const std::string& type, const std::string& name, std::vector<TensorId> inputs,
               Attributes attributes = {}) {
    return network.graph.output(
        network.graph.add_op(type, name + "/forward", name, std::move(inputs), std::move(attributes)));
  }
  TensorId relu(const std::string& name, TensorId x) { return one("ReluForward", name, {x}); }
  TensorId add(const std::string& name, TensorId a, TensorId b) { return one("Add", name, {a, b}); }

  // A loss that every element of x counts in differently, and all parameters to train.
  Network finish(TensorId x) {
    Graph& graph = network.graph;
    const TensorId target = graph.add_source("target", graph.tensor(x).shape, DType::f64, Role::input);
    const TensorId loss = one("MeanSquaredErrorForward", "loss", {x, target});
    graph.outputs.push_back(loss);
    Objective objective{loss, {}};
    for (const State& state : graph.states) {
      if (graph.tensor(state.before).role == Role::parameter) objective.parameters.push_back(state.before);
    }
    network.objectives.push_back(objective);
    return network;
  }
};

// "bn1+relu1/forward: BatchNormForward(data, bn1.weight, ...) activation=relu": one line an op.
std::vector<std::string> lines(const Graph& graph) {
  std::vector<std::string> result;
  for (const Op& op : graph.ops()) {
    std::vector<std::string> inputs;
    for (TensorId id : op.inputs) {
      if (graph.tensor(id).role == Role::activation || graph.tensor(id).role == Role::input)
        inputs.push_back(graph.tensor(id).name);
    }
    result.push_back(fmt::format("{}: {}({}) -> {}{}", op.layer, op.type->name, fmt::join(inputs, ", "),
                                 graph.tensor(op.outputs[0]).name,
                                 op.attributes.text("activation", "none") == "relu" ? " relu" : ""));
  }
  return result;
}

std::map<std::string, int> rewrites(const std::vector<PassReport>& reports) {
  std::map<std::string, int> counts;
  for (const PassReport& report : reports) {
    if (report.rewrites > 0) counts[report.name] = report.rewrites;
  }
  return counts;
}

// What a training step is for: losses, other outputs, gradients of the parameters, states left; by name.
std::map<std::string, std::vector<double>> results(const Network& network) {
  Graph graph = network.graph;
  std::map<std::string, TensorId> wanted;
  for (TensorId id : graph.outputs) wanted[graph.tensor(id).name] = id;
  for (const State& state : graph.states) wanted[graph.tensor(state.before).name + ", left"] = state.after;
  for (const Objective& objective : network.objectives) {
    const std::vector<TensorId> gradients = append_backward(graph, objective.loss, objective.parameters);
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].valid()) wanted["gradient of " + graph.tensor(objective.parameters[i]).name] = gradients[i];
    }
  }
  Values values(graph);
  fill_sources(graph, values, 1);
  interpret(graph, values);
  std::map<std::string, std::vector<double>> result;
  for (const auto& [name, id] : wanted) {
    for (int64_t i = 0; i < values[id].size(); ++i) result[name].push_back(values[id].at(i));
  }
  return result;
}

void expect_equal_results(const Network& a, const Network& b) {
  const auto left = results(a), right = results(b);
  ASSERT_EQ(left.size(), right.size());
  for (const auto& [name, numbers] : left) {
    ASSERT_TRUE(right.contains(name)) << name;
    const std::vector<double>& others = right.at(name);
    ASSERT_EQ(numbers.size(), others.size()) << name;
    for (size_t i = 0; i < numbers.size(); ++i) {
      EXPECT_NEAR(numbers[i], others[i], 1e-10 * std::max(1.0, std::abs(numbers[i]))) << name << "[" << i << "]";
    }
  }
}

// The end of a ResNet stage's first block: two batch norms meet in a sum.
Network residual_block() {
  Builder b;
  const TensorId x = b.data({4, 3, 2, 2});
  const TensorId inner = b.relu("relu1", b.norm("bn1", x));
  const TensorId left = b.norm("bn2", inner);
  const TensorId right = b.norm("downsample", x);
  return b.finish(b.relu("relu2", b.add("add", left, right)));
}

TEST(Fusion, PutsAResidualBlockTogether) {
  Network network = residual_block();
  const auto reports = run_fusion_passes(network);
  EXPECT_THAT(rewrites(reports),
              ElementsAre(std::pair("fuse_batch_norm_add_relu", 1), std::pair("fuse_batch_norm_relu", 1)));
  EXPECT_THAT(
      lines(network.graph),
      ElementsAre("bn1+relu1: BatchNormForward(data) -> relu1/forward:0 relu",
                  "downsample: BatchNormForward(data) -> downsample/forward:0",
                  "bn2+add+relu2: BatchNormForward(relu1/forward:0, downsample/forward:0) -> relu2/forward:0 relu",
                  "loss: MeanSquaredErrorForward(relu2/forward:0, target) -> loss/forward:0"));
  const OpId fused = network.graph.find_op("bn2+add+relu2/forward");
  ASSERT_TRUE(fused.valid());
  EXPECT_EQ(network.graph.tensor(network.graph.output(fused, 1)).name, "bn2/forward:1");
  EXPECT_EQ(network.graph.tensor(network.graph.output(fused, 5)).dtype, DType::bit);
  expect_equal_results(residual_block(), network);
}

TEST(Fusion, KeepsWhatTheNetworkKnowsOfItsTensors) {
  const Network before = residual_block();
  Network after = before;
  run_fusion_passes(after);
  auto name = [](const Network& network, TensorId id) { return network.graph.tensor(id).name; };
  EXPECT_EQ(name(after, after.data), "data");
  EXPECT_FALSE(after.labels.valid());
  EXPECT_FALSE(after.correct.valid());
  EXPECT_EQ(name(after, after.objectives.at(0).loss), "loss/forward:0");
  ASSERT_EQ(after.graph.states.size(), before.graph.states.size());
  for (size_t i = 0; i < before.graph.states.size(); ++i) {
    const TensorId state = after.graph.states[i].before;
    EXPECT_EQ(name(after, state), name(before, before.graph.states[i].before));
    EXPECT_EQ(name(after, after.graph.states[i].after), name(before, before.graph.states[i].after));
    EXPECT_EQ(after.graph.tensor(state).init, before.graph.tensor(before.graph.states[i].before).init);
  }
  ASSERT_EQ(after.objectives[0].parameters.size(), before.objectives[0].parameters.size());
  for (size_t i = 0; i < before.objectives[0].parameters.size(); ++i) {
    EXPECT_EQ(name(after, after.objectives[0].parameters[i]), name(before, before.objectives[0].parameters[i]));
  }
  ASSERT_EQ(after.graph.inputs.size(), 2u);
  EXPECT_EQ(name(after, after.graph.inputs[1]), "target");
}

TEST(SyncBatchNorm, StandsInThePlaceOfFusedBatchNormsWithTheSameResults) {
  Network fused = residual_block();
  run_fusion_passes(fused);
  Network apart = fused;
  EXPECT_EQ(synchronise_batch_norm(apart, 1), 3);
  EXPECT_THAT(lines(apart.graph),
              ElementsAre("bn1+relu1: BatchMoments(data) -> bn1+relu1/moments:0",
                          "bn1+relu1: CombineMoments(bn1+relu1/moments:0, bn1+relu1/moments:1) -> "
                          "bn1+relu1/all_moments:0",
                          "bn1+relu1: SyncBatchNormForward(data, bn1+relu1/all_moments:0, bn1+relu1/all_moments:1) -> "
                          "relu1/forward:0 relu",
                          "downsample: BatchMoments(data) -> downsample/moments:0",
                          "downsample: CombineMoments(downsample/moments:0, downsample/moments:1) -> "
                          "downsample/all_moments:0",
                          "downsample: SyncBatchNormForward(data, downsample/all_moments:0, downsample/all_moments:1) "
                          "-> downsample/forward:0",
                          "bn2+add+relu2: BatchMoments(relu1/forward:0) -> bn2+add+relu2/moments:0",
                          "bn2+add+relu2: CombineMoments(bn2+add+relu2/moments:0, bn2+add+relu2/moments:1) -> "
                          "bn2+add+relu2/all_moments:0",
                          "bn2+add+relu2: SyncBatchNormForward(relu1/forward:0, bn2+add+relu2/all_moments:0, "
                          "bn2+add+relu2/all_moments:1, downsample/forward:0) -> relu2/forward:0 relu",
                          "loss: MeanSquaredErrorForward(relu2/forward:0, target) -> loss/forward:0"));
  check(apart.graph);
  expect_equal_results(fused, apart);
}

TEST(SyncBatchNorm, LeavesOneRankAndRunningStatisticsAlone) {
  Network network = residual_block();
  EXPECT_THAT(run_rank_passes(network, {.ranks = 4}), ElementsAre());
  EXPECT_THAT(run_rank_passes(network, {.sync_batch_norm = true}), ElementsAre());
  EXPECT_EQ(fingerprint(network.graph), fingerprint(residual_block().graph));
  EXPECT_THAT(rewrites(run_rank_passes(network, {.ranks = 4, .sync_batch_norm = true})),
              ElementsAre(std::pair("sync_batch_norm", 3)));
  Builder b;
  Network evaluation = b.finish(b.norm("bn", b.data({4, 3, 2, 2}), false));
  EXPECT_THAT(rewrites(run_rank_passes(evaluation, {.ranks = 4, .sync_batch_norm = true})), ElementsAre());
}

TEST(SyncBatchNorm, RefusesANetworkThatReadsItsStatistics) {
  Builder b;
  const TensorId y = b.norm("bn", b.data({4, 3, 2, 2}));
  Network network = b.finish(y);
  network.graph.outputs.push_back({y.index + 1});
  try {
    synchronise_batch_norm(network, 2);
    ADD_FAILURE() << "it was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.what(), HasSubstr("reads 'bn/forward:1', a statistic of op 'bn/forward'"));
  }
}

TEST(Fusion, FusesASumWithoutReluIntoItsBatchNorm) {
  auto build = [] {
    Builder b;
    const TensorId x = b.data({4, 3});
    return b.finish(b.one("SigmoidForward", "sigmoid", {b.add("add", x, b.norm("bn", x))}));
  };
  Network network = build();
  EXPECT_THAT(rewrites(run_fusion_passes(network)), ElementsAre(std::pair("fuse_batch_norm_add_relu", 1)));
  EXPECT_EQ(lines(network.graph)[0], "bn+add: BatchNormForward(data, data) -> add/forward:0");
  expect_equal_results(build(), network);
}

TEST(Fusion, FusesAReluIntoASum) {
  auto build = [] {
    Builder b;
    const TensorId x = b.data({4, 3});
    const TensorId s = b.norm("bn", x);
    return b.finish(b.norm("last", b.relu("relu", b.one("Add", "add", {s, x, s}))));
  };
  Network network = build();
  EXPECT_THAT(rewrites(run_fusion_passes(network)), ElementsAre(std::pair("fuse_add_relu", 1)));
  EXPECT_EQ(lines(network.graph)[1], "add+relu: Add(bn/forward:0, data, bn/forward:0) -> relu/forward:0 relu");
  expect_equal_results(build(), network);
}

TEST(Fusion, FusesAnEvaluationsBatchNorm) {
  Builder b;
  Network network = b.finish(b.relu("relu", b.norm("bn", b.data({4, 3}), false)));
  const Network before = network;
  EXPECT_THAT(rewrites(run_fusion_passes(network)), ElementsAre(std::pair("fuse_batch_norm_relu", 1)));
  network.objectives.clear();  // batch norm has no gradient here
  Network unfused = before;
  unfused.objectives.clear();
  expect_equal_results(unfused, network);
}

// Each of these has a chain that must stay apart.
TEST(Fusion, LeavesAloneWhatIsReadElsewhere) {
  auto unchanged = [](const char* why, auto build) {
    Builder b;
    const TensorId x = b.data({4, 3});
    Network network = build(b, x);
    const std::vector<std::string> before = lines(network.graph);
    EXPECT_THAT(rewrites(run_fusion_passes(network)), ElementsAre()) << why;
    EXPECT_EQ(lines(network.graph), before) << why;
  };
  unchanged("two readers", [](Builder& b, TensorId x) {
    const TensorId y = b.norm("bn", x);
    return b.finish(b.one("Add", "add", {b.relu("relu", y), y, x}));
  });
  unchanged("one reader that reads it twice", [](Builder& b, TensorId x) {
    const TensorId y = b.norm("bn", x);
    return b.finish(b.add("add", y, y));
  });
  unchanged("an output of the graph", [](Builder& b, TensorId x) {
    const TensorId y = b.norm("bn", x);
    b.network.graph.outputs.push_back(y);
    return b.finish(b.relu("relu", y));
  });
  unchanged("another activation",
            [](Builder& b, TensorId x) { return b.finish(b.one("LeakyReluForward", "act", {b.norm("bn", x)})); });
  unchanged("a sum of three", [](Builder& b, TensorId x) {
    return b.finish(b.one("Add", "add", {b.norm("bn1", x), b.norm("bn2", x), x}));
  });
  unchanged("statistics that are read", [](Builder& b, TensorId x) {
    const TensorId y = b.relu("relu", b.norm("bn", x));
    b.one("ReluForward", "mean", {b.network.graph.output(b.network.graph.find_op("bn/forward"), 1)});
    return b.finish(y);
  });
}

TEST(Fusion, APassCanBeSwitchedOff) {
  Network network = residual_block();
  const auto reports = run_fusion_passes(network, {.off = {"fuse_batch_norm_add_relu", "fuse_batch_norm_relu"}});
  EXPECT_THAT(rewrites(reports), ElementsAre(std::pair("fuse_add_relu", 1)));
  EXPECT_EQ(reports.size(), fusion_pass_names().size() - 5);  // three are of training steps
  try {
    run_fusion_passes(network, {.off = {"fuse_ad_relu"}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("unknown fusion pass 'fuse_ad_relu'; did you mean 'fuse_add_relu'?"));
  }
}

// Networks of random layers on tensors of one shape, some of them outputs.
Network random_network(uint64_t seed) {
  std::mt19937_64 random(seed);
  auto draw = [&](size_t n) -> size_t { return random() % n; };
  Builder b;
  std::vector<TensorId> pool{b.data({3, 4, 1, 2})};
  const size_t count = 3 + draw(12);
  for (size_t i = 0; i < count; ++i) {
    const TensorId x = draw(3) > 0 ? pool.back() : pool[draw(pool.size())];
    const TensorId y = pool[draw(pool.size())];
    const std::string number = std::to_string(i);
    switch (draw(8)) {
      case 0:
      case 1: pool.push_back(b.norm("bn" + number, x)); break;
      case 2:
      case 3: pool.push_back(b.relu("relu" + number, x)); break;
      case 4: pool.push_back(b.add("add" + number, x, y)); break;
      case 5: pool.push_back(b.add("add" + number, y, x)); break;
      case 6: pool.push_back(b.weighted("ConvForward", "conv" + number, x, {4, 4, 1, 1})); break;
      case 7: pool.push_back(b.one("TanhForward", "tanh" + number, {x})); break;
    }
    if (draw(10) == 0) b.network.graph.outputs.push_back(pool.back());
  }
  return b.finish(b.one("TanhForward", "end", {pool.back()}));
}

TEST(Fusion, KeepsTheResultsOfRandomNetworks) {
  std::map<std::string, int> seen;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Network before = random_network(seed);
    Network after = before;
    for (const auto& [name, count] : rewrites(run_fusion_passes(after))) seen[name] += count;
    expect_equal_results(before, after);
    EXPECT_THAT(rewrites(run_fusion_passes(after)), ElementsAre());  // nothing is left to fuse
    if (HasFailure()) return;
  }
  // No fully connected layer is large enough to be split, and there is neither a Pointwise, nor a layer behind one, nor a
  // loss over classes, nor an embedding, and no norm or rotary positions that a module writes.
  EXPECT_EQ(seen.size() + 9, fusion_pass_names().size());
}

TEST(Fusion, FusesAReluIntoConvolutionsAndFullyConnectedLayers) {
  auto build = [] {
    Builder b;
    TensorId x = b.relu("relu1", b.weighted("ConvForward", "conv1", b.data({2, 3, 4, 4}), {4, 3, 3, 3}));
    x = b.one("Reshape", "flatten", {x}, {{"shape", Shape{2, 16}}});
    return b.finish(b.relu("relu2", b.weighted("FullyConnectedForward", "fc", x, {5, 16})));
  };
  Network network = build();
  EXPECT_THAT(rewrites(run_fusion_passes(network)), ElementsAre(std::pair("fuse_conv_relu", 2)));
  EXPECT_EQ(lines(network.graph)[0], "conv1+relu1: ConvForward(data) -> relu1/forward:0 relu");
  expect_equal_results(build(), network);
}

TEST(Fusion, FindsEveryChainOfTheZoo) {
  auto found = [](std::string_view model) {
    Network network = build_model(model, {.batch = 2});
    return rewrites(run_fusion_passes(network));
  };
  using Counts = std::map<std::string, int>;
  EXPECT_EQ(found("alexnet"), (Counts{{"fuse_conv_relu", 7}, {"split_fully_connected", 2}}));
  EXPECT_EQ(found("vgg16"), (Counts{{"fuse_conv_relu", 15}, {"split_fully_connected", 2}}));
  EXPECT_EQ(found("resnet50"), (Counts{{"fuse_batch_norm_add_relu", 16}, {"fuse_batch_norm_relu", 33}}));
  EXPECT_EQ(found("inception4"), (Counts{{"fuse_batch_norm_relu", 149}}));
  EXPECT_EQ(found("densenet121"), (Counts{{"fuse_batch_norm_relu", 121}}));
}

}  // namespace
}  // namespace plimsoll
