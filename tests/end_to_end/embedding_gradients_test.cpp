// Trainings whose embeddings' gradients are sparse until the update, beside those whose gradients lie whole: the same bits, with
// every optimizer, in every budget, in less memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "models/transformer.h"
#include "passes/embedding_gradient.h"
#include "passes/passes.h"
#include "plimsoll/compile.h"
#include "plimsoll/cost.h"
#include "plimsoll/device.h"
#include "plimsoll/ops.h"
#include "plimsoll/training_step.h"
#include "tests/support/repetitions.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temporary_folder.h"

namespace plimsoll {
namespace {

using testing::number_of;

class RandomEmbedding {
 public:
  explicit RandomEmbedding(uint64_t seed) : random_(seed) {
    batch_ = draw(1, 3);
    tokens_ = draw(1, 25);
    width_ = draw(1, 40);
    vocabulary_ = draw(20, 300);
    tied_ = draw(0, 2) == 0;
    twice_ = draw(0, 2) == 0;
    padding_ = draw(0, 1) == 0 ? draw(0, vocabulary_ - 1) : -1;
    optimizer_.name = std::array{"sgd", "adam", "adamw"}[static_cast<size_t>(draw(0, 2))];
    optimizer_.momentum = draw(0, 1) * 0.9;
    optimizer_.nesterov = optimizer_.name == "sgd" && optimizer_.momentum != 0 && draw(0, 1) == 0;
    optimizer_.weight_decay = draw(0, 1) * 0.05;
    optimizer_.clip_grad_norm = draw(0, 1) * 0.3;
    optimizer_.accumulate = draw(0, 3) == 0 ? 2 : 1;
  }
  int64_t draw(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random_); }

  Network build() const {
    Builder net =
        Builder::of_tokens("random", {.batch = batch_, .width = tokens_, .classes = vocabulary_, .training = true});
    const Initializer init = normal_init(0.2);
    const Attributes padding{{"padding_index", padding_}};
    const TensorId words = net.parameter("words", {vocabulary_, width_}, init);
    TensorId x = net.op("Embedding", "embedding", {words, net.data()}, padding);
    if (twice_)
      x = net.pointwise("product", "add(x0,tanh(x1))", {x, net.op("Embedding", "again", {words, net.data()}, padding)});
    x = net.reshape("rows", x, {rows(), width_});
    x = net.op("FullyConnectedForward", "hidden", {x, net.parameter("hidden.weight", {width_, width_}, init)});
    x = net.pointwise("act", "gelu(x0)", {x});
    const TensorId head = tied_ ? words : net.parameter("head.weight", {vocabulary_, width_}, init);
    return std::move(net).finish_language_model(net.op("FullyConnectedForward", "head", {x, head}));
  }
  int64_t rows() const { return batch_ * tokens_; }
  int64_t vocabulary() const { return vocabulary_; }
  const OptimizerOptions& optimizer() const { return optimizer_; }

