// Add, Concat, Slice, Reshape, Reorder, Constant, LRN: what joins, parts and reshapes tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/gradient_check.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

using Numbers = std::vector<double>;

TEST(Add, SumsAnyNumberOfTensors) {
  const Literal a{{3}, {1, 2, -3}}, b{{3}, {10, 20, 1}}, c{{3}, {100, 200, 1}};
  EXPECT_EQ(run_op("Add", {a, b, c})[0], (Numbers{111, 222, -1}));
  EXPECT_EQ(run_op("Add", {a, b, c}, {{"activation", std::string("relu")}})[0], (Numbers{111, 222, 0}));
}

TEST(Add, GradientsAgreeWithFiniteDifferences) {
  for (const char* activation : {"none", "relu"}) {
    Graph graph;
    const TensorId a = graph.add_source("a", {2, 5}, DType::f64, Role::input);
    const TensorId b = graph.add_source("b", {2, 5}, DType::f64, Role::input);
    const OpId op = graph.add_op("Add", "join", "join", {a, b, a}, {{"activation", std::string(activation)}});
    EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {a, b}), "") << activation;
  }
}

TEST(Add, NamesWhatDoesNotFit) {
  EXPECT_THAT(refusal("Add", {{{2}, {}}}), HasSubstr("takes two or more inputs, got 1"));
  EXPECT_THAT(refusal("Add", {{{2}, {}}, {{2}, {}}, {{3}, {}}}),
              HasSubstr("'in0' is 2 but 'in2' is 3; they must be equal"));
  EXPECT_THAT(refusal("Add", {{{2}, {}}, {{2}, {}, DType::f32}}),
              HasSubstr("'in0' is f64 but 'in1' is f32; they must be equal"));
}

TEST(Concat, JoinsAlongItsAxis) {
  const Literal a{{2, 1, 2}, {1, 2, 3, 4}}, b{{2, 2, 2}, {10, 20, 30, 40, 50, 60, 70, 80}};
  EXPECT_EQ(run_op("Concat", {a, b}, {{"axis", int64_t{1}}})[0], (Numbers{1, 2, 10, 20, 30, 40, 3, 4, 50, 60, 70, 80}));
  EXPECT_EQ(run_op("Concat", {a, a}, {{"axis", int64_t{2}}})[0], (Numbers{1, 2, 1, 2, 3, 4, 3, 4}));
  EXPECT_EQ(run_op("Concat", {a, a}, {{"axis", int64_t{0}}})[0], (Numbers{1, 2, 3, 4, 1, 2, 3, 4}));
}

TEST(Concat, GradientsAgreeWithFiniteDifferences) {
  Graph graph;
  const TensorId a = graph.add_source("a", {2, 3, 2}, DType::f64, Role::input);
  const TensorId b = graph.add_source("b", {2, 1, 2}, DType::f64, Role::input);
  const OpId op = graph.add_op("Concat", "cat", "cat", {a, b, a}, {{"axis", int64_t{1}}});
  EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {a, b}), "");
}

TEST(Concat, NamesWhatDoesNotFit) {
  const Literal a{{2, 3, 4, 4}, {}};
  EXPECT_THAT(refusal("Concat", {a, {{2, 5, 4, 3}, {}}}, {{"axis", int64_t{1}}}),
              HasSubstr("'in0' is 2x3x4x4 and 'in1' is 2x5x4x3; only axis 1 may differ"));
  EXPECT_THAT(refusal("Concat", {a, {{2, 3}, {}}}, {{"axis", int64_t{1}}}), HasSubstr("only axis 1 may differ"));
  EXPECT_THAT(refusal("Concat", {a}, {{"axis", int64_t{4}}}), HasSubstr("axis 4 does not exist: 'in0' is 2x3x4x4"));
  EXPECT_THAT(refusal("Concat", {a, a}), HasSubstr("attribute 'axis' is missing"));
}

TEST(Slice, TakesAPartOut) {
  const Literal a{{2, 3}, {1, 2, 3, 4, 5, 6}};
  EXPECT_EQ(run_op("Slice", {a}, {{"axis", int64_t{1}}, {"begin", int64_t{1}}, {"size", int64_t{2}}})[0],
            (Numbers{2, 3, 5, 6}));
}

TEST(Slice, GradientAgreesWithFiniteDifferences) {
  for (auto [begin, size] : {std::pair<int64_t, int64_t>{0, 2}, {1, 2}, {2, 2}, {0, 4}}) {
    Graph graph;
    const TensorId a = graph.add_source("a", {2, 4, 3}, DType::f64, Role::input);
    const OpId op =
        graph.add_op("Slice", "part", "part", {a}, {{"axis", int64_t{1}}, {"begin", begin}, {"size", size}});
    EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {a}), "") << begin;
  }
}

