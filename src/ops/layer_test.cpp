// Shapes, values and messages of convolution, fully connected layers, pooling and the optimizers. Expected values are
// PyTorch's (2.15, f64), of inputs that both sides count out the same way.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/interpreter.h"

namespace plimsoll {
namespace {

using Ints = std::vector<int64_t>;
using ::testing::DoubleNear;
using ::testing::ElementsAreArray;
using ::testing::Pointwise;

constexpr int64_t kOne = 1;

// An op on sources of the given shapes, whose element i is i * 7 % 11 - 5 unless values are given.
struct LayerCase {
  std::string type;
  std::vector<Shape> shapes;
  Attributes attributes;
  std::map<size_t, std::vector<double>> values = {};
  DType dtype = DType::f64;
};

struct Result {
  Shape shape;
  std::vector<double> values;
};

Result run(const LayerCase& c) {
  Graph g;
  std::vector<TensorId> inputs;
  for (size_t i = 0; i < c.shapes.size(); ++i) {
    inputs.push_back(g.add_source(fmt::format("in{}", i), c.shapes[i], c.dtype, Role::input));
  }
  const TensorId y = g.output(g.add_op(c.type, "op", "op", inputs, c.attributes));
  Values values(g);
  for (size_t i = 0; i < inputs.size(); ++i) {
    Value& value = values[inputs[i]];
    for (int64_t e = 0; e < value.size(); ++e) {
      value.set(e, c.values.contains(i) ? c.values.at(i)[e] : static_cast<double>(e * 7 % 11 - 5));
    }
  }
  interpret(g, values);
  Result result{g.tensor(y).shape, {}};
  for (int64_t e = 0; e < values[y].size(); ++e) result.values.push_back(values[y].at(e));
  return result;
}

std::string message_of(const LayerCase& c) {
  try {
    run(c);
  } catch (const Error& error) {
    const std::string what = error.what();
    return what.substr(what.find("): ") + 3);
  }
  return "nothing was thrown";
}

TEST(Conv, HasPyTorchsValues) {
  const Result y = run({"ConvForward",
                        {{1, 2, 4, 4}, {2, 2, 2, 3}, {2}},
                        {{"stride", Ints{2, 1}}, {"padding", Ints{1, 1, 1, 1}}, {"dilation", Ints{1, 2}}},
                        {{2, {1, -2}}}});
  EXPECT_EQ(y.shape, (Shape{1, 2, 3, 2}));
  EXPECT_THAT(y.values, ElementsAreArray({4, -35, 15, -12, -17, 17, -16, 2, -46, 8, 16, 8}));
}

struct ConvSettings {
  int64_t groups = 1, k = 1;
  Ints stride = {}, dilation = {}, padding = {};
};

// Element by element as the definition has it, for one output element.
double convolved(const Result& x, const Result& w, const ConvSettings& c, int64_t n, int64_t k, int64_t oh,
                 int64_t ow) {
  const int64_t C = x.shape[1], H = x.shape[2], W = x.shape[3];
  const size_t rank = w.shape.size();
  const int64_t group_c = w.shape[rank - 3], R = w.shape[rank - 2], S = w.shape[rank - 1];
  const int64_t first_c = k / (c.k / c.groups) * group_c;
  double sum = 0;
  for (int64_t ci = 0; ci < group_c; ++ci) {
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t s = 0; s < S; ++s) {
        const int64_t ih = oh * c.stride[0] + r * c.dilation[0] - c.padding[0];
        const int64_t iw = ow * c.stride[1] + s * c.dilation[1] - c.padding[1];
        if (ih < 0 || ih >= H || iw < 0 || iw >= W) continue;
        sum += x.values[((n * C + first_c + ci) * H + ih) * W + iw] * w.values[((k * group_c + ci) * R + r) * S + s];
      }
    }
  }
  return sum;
}

