// Permute, Slice in steps, Pad; Embedding, IndexSelect, Index, Gather: what moves elements. Expected values are PyTorch's
// (2.15, double precision).
#include "ops/move.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/gradient_check.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Numbers = std::vector<double>;
using Integers = std::vector<int64_t>;

// 0, 1, 2, ...
Literal counted(Shape shape, DType dtype = DType::f64) {
  Literal literal{std::move(shape), {}, dtype};
  literal.elements.resize(element_count(literal.shape));
  std::iota(literal.elements.begin(), literal.elements.end(), 0.0);
  return literal;
}

std::string message_of_run(std::string_view type, const std::vector<Literal>& inputs, Attributes attributes = {}) {
  try {
    run_op(type, inputs, std::move(attributes));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "";
}

TEST(Permute, PutsDimensionsInAnotherOrder) {
  EXPECT_THAT(run_op("Permute", {counted({2, 3, 4})}, {{"dims", Integers{2, 0, 1}}})[0],
              ElementsAre(0, 4, 8, 12, 16, 20, 1, 5, 9, 13, 17, 21, 2, 6, 10, 14, 18, 22, 3, 7, 11, 15, 19, 23));
  for (const DType dtype : {DType::u8, DType::i32, DType::i64, DType::f32})
    EXPECT_THAT(run_op("Permute", {counted({2, 3}, dtype)}, {{"dims", Integers{1, 0}}})[0],
                ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST(Permute, MayLieInItsInputsPlaceWhereNoElementMoves) {
  Graph graph;
  const TensorId x = graph.add_source("x", {4, 1, 3}, DType::f32, Role::input);
  const Op same = graph.op(graph.add_op("Permute", "same", "", {x}, {{"dims", Integers{1, 0, 2}}}));
  const Op other = graph.op(graph.add_op("Permute", "other", "", {x}, {{"dims", Integers{2, 1, 0}}}));
  EXPECT_EQ(same.type->in_place(graph, same).size(), 1u);
  EXPECT_TRUE(other.type->in_place(graph, other).empty());
}

TEST(Permute, NamesWhatIsNoPermutation) {
  EXPECT_THAT(refusal("Permute", {{{2, 3}, {}}}, {{"dims", Integers{0, 0}}}),
              HasSubstr("dims are [0, 0]; each of the 2 dimensions of 'in0', which is 2x3, is expected once"));
  EXPECT_THAT(refusal("Permute", {{{2, 3}, {}}}, {{"dims", Integers{0, 2, 1}}}), HasSubstr("each of the 2 dimensions"));
  EXPECT_THAT(refusal("Permute", {{{2, 3}, {}, DType::bit}}, {{"dims", Integers{1, 0}}}),
              HasSubstr("'in0' has elements of one bit"));
}

TEST(Permute, GradientAgreesWithFiniteDifferences) {
  Graph graph;
  const TensorId x = graph.add_source("x", {2, 3, 2, 2}, DType::f64, Role::input);
  const OpId op = graph.add_op("Permute", "p", "p", {x}, {{"dims", Integers{3, 1, 0, 2}}});
  EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {x}), "");
}

TEST(Merged, JoinsLoopsThatAreOneRunOnBothSides) {
  const Tensor x{.name = "x", .shape = {2, 64, 8, 16}}, y{.name = "y", .shape = {2, 8, 16, 64}};
  EXPECT_THAT(permute_loops(x, y, {0, 2, 3, 1}),
              ElementsAre(MoveLoop{2, 8192, 8192}, MoveLoop{128, 1, 64}, MoveLoop{64, 128, 1}));
  EXPECT_THAT(permute_loops(x, x, {0, 1, 2, 3}), ElementsAre(MoveLoop{16384, 1, 1}));
  Tensor last = x;
  last.layout = {"acdb"};
  EXPECT_THAT(permute_loops(last, y, {0, 2, 3, 1}), ElementsAre(MoveLoop{16384, 1, 1}));
  const Tensor ones{.name = "x", .shape = {1, 1}};
  EXPECT_THAT(permute_loops(ones, ones, {1, 0}), ElementsAre(MoveLoop{1, 1, 1}));
}

TEST(Slice, TakesEveryStepThElement) {
  const Attributes attributes = {
      {"axis", int64_t{1}}, {"begin", int64_t{1}}, {"size", int64_t{2}}, {"step", int64_t{2}}};
  EXPECT_THAT(run_op("Slice", {counted({2, 4})}, attributes)[0], ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(run_op("Slice", {counted({2, 4}, DType::i64)}, attributes)[0], ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(refusal("Slice", {{{2, 4}, {}}},
                      {{"axis", int64_t{1}}, {"begin", int64_t{1}}, {"size", int64_t{2}}, {"step", int64_t{3}}}),
              HasSubstr("'in0' is 2x4; axis 1 has no elements 2 elements from 1 in steps of 3"));
  EXPECT_THAT(refusal("Slice", {{{2, 4}, {}}},
                      {{"axis", int64_t{1}}, {"begin", int64_t{1}}, {"size", int64_t{2}}, {"step", int64_t{0}}}),
              HasSubstr("step is 0; 1 or more is expected"));
}

TEST(Slice, GradientInStepsAgreesWithFiniteDifferences) {
  for (const int64_t step : {1, 2, 3}) {
    Graph graph;
    const TensorId x = graph.add_source("x", {2, 7, 3}, DType::f64, Role::input);
    const OpId op = graph.add_op("Slice", "s", "s", {x},
                                 {{"axis", int64_t{1}}, {"begin", int64_t{1}}, {"size", int64_t{2}}, {"step", step}});
    EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {x}), "") << step;
  }
}

TEST(Pad, AgreesWithPyTorch) {
  const Attributes constant = {{"begin", Integers{0, -1, 1}}, {"end", Integers{0, 1, -2}}, {"value", 0.5}};
  EXPECT_THAT(run_op("Pad", {counted({2, 3, 4})}, constant)[0],
              ElementsAre(0.5, 4, 5, 0.5, 8, 9, 0.5, 0.5, 0.5, 0.5, 16, 17, 0.5, 20, 21, 0.5, 0.5, 0.5));
  const Attributes reflect = {{"begin", Integers{1, 2}}, {"end", Integers{2, 1}}, {"mode", std::string("reflect")}};
  EXPECT_THAT(run_op("Pad", {counted({3, 4})}, reflect)[0],
              ElementsAre(6, 5, 4, 5, 6, 7, 6, 2, 1, 0, 1, 2, 3, 2, 6, 5, 4, 5, 6, 7, 6, 10, 9, 8, 9, 10, 11, 10, 6, 5,
                          4, 5, 6, 7, 6, 2, 1, 0, 1, 2, 3, 2));
  const Attributes replicate = {{"begin", Integers{1, 2}}, {"end", Integers{0, 1}}, {"mode", std::string("replicate")}};
  EXPECT_THAT(run_op("Pad", {counted({3, 4})}, replicate)[0],
              ElementsAre(0, 0, 0, 1, 2, 3, 3, 0, 0, 0, 1, 2, 3, 3, 4, 4, 4, 5, 6, 7, 7, 8, 8, 8, 9, 10, 11, 11));
  EXPECT_THAT(
      run_op("Pad", {counted({3}, DType::i64)}, {{"begin", Integers{1}}, {"end", Integers{0}}, {"value", 7.0}})[0],
      ElementsAre(7, 0, 1, 2));
}

TEST(Pad, NamesWhatDoesNotFit) {
  EXPECT_THAT(refusal("Pad", {{{3, 4}, {}}}, {{"begin", Integers{1}}, {"end", Integers{1, 0}}}),
              HasSubstr("begin has 1 sizes and end 2; 'in0' has 2 dimensions"));
  EXPECT_THAT(refusal("Pad", {{{3, 4}, {}}}, {{"begin", Integers{-2, 0}}, {"end", Integers{-1, 0}}}),
              HasSubstr("dimension 0 of 'in0', which is 3x4, has nothing left: -2 and -1 are added"));
  EXPECT_THAT(refusal("Pad", {{{3, 4}, {}}},
                      {{"begin", Integers{3, 0}}, {"end", Integers{0, 0}}, {"mode", std::string("reflect")}}),
              HasSubstr("dimension 0 has 3 elements: a padding of 3 cannot be their reflection"));
  EXPECT_THAT(
      refusal("Pad", {{{3}, {}}}, {{"begin", Integers{1}}, {"end", Integers{0}}, {"mode", std::string("wrap")}}),
      HasSubstr("mode is 'wrap'; 'constant', 'reflect' or 'replicate' is expected"));
}

TEST(Pad, GradientsAgreeWithFiniteDifferences) {
  for (const char* mode : {"constant", "reflect", "replicate"}) {
    for (const auto& [begin, end] : std::vector<std::pair<Integers, Integers>>{
             {{0, 1, 2}, {0, 2, 1}}, {{1, -1, 0}, {0, 1, 3}}, {{0, 0, -2}, {0, -1, -1}}}) {
      Graph graph;
      const TensorId x = graph.add_source("x", {2, 3, 4}, DType::f64, Role::input);
      const OpId op = graph.add_op("Pad", "p", "p", {x},
                                   {{"begin", begin}, {"end", end}, {"mode", std::string(mode)}, {"value", 0.3}});
      EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {x}), "") << mode;
    }
  }
}

