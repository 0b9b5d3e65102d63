// Sort, TopK, CumulativeSum, StopGradient. Expected values are PyTorch's (2.15, double precision).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "plimsoll/autodiff.h"
#include "tests/support/gradient_check.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Attributes along(int64_t axis, Attributes more = {}) {
  more.set("axis", axis);
  return more;
}

TEST(Sort, PutsEachRowInOrderAndTellsThePlaces) {
  const Literal x{{2, 3}, {3, 1, 2, -1, 5, 0}};
  const auto rows = run_op("Sort", {x}, along(1));
  EXPECT_THAT(rows[0], ElementsAre(1, 2, 3, -1, 0, 5));
  EXPECT_THAT(rows[1], ElementsAre(1, 2, 0, 0, 2, 1));
  const auto columns = run_op("Sort", {x}, along(0, {{"descending", int64_t{1}}}));
  EXPECT_THAT(columns[0], ElementsAre(3, 5, 2, -1, 1, 0));
  EXPECT_THAT(columns[1], ElementsAre(0, 1, 0, 1, 0, 1));
}

TEST(Sort, KeepsTheOrderOfWhatIsEqual) {
  for (const DType dtype : {DType::f32, DType::f64, DType::i32, DType::i64, DType::u8}) {
    const Literal x{{6}, {2, 1, 2, 0, 1, 2}, dtype};
    EXPECT_THAT(run_op("Sort", {x}, along(0))[1], ElementsAre(3, 1, 4, 0, 2, 5));
    EXPECT_THAT(run_op("Sort", {x}, along(0, {{"descending", int64_t{1}}}))[1], ElementsAre(0, 2, 5, 1, 4, 3));
  }
  EXPECT_THAT(run_op("Sort", {{{4}, {0.0, -0.0, 0.0, -1}}}, along(0))[1], ElementsAre(3, 0, 1, 2));
}

TEST(Sort, TakesWhatIsNotANumberForTheLargest) {
  const Literal x{{5}, {1, std::nan(""), kInfinity, -kInfinity, std::nan("")}};
  EXPECT_THAT(run_op("Sort", {x}, along(0))[1], ElementsAre(3, 0, 2, 1, 4));
  EXPECT_THAT(run_op("Sort", {x}, along(0, {{"descending", int64_t{1}}}))[1], ElementsAre(1, 4, 2, 0, 3));
  EXPECT_THAT(run_op("TopK", {x}, along(0, {{"k", int64_t{3}}}))[1], ElementsAre(1, 4, 2));
}

TEST(TopK, TakesTheLargestOrSmallestOfEachRow) {
  const Literal x{{2, 4}, {3, 1, 2, 4, -1, 5, 0, 5}};
  const auto largest = run_op("TopK", {x}, along(1, {{"k", int64_t{2}}}));
  EXPECT_THAT(largest[0], ElementsAre(4, 3, 5, 5));
  EXPECT_THAT(largest[1], ElementsAre(3, 0, 1, 3));
  const auto smallest = run_op("TopK", {x}, along(0, {{"k", int64_t{1}}, {"largest", int64_t{0}}}));
  EXPECT_THAT(smallest[0], ElementsAre(-1, 1, 0, 4));
  EXPECT_THAT(smallest[1], ElementsAre(1, 0, 1, 0));
}

TEST(Sorting, NamesWhatDoesNotFit) {
  const Literal x{{2, 3}, {}};
  EXPECT_THAT(refusal("TopK", {x}, along(1, {{"k", int64_t{4}}})),
              HasSubstr("k is 4; 1 to 3 is expected, which axis 1 of 'in0' has"));
  EXPECT_THAT(refusal("TopK", {x}, along(1, {{"k", int64_t{0}}})), HasSubstr("k is 0; 1 to 3"));
  EXPECT_THAT(refusal("TopK", {x}, along(1)), HasSubstr("'k'"));
  EXPECT_THAT(refusal("Sort", {x}, along(2)), HasSubstr("axis"));
  EXPECT_THAT(refusal("Sort", {{{}, {}}}, along(0)), HasSubstr("axis"));
  EXPECT_THAT(refusal("Sort", {{{8}, {}, DType::bit}}, along(0)), HasSubstr("bit"));
  EXPECT_THAT(refusal("CumulativeSum", {x}, along(-1)), HasSubstr("axis"));
  EXPECT_THAT(refusal("CumulativeSum", {x, x}, along(0)), HasSubstr("input"));
}

TEST(CumulativeSum, AddsUpFromEitherEnd) {
  const Literal x{{2, 3}, {1, 2, 4, 8, 16, 32}};
  EXPECT_THAT(run_op("CumulativeSum", {x}, along(1))[0], ElementsAre(1, 3, 7, 8, 24, 56));
  EXPECT_THAT(run_op("CumulativeSum", {x}, along(0))[0], ElementsAre(1, 2, 4, 9, 18, 36));
  EXPECT_THAT(run_op("CumulativeSum", {x}, along(1, {{"reverse", int64_t{1}}}))[0], ElementsAre(7, 6, 4, 56, 48, 32));
}

TEST(CumulativeSum, OfWholeNumbersIsI64) {
  for (const DType dtype : {DType::u8, DType::i32, DType::i64}) {
    Graph graph;
    const TensorId x = graph.add_source("x", {300}, dtype, Role::input);
    const TensorId y = graph.output(graph.add_op("CumulativeSum", "sum", "sum", {x}, along(0)));
    EXPECT_EQ(graph.tensor(y).dtype, DType::i64);
    EXPECT_EQ(run_op("CumulativeSum", {{{300}, std::vector<double>(300, 200), dtype}}, along(0))[0].back(), 60000);
  }
}

TEST(Sorting, GradientsAgreeWithFiniteDifferences) {
  for (const int64_t axis : {0, 1, 2}) {
    const auto check = [&](std::string_view type, const Attributes& more) {
      Graph graph;
      const TensorId x = graph.add_source("x", {3, 4, 5}, DType::f64, Role::input);
      const OpId op = graph.add_op(type, "op", "op", {x}, along(axis, more));
      EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {x}), "") << type << " " << axis;
    };
    for (const int64_t way : {0, 1}) {
      check("Sort", {{"descending", way}});
      check("TopK", {{"k", int64_t{2}}, {"largest", way}});
      check("CumulativeSum", {{"reverse", way}});
    }
  }
}

TEST(StopGradient, IsTheInputWithoutAGradient) {
  EXPECT_THAT(run_op("StopGradient", {{{3}, {1, 2, 3}}})[0], ElementsAre(1, 2, 3));
  // loss = mean((x + stop(x) - target)^2), or x stopped in both places
  const auto ops_behind = [](bool stop_all) {
    Graph graph;
    const TensorId x = graph.add_source("x", {3}, DType::f32, Role::parameter);
    const TensorId target = graph.add_source("target", {3}, DType::f32, Role::input);
    const TensorId stopped = graph.output(graph.add_op("StopGradient", "stop", "stop", {x}));
    const TensorId other = stop_all ? stopped : x;
    const TensorId sum = graph.output(graph.add_op("Add", "sum", "sum", {other, stopped}));
    const TensorId loss = graph.output(graph.add_op("MeanSquaredErrorForward", "loss", "loss", {sum, target}));
    return append_backward(graph, loss, {{x}})[0].valid();
  };
  EXPECT_TRUE(ops_behind(false));
  EXPECT_FALSE(ops_behind(true));
}

}  // namespace
}  // namespace plimsoll