TEST(Conv, IsItsDefinitionForRandomSettings) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937 random(seed);
    const auto draw = [&](int64_t least, int64_t most) {
      return std::uniform_int_distribution<int64_t>(least, most)(random);
    };
    ConvSettings c{.groups = draw(1, 3)};
    c.k = c.groups * draw(1, 2);
    for (int i = 0; i < 2; ++i) c.stride.push_back(draw(1, 3)), c.dilation.push_back(draw(1, 3));
    for (int i = 0; i < 4; ++i) c.padding.push_back(draw(0, 3));
    const int64_t n = draw(1, 2), group_c = draw(1, 2), R = draw(1, 3), S = draw(1, 3);
    const Shape x_shape = {n, c.groups * group_c, draw(7, 9), draw(7, 9)};
    const Shape w_shape = c.groups == 1 ? Shape{c.k, group_c, R, S} : Shape{c.groups, c.k / c.groups, group_c, R, S};
    const auto values_of = [&](const Shape& shape) {
      Result result{shape, {}};
      for (int64_t i = 0; i < element_count(shape); ++i) result.values.push_back(static_cast<double>(draw(-9, 9)));
      return result;
    };
    const Result x = values_of(x_shape), w = values_of(w_shape);
    const Result y =
        run({"ConvForward",
             {x_shape, w_shape},
             {{"stride", c.stride}, {"dilation", c.dilation}, {"padding", c.padding}, {"groups", c.groups}},
             {{0, x.values}, {1, w.values}}});
    const int64_t out_h = (x_shape[2] + c.padding[0] + c.padding[2] - c.dilation[0] * (R - 1) - 1) / c.stride[0] + 1;
    const int64_t out_w = (x_shape[3] + c.padding[1] + c.padding[3] - c.dilation[1] * (S - 1) - 1) / c.stride[1] + 1;
    ASSERT_EQ(y.shape, (Shape{n, c.k, out_h, out_w}));
    for (size_t i = 0; i < y.values.size(); ++i) {
      const int64_t at = static_cast<int64_t>(i), ow = at % out_w, oh = at / out_w % out_h,
                    k = at / (out_w * out_h) % c.k;
      ASSERT_EQ(y.values[i], convolved(x, w, c, at / (out_w * out_h * c.k), k, oh, ow)) << "element " << i;
    }
  }
}

TEST(Conv, FusedReluKeepsOnlyWhatIsPositive) {
  const Result y = run({"ConvForward",
                        {{1, 2, 4, 4}, {2, 2, 2, 3}, {2}},
                        {{"stride", Ints{2, 1}},
                         {"padding", Ints{1, 1, 1, 1}},
                         {"dilation", Ints{1, 2}},
                         {"activation", std::string("relu")}},
                        {{2, {1, -2}}},
                        DType::f32});
  EXPECT_THAT(y.values, ElementsAreArray({4, 0, 15, 0, 0, 17, 0, 2, 0, 8, 16, 8}));
}

TEST(Conv, GroupsSeeOnlyTheirOwnChannels) {
  const Result y = run({"ConvForward",
                        {{1, 4, 3, 3}, {2, 2, 2, 2, 2}},
                        {{"groups", int64_t{2}}, {"stride", Ints{2, 2}}, {"padding", Ints{1, 1, 1, 1}}}});
  EXPECT_EQ(y.shape, (Shape{1, 4, 2, 2}));
  EXPECT_THAT(y.values, ElementsAreArray({-25, -18, 24, -60, 28, -2, -8, -18, -6, -32, -2, 15, -9, -29, -14, 20}));
  const Result z = run({"ConvForward", {{1, 4, 3, 3}, {4, 1, 1, 2, 2}}, {{"groups", int64_t{4}}}});
  EXPECT_THAT(z.values, ElementsAreArray({24, -31, -31, -31, 14, 6, 12, -29, 14, 20, -34, 16, -31, 22, -37, 16}));
}

