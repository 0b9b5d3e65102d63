#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_text.h"
#include "tests/support/gradient_check.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

TEST(Rotary, TurnsPairsOfBothHalves) {
  // Pairs (1, 3) and (2, 4), by a quarter turn and by none.
  const auto out = run_op("Rotary", {{{1, 4}, {1, 2, 3, 4}}, {{2}, {0, 1}}, {{2}, {1, 0}}});
  EXPECT_THAT(out[0], agrees_with({-3, 2, 1, 4}));
  const auto back = run_op("Rotary", {{{1, 4}, out[0]}, {{2}, {0, 1}}, {{2}, {1, 0}}}, {{"inverse", int64_t{1}}});
  EXPECT_THAT(back[0], agrees_with({1, 2, 3, 4}));
}

// x * cos + rotate_half(x) * sin, as transformers has it, where cosine and sine of a pair need not be equal.
TEST(Rotary, TakesACosineForEachElement) {
  const auto out = run_op("Rotary", {{{1, 4}, {1, 2, 3, 4}}, {{1, 4}, {1, 2, 3, 4}}, {{1, 4}, {5, 6, 7, 8}}});
  EXPECT_THAT(out[0], agrees_with({1 - 15, 4 - 24, 9 + 7, 16 + 16}));
}

TEST(Rotary, LeavesWhatIsBeyondItsWidth) {
  const auto out =
      run_op("Rotary", {{{2, 3}, {1, 2, 3, 4, 5, 6}}, {{2, 1}, {0, 1}}, {{2, 1}, {1, 0}}}, {{"width", int64_t{2}}});
  EXPECT_THAT(out[0], agrees_with({-2, 1, 3, 4, 5, 6}));
}

TEST(Rotary, GradientAgreesWithDifferences) {
  struct Sizes {
    Shape x, table;
    int64_t width;
  };
  for (const Sizes& s : {Sizes{{2, 3, 2, 6}, {3, 1, 3}, 6}, {{2, 3, 6}, {3, 4}, 4}, {{2, 2, 7}, {2, 1, 2}, 4}}) {
    for (const int64_t inverse : {0, 1}) {
      Graph g;
      const TensorId x = g.add_source("x", s.x, DType::f64, Role::input);
      const TensorId cosine = g.add_source("cosine", s.table, DType::f64, Role::input);
      const TensorId sine = g.add_source("sine", s.table, DType::f64, Role::input);
      const TensorId y =
          g.output(g.add_op("Rotary", "r", "r", {x, cosine, sine}, {{"width", s.width}, {"inverse", inverse}}));
      EXPECT_EQ(check_gradients(g, {y}, {x}), "");
    }
  }
}

TEST(Rotary, SaysWhatDoesNotFit) {
  const auto error = [](Shape x, Shape table, int64_t width) {
    return testing::text_of([&] {
      Graph g;
      const TensorId rows = g.add_source("x", std::move(x), DType::f32, Role::input);
      const TensorId by = g.add_source("t", std::move(table), DType::f32, Role::input);
      g.add_op("Rotary", "r", "r", {rows, by, by}, {{"width", width}});
    });
  };
  EXPECT_THAT(error({2, 6}, {2}, 6), HasSubstr("rows of 3 or 6 cosines are expected"));
  EXPECT_THAT(error({2, 6}, {3}, 5), HasSubstr("a width of 5 is not an even part of a row"));
  EXPECT_THAT(error({2, 6}, {3, 3}, 6), HasSubstr("the cosines cannot be stretched over the rows"));
  EXPECT_THAT(error({6}, {2, 3}, 6), HasSubstr("the cosines cannot be stretched over the rows"));
  EXPECT_EQ(error({2, 6}, {2, 3}, 6), "");
}

}  // namespace
}  // namespace plimsoll
