#include "plimsoll/network_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "plimsoll/autodiff.h"
#include "tests/support/error_text.h"

namespace plimsoll {
namespace {

using nlohmann::json;
using testing::text_of;

// A convolution, a classifier on it, a dropout between: for any batch.
json small_network() {
  return json::parse(R"({
    "format": "plimsoll network", "version": 1, "name": "small", "batch": 4,
    "training": {
      "tensors": [
        {"name": "x", "shape": ["batch", 1, 4, 4], "dtype": "f32", "role": "input"},
        {"name": "y", "shape": ["batch"], "dtype": "i32", "role": "input"},
        {"name": "conv.weight", "shape": [2, 1, 3, 3], "dtype": "f32", "role": "parameter",
         "init": {"kind": "normal", "mean": 0, "scale": 0.1}},
        {"name": "fc.weight", "shape": [3, 32], "dtype": "f32", "role": "parameter"},
        {"name": "step_number", "shape": [], "dtype": "i64", "role": "hyperparameter"},
        {"name": "seed", "shape": [], "dtype": "i64", "role": "hyperparameter"}
      ],
      "ops": [
        {"type": "ConvForward", "name": "conv", "inputs": ["x", "conv.weight"], "outputs": ["conv/y"],
         "attributes": {"stride": [1, 1], "padding": [1, 1, 1, 1]}, "shapes": [["batch", 2, 4, 4]]},
        {"type": "Reshape", "name": "flatten", "inputs": ["conv/y"], "outputs": ["flat"],
         "attributes": {"shape": ["batch", 32]}},
        {"type": "DropoutForward", "name": "drop", "inputs": ["flat", "step_number", "seed"], "outputs": ["dropped"],
         "attributes": {"p": 0.5, "salt": 1}},
        {"type": "FullyConnectedForward", "name": "fc", "inputs": ["dropped", "fc.weight"], "outputs": ["scores"],
         "source": "model.py:12"},
        {"type": "SoftmaxCrossEntropyForward", "name": "loss", "inputs": ["scores", "y"],
         "outputs": ["loss", "probabilities", "correct"]}
      ],
      "objectives": [{"loss": "loss"}],
      "data": "x", "labels": "y", "correct": "correct", "outputs": ["scores"]
    }
  })");
}

std::string refused_network(const json& file, int64_t batch = 0, bool training = true) {
  return text_of([&] { network_from_json(file.dump(), batch, training); });
}

TEST(NetworkFile, IsANetworkForItsBatch) {
  const Network network = network_from_json(small_network().dump());
  const Graph& graph = network.graph;
  EXPECT_EQ(graph.name, "small");
  EXPECT_EQ(graph.tensor(network.data).shape, (Shape{4, 1, 4, 4}));
  EXPECT_EQ(graph.tensor(network.labels).shape, (Shape{4}));
  EXPECT_EQ(graph.tensor(graph.find_tensor("flat")).shape, (Shape{4, 32}));
  ASSERT_EQ(network.objectives.size(), 1u);
  EXPECT_EQ(network.objectives[0].parameters.size(), 2u);
  EXPECT_EQ(graph.tensor(graph.find_tensor("scores")).role, Role::output);
  EXPECT_EQ(graph.tensor(network.correct).role, Role::output);
}

TEST(NetworkFile, SizesFollowTheBatchThatIsAskedFor) {
  const Network network = network_from_json(small_network().dump(), 7);
  EXPECT_EQ(network.graph.tensor(network.data).shape, (Shape{7, 1, 4, 4}));
  EXPECT_EQ(network.graph.tensor(network.graph.find_tensor("scores")).shape, (Shape{7, 3}));
  json file = small_network();
  file["training"]["ops"][1]["attributes"]["shape"] = {"2*batch", 16};
  EXPECT_NE(refused_network(file, 7).find("14x16"), std::string::npos) << refused_network(file, 7);
}

TEST(NetworkFile, FrozenParametersAreInNoObjective) {
  json file = small_network();
  file["training"]["frozen"] = {"conv.weight"};
  const Network network = network_from_json(file.dump());
  ASSERT_EQ(network.objectives[0].parameters.size(), 1u);
  EXPECT_EQ(network.graph.tensor(network.objectives[0].parameters[0]).name, "fc.weight");
  EXPECT_EQ(network.graph.states.size(), 2u);
}

TEST(NetworkFile, ItsTrainingStepHasGradientsAndUpdates) {
  const Network step = make_training_network(network_from_json(small_network().dump()), {.momentum = 0});
  EXPECT_TRUE(step.graph.find_op("conv.weight/update").valid());
  EXPECT_TRUE(step.graph.find_op("fc.weight/update").valid());
}

TEST(NetworkFile, WhatIsWrongIsNamedWithItsPlace) {
  const auto changed = [](const auto& change) {
    json file = small_network();
    change(file);
    return refused_network(file);
  };
  const auto expect = [](const std::string& text, std::string_view part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(changed([](json& f) { f["format"] = "plimsoll graph"; }),
         "format: \"plimsoll network\" or \"plimsoll cost graph\" was expected");
  expect(changed([](json& f) { f["version"] = 2; }), "version");
  expect(changed([](json& f) { f["batch"] = 0; }), "batch");
  expect(changed([](json& f) { f["more"] = 1; }), "\"more\" is not known here");
  expect(changed([](json& f) { f["training"]["tensors"][0]["shape"][1] = "rows"; }),
         "training.tensors[0].shape[1]: a size (an integer, \"batch\" or \"197*batch\") was expected");
  expect(changed([](json& f) { f["training"]["tensors"][0]["shape"][1] = "9000000000000000000*batch"; }),
         "is more than");
  expect(changed([](json& f) { f["training"]["tensors"][0]["role"] = "gradient"; }), "what comes from outside");
  expect(changed([](json& f) { f["training"]["tensors"][3]["name"] = "conv.weight"; }), "conv.weight");
  expect(changed([](json& f) { f["training"]["ops"][0]["type"] = "ConvForwrad"; }), "ConvForward");
  expect(changed([](json& f) { f["training"]["ops"][0]["inputs"][0] = "flat"; }),
         "training.ops[0].inputs[0]: there is no tensor 'flat' yet");
  expect(changed([](json& f) { f["training"]["ops"][0]["shapes"][0][1] = 3; }),
         "training.ops[0].shapes[0]: op 'conv' (ConvForward) makes 'conv/y' of 4x2x4x4, not 4x3x4x4");
  expect(changed([](json& f) { f["training"]["tensors"][3]["shape"] = {3, 31}; }), "model.py:12");
  expect(changed([](json& f) { f["training"]["objectives"] = json::array(); }), "at least one loss");
  expect(changed([](json& f) { f["training"]["objectives"][0]["loss"] = "scores"; }), "a loss is a scalar");
  expect(changed([](json& f) { f["training"]["data"] = "fc.weight"; }), "its role is to be input");
  expect(changed([](json& f) { f["training"]["outputs"] = {"x"}; }), "no op makes the output 'x'");
}

TEST(NetworkFile, HasAnEvaluationWhereItWasExported) {
  EXPECT_NE(refused_network(small_network(), 0, false).find("exported without its evaluation"), std::string::npos);
  json file = small_network();
  file["evaluation"] = file["training"];
  EXPECT_NO_THROW(network_from_json(file.dump(), 2, false));
}

TEST(NetworkFile, OneForASingleBatchSaysSo) {
  json file = small_network();
  file["training"]["tensors"][0]["shape"][0] = 4;
  file["training"]["tensors"][1]["shape"][0] = 4;
  EXPECT_NE(refused_network(file, 5).find("for batches of 4 alone"), std::string::npos) << refused_network(file, 5);
  file["training"]["ops"][0].erase("shapes");
  file["training"]["ops"][1]["attributes"]["shape"] = {4, 32};
  EXPECT_NO_THROW(network_from_json(file.dump(), 4));
}

// A file in a folder of its own.
class NetworkFileOnDisk : public ::testing::Test {
 protected:
  void SetUp() override { write(small_network()); }
  void TearDown() override { std::filesystem::remove(path_); }
  void write(const json& file) { std::ofstream(path_) << file.dump(); }
  std::string model() const { return graph_name(path_); }
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("network_file_test_" + std::to_string(::getpid()) + ".json");
};

TEST_F(NetworkFileOnDisk, IsBuiltByItsName) {
  EXPECT_EQ(build_model(model(), {.batch = 3}).graph.tensor(TensorId{0}).shape, (Shape{3, 1, 4, 4}));
  const ModelInput usual = usual_input(model());
  EXPECT_EQ(usual.batch, 4);
  EXPECT_EQ(usual.channels, 1);
  EXPECT_EQ(usual.height, 4);
  EXPECT_EQ(usual.classes, 3);
  EXPECT_FALSE(has_evaluation(model()));
  EXPECT_TRUE(has_evaluation("resnet20"));
}

TEST_F(NetworkFileOnDisk, TakesOnlyTheSamplesThatItWasExportedFor) {
  const auto refused_input = [&](const ModelInput& input) { return text_of([&] { build_model(model(), input); }); };
  EXPECT_EQ(refused_input({.batch = 3, .channels = 1, .height = 4, .width = 4, .classes = 3}), "");
  EXPECT_EQ(refused_input({.batch = 3, .channels = 16, .height = 1, .width = 1}), "") << "as many elements";
  EXPECT_NE(refused_input({.batch = 3, .channels = 3, .height = 4, .width = 4}).find("1 channels, not 3"),
            std::string::npos);
  EXPECT_NE(refused_input({.batch = 3, .classes = 10}).find("3 classes, and there are 10"), std::string::npos);
}

TEST_F(NetworkFileOnDisk, OneWithoutLabelsIsForPython) {
  json file = small_network();
  file["training"].erase("data");
  file["training"].erase("labels");
  file["training"].erase("correct");
  write(file);
  EXPECT_EQ(text_of([&] { build_model(model(), {.batch = 3}); }), "");
  EXPECT_NE(
      text_of([&] { build_model(model(), {.batch = 3, .channels = 3, .height = 4, .width = 4}); }).find("from Python"),
      std::string::npos);
}

TEST_F(NetworkFileOnDisk, NamesConstantsWithoutValues) {
  EXPECT_TRUE(read_network_info(path_).without_values.empty());
  json file = small_network();
  file["training"]["tensors"].push_back(
      {{"name", "positions"}, {"shape", {4}}, {"dtype", "i64"}, {"role", "statistic"}});
  write(file);
  EXPECT_EQ(read_network_info(path_).without_values, std::vector<std::string>{"positions"});
}

TEST_F(NetworkFileOnDisk, ErrorsNameTheFile) {
  std::ofstream(path_) << "{";
  EXPECT_NE(text_of([&] { build_model(model(), {}); }).find(path_.string()), std::string::npos);
  EXPECT_NE(text_of([&] { build_model("graph:/nowhere/at.json", {}); }).find("/nowhere/at.json"), std::string::npos);
}

}  // namespace
}  // namespace plimsoll
