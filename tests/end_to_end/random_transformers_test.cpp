// Transformers drawn at random, trained under --exact in every budget and by every policy: plans that the verifier took, and the
// weights of a training with all memory, bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "models/transformer.h"
#include "plan/policy.h"
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

// Sizes are ragged on purpose: odd widths of heads, odd sequences, a vocabulary that no block divides. Some have so many words and
// such wide layers that the loss and the MLP run by rows.
class RandomTransformer {
 public:
  explicit RandomTransformer(uint64_t seed) : random_(seed) {
    size_.batch = draw(1, 3);
    size_.tokens = draw(1, 40);
    size_.layers = draw(1, 3);
    kv_heads_ = draw(1, 3);
    size_.heads = kv_heads_ * draw(1, 3);
    size_.width = size_.heads * draw(1, 9);
    vocabulary_ = draw(11, 200);  // more or fewer than there are tokens
    tied_ = coin();
    one_block_for_all_ = draw(0, 3) == 0;
    dropout_ = coin() ? 0.1 : 0;
    wide_ = draw(0, 7) == 0;
    if (!wide_) return;
    size_.batch = draw(2, 3);
    size_.tokens = draw(171, 200);
    size_.layers = 1;
    vocabulary_ = draw(12'300, 13'000);  // logits of more than 16 MiB
  }

  Network build() {
    Builder net = Builder::of_tokens(
        "random", {.batch = size_.batch, .width = size_.tokens, .classes = vocabulary_, .training = true});
    const std::mt19937_64 start = random_;  // each build draws the same
    const Initializer init = normal_init(0.2);
    const TensorId words = net.parameter("words", {vocabulary_, size_.width}, init);
    TensorId x = net.reshape("rows", net.embedding("embedding", net.data(), words), {size_.rows(), size_.width});
    if (coin()) {
      const TensorId places = net.parameter("places", {size_.tokens + draw(0, 5), size_.width}, init);
      x = net.reshape("with_places.view", x, {size_.batch, size_.tokens, size_.width});
      x = net.pointwise("with_places", "add(x0,x1)", {x, net.slice("used_places", places, 0, 0, size_.tokens)});
      x = net.reshape("with_places.rows", x, {size_.rows(), size_.width});
    }
    const std::mt19937_64 first_block = random_;
    for (int64_t i = 0; i < size_.layers; ++i) {
      if (one_block_for_all_) {  // as in ALBERT
        net.apply_as(fmt::format("use{}", i), i + 1 == size_.layers);
        random_ = first_block;
      }
      x = block(net, one_block_for_all_ ? "block." : fmt::format("block{}.", i), x);
    }
    x = norm(net, "norm", x);
    const TensorId logits =
        tied_ ? net.op("FullyConnectedForward", "head", {x, words}) : linear(net, "head", x, vocabulary_, init, coin());
    random_ = start;
    return std::move(net).finish_language_model(logits);
  }

  int64_t rows() const { return size_.rows(); }
  int64_t vocabulary() const { return vocabulary_; }
  bool is_wide() const { return wide_; }

 private:
  int64_t draw(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random_); }
  bool coin() { return draw(0, 1) == 1; }

  TensorId norm(Builder& net, const std::string& layer, TensorId x) {
    return coin() ? net.layer_norm(layer, x, 1e-5) : net.rms_norm(layer, x, 1e-6);
  }
  TensorId heads(Builder& net, const std::string& layer, TensorId x, int64_t count) {
    const int64_t width = size_.head_width();
    return divide_heads(net, layer, linear(net, layer, x, count * width, normal_init(0.2), coin()), size_, count);
  }
  TensorId attend(Builder& net, const std::string& at, TensorId q, TensorId k, TensorId v) {
    const bool causal = coin();
    if (dropout_ > 0 && coin())
      return net.attention(at + "attention", q, k, v, {.causal = causal, .dropout = dropout_});
    Attributes attributes{{"scale", static_cast<double>(draw(1, 10)) / 10},
                          {"causal", int64_t{causal}},
                          {"enable_gqa", int64_t{size_.heads != kv_heads_}}};
    if (coin()) attributes.set("window_left", draw(0, size_.tokens));
    if (draw(0, 3) == 0) attributes.set("window_right", draw(0, size_.tokens));
    std::vector<TensorId> inputs{q, k, v};
    if (draw(0, 2) == 0) {  // a bias that is learned: for all queries, for all heads, or one each
      const Shape of_keys{size_.batch, 1, 1, size_.tokens},
          of_all{1, coin() ? 1 : size_.heads, size_.tokens, size_.tokens};
      inputs.push_back(net.parameter(at + "bias", coin() ? of_keys : of_all, normal_init(0.5)));
    }
    return net.op("AttentionForward", at + "attention", inputs, attributes);
  }
  TensorId block(Builder& net, const std::string& at, TensorId x) {
    const bool norm_first = coin();
    TensorId y = norm_first ? norm(net, at + "norm1", x) : x;
    const TensorId q = heads(net, at + "q", y, size_.heads), k = heads(net, at + "k", y, kv_heads_),
                   v = heads(net, at + "v", y, kv_heads_);
    y = attend(net, at, q, k, v);
    y = linear(net, at + "out", join_heads(net, at + "joined", y), size_.width, normal_init(0.2), coin());
    x = net.add(at + "add1", {x, net.dropout(at + "dropout1", y, dropout_)});
    if (!norm_first) x = norm(net, at + "norm1", x);
    y = norm_first ? norm(net, at + "norm2", x) : x;
    const int64_t inner = wide_ ? draw(3100, 3300) : draw(1, 4 * size_.width);  // rows of more than 4 MiB
    if (coin()) {
      const TensorId gate = linear(net, at + "gate", y, inner, normal_init(0.2), false);
      y = net.pointwise(at + "act", "mul(silu(x0),x1)",
                        {gate, linear(net, at + "up", y, inner, normal_init(0.2), false)});
    } else {
      y = net.pointwise(at + "act", coin() ? "gelu(x0)" : "gelu_tanh(x0)",
                        {linear(net, at + "up", y, inner, normal_init(0.2))});
    }
    y = linear(net, at + "down", y, size_.width, normal_init(0.2));
    x = net.add(at + "add2", {x, net.dropout(at + "dropout2", y, dropout_)});
    return norm_first ? x : norm(net, at + "norm2", x);
  }

  std::mt19937_64 random_;
  TransformerSize size_;
  int64_t kv_heads_ = 1, vocabulary_ = 1;
  bool tied_ = false, one_block_for_all_ = false, wide_ = false;
  double dropout_ = 0;
};

