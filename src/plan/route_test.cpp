#include "plan/route.h"
#include "base/by_id.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "passes/passes.h"
#include "plimsoll/models.h"
#include "tests/support/random_graph.h"

namespace plimsoll {
namespace {

std::string names(const Graph& graph, const Route& route) {
  std::string text;
  for (OpId id : route.order) text += (text.empty() ? "" : " ") + graph.op(id).name;
  return text;
}

Attributes shaped() { return {{"shape", std::vector<int64_t>{16}}}; }

// Adds an op that reads the first outputs of the ops named.
TensorId add(Graph& graph, std::string name, std::vector<TensorId> inputs, Phase phase = Phase::forward) {
  testing::register_test_ops();
  return graph.output(graph.add_op("TestMix", name, name, std::move(inputs), shaped(), phase));
}

TEST(Route, GoesDepthFirstAndWaitsAtJoins) {
  // The nested fans of SuperNeurons' figure 6, created breadth first.
  Graph g;
  const TensorId data = g.add_source("data", {16}, DType::f32, Role::input);
  const TensorId a = add(g, "a", {data});
  const TensorId b = add(g, "b", {a}), c = add(g, "c", {a}), d = add(g, "d", {a});
  const TensorId e = add(g, "e", {c}), f = add(g, "f", {c});
  const TensorId join = add(g, "ef", {e, f});
  add(g, "end", {b, join, d});
  EXPECT_EQ(names(g, make_route(g)), "a b c e f ef d end");
}

TEST(Route, BackwardFollowsInReverseAndUpdatesRunAtOnce) {
  Graph g;
  testing::register_test_ops();
  const TensorId data = g.add_source("data", {16}, DType::f32, Role::input);
  const TensorId w1 = g.add_source("w1", {16}, DType::f32, Role::parameter);
  const TensorId w2 = g.add_source("w2", {16}, DType::f32, Role::parameter);
  const TensorId y1 = add(g, "f1", {data, w1}), y2 = add(g, "f2", {y1, w2});
  auto back = [&](std::string name, std::string_view forward, std::vector<TensorId> in) {
    const TensorId t = add(g, std::move(name), std::move(in), Phase::backward);
    g.op(g.tensor(t).producer).forward = g.find_op(forward);
    return t;
  };
  const TensorId one = g.output(
      g.add_op("Constant", "one", "", {}, {{"shape", std::vector<int64_t>{16}}, {"value", 1.0}}, Phase::backward));
  const TensorId dw2 = back("dw2", "f2", {one, y1, y2});
  const TensorId dy1 = back("dy1", "f2", {one, w2});
  const TensorId dw1 = back("dw1", "f1", {dy1, data});
  g.add_op("TestUpdate", "update1", "", {w1, dw1}, {}, Phase::update);
  g.add_op("TestUpdate", "update2", "", {w2, dw2}, {}, Phase::update);
  // update2 waits for dy1, which reads w2; "one" runs right before its first reader.
  EXPECT_EQ(names(g, make_route(g)), "f1 f2 one dw2 dy1 update2 dw1 update1");
}

TEST(Route, ReordersRunRightBeforeTheirFirstReaderEvenIfCreatedLast) {
  Graph g;
  const TensorId data = g.add_source("data", {4, 4}, DType::f32, Role::input);
  testing::register_test_ops();
  auto map = [&](std::string name, TensorId in) { return g.output(g.add_op("TestMap", name, name, {in})); };
  const TensorId a = map("a", data);
  const TensorId b = map("b", a);
  const TensorId c = map("c", b);
  (void)c;
  const TensorId d = map("d", a);
  const OpId reorder = g.add_op("Reorder", "reorder", "", {a});
  g.tensor(g.output(reorder)).layout.tag = "ba";
  g.op(g.tensor(d).producer).inputs[0] = g.output(reorder);
  EXPECT_EQ(names(g, make_route(g)), "a b c reorder d");
}

TEST(Route, AnUpdateWaitsForReadersOfItsParameterAndForTheReordersOfIt) {
  Graph g;
  testing::register_test_ops();
  const TensorId w = g.add_source("w", {4, 4}, DType::f32, Role::parameter);
  const TensorId data = g.add_source("data", {16}, DType::f32, Role::input);
  const TensorId gradient =
      g.output(g.add_op("TestMix", "gradient", "", {data}, {{"shape", std::vector<int64_t>{4, 4}}}));
  g.add_op("TestUpdate", "update", "", {w, gradient}, {}, Phase::update);
  const OpId reorder = g.add_op("Reorder", "reorder", "", {w});
  g.tensor(g.output(reorder)).layout.tag = "ba";
  add(g, "reader", {gradient, w});
  add(g, "other", {gradient, g.output(reorder)}, Phase::backward);
  EXPECT_EQ(names(g, make_route(g)), "gradient reader reorder update other");
}

TEST(Route, NamesAnOpThatCanNeverRun) {
  Graph g;
  testing::register_test_ops();
  const TensorId w = g.add_source("w", {16}, DType::f32, Role::parameter);
  const TensorId data = g.add_source("data", {16}, DType::f32, Role::input);
  const TensorId next = g.output(g.add_op("TestUpdate", "update", "", {w, data}, {}, Phase::update));
  add(g, "late", {next, w});  // reads w after it was overwritten
  try {
    make_route(g);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("op 'update' can never run"), std::string::npos) << error.what();
  }
}

TEST(Route, OfRandomGraphsHasEveryOpOnceAfterItsInputs) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Graph g = testing::random_graph(seed, {.forward_ops = static_cast<int>(2 + seed % 60)});
    const Route route = make_route(g);
    ASSERT_EQ(route.order.size(), g.ops().size()) << "seed " << seed;
    ById<OpId, bool> ran(g.ops().size(), false);
    for (OpId id : route.order) {
      EXPECT_FALSE(ran[id]) << "seed " << seed;
      for (TensorId in : g.op(id).inputs) {
        const OpId producer = g.tensor(in).producer;
        EXPECT_TRUE(!producer.valid() || ran[producer]) << "seed " << seed;
      }
      ran[id] = true;
    }
  }
}