TEST(Embedding, TakesRowsAndItsGradientAddsThem) {
  const Literal weight = counted({5, 2}), indices{{6}, {3, 1, 3, 0, 1, 3}, DType::i64};
  EXPECT_THAT(run_op("Embedding", {weight, indices})[0], ElementsAre(6, 7, 2, 3, 6, 7, 0, 1, 2, 3, 6, 7));
  Literal dy{{6, 2}, {}};
  for (int i = 1; i <= 12; ++i) dy.elements.push_back(i);
  EXPECT_THAT(run_op("EmbeddingBackward", {dy, indices}, {{"rows", int64_t{5}}, {"padding_index", int64_t{1}}})[0],
              ElementsAre(7, 8, 0, 0, 0, 0, 17, 20, 0, 0));
}

TEST(Embedding, NamesWhatIsOutOfRange) {
  EXPECT_EQ(message_of_run("Embedding", {counted({5, 2}), {{3}, {0, 5, 1}, DType::i32}}),
            "row 1 of the indices is 5, but dimension 0 has 5 elements");
  EXPECT_EQ(message_of_run("Embedding", {counted({5, 2}), {{3}, {0, 1, -1}, DType::i64}}),
            "row 2 of the indices is -1, but dimension 0 has 5 elements");
  EXPECT_THAT(refusal("Embedding", {{{5, 2}, {}}, {{3}, {}}}), HasSubstr("'in1' is f64; indices are i32 or i64"));
  EXPECT_THAT(refusal("Embedding", {{{5, 2}, {}}, {{3}, {}, DType::i32}}, {{"padding_index", int64_t{5}}}),
              HasSubstr("padding_index is 5; -1, which is none, or a row of the 5 is expected"));
}