TEST(Conv, TellsWhatDoesNotFit) {
  EXPECT_EQ(message_of({"ConvForward", {{1, 3, 5, 5}, {8, 3, 11, 11}}, {}}),
            "kernel 11x11 does not fit a 5x5 image with padding 0");
  EXPECT_EQ(
      message_of(
          {"ConvForward", {{1, 3, 5, 5}, {8, 3, 3, 3}}, {{"dilation", Ints{3, 1}}, {"padding", Ints{0, 1, 1, 1}}}}),
      "kernel 3x3 with dilation 3x1 does not fit a 5x5 image with padding top 0, left 1, bottom 1, right 1");
  EXPECT_EQ(message_of({"ConvForward", {{1, 4, 5, 5}, {8, 3, 3, 3}}, {}}), "'in0' has 4 channels; the weights take 3");
  EXPECT_EQ(message_of({"ConvForward", {{1, 3, 5}, {8, 3, 3, 3}}, {}}), "'in0' is 1x3x5; 4 dimensions are expected");
  EXPECT_EQ(message_of({"ConvForward", {{1, 4, 5, 5}, {8, 2, 3, 3}}, {{"groups", int64_t{2}}}}),
            "the weights 'in1' are 8x2x3x3; with 2 groups 5 dimensions are expected, 2 first");
  EXPECT_EQ(message_of({"ConvForward", {{1, 3, 5, 5}, {8, 3, 3, 3}, {7}}, {}}),
            "the bias 'in2' is 7; 8 numbers, one a channel, are expected");
  EXPECT_EQ(message_of({"ConvForward", {{1, 3, 5, 5}, {8, 3, 3, 3}}, {{"stride", Ints{0, 1}}}}),
            "stride is [0, 1]; 2 numbers of at least 1 are expected");
  EXPECT_EQ(message_of({"ConvForward", {{1, 3, 5, 5}, {8, 3, 3, 3}}, {{"padding", Ints{1, 1}}}}),
            "padding is [1, 1]; 4 numbers of at least 0 are expected");
  EXPECT_EQ(message_of({"ConvForward", {{1, 3, 5, 5}, {8, 3, 3, 3}}, {{"activation", std::string("gelu")}}}),
            "activation is 'gelu'; 'none' or 'relu' is expected");
  EXPECT_EQ(message_of({"ConvForward", {{1, 3, 5, 5}}, {}}), "takes 2 to 3 inputs, got 1");
  EXPECT_EQ(message_of({"ConvBackwardData", {{1, 8, 4, 3}, {8, 3, 3, 3}}, {{"input_size", Ints{5, 5}}}}),
            "'in0' is 1x8x4x3; a 3x3 image is expected");
  EXPECT_EQ(message_of({"ConvBackwardWeights", {{2, 3, 5, 5}, {1, 8, 3, 3}}, {{"kernel", Ints{3, 3}}}}),
            "'in0' has a batch of 2, 'in1' one of 1");
  EXPECT_EQ(
      message_of(
          {"ConvBackwardWeights", {{1, 3, 5, 5}, {1, 8, 3, 3}}, {{"kernel", Ints{3, 3}}, {"groups", int64_t{2}}}}),
      "3 channels do not divide into 2 groups");
}

TEST(Conv, CountsItsWork) {
  Graph g;
  const TensorId x = g.add_source("x", {16, 256, 14, 14}, DType::f32, Role::input);
  const TensorId w = g.add_source("w", {256, 256, 3, 3}, DType::f32, Role::parameter);
  const Op& op = g.op(g.add_op("ConvForward", "c", "c", {x, w}, {{"padding", Ints{1, 1, 1, 1}}}));
  const Work work = op.type->work(g, op);
  EXPECT_DOUBLE_EQ(work.flops, 2.0 * 16 * 256 * 256 * 9 * 14 * 14);
  EXPECT_DOUBLE_EQ(work.bytes, 4.0 * (2 * 16 * 256 * 14 * 14 + 256 * 256 * 9));
}