 private:
  std::mt19937_64 random_;
  int64_t batch_ = 1, tokens_ = 1, width_ = 1, vocabulary_ = 1, padding_ = -1;
  bool tied_ = false, twice_ = false;
  OptimizerOptions optimizer_;
};

// Losses, norms, and every state, as numbers: the sign of a zero does not count.
std::map<std::string, std::vector<float>> learned(Program program, const Device& device, const RandomEmbedding& drawn,
                                                  uint64_t seed, const std::filesystem::path& folder) {
  std::map<std::string, std::vector<float>> result;
  TrainingStep step(std::move(program), device, {.check_memory = true, .spill = folder});
  step.initialize(seed);
  std::mt19937_64 text(seed);
  for (int batch = 0; batch < 4; ++batch) {
    std::vector<int32_t> ids(drawn.rows()), labels(drawn.rows());
    for (int32_t& id : ids) id = static_cast<int32_t>(text() % (1 + text() % drawn.vocabulary()));
    for (int32_t& label : labels) label = static_cast<int32_t>(text() % drawn.vocabulary());
    step.feed_tokens(ids, labels);
    step.run(0.05);
    result["loss"].push_back(static_cast<float>(step.loss()));
    result["norm"].push_back(static_cast<float>(step.gradient_norm().value_or(0)));
  }
  for (const CheckpointTensor& state : step.states()) {
    const StateTensor found = step.state(state.name);
    const auto elements = found.as<float>();
    result[state.name].assign(elements.begin(), elements.end());
  }
  EXPECT_LE(step.measured_peak(), step.program().plan->predicted.peak);
  return result;
}

TEST(EmbeddingGradients, EndWithTheBitsOfWholeOnesInEveryBudget) {
  const uint64_t first = number_of("PLIMSOLL_RANDOM_SEED", 1),
                 count = number_of("PLIMSOLL_RANDOM_GRAPHS", kSanitizer ? 10 : 25);
  const TemporaryFolder folder;
  std::map<std::string, int> seen;
  int sparse = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(fmt::format("PLIMSOLL_RANDOM_SEED={}", seed));
    RandomEmbedding drawn(seed);
    const auto device = open_device("cpu", static_cast<int>(drawn.draw(1, 2)));
    CompileOptions options{.exact = true, .name_minimum = true};
    options.optimizer = drawn.optimizer();
    const auto compile = [&] {
      return std::get<Program>(compile_training(drawn.build(), *device, CostTable(), options));
    };
    options.fusion.off = {std::string(kSparseEmbeddingPass)};
    Program whole = compile();
    const Bytes least_of_whole = *whole.minimum;
    const auto wanted = learned(std::move(whole), *device, drawn, seed, folder.path());

    options.fusion.off = {};
    Program free = compile();
    bool any = false;
    for (const Op& op : free.network.graph.ops()) {
      if (!reads_lookups(op)) continue;
      ++seen[op.type->name];
      any = true;
    }
    const Bytes least = *free.minimum, most = free.plan->arena;
    EXPECT_LE(least, least_of_whole + 2_KiB);  // what puts the lookups in order
    sparse += any;
    EXPECT_EQ(learned(std::move(free), *device, drawn, seed, folder.path()), wanted);
    options.name_minimum = false;
    for (const double share : {0.0, 0.5}) {
      if (drawn.draw(0, 1) == 0) options.tiers = {{.name = "host", .capacity = 1_GiB}};
      options.memory = {least.count + static_cast<int64_t>(share * static_cast<double>((most - least).count))};
      EXPECT_EQ(learned(compile(), *device, drawn, seed, folder.path()), wanted) << share;
    }
    if (HasFailure()) return;
  }
  if (count < 40) return;
  EXPECT_EQ(seen.size(), 5U);
  EXPECT_GT(sparse, static_cast<int>(count) / 2);
}

TEST(EmbeddingGradients, TakeNoMemoryOfTheTablesSize) {
  const auto device = open_device("cpu", 1);
  const Bytes table{int64_t{4000} * 32 * 4};
  Builder net = Builder::of_tokens("words", {.batch = 4, .width = 10, .classes = 7, .training = true});
  const TensorId rows = net.embedding("embedding", net.data(), net.parameter("words", {4000, 32}, normal_init(0.2)));
  const TensorId head = net.parameter("head.weight", {7, 32}, normal_init(0.2));
  const Network network = std::move(net).finish_language_model(
      net.op("FullyConnectedForward", "head", {net.reshape("rows", rows, {40, 32}), head}));
  for (const char* name : {"sgd", "adamw"}) {
    for (const double clip : {0.0, 1.0}) {
      const auto least = [&](std::vector<std::string> off) {
        CompileOptions options{.exact = true, .name_minimum = true};
        options.optimizer = {.name = name, .clip_grad_norm = clip};
        options.fusion.off = std::move(off);
        return *std::get<Program>(compile_training(network, *device, CostTable(), options)).minimum;
      };
      const Bytes states = table * (std::string(name) == "sgd" ? 2 : 3);
      EXPECT_LT(least({}), states + 64_KiB) << name << ", clip " << clip;
      EXPECT_GT(least({std::string(kSparseEmbeddingPass)}), states + table) << name << ", clip " << clip;
    }
  }
}

}  // namespace
}  // namespace plimsoll