// Whether the loss does, and an MLP.
bool runs_by_rows(const Graph& graph) {
  const auto has = [&](std::string_view type) {
    return std::any_of(graph.ops().begin(), graph.ops().end(), [&](const Op& op) { return op.type->name == type; });
  };
  return has("LinearCrossEntropyTraining") && has("PointwiseLinearForward") && has("PointwiseLinearBackward");
}

TEST(RandomTransformers, EndWithTheSameBitsInEveryBudgetAndByEveryPolicy) {
  const uint64_t first = number_of("PLIMSOLL_RANDOM_SEED", 1), count = number_of("PLIMSOLL_RANDOM_GRAPHS", 6);
  const TemporaryFolder folder;
  const auto device = open_device("cpu", 1);
  const std::vector<Policy> all = policies();
  int tight = 0, moved = 0, recomputed = 0, wide = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(fmt::format("PLIMSOLL_RANDOM_SEED={}", seed));
    RandomTransformer drawn(seed);
    std::mt19937_64 random(seed);
    const auto draw = [&](int64_t least, int64_t most) {
      return std::uniform_int_distribution<int64_t>(least, most)(random);
    };
    CompileOptions options{.exact = true};
    options.optimizer.name = draw(0, 1) == 1 ? "adamw" : "sgd";
    options.optimizer.accumulate = draw(0, 3) == 0 ? 2 : 1;
    options.optimizer.clip_grad_norm = draw(0, 1) == 1 ? 0.3 : 0;
    const auto learned = [&](Program program) {
      TrainingStep step(std::move(program), *device, {.check_memory = true, .spill = folder.path()});
      step.initialize(seed);
      std::mt19937_64 text(seed);
      for (int batch = 0; batch < 2; ++batch) {
        std::vector<int32_t> ids(drawn.rows()), labels(drawn.rows());
        for (int32_t& id : ids) id = static_cast<int32_t>(text() % drawn.vocabulary());
        for (int32_t& label : labels) label = static_cast<int32_t>(text() % drawn.vocabulary());
        step.feed_tokens(ids, labels);
        step.run(0.05);
      }
      EXPECT_GT(step.loss(), 0);
      EXPECT_LE(step.measured_peak(), step.program().plan->predicted.peak);
      return step.weights_sha256();
    };
    options.policy = "liveness";
    auto whole = std::get<Program>(compile_training(drawn.build(), *device, CostTable(), options));
    const Bytes most = whole.plan->arena;
    wide += drawn.is_wide();
    EXPECT_EQ(runs_by_rows(whole.network.graph), drawn.is_wide());
    const std::string wanted = learned(std::move(whole));

    const bool moves = draw(0, 1) == 1;
    if (moves) options.tiers = {{.name = "host", .capacity = 1_GiB}};
    options.policy = "auto";
    options.name_minimum = true;
    const auto unlimited = compile_training(drawn.build(), *device, CostTable(), options);
    const Bytes least = *std::get<Program>(unlimited).minimum;
    options.name_minimum = false;
    std::vector<std::pair<std::string, double>> cases{{"auto", 0}, {"auto", 0.3}, {"auto", 0.7}};
    for (int i = 0; i < 3; ++i) cases.emplace_back(all[draw(0, std::ssize(all) - 1)].name, draw(0, 10) / 10.0);
    for (const auto& [policy, share] : cases) {
      options.policy = policy;
      options.memory = {least.count + static_cast<int64_t>(share * static_cast<double>((most - least).count))};
      auto result = compile_training(drawn.build(), *device, CostTable(), options);
      if (!std::holds_alternative<Program>(result)) {
        ASSERT_NE(policy, "auto") << share << ": " << to_text(std::get<Infeasible>(result));
        continue;
      }
      Program program = std::get<Program>(std::move(result));
      EXPECT_LE(program.plan->arena, options.memory);
      tight += program.plan->arena < most;
      moved += program.plan->predicted.offload.count > 0;
      recomputed += program.plan->predicted.recompute_steps > 0;
      EXPECT_EQ(learned(std::move(program)), wanted)
          << policy << " at " << share << (moves ? ", with host memory" : "");
    }
  }
  if (count < 50) return;
  EXPECT_GT(tight, static_cast<int>(count));
  EXPECT_GT(moved, static_cast<int>(count) / 10);
  EXPECT_GT(recomputed, static_cast<int>(count) / 10);
  EXPECT_GT(wide, static_cast<int>(count) / 20);
}

}  // namespace
}  // namespace plimsoll
