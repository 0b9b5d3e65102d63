#include "passes/embedding_gradient.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "passes/passes.h"
#include "plimsoll/ops.h"
#include "tests/support/interpreter.h"

namespace plimsoll {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pointwise;

constexpr int64_t kRows = 20, kWidth = 4, kPadding = 3;

enum class Table : uint8_t { looked_up, looked_up_twice, output_layer };

// Two texts of `tokens` tokens; each token's row predicts one of the table's.
Network language_model(Table table, int64_t tokens = 3) {
  Network network;
  Graph& g = network.graph;
  const TensorId ids = network.data = g.add_source("data", {2, tokens}, DType::i64, Role::input);
  const TensorId labels = network.labels = g.add_source("labels", {2 * tokens}, DType::i64, Role::input);
  const TensorId words = g.add_source("words", {kRows, kWidth}, DType::f32, Role::parameter);
  const TensorId scale = g.add_source("scale", {2, tokens, kWidth}, DType::f32, Role::parameter);
  const TensorId head = g.add_source("head", {kRows, kWidth}, DType::f32, Role::parameter);
  const auto one = [&](const std::string& type, const std::string& name, std::vector<TensorId> inputs,
                       Attributes attributes = {}) {
    return g.output(g.add_op(type, name + "/forward", name, std::move(inputs), std::move(attributes)));
  };
  TensorId y =
      one("Add", "hidden", {one("Embedding", "embedding", {words, ids}, {{"padding_index", kPadding}}), scale});
  if (table == Table::looked_up_twice)
    y = one("Pointwise", "product", {y, one("Embedding", "again", {words, ids})},
            {{"expression", std::string("mul(x0,x1)")}});
  y = one("Reshape", "rows", {y}, {{"shape", Shape{2 * tokens, kWidth}}});
  y = one("FullyConnectedForward", "logits", {y, table == Table::output_layer ? words : head});
  const OpId loss = g.add_op("SoftmaxCrossEntropyForward", "loss/forward", "loss", {y, labels});
  network.correct = g.output(loss, 2);
  network.objectives = {{g.output(loss), {words, scale}}};
  g.states = {{words, words}, {scale, scale}};
  if (table == Table::output_layer) return network;
  network.objectives[0].parameters.push_back(head);
  g.states.push_back({head, head});
  return network;
}

std::vector<std::string> sparse_ops(const Network& training) {
  std::vector<std::string> result;
  for (const Op& op : training.graph.ops()) {
    if (reads_lookups(op)) result.push_back(op.type->name);
  }
  return result;
}
int whole_gradients(const Network& training) {
  return static_cast<int>(
      std::ranges::count_if(training.graph.ops(), [](const Op& op) { return op.type->name == "EmbeddingBackward"; }));
}

Network without_pass(const Network& network, const OptimizerOptions& optimizer) {
  return make_training_step(network, optimizer, {.off = {std::string(kSparseEmbeddingPass)}});
}

// What two steps leave in outputs and states.
std::vector<double> results(const Network& training, const OptimizerOptions& optimizer) {
  const Graph& graph = training.graph;
  Values values(graph);
  fill_sources(graph, values, 1);
  for (const State& state : graph.states) {  // second moments
    for (int64_t i = 0; i < values[state.before].size(); ++i) {
      if (graph.tensor(state.before).role == Role::optimizer_state) values[state.before].set(i, 0);
    }
  }
  for (const TensorId id : {training.data, training.labels}) {
    for (int64_t i = 0; i < values[id].size(); ++i) values[id].set(i, static_cast<double>(i * i % 7));
  }
  std::vector<double> result;
  const auto set = [&](const char* name, double value) {
    if (const TensorId id = graph.find_tensor(name); id.valid()) values[id].set(0, value);
  };
  for (int step = 0; step < 2; ++step) {
    set("learning_rate", 0.1);
    set("step_number", step);
    set("update_number", 0);
    set("accumulated", step);
    set("gradient_scale", optimizer.accumulate > 1 && step == 0 ? -1 : 0.5);
    interpret(graph, values);
    for (TensorId id : graph.outputs) result.push_back(values[id].at(0));
    advance_states(graph, values);
  }
  for (const State& state : graph.states) {
    for (int64_t i = 0; i < values[state.before].size(); ++i) result.push_back(values[state.before].at(i));
  }
  return result;
}

std::vector<OptimizerOptions> optimizers() {
  std::vector<OptimizerOptions> all;
  for (const char* name : {"sgd", "adam", "adamw"}) {
    for (const double momentum : {0.0, 0.9}) {
      for (const double clip : {0.0, 0.01}) {
        for (const int64_t batches : {1, 2})
          all.push_back(
              {.name = name, .momentum = momentum, .weight_decay = 0.1, .clip_grad_norm = clip, .accumulate = batches});
      }
    }
  }
  return all;
}

TEST(SparseEmbeddingGradients, GiveTheResultsOfWholeOnes) {
  for (const Table table : {Table::looked_up, Table::looked_up_twice, Table::output_layer}) {
    const Network network = language_model(table);
    for (const OptimizerOptions& optimizer : optimizers()) {
      const Network sparse = make_training_step(network, optimizer), whole = without_pass(network, optimizer);
      EXPECT_EQ(whole_gradients(sparse), table == Table::looked_up_twice ? 1 : 0);
      EXPECT_EQ(whole_gradients(whole), table == Table::looked_up_twice ? 2 : 1);
      EXPECT_THAT(sparse_ops(whole), IsEmpty());
      const auto expected = results(whole, optimizer);
      EXPECT_THAT(results(sparse, optimizer), Pointwise(DoubleNear(1e-6), expected)) << optimizer.name;
    }
  }
}

TEST(SparseEmbeddingGradients, AreReadInThePlaceOfTheWhole) {
  const auto ops = [](Table table, OptimizerOptions optimizer) {
    return sparse_ops(make_training_step(language_model(table), optimizer));
  };
  EXPECT_THAT(ops(Table::looked_up, {}), ElementsAre("EmbeddingSgdUpdate"));
  EXPECT_THAT(ops(Table::looked_up, {.name = "adamw"}), ElementsAre("EmbeddingAdamUpdate"));
  EXPECT_THAT(ops(Table::looked_up, {.clip_grad_norm = 1}), ElementsAre("EmbeddingGradientNorm", "EmbeddingSgdUpdate"));
  EXPECT_THAT(ops(Table::looked_up, {.clip_grad_norm = 1, .accumulate = 2}),
              ElementsAre("EmbeddingAccumulateGradient"));
  EXPECT_THAT(ops(Table::looked_up_twice, {}), ElementsAre("EmbeddingAddGradient"));
  EXPECT_THAT(ops(Table::output_layer, {}), ElementsAre("EmbeddingAddGradient"));
}

TEST(SparseEmbeddingGradients, AreNoneWhereTheyWouldTakeMoreThanTheTable) {
  for (const auto& [tokens, found] : {std::pair{int64_t{4}, 1}, {int64_t{5}, 0}}) {
    Network training = without_pass(language_model(Table::looked_up, tokens), {});
    EXPECT_EQ(keep_embedding_gradients_sparse(training), found) << tokens;
    check(training.graph);
  }
}

TEST(SparseEmbeddingGradients, AreNoneWhereSomebodyElseReadsTheGradient) {
  Network training = without_pass(language_model(Table::looked_up), {});
  for (const Op& op : training.graph.ops()) {
    if (op.type->name == "EmbeddingBackward") training.graph.outputs.push_back(op.outputs[0]);
  }
  EXPECT_EQ(keep_embedding_gradients_sparse(training), 0);
}

TEST(SparseEmbeddingGradients, AreNoneWhereRanksExchangeThem) {
  EXPECT_THAT(sparse_ops(make_training_step(language_model(Table::looked_up), {.ranks = 2})), IsEmpty());
  const OptimizerOptions sums{.accumulate = 2, .ranks = 2};  // of what a rank has itself
  EXPECT_THAT(sparse_ops(make_training_step(language_model(Table::looked_up), sums)),
              ElementsAre("EmbeddingAccumulateGradient"));
}

}  // namespace
}  // namespace plimsoll