TEST(Slice, NamesAPartThatIsNotThere) {
  EXPECT_THAT(refusal("Slice", {{{2, 3}, {}}}, {{"axis", int64_t{1}}, {"begin", int64_t{2}}, {"size", int64_t{2}}}),
              HasSubstr("'in0' is 2x3; axis 1 has no elements [2, 4)"));
}

TEST(Reshape, KeepsTheElements) {
  EXPECT_EQ(run_op("Reshape", {{{2, 3}, {1, 2, 3, 4, 5, 6}}}, {{"shape", Shape{3, 2}}})[0],
            (Numbers{1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(op_type("Reshape").is_view);
  EXPECT_THAT(refusal("Reshape", {{{2, 3}, {}}}, {{"shape", Shape{4, 2}}}),
              HasSubstr("'in0' is 2x3 and has 6 elements, but the shape 4x2 has 8"));
}

TEST(Reshape, GradientAgreesWithFiniteDifferences) {
  Graph graph;
  const TensorId a = graph.add_source("a", {2, 3}, DType::f64, Role::input);
  const OpId op = graph.add_op("Reshape", "flat", "flat", {a}, {{"shape", Shape{6}}});
  EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {a}), "");
}

TEST(Reorder, IsACopyOfWhatItReads) {
  EXPECT_EQ(run_op("Reorder", {{{2, 2}, {1, 2, 3, 4}}})[0], (Numbers{1, 2, 3, 4}));
}

TEST(Constant, FillsItsShape) {
  EXPECT_EQ(run_op("Constant", {}, {{"shape", Shape{2}}, {"value", 2.5}})[0], (Numbers{2.5, 2.5}));
  EXPECT_EQ(run_op("Constant", {}, {{"shape", Shape{}}, {"value", 0.1}, {"dtype", std::string("f64")}})[0],
            (Numbers{0.1}));
  EXPECT_THAT(refusal("Constant", {}, {{"shape", Shape{2}}}), HasSubstr("attribute 'value' is missing"));
}

// local_response_norm in PyTorch 1.13, double precision; an even size reaches further down than up.
TEST(Lrn, AgreesWithPyTorch) {
  const Literal x{{1, 5, 2}, {0.8, -1.3, -0.5, 0.3, 1.1, -1, -0.2, 0.6, 1.4, -0.7}};
  const Literal dy{{1, 5, 2}, {0.1, 0.9, -1.2, -0.4, 0.4, 1.2, -0.9, -0.1, 0.7, -1.4}};
  Attributes attributes{{"size", int64_t{3}}, {"alpha", 0.9}, {"beta", 0.75}, {"k", 1.5}};
  EXPECT_THAT(run_op("LrnForward", {x}, attributes)[0],
              agrees_with({0.5219904709, -0.7632734234, -0.2835863362, 0.158871361, 0.6666021754, -0.6095218419,
                           -0.1017259342, 0.3495766214, 0.802534229, -0.4590819307}));
  EXPECT_THAT(run_op("LrnBackward", {x, dy}, attributes)[0],
              agrees_with({-0.002902073521, 0.3149190974, -0.6072466511, -0.1115292922, 0.07723051179, 0.5414198391,
                           -0.4180387426, -0.05048950659, 0.2093168977, -0.8081632859}));
  attributes.set("size", int64_t{4});
  EXPECT_THAT(run_op("LrnForward", {x}, attributes)[0],
              agrees_with({0.5372858454, -0.8031422017, -0.3004050613, 0.1704219078, 0.6586385217, -0.5523597841,
                           -0.107843313, 0.3655006254, 0.7691895042, -0.4297925806}));
  EXPECT_THAT(run_op("LrnBackward", {x, dy}, attributes)[0],
              agrees_with({-0.02661402103, 0.2432773768, -0.6551745563, -0.1531464622, 0.01653108613, 0.6502287955,
                           -0.4570902371, -0.05984955768, 0.2499845017, -0.7898608353}));
}

TEST(Lrn, GradientAgreesWithFiniteDifferences) {
  for (int64_t size : {1, 4, 5, 9}) {
    Graph graph;
    const TensorId x = graph.add_source("x", {2, 6, 2, 1}, DType::f64, Role::input);
    const OpId op =
        graph.add_op("LrnForward", "lrn", "lrn", {x}, {{"size", size}, {"alpha", 0.7}, {"beta", 0.75}, {"k", 2.0}});
    EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {x}), "") << size;
  }
}

}  // namespace
}  // namespace plimsoll