TEST(ConvTranspose, HasPyTorchsValues) {
  const Result y = run(
      {"ConvTransposeForward",
       {{1, 4, 2, 2}, {2, 2, 1, 3, 2}, {2}},
       {{"groups", int64_t{2}}, {"stride", Ints{2, 2}}, {"padding", Ints{1, 1, 1, 1}}, {"output_padding", Ints{1, 1}}},
       {{2, {1, 2}}}});
  EXPECT_EQ(y.shape, (Shape{1, 2, 4, 3}));
  EXPECT_THAT(y.values, ElementsAreArray({-21, 9,  2, 7,   -19, 20, 3,  -9,  26, -13, 6,  -14,
                                          -4,  11, 7, -28, -7,  16, -4, -20, -4, 8,   12, -16}));
  const Result z =
      run({"ConvTransposeForward", {{1, 4, 2, 2}, {4, 2, 2, 2}}, {{"stride", Ints{3, 2}}, {"dilation", Ints{2, 2}}}});
  EXPECT_EQ(z.shape, (Shape{1, 2, 6, 5}));
  EXPECT_THAT(z.values,
              ElementsAreArray({29, 0, -16, 0, -3, 0,  0, 0,   0, 0,   11, 0, -23, 0, 19, -13, 0, 17, 0, -5,
                                0,  0, 0,   0, 0,  5,  0, -50, 0, 42,  -7, 0, 14,  0, -3, 0,   0, 0,  0, 0,
                                -3, 0, -15, 0, -3, 23, 0, -7,  0, -10, 0,  0, 0,   0, 0,  -3,  0, 58, 0, -7}));
}

TEST(ConvTranspose, TellsWhatDoesNotFit) {
  EXPECT_EQ(message_of({"ConvTransposeForward",
                        {{1, 2, 3, 3}, {2, 4, 3, 3}},
                        {{"stride", Ints{2, 2}}, {"output_padding", Ints{2, 0}}}}),
            "output_padding 2 is not less than stride 2 or dilation 1");
  EXPECT_EQ(message_of({"ConvTransposeForward", {{1, 2, 1, 1}, {2, 4, 2, 2}}, {{"padding", Ints{1, 1, 1, 1}}}}),
            "the padding leaves nothing of the output: 0x0");
  EXPECT_EQ(message_of({"ConvTransposeForward", {{1, 3, 3, 3}, {2, 4, 3, 3}}, {}}),
            "'in0' has 3 channels; the weights take 2");
  EXPECT_EQ(message_of({"ConvTransposeBackwardData", {{1, 4, 6, 6}, {2, 4, 3, 3}}, {{"stride", Ints{2, 2}}}}),
            "no transposed convolution with kernel 3x3 and this stride and padding gives a 6x6 image");
}

TEST(FullyConnected, MultipliesByTheTransposedWeights) {
  const Result y = run({"FullyConnectedForward",
                        {{2, 3}, {2, 3}, {2}},
                        {},
                        {{0, {1, 2, 3, 4, 5, 6}}, {1, {1, 0, -1, 2, 2, 2}}, {2, {10, 20}}}});
  EXPECT_EQ(y.shape, (Shape{2, 2}));
  EXPECT_THAT(y.values, ElementsAreArray({8, 32, 8, 50}));
  EXPECT_EQ(message_of({"FullyConnectedForward", {{2, 4}, {2, 3}}, {}}), "'in0' has 4 features; the weights take 3");
  EXPECT_EQ(message_of({"FullyConnectedForward", {{2, 3, 1}, {2, 3}}, {}}),
            "'in0' is 2x3x1; 2 dimensions are expected");
}

