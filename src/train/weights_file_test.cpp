#include "train/weights_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/files.h"
#include "plimsoll/models.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary_folder.h"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using testing::error_text;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Stored {
  std::string name, dtype;
  Shape shape;
};

// A safetensors file whose tensors hold zeros.
void write_file(const std::filesystem::path& path, const std::vector<Stored>& tensors, const std::string& data = "") {
  std::vector<SafetensorsEntry> entries;
  for (const Stored& t : tensors) entries.push_back({.name = t.name, .dtype = t.dtype, .shape = t.shape});
  std::string bytes = make_safetensors_header(entries, {{"format", "pt"}});
  bytes += data.empty() && !entries.empty() ? std::string(static_cast<size_t>(entries.back().end), '\0') : data;
  write_file_atomically(path, bytes);
}

// Every parameter and statistic of a network, by the names that `rename` gives them.
template <class Rename>
std::vector<Stored> all_of(const Network& network, const Rename& rename) {
  std::vector<Stored> tensors;
  for (const State& state : network.graph.states) {
    const Tensor& t = network.graph.tensor(state.before);
    tensors.push_back({rename(t.name), "F32", t.shape});
  }
  return tensors;
}

class WeightsFileTest : public ::testing::Test {
 protected:
  std::filesystem::path path() const { return folder_.path() / "w.safetensors"; }
  WeightsFile file(const std::vector<Stored>& tensors) const {
    write_file(path(), tensors);
    return WeightsFile(path());
  }
  TemporaryFolder folder_;
};

TEST_F(WeightsFileTest, TakesTorchvisionsNamesAsTheyAre) {
  const Network network = build_model("resnet18", {.batch = 1});
  std::vector<Stored> tensors = all_of(network, [](const std::string& name) { return name; });
  tensors.push_back({"bn1.num_batches_tracked", "I64", {}});
  const WeightsMatch match = match_weights(file(tensors), network, false);
  EXPECT_EQ(match.taken.size(), network.graph.states.size());
  EXPECT_THAT(match.missing, IsEmpty());
  EXPECT_THAT(match.left_over, IsEmpty());
  EXPECT_EQ(to_text(match), "taken 102 of the network's 102 tensors");
}

TEST_F(WeightsFileTest, KnowsTheNamesOfOtherPrograms) {
  EXPECT_EQ(our_name("resnet50", "module.layer1.0.conv1.weight", "fc"), "layer1.0.conv1.weight");
  EXPECT_EQ(our_name("resnet50", "_orig_mod.model.fc.bias", "fc"), "fc.bias");
  EXPECT_EQ(our_name("vgg16", "pre_logits.fc1.weight", "classifier.6"), "classifier.0.weight");
  EXPECT_EQ(our_name("vgg16", "pre_logits.fc2.bias", "classifier.6"), "classifier.3.bias");
  EXPECT_EQ(our_name("vgg16", "head.fc.weight", "classifier.6"), "classifier.6.weight");
  EXPECT_EQ(our_name("vgg16", "features.0.weight", "classifier.6"), "features.0.weight");
  EXPECT_EQ(our_name("alexnet", "features.3.bias", "fc8"), "conv2.bias");
  EXPECT_EQ(our_name("alexnet", "classifier.6.weight", "fc8"), "fc8.weight");
  EXPECT_EQ(our_name("densenet121", "features.denseblock1.denselayer2.norm.1.weight", "classifier"),
            "features.denseblock1.denselayer2.norm1.weight");
  EXPECT_EQ(our_name("densenet121", "features.denseblock1.denselayer2.conv2.weight", "classifier"),
            "features.denseblock1.denselayer2.conv2.weight");
  EXPECT_EQ(our_name("resnet32", "linear.weight", "fc"), "fc.weight");
  EXPECT_EQ(our_name("inception4", "last_linear.weight", "last_linear"), "last_linear.weight");
  EXPECT_EQ(our_name("inception3", "AuxLogits.fc.weight", "fc"), "AuxLogits.fc.weight");
}

TEST_F(WeightsFileTest, TakesFullyConnectedLayersThatAreStoredAsConvolutions) {
  const Network network = build_model("vgg11", {.batch = 1});
  std::vector<Stored> tensors = all_of(network, [](const std::string& name) {
    return name.starts_with("classifier.0.")   ? "pre_logits.fc1." + name.substr(13)
           : name.starts_with("classifier.3.") ? "pre_logits.fc2." + name.substr(13)
           : name.starts_with("classifier.6.") ? "head.fc." + name.substr(13)
                                               : name;
  });
  std::vector<SafetensorsEntry> entries;
  for (Stored& t : tensors) {
    if (t.name == "pre_logits.fc1.weight") t.shape = {4096, 512, 7, 7};
    if (t.name == "pre_logits.fc2.weight") t.shape = {4096, 4096, 1, 1};
    entries.push_back({.name = t.name, .dtype = "F32", .shape = t.shape});
  }
  write_file_atomically(path(), make_safetensors_header(entries, {}));
  std::filesystem::resize_file(path(), std::filesystem::file_size(path()) + static_cast<uintmax_t>(entries.back().end));
  const WeightsMatch match = match_weights(WeightsFile(path()), network, false);
  EXPECT_EQ(match.taken.size(), network.graph.states.size());
  EXPECT_EQ(classes_of(WeightsFile(path()), network), 1000);
}

