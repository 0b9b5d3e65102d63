#include <gtest/gtest.h>

#include <limits>

#include "plimsoll/graph.h"
#include "tests/support/random_graph.h"

namespace plimsoll {
namespace {

Graph small_graph() {
  Graph graph;
  graph.name = "small";
  const TensorId x = graph.add_source("x", {2, 3}, DType::f32, Role::input);
  const OpId relu = graph.add_op("LeakyReluForward", "relu", "layer1", {x}, {{"slope", 0.25}}, Phase::forward, {"y"});
  graph.outputs.push_back(graph.output(relu));
  return graph;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string error_of(const std::string& text) {
  try {
    graph_from_json(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_file);
    return error.what();
  }
  return "no error";
}

TEST(GraphJson, ReadsBackToAnEqualGraph) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const Graph graph = testing::random_graph(seed);
    const std::string text = to_json(graph);
    const Graph again = graph_from_json(text);
    EXPECT_EQ(fingerprint(again), fingerprint(graph)) << "seed " << seed;
    EXPECT_EQ(to_json(again), text) << "seed " << seed;
    EXPECT_EQ(to_text(again), to_text(graph)) << "seed " << seed;
  }
}

TEST(GraphJson, ReadsOpsThatReadWhatALaterOpMakes) {
  Graph graph = small_graph();
  const OpId late = graph.add_op("Constant", "late", "", {}, {{"shape", std::vector<int64_t>{2, 3}}, {"value", 1.0}});
  graph.op({0}).inputs[0] = graph.output(late);
  EXPECT_EQ(fingerprint(graph_from_json(to_json(graph))), fingerprint(graph));
}

TEST(GraphJson, KeepsInfiniteNumbers) {
  Graph graph = small_graph();
  const double infinity = std::numeric_limits<double>::infinity();
  graph.op({0}).attributes.set("least", -infinity);
  graph.op({0}).attributes.set("most", infinity);
  const Graph again = graph_from_json(to_json(graph));
  EXPECT_EQ(again.op({0}).attributes, graph.op({0}).attributes);
  EXPECT_EQ(fingerprint(again), fingerprint(graph));
}

TEST(GraphJson, KeepsListsOfRealNumbers) {
  Graph graph = small_graph();
  graph.op({0}).attributes.set("scale", std::vector<double>{1.5, 2.0});
  const Graph again = graph_from_json(to_json(graph));
  EXPECT_EQ(again.op({0}).attributes, graph.op({0}).attributes);
  EXPECT_EQ(fingerprint(again), fingerprint(graph));
  EXPECT_EQ(to_text(again), to_text(graph));
}

TEST(GraphJson, EveryChangeOfTheGraphChangesItsFingerprint) {
  const uint64_t original = fingerprint(small_graph());
  auto changed = [&](auto change) {
    Graph graph = small_graph();
    change(graph);
    return fingerprint(graph) != original;
  };
  EXPECT_TRUE(changed([](Graph& g) { g.name = "other"; }));
  EXPECT_TRUE(changed([](Graph& g) { g.tensor({0}).layout.tag = "ba"; }));
  EXPECT_TRUE(changed([](Graph& g) { g.tensor({0}).shape = {3, 2}; }));
  EXPECT_TRUE(changed([](Graph& g) { g.tensor({1}).role = Role::output; }));
  EXPECT_TRUE(changed([](Graph& g) { g.op({0}).attributes.set("slope", 0.5); }));
  EXPECT_TRUE(changed([](Graph& g) { g.op({0}).layer = "layer2"; }));
  EXPECT_TRUE(changed([](Graph& g) { g.outputs.clear(); }));
  EXPECT_FALSE(changed([](Graph&) {}));
}

TEST(GraphJson, ErrorsSayThePlaceAndWhatWasExpected) {
  const std::string text = to_json(small_graph());
  EXPECT_EQ(error_of(replaced(text, "\"f32\"", "\"f33\"")),
            "tensors[0].dtype: one of f32, f64, i32, i64, u8, bit was expected, not \"f33\"");
  EXPECT_EQ(error_of(replaced(text, "[2,3]", "[2,-3]")),
            "tensors[0].shape[1]: an integer from 1 to 549755813888 was expected, not -3");
  EXPECT_EQ(error_of(replaced(text, "[2,3]", "[2,4]")),
            "ops[0]: op 'relu' (LeakyReluForward) makes 'y' of 2x4 f32, not 2x3 f32");
  EXPECT_EQ(error_of(replaced(text, "\"inputs\":[\"x\"]", "\"inputs\":[\"z\"]")),
            "ops[0].inputs[0]: there is no tensor 'z'");
  EXPECT_EQ(
      error_of(replaced(text, "\"layer\":", "\"lair\":")),
      "ops[0]: \"lair\" is not known here; known: type, name, layer, phase, forward, inputs, outputs, attributes");
  EXPECT_EQ(error_of(replaced(text, "0.25", "null")),
            "ops[0].attributes.slope: an integer, a number, a text or a list of numbers was expected, not null");
  EXPECT_EQ(error_of(replaced(text, "\"version\": 1", "\"version\": 2")),
            "version: an integer from 1 to 1 was expected, not 2");
  EXPECT_EQ(error_of(replaced(text, "\"ops\": [", "\"ops\": [,")).substr(0, 33), "line 9, column 10: this is no JSO");
  EXPECT_EQ(error_of(text.substr(0, text.find("\"ops\""))), "line 9, column 2: the text ends inside a value");
  EXPECT_EQ(error_of(std::string(100000, '[')), "lists and objects are nested deeper than 64");
  EXPECT_EQ(error_of("[1]"), "an object was expected, not a list");
}

TEST(GraphText, HasOneLineForEveryOp) {
  EXPECT_EQ(to_text(small_graph()),
            "graph small\n"
            "input x f32 2x3\n"
            "forward relu: y f32 2x3 = LeakyReluForward(x) slope=0.25\n"
            "output y\n");
}

}  // namespace
}  // namespace plimsoll