TEST(Index, CountsNegativeIndicesFromTheEndAndBroadcasts) {
  const Literal first{{2, 1}, {1, -2}, DType::i64}, second{{3}, {0, -1, 1}, DType::i32};
  EXPECT_THAT(run_op("Index", {counted({2, 3, 4}), first, second})[0],
              ElementsAre(12, 13, 14, 15, 20, 21, 22, 23, 16, 17, 18, 19, 0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7));
  EXPECT_EQ(message_of_run("Index", {counted({2, 3, 4}), first, {{3}, {0, -4, 1}, DType::i32}}),
            "row 1 of the indices is -4, but dimension 1 has 3 elements");
  EXPECT_THAT(refusal("Index", {counted({2, 3}), {{2}, {}, DType::i32}, {{3}, {}, DType::i32}}),
              HasSubstr("the indices 'in2' are 3, which does not go together with 2"));
  EXPECT_THAT(refusal("Index", {counted({2}), first, second}),
              HasSubstr("2 index tensors for 2, which has 1 dimensions"));
}

TEST(Gather, TakesElementsAlongAnAxis) {
  EXPECT_THAT(
      run_op("Gather", {counted({2, 3, 4}), {{1, 2, 3}, {2, 0, 1, 0, 0, 2}, DType::i64}}, {{"axis", int64_t{1}}})[0],
      ElementsAre(8, 1, 6, 0, 1, 10));
  EXPECT_EQ(message_of_run("Gather", {counted({2, 3}), {{2, 1}, {0, 3}, DType::i32}}, {{"axis", int64_t{1}}}),
            "row 1 of the indices is 3, but dimension 1 has 3 elements");
  EXPECT_THAT(
      refusal("Gather", {counted({2, 3}), {{3, 1}, {}, DType::i32}}, {{"axis", int64_t{1}}}),
      HasSubstr("the indices 'in1' are 3x1; as many dimensions as 2x3 has are expected, and none larger but axis 1"));
}

