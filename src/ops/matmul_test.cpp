#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/matmul.h"
#include "tests/support/gradient_check.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

Attributes turned(int64_t a, int64_t b) { return {{"transpose_a", a}, {"transpose_b", b}}; }

TEST(MatMul, MultipliesTurnedMatrices) {
  const Literal a{{2, 3}, {1, 2, 3, 4, 5, 6}}, at{{3, 2}, {1, 4, 2, 5, 3, 6}};
  const Literal b{{3, 2}, {7, 8, 9, 10, 11, 12}}, bt{{2, 3}, {7, 9, 11, 8, 10, 12}};
  const std::vector<double> y{58, 64, 139, 154};
  EXPECT_EQ(run_op("MatMul", {a, b})[0], y);
  EXPECT_EQ(run_op("MatMul", {at, b}, turned(1, 0))[0], y);
  EXPECT_EQ(run_op("MatMul", {a, bt}, turned(0, 1))[0], y);
  EXPECT_EQ(run_op("MatMul", {at, bt}, turned(1, 1))[0], y);
}

TEST(MatMul, BroadcastsTheBatch) {
  const Literal a{{2, 1, 1, 2}, {1, 2, 3, 4}}, b{{3, 2, 1}, {1, 10, 2, 20, 3, 30}};
  EXPECT_EQ(run_op("MatMul", {a, b})[0], (std::vector<double>{21, 42, 63, 43, 86, 129}));
  EXPECT_EQ(run_op("MatMul", {a, b}, {{"batch", std::vector<int64_t>{3}}})[0], (std::vector<double>{64, 128, 192}));
  EXPECT_EQ(run_op("MatMul", {a, b}, {{"batch", std::vector<int64_t>{2, 1}}})[0], (std::vector<double>{126, 258}));
  EXPECT_EQ(run_op("MatMul", {a, b}, {{"batch", std::vector<int64_t>{}}})[0], (std::vector<double>{384}));
}

TEST(MatMul, IsOneProductWhereWeightsAreShared) {
  Tensor x, w;
  x.shape = {8, 10, 16}, w.shape = {16, 32};
  const MatrixProducts forward = matrix_products({}, x, w);
  EXPECT_EQ(forward.m, 80);
  EXPECT_TRUE(forward.batch.empty());
  Tensor dy;
  dy.shape = {8, 10, 32};
  Attributes attributes = turned(1, 0);
  attributes.set("batch", std::vector<int64_t>{});
  const MatrixProducts weights = matrix_products(attributes, x, dy);
  EXPECT_EQ(weights.k, 80);
  EXPECT_TRUE(weights.batch.empty());
}

TEST(MatMul, GradientsAgreeWithFiniteDifferences) {
  struct Sizes {
    Shape a, b;
  };
  for (const Sizes& s : {Sizes{{2, 3}, {3, 4}},
                         {{2, 2, 3}, {2, 3, 4}},
                         {{2, 2, 3}, {3, 4}},
                         {{2, 3}, {2, 3, 4}},
                         {{2, 1, 2, 3}, {3, 3, 2}},
                         {{1, 2, 3}, {2, 3, 2}}}) {
    for (const int64_t ta : {0, 1}) {
      for (const int64_t tb : {0, 1}) {
        SCOPED_TRACE(to_string(s.a) + " by " + to_string(s.b) + fmt::format(" turned {} {}", ta, tb));
        Shape a = s.a, b = s.b;
        if (ta != 0) std::swap(a[a.size() - 1], a[a.size() - 2]);
        if (tb != 0) std::swap(b[b.size() - 1], b[b.size() - 2]);
        Graph graph;
        const TensorId x = graph.add_source("a", a, DType::f64, Role::input),
                       w = graph.add_source("b", b, DType::f64, Role::input);
        const OpId op = graph.add_op("MatMul", "product", "product", {x, w}, turned(ta, tb));
        EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {x, w}), "");
      }
    }
  }
}

TEST(MatMul, NamesWhatDoesNotFit) {
  EXPECT_THAT(refusal("MatMul", {{{2, 3}, {}}, {{4, 5}, {}}}),
              HasSubstr("'in0' is 2x3 and 'in1' is 4x5: rows of 3 cannot be multiplied with columns of 4"));
  EXPECT_THAT(refusal("MatMul", {{{2, 3}, {}}, {{4, 3}, {}}}, turned(0, 1)), "");
  EXPECT_THAT(refusal("MatMul", {{{3}, {}}, {{3, 5}, {}}}), HasSubstr("'in0' is 3; two or more dimensions"));
  EXPECT_THAT(refusal("MatMul", {{{2, 2, 3}, {}}, {{3, 3, 5}, {}}}),
              HasSubstr("'in0' is 2x2x3 and 'in1' is 3x3x5; what stands before the matrices must be equal or 1"));
  EXPECT_THAT(refusal("MatMul", {{{4, 2, 3}, {}}, {{3, 5}, {}}}, {{"batch", std::vector<int64_t>{2}}}),
              HasSubstr("batch is 2; the products are 4, which can be summed to 1 or left"));
}

}  // namespace
}  // namespace plimsoll
