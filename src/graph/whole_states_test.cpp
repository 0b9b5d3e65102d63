#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plimsoll/graph.h"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorId add_block(Graph& graph, const std::string& whole, int64_t first, int64_t end, int64_t rows) {
  const RowBlock block{whole, first, rows};
  const TensorId id = graph.add_source(block_name(block, end - first), {end - first, 2}, DType::f32, Role::parameter);
  graph.tensor(id).block = block;
  return id;
}

TEST(WholeStates, JoinBlocksInTheOrderOfTheirRowsAtThePlaceOfTheFirst) {
  Graph graph;
  graph.add_source("a", {3}, DType::f32, Role::parameter);
  const TensorId end = add_block(graph, "w", 4, 5, 5);
  const TensorId b = graph.add_source("b", {}, DType::f32, Role::statistic);
  const TensorId begin = add_block(graph, "w", 0, 4, 5);
  const std::vector<WholeState> states = whole_states(graph);
  ASSERT_EQ(states.size(), 3u);
  EXPECT_EQ(states[1].name, "w");
  EXPECT_EQ(states[1].shape, (Shape{5, 2}));
  EXPECT_THAT(states[1].parts, ElementsAre(begin, end));
  EXPECT_THAT(states[2].parts, ElementsAre(b));
  EXPECT_EQ(graph.tensor(begin).name, "w[0:4]");
  EXPECT_NO_THROW(check(graph));
}

TEST(WholeStates, ComeBackFromJsonAndCountInTheFingerprint) {
  Graph graph;
  add_block(graph, "w", 0, 4, 5);
  const TensorId end = add_block(graph, "w", 4, 5, 5);
  const Graph again = graph_from_json(to_json(graph));
  EXPECT_EQ(again.tensor(end).block, graph.tensor(end).block);
  EXPECT_EQ(fingerprint(again), fingerprint(graph));
  graph.tensor(end).block.whole = "v";
  EXPECT_NE(fingerprint(again), fingerprint(graph));
}

TEST(WholeStates, BlocksThatMakeNoWholeAreRefusedByName) {
  struct Block {
    int64_t first, end, rows;
  };
  const auto refusal = [](std::vector<Block> blocks, const char* beside = "") {
    Graph graph;
    graph.name = "g";
    for (const Block& b : blocks) add_block(graph, "w", b.first, b.end, b.rows);
    if (*beside) graph.add_source(beside, {2}, DType::f32, Role::parameter);
    try {
      check(graph);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(refusal({{0, 2, 5}, {2, 4, 5}}), "graph 'g': the blocks of 'w' have 4 rows of 5");
  EXPECT_THAT(refusal({{0, 2, 5}, {3, 5, 5}}),
              HasSubstr("the blocks of 'w' leave no place to 'w[3:5]': rows to 2 are there"));
  EXPECT_THAT(refusal({{0, 3, 5}, {2, 5, 5}}), HasSubstr("leave no place to 'w[2:5]'"));
  EXPECT_THAT(refusal({{0, 3, 5}, {3, 5, 6}}), HasSubstr("do not belong together: 'w[3:5]'"));
  EXPECT_THAT(refusal({{0, 5, 5}}, "w"), HasSubstr("there are two states 'w'"));
}

}  // namespace
}  // namespace plimsoll