TEST(IndexSelect, NamesWhatIsOutOfRange) {
  EXPECT_THAT(run_op("IndexSelect", {counted({2, 3}), {{2}, {2, 0}, DType::i32}}, {{"axis", int64_t{1}}})[0],
              ElementsAre(2, 0, 5, 3));
  EXPECT_EQ(message_of_run("IndexSelect", {counted({2, 3}), {{2}, {2, 3}, DType::i32}}, {{"axis", int64_t{1}}}),
            "row 1 of the indices is 3, but dimension 1 has 3 elements");
}

TEST(Taking, GradientsAgreeWithFiniteDifferences) {
  const auto check = [](std::string_view type, const Shape& shape, const std::vector<Literal>& indices,
                        const Attributes& attributes = {}) {
    Graph graph;
    std::vector<TensorId> inputs = {graph.add_source("x", shape, DType::f64, Role::input)};
    GradientCheckOptions options;
    for (const Literal& one : indices) {
      const std::string name = fmt::format("indices{}", inputs.size());
      inputs.push_back(graph.add_source(name, one.shape, one.dtype, Role::input));
      options.values[name] = one.elements;
    }
    const OpId op = graph.add_op(type, "op", "op", inputs, attributes);
    EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {inputs[0]}, options), "") << type;
  };
  const Attributes axis = {{"axis", int64_t{1}}};
  check("Embedding", {5, 3}, {{{2, 3}, {4, 1, 1, 0, 4, 4}, DType::i32}});
  check("IndexSelect", {2, 4, 3}, {{{5}, {3, 0, 0, 2, 3}, DType::i64}}, axis);
  check("Index", {3, 2, 2}, {{{2, 1}, {2, -1}, DType::i32}, {{3}, {0, 1, -2}, DType::i64}});
  check("Index", {3, 2}, {{{4}, {2, 0, 2, 2}, DType::i32}});
  check("Gather", {3, 4, 2}, {{{2, 5, 1}, {3, 0, 0, 2, 3, 1, 1, 1, 0, 3}, DType::i64}}, axis);
  // What adds at indices has a gradient too.
  check("IndexSelectBackward", {2, 5, 3}, {{{5}, {3, 0, 0, 2, 3}, DType::i64}},
        {{"axis", int64_t{1}}, {"length", int64_t{4}}});
  check("IndexBackward", {2, 3, 2}, {{{2, 1}, {2, -1}, DType::i32}, {{3}, {0, 1, -2}, DType::i64}},
        {{"shape", Shape{3, 2, 2}}});
  check("GatherBackward", {2, 5, 1}, {{{2, 5, 1}, {3, 0, 0, 2, 3, 1, 1, 1, 0, 3}, DType::i64}},
        {{"axis", int64_t{1}}, {"shape", Shape{3, 4, 2}}});
}

}  // namespace
}  // namespace plimsoll