TEST(Route, GathersUpdatesOfSmallParametersAndNoOthers) {
  const Network network = make_training_step(
      build_model("resnet20", {.batch = 2, .channels = 3, .height = 32, .width = 32, .classes = 10}), {});
  const Graph& graph = network.graph;
  const Route route = make_route(graph), gathered = gather_updates(graph, route);
  std::vector<OpId> before, after;  // without updates
  const auto is_update = [&](OpId id) { return graph.op(id).phase == Phase::update; };
  std::ranges::remove_copy_if(route.order, std::back_inserter(before), is_update);
  std::ranges::remove_copy_if(gathered.order, std::back_inserter(after), is_update);
  EXPECT_EQ(after, before);
  ASSERT_EQ(gathered.order.size(), route.order.size());
  const auto small = [&](OpId id) { return graph.tensor(graph.op(id).inputs[1]).bytes() <= 256_KiB; };
  Bytes waiting;
  for (size_t i = after.size(); i < gathered.order.size(); ++i) {
    if (is_update(gathered.order[i])) waiting += graph.tensor(graph.op(gathered.order[i]).inputs[1]).bytes();
  }
  EXPECT_LE(waiting, 4_MiB);
  int alone = 0;
  for (size_t i = 1; i + 1 < gathered.order.size(); ++i) {
    const bool neighbours = is_update(gathered.order[i - 1]) || is_update(gathered.order[i + 1]);
    alone += is_update(gathered.order[i]) && small(gathered.order[i]) && !neighbours;
  }
  EXPECT_EQ(alone, 0);
}

}  // namespace
}  // namespace plimsoll
