#include "plimsoll/models.h"
#include "base/clock.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

int64_t parameter_count(const Network& network, std::string_view prefix = "") {
  int64_t count = 0;
  for (const Tensor& t : network.graph.tensors()) {
    if (t.role == Role::parameter && t.name.starts_with(prefix)) count += element_count(t.shape);
  }
  return count;
}

std::string error_of(std::string_view name, const ModelInput& input) {
  try {
    build_model(name, input);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "no error";
}

// torchvision 0.2x, timm's inception_v4, PyTorch's DCGAN example, the DenseNet paper's table 2, and by hand for
// AlexNet.
struct Known {
  std::string name;
  int64_t parameters;
};
class KnownModel : public ::testing::TestWithParam<Known> {};
TEST_P(KnownModel, HasAsManyParametersAsElsewhere) {
  EXPECT_EQ(parameter_count(build_model(GetParam().name, {.batch = 1})), GetParam().parameters);
}
INSTANTIATE_TEST_SUITE_P(
    Zoo, KnownModel,
    ::testing::Values(Known{"alexnet", 62'378'344}, Known{"vgg11", 132'863'336}, Known{"vgg13", 133'047'848},
                      Known{"vgg16", 138'357'544}, Known{"vgg19", 143'667'240}, Known{"resnet18", 11'689'512},
                      Known{"resnet34", 21'797'672}, Known{"resnet50", 25'557'032}, Known{"resnet101", 44'549'160},
                      Known{"resnet152", 60'192'808}, Known{"resnet20", 269'722}, Known{"resnet32", 464'154},
                      Known{"resnet44", 658'586}, Known{"resnet56", 853'018}, Known{"resnet110", 1'727'962},
                      Known{"inception3", 23'834'568}, Known{"inception4", 42'679'816}, Known{"densenet121", 7'978'856},
                      Known{"densenet161", 28'681'000}, Known{"densenet169", 14'149'480},
                      Known{"densenet201", 20'013'928}, Known{"densenet:depth=40,growth=12", 1'019'722},
                      Known{"lenet", 61'706}, Known{"dcgan", 3'576'704 + 2'765'568}),
    [](const auto& info) {
      std::string name = info.param.name;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
      return name;
    });

TEST(Models, CountLayersAsThePapersDo) {
  EXPECT_EQ(layer_count(build_model("alexnet", {.batch = 1})), 23);
  constexpr int kTrainAndTestData = 2;  // SuperNeurons' programs have both
  EXPECT_EQ(layer_count(build_model("inception4", {.batch = 1})) + kTrainAndTestData, 515);
  EXPECT_EQ(layer_count(build_model("resnet152", {.batch = 1})) + kTrainAndTestData, 567);
  EXPECT_EQ(layer_count(build_model("resnet:6-32-788-6", {.batch = 1})), 9167);
}

TEST(Models, BuildNineThousandLayersInLessThanASecond) {
  const Stopwatch watch;
  const Network network = build_model("resnet:6-32-788-6", {.batch = 1});
  EXPECT_LT(watch.seconds(), 1.0);
  EXPECT_EQ(network.graph.tensor(network.data).shape, (Shape{1, 3, 224, 224}));
}

TEST(Models, HaveOneTowerOfTwentyThreeForwardTensorsInAlexNet) {
  const Network network = build_model("alexnet", {.batch = 200});
  const Graph& graph = network.graph;
  std::map<std::string, int> types;
  double mib = 0;  // y of each layer, softmax's probabilities included
  for (const Op& op : graph.ops()) {
    if (op.type->is_view) continue;
    ++types[op.type->name];
    mib += static_cast<double>(
        graph.tensor(op.type->name == "SoftmaxCrossEntropyForward" ? op.outputs[1] : op.outputs[0]).bytes().count);
  }
  EXPECT_EQ(types["ConvForward"], 5);
  EXPECT_EQ(types["MaxPoolForward"], 3);
  EXPECT_EQ(types["FullyConnectedForward"], 3);
  EXPECT_EQ(types["DropoutForward"], 2);
  EXPECT_EQ(types["LrnForward"], 2);
  EXPECT_EQ(types["ReluForward"], 7);
  EXPECT_EQ(types["SoftmaxCrossEntropyForward"], 1);
  EXPECT_EQ(graph.tensor(graph.find_tensor("conv1/y")).shape, (Shape{200, 96, 55, 55}));
  EXPECT_EQ(graph.tensor(graph.find_tensor("pool5/y")).shape, (Shape{200, 256, 6, 6}));
  // The paper's baseline at batch 200 less its 13 gradients: inputs of 5 CONV, 3 POOL, 3 FC, 2 DROPOUT.
  constexpr double kGradients = 154587 + 69984 + 43264 + 2 * 64896 + 290400 + 186624 + 43264 + 9216 + 4 * 4096;
  EXPECT_NEAR(mib / (1 << 20), 2189.437 - 200 * kGradients * 4 / (1 << 20), 0.001);
}

TEST(Models, TakeTheNamesOfTorchvision) {
  const Network network = build_model("resnet50", {.batch = 2, .classes = 10});
  for (const char* name : {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer1.0.downsample.0.weight",
                           "layer1.0.downsample.1.running_var", "layer4.2.bn3.bias", "fc.weight", "fc.bias"}) {
    EXPECT_TRUE(network.graph.find_tensor(name).valid()) << name;
  }
  EXPECT_TRUE(build_model("vgg16", {.batch = 1}).graph.find_tensor("features.28.weight").valid());
  const Network dense = build_model("densenet121", {.batch = 1});
  EXPECT_TRUE(dense.graph.find_tensor("features.denseblock4.denselayer16.conv2.weight").valid());
  EXPECT_TRUE(dense.graph.find_tensor("features.norm5.weight").valid());
  EXPECT_TRUE(build_model("inception3", {.batch = 1}).graph.find_tensor("Mixed_7c.branch3x3dbl_3b.bn.weight").valid());
}

// Names and shapes of every parameter and statistic, recorded from torchvision by scripts/record_torch.py.
TEST(Models, HaveTheStateDictsOfTorchvision) {
  std::ifstream file(PLIMSOLL_SOURCE_DIR "/tests/recorded/state_dicts.txt");
  std::map<std::string, std::set<std::string>> recorded;
  std::string model;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("# ")) {
      model = line.substr(2);
    } else {
      recorded[model].insert(line);
    }
  }
  EXPECT_EQ(recorded.size(), 5u);
  for (const auto& [name, entries] : recorded) {
    const Network network = build_model(name, {.batch = 1});
    std::set<std::string> ours;
    for (const State& state : network.graph.states) {
      const Tensor& t = network.graph.tensor(state.before);
      ours.insert(t.name + " " + to_string(t.shape));
    }
    EXPECT_EQ(ours, entries) << name;
  }
}

TEST(Models, NameWhatTheTrainerNeeds) {
  for (const ModelListing& model : list_models()) {
    const Network network = build_model(model.name, {.batch = 2});
    EXPECT_TRUE(network.data.valid()) << model.name;
    ASSERT_FALSE(network.objectives.empty()) << model.name;
    size_t trained = 0, parameters = 0;
    for (const Objective& objective : network.objectives) {
      trained += objective.parameters.size();
      EXPECT_EQ(network.graph.tensor(objective.loss).role, Role::output);
      EXPECT_EQ(network.graph.tensor(objective.loss).shape, Shape{});
    }
    for (const Tensor& t : network.graph.tensors()) parameters += t.role == Role::parameter ? 1 : 0;
    EXPECT_EQ(trained, parameters) << model.name;
    if (model.name == "dcgan") continue;
    EXPECT_EQ(network.objectives[0].loss, network.graph.find_tensor("loss"));
    EXPECT_EQ(network.correct.valid(), !is_language_model(network)) << model.name;
    if (!is_language_model(network)) {
      EXPECT_EQ(network.correct, network.graph.find_tensor("correct"));
    }
    EXPECT_EQ(network.graph.tensor(network.labels).dtype, DType::i32);
  }
}

TEST(Models, GiveATrainingStepThatUpdatesEveryParameterOnce) {
  for (const ModelListing& model : list_models()) {
    const Network network = make_training_network(build_model(model.name, {.batch = 2}), {});
    check(network.graph);
    for (const State& state : network.graph.states) {
      const Tensor& before = network.graph.tensor(state.before);
      EXPECT_EQ(network.graph.tensor(state.after).name, before.name + ".next") << model.name;
    }
  }
}

TEST(Models, AdvanceEveryRunningStatisticOncePerStep) {
  const Network network = build_model("resnet20", {.batch = 2});
  for (const State& state : network.graph.states) {
    const Tensor& before = network.graph.tensor(state.before);
    if (before.role != Role::statistic) continue;
    EXPECT_EQ(network.graph.tensor(state.after).name, before.name + ".next");
  }
}

TEST(Models, LeaveOutDropoutAndStateChangesInEvaluation) {
  for (const char* name : {"alexnet", "inception3", "resnet18", "dcgan"}) {
    const Network network = build_model(name, {.batch = 2, .training = false});
    for (const Op& op : network.graph.ops()) {
      EXPECT_NE(op.type->name, "DropoutForward");
      if (op.type->name == "BatchNormForward") {
        EXPECT_EQ(op.outputs.size(), 1u);
      }
    }
    for (const State& state : network.graph.states) EXPECT_EQ(state.before, state.after);
  }
  EXPECT_FALSE(build_model("alexnet", {.batch = 2, .training = false}).graph.find_tensor("seed").valid());
}

TEST(Models, TakeSmallImagesWhereThatMakesSense) {
  for (const char* name : {"mlp", "lenet", "resnet20", "resnet32", "resnet18", "resnet50", "dcgan", "densenet"}) {
    EXPECT_NO_THROW(build_model(name, {.batch = 2, .channels = 1, .height = 8, .width = 8, .classes = 10})) << name;
    EXPECT_NO_THROW(build_model(name, {.batch = 2, .channels = 1, .height = 28, .width = 28, .classes = 10})) << name;
  }
  for (const char* name : {"lenet", "vgg16", "resnet50", "densenet121", "densenet:depth=40,growth=40"}) {
    EXPECT_NO_THROW(build_model(name, {.batch = 2, .height = 32, .width = 32, .classes = 10})) << name;
  }
  EXPECT_NO_THROW(build_model("vgg16", {.batch = 1, .height = 256, .width = 320}));
}

TEST(Models, NameTheLeastSizeThatWorks) {
  EXPECT_EQ(error_of("alexnet", {.batch = 2, .height = 32, .width = 32}),
            "alexnet needs images of at least 67x67, not 32x32");
  EXPECT_EQ(error_of("inception3", {.batch = 2, .height = 64, .width = 80}),
            "inception3 needs images of at least 75x75, not 64x80");
  EXPECT_EQ(error_of("vgg16", {.batch = 2, .channels = 1, .height = 8, .width = 8}),
            "vgg16 needs images of at least 32x32, not 8x8");
  EXPECT_EQ(error_of("vit-b16:layers=1", {.batch = 2, .height = 40, .width = 40}),
            "vit-b16:layers=1 needs images of whole patches of 16x16, not 40x40");
  EXPECT_NO_THROW(build_model("alexnet", {.batch = 2, .height = 67, .width = 67}));
  EXPECT_NO_THROW(build_model("inception3", {.batch = 2, .height = 75, .width = 75}));
}

TEST(Models, NameWhatIsWrongWithTheName) {
  EXPECT_EQ(error_of("resnet5O", {}).substr(0, 54), "unknown model 'resnet5O'; did you mean 'resnet50'?");
  EXPECT_EQ(error_of("densenet:depth=40,grwth=40", {}),
            "unknown option of model 'densenet' 'grwth'; did you mean 'growth'? known: depth, growth");
  EXPECT_EQ(error_of("lenet:depth=3", {}), "model 'lenet' takes no options, got 'depth=3'");
  EXPECT_EQ(error_of("resnet:", {}),
            "model 'resnet': a value is missing in 'resnet:'; its options are written as in resnet:6-32-788-6");
  EXPECT_EQ(error_of("mlp:hidden=", {}),
            "model 'mlp': a value is missing in 'mlp:hidden='; its options are written as in mlp:256-128");
  EXPECT_EQ(error_of("lenet:", {}), "model 'lenet' takes no options, got ''");
  EXPECT_EQ(error_of("resnet:3-4-6", {}), "option 'blocks': '3-4-6' has 3 numbers, expected 4, like 3-4-6-3");
  EXPECT_EQ(error_of("resnet:3-4-x-3", {}), "option 'blocks': 'x' in '3-4-x-3' is not a number between 1 and 1000000");
  EXPECT_EQ(error_of("densenet:depth=41", {}),
            "option 'depth': 41 is not 3n + 4 (7, 10, ..., 40, ..., 100, ...); the nearest is 40");
  EXPECT_EQ(error_of("densenet:40,depth=40", {}), "model 'densenet': option 'depth' is given twice");
  EXPECT_EQ(error_of("alexnet:dropout=1", {}), "option 'dropout': '1' is not a number of at least 0 and below 1");
  EXPECT_EQ(error_of("mlp", {.batch = 0}), "batch must be between 1 and 16777216, not 0");
  EXPECT_NE(error_of("dcgan", {.height = 30}).find("not 30x30"), std::string::npos);
}

TEST(Models, ShareTheDiscriminatorBetweenRealAndFake) {
  const Network network = build_model("dcgan", {.batch = 4, .channels = 1, .height = 28, .width = 28});
  const Graph& graph = network.graph;
  EXPECT_EQ(network.objectives.size(), 2u);
  const TensorId weight = graph.find_tensor("discriminator.main.0.weight");
  EXPECT_EQ(graph.readers()[weight.index].size(), 2u);
  const Op& tanh = graph.op(graph.tensor(graph.find_tensor("generator.main.7/y")).producer);
  EXPECT_EQ(tanh.type->name, "TanhForward");
  EXPECT_EQ(graph.tensor(tanh.outputs[0]).shape, (Shape{4, 1, 28, 28}));
  // The running mean goes through both uses: real, then fake.
  const Op& fake = graph.op(graph.find_op("discriminator.main.3/fake"));
  EXPECT_EQ(graph.tensor(fake.inputs[3]).name, "discriminator.main.3.running_mean.real");
  EXPECT_EQ(graph.tensor(fake.outputs[3]).name, "discriminator.main.3.running_mean.next");
}

}  // namespace
}  // namespace plimsoll
