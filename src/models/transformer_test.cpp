// The transformers of the zoo beside those of `transformers` and torchvision.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "plimsoll/models.h"
#include "tests/recorded/recorded.h"
#include "tests/support/interpreter.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

int64_t parameters_of(std::string_view name) {
  const Network network = build_model(name, {.batch = 1});
  int64_t count = 0;
  for (const Tensor& t : network.graph.tensors()) {
    if (t.role == Role::parameter) count += element_count(t.shape);
  }
  return count;
}

std::string refusal_of(std::string_view name, const ModelInput& input = {.batch = 1}) {
  try {
    build_model(name, input);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "no error";
}

TEST(Transformers, HaveAsManyParametersAsElsewhere) {
  EXPECT_EQ(parameters_of("gpt2"), 124'439'808);
  EXPECT_EQ(parameters_of("gpt2:context=512"), 124'439'808);  // all positions, whatever the window
  EXPECT_EQ(parameters_of("gpt2:layers=48,width=1600,heads=25"), 1'557'611'200);
  EXPECT_EQ(parameters_of("bert"), 109'514'298);
  EXPECT_EQ(parameters_of("vit-b16"), 86'567'656);
  EXPECT_EQ(parameters_of("llama:layers=22,width=2048,heads=32,kv_heads=4,ffn=5632,context=2048"), 1'100'048'384);
  EXPECT_EQ(parameters_of("llama"), 134'105'856);
  EXPECT_EQ(parameters_of("gpt-bytes"), 842'496);
}

TEST(Transformers, TakeWindowsOfTokens) {
  const Network network = build_model("gpt2:layers=1,width=8,heads=2,context=16,vocab=50", {.batch = 3});
  EXPECT_EQ(network.graph.tensor(network.data).shape, (Shape{3, 16}));
  EXPECT_EQ(network.graph.tensor(network.data).dtype, DType::i32);
  EXPECT_EQ(network.graph.tensor(network.labels).shape, (Shape{48}));
  EXPECT_TRUE(is_language_model(network));
  EXPECT_FALSE(is_language_model(build_model("vit-b16:layers=1,width=8,heads=2", {.batch = 1})));
  EXPECT_EQ(usual_input("gpt2:context=16,vocab=50").width, 16);
  EXPECT_EQ(usual_input("gpt2:context=16,vocab=50").classes, 50);
  EXPECT_TRUE(token_task("llama").tokens);
  EXPECT_FALSE(token_task("llama").mask);
  EXPECT_EQ(token_task("bert").mask, 103);
  EXPECT_FALSE(token_task("resnet50").tokens);
  EXPECT_EQ(usual_optimizer("gpt2:layers=2"), "adamw");
  EXPECT_EQ(usual_optimizer("resnet50"), "sgd");
}

TEST(Transformers, StartTheirResidualPathsSmaller) {
  const Network network = build_model("gpt2:layers=8,width=8,heads=2,context=4,vocab=9", {.batch = 1});
  const auto deviation = [&](const char* name) {
    return network.graph.tensor(network.graph.find_tensor(name)).init.scale;
  };
  EXPECT_DOUBLE_EQ(deviation("transformer.wte.weight"), 0.02);
  EXPECT_DOUBLE_EQ(deviation("transformer.h.3.attn.c_attn.weight"), 0.02);
  EXPECT_DOUBLE_EQ(deviation("transformer.h.3.attn.c_proj.weight"), 0.02 / 4);
  EXPECT_DOUBLE_EQ(deviation("transformer.h.3.mlp.c_proj.weight"), 0.02 / 4);
}

TEST(Transformers, RefuseSizesThatDoNotGoTogether) {
  EXPECT_THAT(refusal_of("gpt2:width=100,heads=12"), HasSubstr("width 100 is no multiple of its 12 heads"));
  EXPECT_THAT(refusal_of("gpt2:context=64,positions=32"), HasSubstr("option 'positions'"));
  EXPECT_THAT(refusal_of("llama:heads=12,kv_heads=5"), HasSubstr("12 heads are no multiple of the 5 of kv_heads"));
  EXPECT_THAT(refusal_of("llama:width=9,heads=3"), HasSubstr("rotary"));
  EXPECT_THAT(refusal_of("gpt2:contxt=3"), HasSubstr("did you mean 'context'"));
  EXPECT_THAT(refusal_of("vit-b16", {.batch = 1, .height = 300, .width = 300}), HasSubstr("whole patches of 16x16"));
}

// As start() of scripts/record_transformers.py.
void fill(Value& value, const std::string& name) {
  const std::vector<double> u = recorded::numbers(name, value.size());
  const bool is_scale = value.shape.size() == 1 && !name.ends_with("bias");
  for (int64_t i = 0; i < value.size(); ++i) value.set(i, is_scale ? 1 + 0.25 * u[i] : 0.5 * u[i]);
}

void fill_tokens(Value& value, const std::string& name, int64_t vocabulary) {
  const std::vector<double> u = recorded::numbers(name, value.size());
  for (int64_t i = 0; i < value.size(); ++i) {
    value.set(i, static_cast<double>(static_cast<int64_t>((u[i] + 1) / 2 * static_cast<double>(vocabulary))));
  }
}

void expect_near(double ours, double theirs, const std::string& what) {
  EXPECT_NEAR(ours, theirs, 2e-4 * std::max(1.0, std::abs(theirs))) << what;
}

// Loss and gradients of one step, recorded by scripts/record_transformers.py.
TEST(Transformers, ComputeWhatTransformersAndTorchvisionCompute) {
  std::ifstream file(PLIMSOLL_SOURCE_DIR "/tests/recorded/transformers.txt");
  int networks = 0, parameters = 0;
  Network network;
  std::map<std::string, TensorId> gradients;
  std::unique_ptr<Values> values;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, shape;
    double theirs = 0;
    if (line.starts_with("# ")) {
      words >> shape >> name >> theirs;
      SCOPED_TRACE(name);
      const bool image = name.starts_with("vit");
      network = build_model(
          name, image ? ModelInput{.batch = 2, .height = 32, .width = 32, .classes = 5} : ModelInput{.batch = 2});
      const Objective objective = network.objectives[0];
      const std::vector<TensorId> of = append_backward(network.graph, objective.loss, objective.parameters);
      values = std::make_unique<Values>(network.graph);
      gradients.clear();
      for (size_t i = 0; i < of.size(); ++i) {
        const std::string parameter = network.graph.tensor(objective.parameters[i]).name;
        gradients[parameter] = of[i];
        fill((*values)[objective.parameters[i]], parameter);
      }
      Value& data = (*values)[network.data];
      Value& labels = (*values)[network.labels];
      if (image) {
        const std::vector<double> u = recorded::numbers("data", data.size());
        for (int64_t i = 0; i < data.size(); ++i) data.set(i, u[i]);
        labels.set(0, 1);
        labels.set(1, 4);
      } else {
        fill_tokens(data, "data", usual_input(name).classes);
        fill_tokens(labels, "labels", usual_input(name).classes);
      }
      interpret(network.graph, *values);
      expect_near((*values)[objective.loss].at(0), theirs, name);
      ++networks;
      continue;
    }
    words >> name >> shape >> theirs;
    ASSERT_TRUE(gradients.contains(name)) << name;
    const TensorId parameter = network.graph.find_tensor(name), gradient = gradients[name];
    std::string ours;
    for (int64_t size : network.graph.tensor(parameter).shape) ours += (ours.empty() ? "" : "x") + std::to_string(size);
    EXPECT_EQ(ours, shape) << name;
    const std::vector<double> weights = recorded::numbers("gradient " + name, (*values)[gradient].size());
    double sum = 0;
    for (size_t i = 0; i < weights.size(); ++i) sum += weights[i] * (*values)[gradient].at(static_cast<int64_t>(i));
    expect_near(sum, theirs, network.graph.name + " " + name);
    gradients.erase(name);
    ++parameters;
  }
  EXPECT_EQ(networks, 4);
  EXPECT_GT(parameters, 100);
}

}  // namespace
}  // namespace plimsoll