TEST_F(WeightsFileTest, SaysWhatIsMissingAndWhatIsLeftOver) {
  const Network network = build_model("lenet", {.batch = 1});
  std::vector<Stored> tensors = all_of(network, [](const std::string& name) { return name; });
  const std::string missing = tensors.back().name;
  tensors.back() = {"AuxLogits.fc.weight", "F32", {3, 4}};
  tensors.push_back({"epoch", "I64", {}});
  const WeightsMatch match = match_weights(file(tensors), network, false);
  EXPECT_THAT(match.missing, ElementsAre(missing));
  EXPECT_THAT(match.left_over, ElementsAre("AuxLogits.fc.weight", "epoch"));
  EXPECT_THAT(to_text(match), HasSubstr("; not in the file, so they start anew: " + missing + "; 2 of the file left"));
}

TEST_F(WeightsFileTest, HasANewLastLayerOnlyWhereItWasAskedFor) {
  const Network ten = build_model("resnet20", {.batch = 1, .classes = 10});
  const WeightsFile weights = file(all_of(ten, [](const std::string& name) { return name; }));
  const Network seven = build_model("resnet20", {.batch = 1, .classes = 7});
  const WeightsMatch match = match_weights(weights, seven, true);
  EXPECT_THAT(match.new_head, ElementsAre("fc.bias", "fc.weight"));
  EXPECT_EQ(match.taken.size(), seven.graph.states.size() - 2);
  EXPECT_THAT(error_text(ErrorCode::invalid_input, [&] { match_weights(weights, seven, false); }),
              HasSubstr("'fc.bias' is 10, but 'fc.bias' of resnet20 is 7: it was trained for 10 classes; give "
                        "--num-classes 7 to begin with a new last layer"));
}

TEST_F(WeightsFileTest, RefusesAnotherNetworksWeights) {
  const Network network = build_model("resnet18", {.batch = 1});
  std::vector<Stored> tensors = all_of(network, [](const std::string& name) { return name; });
  tensors[5].shape[0] += 1;
  EXPECT_THAT(error_text(ErrorCode::invalid_input, [&] { match_weights(file(tensors), network, true); }),
              HasSubstr("the file is of another network"));
  EXPECT_THAT(error_text(ErrorCode::invalid_input,
                         [&] {
                           match_weights(file({{"blocks.0.attn.qkv.weight", "F32", {3}}}), network, true);
                         }),
              HasSubstr("none of its 1 tensors has a name of resnet18's"));
  EXPECT_THAT(
      error_text(ErrorCode::invalid_input,
                 [&] {
                   match_weights(file({{"fc.bias", "F32", {1000}}, {"module.fc.bias", "F32", {1000}}}), network, true);
                 }),
      HasSubstr("'fc.bias' and 'module.fc.bias' are both 'fc.bias'"));
}

TEST_F(WeightsFileTest, LeavesOutTheOptimizersStates) {
  const Network network = build_model("mlp", {.batch = 1});
  std::vector<Stored> tensors = all_of(network, [](const std::string& name) { return name; });
  for (const Stored& t : std::vector<Stored>(tensors)) {
    for (const char* ending : {".momentum", ".exp_avg", ".exp_avg_sq"})
      tensors.push_back({t.name + ending, "F32", t.shape});
  }
  EXPECT_THAT(match_weights(file(tensors), network, false).left_over, IsEmpty());
}

TEST_F(WeightsFileTest, ReadsEveryFloatingType) {
  std::string data;
  const auto add = [&](auto value) { data.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  for (double value : {1.5, -2.25}) add(value);
  for (float value : {1.5F, -2.25F}) add(value);
  for (uint16_t half : {0x3e00, 0xc080, 0x0001, 0x7bff, 0xfc00, 0x8000}) add(half);  // as numpy.float16 has them
  for (uint16_t bfloat : {0x3fc0, 0xc010}) add(bfloat);
  write_file(path(), {{"d", "F64", {2}}, {"f", "F32", {2}}, {"h", "F16", {6}}, {"b", "BF16", {2}}}, data);
  const WeightsFile weights(path());
  for (size_t i : {0, 1, 3}) {
    float values[2] = {};
    weights.read(i, 0, values);
    EXPECT_EQ(values[0], 1.5F) << i;
    EXPECT_EQ(values[1], -2.25F) << i;
  }
  float halves[6] = {};
  weights.read(2, 0, halves);
  EXPECT_THAT(halves, ElementsAre(1.5F, -2.25F, std::ldexp(1.0F, -24), 65504.0F, -INFINITY, -0.0F));
  weights.read(2, 3, std::span(halves).first(1));
  EXPECT_EQ(halves[0], 65504.0F);
}

TEST_F(WeightsFileTest, NamesAFileThatIsNone) {
  write_file_atomically(path(), "this is no safetensors file at all");
  EXPECT_THAT(error_text(ErrorCode::corrupt_file, [&] { WeightsFile weights(path()); }),
              HasSubstr("not a safetensors file, or cut off"));
  write_file_atomically(path(), std::string("PK\x03\x04 archive/data.pkl", 20));
  EXPECT_THAT(error_text(ErrorCode::unsupported, [&] { WeightsFile weights(path()); }),
              HasSubstr("is a file of PyTorch, not safetensors; there, write it anew by safetensors.torch.save_file"));
}

}  // namespace
}  // namespace plimsoll