TEST(Pool, HasPyTorchsShapesAndValues) {
  const Attributes ceil{
      {"kernel", Ints{3, 3}}, {"stride", Ints{2, 3}}, {"padding", Ints{1, 1, 1, 1}}, {"ceil_mode", kOne}};
  Result y = run({"MaxPoolForward", {{1, 1, 6, 5}}, ceil});
  EXPECT_EQ(y.shape, (Shape{1, 1, 4, 2}));
  EXPECT_THAT(y.values, ElementsAreArray({4, 5, 4, 5, 5, 4, 5, 4}));

  y = run({"AvgPoolForward", {{1, 1, 6, 5}}, ceil});
  EXPECT_THAT(y.values,
              Pointwise(DoubleNear(1e-15), {-2.0 / 9, 3.0 / 9, -7.0 / 9, 4.0 / 9, 6.0 / 9, -4.0 / 9, 1.0, 1.0 / 6}));

  Attributes without_padding = ceil;
  without_padding.set("count_include_pad", int64_t{0});
  y = run({"AvgPoolForward", {{1, 1, 6, 5}}, without_padding});
  EXPECT_THAT(y.values, Pointwise(DoubleNear(1e-15), {-0.5, 0.5, -7.0 / 6, 4.0 / 9, 1.0, -4.0 / 9, 3.0, 1.0 / 3}));

  // The last column's window would begin in the padding: dropped.
  y = run({"MaxPoolForward",
           {{1, 1, 6, 5}},
           {{"kernel", Ints{2, 2}}, {"stride", Ints{3, 3}}, {"padding", Ints{1, 1, 1, 1}}, {"ceil_mode", kOne}}});
  EXPECT_EQ(y.shape, (Shape{1, 1, 3, 2}));
  EXPECT_THAT(y.values, ElementsAreArray({-5, 5, 1, 4, 5, 4}));

  y = run({"MaxPoolForward", {{1, 1, 6, 5}}, {{"kernel", Ints{3, 3}}, {"stride", Ints{2, 2}}}});
  EXPECT_THAT(y.values, ElementsAreArray({4, 5, 4, 5}));
}

TEST(Pool, FirstOfEqualElementsWins) {
  Graph g;
  const TensorId x = g.add_source("x", {1, 1, 2, 2}, DType::f32, Role::input);
  const OpId op = g.add_op("MaxPoolForward", "p", "p", {x}, {{"kernel", Ints{2, 2}}});
  Values values(g);  // all zeros
  interpret(g, values);
  EXPECT_EQ(values[g.output(op, 1)].at(0), 0);
}

TEST(Pool, TellsWhatDoesNotFit) {
  EXPECT_EQ(message_of({"MaxPoolForward", {{1, 1, 4, 4}}, {{"kernel", Ints{5, 5}}}}),
            "kernel 5x5 does not fit a 4x4 image with padding 0");
  EXPECT_EQ(message_of({"MaxPoolForward", {{1, 1, 4, 4}}, {{"kernel", Ints{2, 2}}, {"padding", Ints{2, 2, 2, 2}}}}),
            "the padding is not less than the kernel 2x2: a window would hold nothing else");
  EXPECT_EQ(message_of({"MaxPoolForward", {{1, 1, 20, 20}}, {{"kernel", Ints{17, 17}}}}),
            "a max-pooling window of 17x17 has more than 256 elements");
  EXPECT_EQ(message_of({"AvgPoolForward", {{1, 1, 4, 4}}, {}}), "attribute 'kernel' is missing");
}

// Three steps from w = (1, -2, 0.5) with the gradients below at a learning rate of 0.1.
std::vector<double> three_updates(const std::string& type, size_t states, const Attributes& attributes) {
  Graph g;
  std::vector<TensorId> inputs = {g.add_source("w", {3}, DType::f64, Role::parameter),
                                  g.add_source("g", {3}, DType::f64, Role::input),
                                  g.add_source("lr", {}, DType::f64, Role::hyperparameter)};
  if (type == "AdamUpdate") inputs.push_back(g.add_source("step", {}, DType::i64, Role::hyperparameter));
  for (size_t i = 0; i < states; ++i) {
    inputs.push_back(g.add_source(fmt::format("state{}", i), {3}, DType::f64, Role::optimizer_state));
  }
  const OpId op = g.add_op(type, "u", "u", inputs, attributes, Phase::update);
  std::vector<TensorId> found = {inputs[0]};
  found.insert(found.end(), inputs.end() - static_cast<ptrdiff_t>(states), inputs.end());
  for (size_t i = 0; i < found.size(); ++i) {
    for (State& state : g.states) {
      if (state.before == found[i]) state.after = g.output(op, i);
    }
  }
  const double w[] = {1, -2, 0.5}, gradients[3][3] = {{.1, -.2, .3}, {1, 0, -1}, {-.5, .25, .125}};
  Values values(g);
  values[inputs[2]].set(0, 0.1);
  for (int64_t i = 0; i < 3; ++i) values[inputs[0]].set(i, w[i]);
  for (int64_t step = 0; step < 3; ++step) {
    for (int64_t i = 0; i < 3; ++i) values[inputs[1]].set(i, gradients[step][i]);
    if (type == "AdamUpdate") values[inputs[3]].set(0, static_cast<double>(step));
    interpret(g, values);
    advance_states(g, values);
  }
  return {values[inputs[0]].at(0), values[inputs[0]].at(1), values[inputs[0]].at(2)};
}

TEST(Update, GivesPyTorchsWeightsAfterThreeSteps) {
  const auto near = [](std::vector<double> expected) { return Pointwise(DoubleNear(1e-14), expected); };
  EXPECT_THAT(three_updates("SgdUpdate", 0, {}), near({0.94, -2.005, 0.5575}));
  EXPECT_THAT(three_updates("SgdUpdate", 1, {{"momentum", 0.9}, {"weight_decay", 0.01}}),
              near({0.827432789, -1.959665578, 0.5934113695}));
  EXPECT_THAT(three_updates("SgdUpdate", 1, {{"momentum", 0.9}, {"weight_decay", 0.01}, {"nesterov", kOne}}),
              near({0.782038812551, -1.962855625102, 0.6400101848005}));
  EXPECT_THAT(three_updates("AdamUpdate", 2, {}), near({0.7919064212245905, -1.8505598386160922, 0.48437122040031877}));
  EXPECT_THAT(
      three_updates("AdamUpdate", 2, {{"beta1", 0.8}, {"beta2", 0.95}, {"epsilon", 1e-3}, {"weight_decay", 0.01}}),
      near({0.7930043966263051, -1.8473005610229298, 0.48831627857600474}));
  EXPECT_THAT(three_updates("AdamUpdate", 2, {{"weight_decay", 0.01}, {"decoupled", kOne}}),
              near({0.7891900289787465, -1.8448327424267714, 0.48302058671807}));
}

TEST(Update, LeavesTheNextValuesInTheSameBytes) {
  Graph g;
  const TensorId w = g.add_source("w", {3}, DType::f32, Role::parameter);
  const TensorId d = g.add_source("g", {3}, DType::f32, Role::input);
  const TensorId lr = g.add_source("lr", {}, DType::f32, Role::hyperparameter);
  const TensorId m = g.add_source("m", {3}, DType::f32, Role::optimizer_state);
  const Op& op = g.op(g.add_op("SgdUpdate", "u", "u", {w, d, lr, m}, {{"momentum", 0.9}}, Phase::update));
  EXPECT_TRUE(op.type->changes_state);
  const std::vector<InPlace> pairs = op.type->in_place(g, op);
  ASSERT_EQ(pairs.size(), 2u);
  EXPECT_TRUE(pairs[0].required && pairs[0].output == 0 && pairs[0].input == 0);
  EXPECT_TRUE(pairs[1].required && pairs[1].output == 1 && pairs[1].input == 3);
  EXPECT_EQ(g.tensor(op.outputs[0]).role, Role::parameter);
  EXPECT_EQ(g.tensor(op.outputs[1]).role, Role::optimizer_state);
}

TEST(Update, RefusesNesterovWithoutMomentumAndRatesOfAnotherShape) {
  EXPECT_EQ(message_of({"SgdUpdate", {{3}, {3}, {}}, {{"nesterov", kOne}}}), "nesterov needs a momentum that is not 0");
  EXPECT_EQ(message_of({"SgdUpdate", {{3}, {3}, {1}}, {}}),
            "'in2' is 1 of f64; a learning rate is a scalar, or the first of 3 settings, of f32 or f64");
}

}  // namespace
}  // namespace plimsoll
