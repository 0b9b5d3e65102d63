// Pointwise, Reduce, Expand and Cast: values, gradients, what a gradient keeps, messages.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ops/expression.h"
#include "plimsoll/autodiff.h"
#include "tests/support/gradient_check.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ints = std::vector<int64_t>;

Attributes expression(std::string text) { return {{"expression", std::move(text)}}; }

std::string gradients(std::string_view type, const std::vector<Shape>& shapes, Attributes attributes,
                      std::map<std::string, std::vector<double>> values = {}) {
  Graph graph;
  std::vector<TensorId> inputs;
  for (const Shape& shape : shapes) {
    inputs.push_back(graph.add_source(fmt::format("in{}", inputs.size()), shape, DType::f64, Role::input));
  }
  const TensorId y = graph.output(graph.add_op(type, "op", "op", inputs, std::move(attributes)));
  return check_gradients(graph, {y}, inputs, {.values = std::move(values)});
}

TEST(Pointwise, StretchesItsInputsOverEachOther) {
  EXPECT_THAT(run_op("Pointwise", {{{2, 1}, {1, 2}}, {{3}, {10, 20, 30}}}, expression("add(mul(x0,2),x1)"))[0],
              ElementsAre(12, 22, 32, 14, 24, 34));
  EXPECT_THAT(run_op("Pointwise", {{{}, {3}}, {{2}, {1, 0}, DType::u8}}, expression("where(x1,x0,-inf)"))[0],
              ElementsAre(3, -INFINITY));
  EXPECT_THAT(run_op("Pointwise", {{{2}, {4, 7}, DType::i64}}, expression("div(x0,2)"))[0], ElementsAre(2, 3.5));
}

TEST(Pointwise, GradientsOfEveryFunctionAreRight) {
  for (int f = 0; f < kFunctions; ++f) {
    const std::string name(to_string(static_cast<Function>(f)));
    const int count = argument_count(static_cast<Function>(f));
    const std::string text = count == 1 ? name + "(x0)" : count == 2 ? name + "(x0,x1)" : name + "(x0,x1,x2)";
    std::map<std::string, std::vector<double>> values = {{"in0", {0.6, 1.3, 0.2, 4.1}}, {"in1", {0.3, 2.2, 0.45, 0.4}}};
    if (count == 3) values["in2"] = {0.9, 1.7, 1.1, 3.3};
    if (count == 1) values.erase("in1");
    EXPECT_EQ(
        gradients("Pointwise", std::vector<Shape>(static_cast<size_t>(count), Shape{4}), expression(text), values), "")
        << name;
  }
}

TEST(Pointwise, GradientsOfStretchedInputsAreSums) {
  const std::string text = "mul(tanh(add(mul(x0,x1),x2)),sigmoid(x3))";
  for (const std::vector<Shape>& shapes : {std::vector<Shape>{{2, 3, 4}, {3, 4}, {4}, {}},
                                           {{2, 3, 4}, {3, 1}, {2, 1, 1}, {1, 1, 4}},
                                           {{1}, {5}, {5}, {1}},
                                           {{}, {}, {}, {}},
                                           {{2, 1, 3}, {1, 4, 1}, {1}, {1, 1, 1, 1}}}) {
    EXPECT_EQ(gradients("Pointwise", shapes, expression(text)), "") << to_string(shapes[1]);
  }
  EXPECT_EQ(gradients("Pointwise", {{3, 2}, {2}}, expression("add(x0,x1)")), "");
  EXPECT_EQ(gradients("Pointwise", {{3, 2}, {3, 2}}, expression("div(mul(x0,x1),add(square(x0),1))")), "");
}

// The activations that the backward ops of one op read.
std::vector<std::string> kept(std::string text, std::vector<Role> roles) {
  Graph graph;
  std::vector<TensorId> inputs;
  for (size_t i = 0; i < roles.size(); ++i) {
    TensorId x = graph.add_source(fmt::format("in{}", i), {8}, DType::f32, roles[i]);
    if (roles[i] == Role::activation) x = graph.output(graph.add_op("ReluForward", fmt::format("a{}", i), "", {x}));
    inputs.push_back(x);
  }
  const TensorId y = graph.output(graph.add_op("Pointwise", "y", "y", inputs, expression(std::move(text))));
  const Seed seed{y, graph.add_source("dy", {8}, DType::f32, Role::input)};
  append_backward(graph, std::span(&seed, 1), inputs);
  std::vector<std::string> names;
  for (const Op& op : graph.ops()) {
    if (op.phase != Phase::backward) continue;
    for (TensorId id : op.inputs) {
      const Tensor& tensor = graph.tensor(id);
      if (tensor.producer.valid() && graph.op(tensor.producer).phase == Phase::forward) names.push_back(tensor.name);
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

TEST(Pointwise, KeepsAsLittleAsItCan) {
  const Role a = Role::activation, p = Role::parameter;
  EXPECT_THAT(kept("exp(x0)", {a}), ElementsAre("y:0"));
  EXPECT_THAT(kept("relu(add(x0,x1))", {a, a}), ElementsAre("y:0"));
  EXPECT_THAT(kept("add(x0,x1)", {a, a}), ElementsAre());
  EXPECT_THAT(kept("mul(x0,2)", {a}), ElementsAre());
  EXPECT_THAT(kept("silu(x0)", {a}), ElementsAre("a0:0"));
  EXPECT_THAT(kept("exp(x0)", {p}), ElementsAre());
  EXPECT_THAT(kept("mul(x0,x1)", {a, p}), ElementsAre("a0:0"));
  EXPECT_THAT(kept("mul(exp(x0),x1)", {a, a}).size(), 2);
}

TEST(Pointwise, OneOpServesEqualGradients) {
  Graph graph;
  const TensorId a = graph.add_source("a", {4, 3}, DType::f32, Role::parameter);
  const TensorId b = graph.add_source("b", {3}, DType::f32, Role::parameter);
  const TensorId y = graph.output(graph.add_op("Pointwise", "y", "y", {a, b}, expression("gelu(add(x0,x1))")));
  const Seed seed{y, graph.add_source("dy", {4, 3}, DType::f32, Role::input)};
  const TensorId wanted[] = {a, b};
  append_backward(graph, std::span(&seed, 1), wanted);
  std::vector<std::string> ops;
  for (const Op& op : graph.ops()) ops.push_back(op.name);
  EXPECT_THAT(ops, ElementsAre("y", "y/backward_0", "y/backward_1_sum"));
}

TEST(Pointwise, SaysWhatIsWrong) {
  EXPECT_THAT(refusal("Pointwise", {{{2}, {}}}, expression("add(x0,x1)")),
              HasSubstr("reads x1, but there are 1 inputs"));
  EXPECT_THAT(refusal("Pointwise", {{{2}, {}}, {{3}, {}}}, expression("add(x0,x1)")),
              HasSubstr("'in1' is 3, which cannot be stretched over the 2 of the inputs before it"));
  EXPECT_THAT(refusal("Pointwise", {{{2}, {}, DType::bit}}, expression("x0")), HasSubstr("elements of one bit"));
  EXPECT_THAT(refusal("Pointwise", {{{2}, {}, DType::f32}, {{2}, {}, DType::f64}}, expression("add(x0,x1)")),
              HasSubstr("they must be equal"));
  EXPECT_THAT(refusal("Pointwise", {{{2}, {}}}, expression("frob(x0)")), HasSubstr("unknown function 'frob'"));
}

TEST(Reduce, TakesSumsMeansAndExtremes) {
  const Literal x{{2, 3}, {1, 5, 3, -4, 0, 2}};
  const auto reduce = [&](const char* function, Ints dims) {
    return run_op("Reduce", {x}, {{"function", std::string(function)}, {"dims", std::move(dims)}})[0];
  };
  EXPECT_THAT(reduce("sum", {0}), ElementsAre(-3, 5, 5));
  EXPECT_THAT(reduce("mean", {1}), ElementsAre(3, -2.0 / 3));
  EXPECT_THAT(reduce("max", {0, 1}), ElementsAre(5));
  EXPECT_THAT(reduce("min", {}), ElementsAre(-4));
  EXPECT_THAT(reduce("mean_of_squares", {0}), ElementsAre(8.5, 12.5, 6.5));
}

TEST(Reduce, GradientsAreRight) {
  for (const char* function : {"sum", "mean", "max", "min", "mean_of_squares"}) {
    for (const Ints& dims : {Ints{0}, {1}, {2}, {0, 2}, {0, 1, 2}, {}}) {
      for (int64_t keep : {0, 1}) {
        EXPECT_EQ(gradients("Reduce", {{3, 4, 2}},
                            {{"function", std::string(function)}, {"dims", dims}, {"keep_dims", keep}}),
                  "")
            << function << " " << fmt::format("{}", fmt::join(dims, ","));
      }
    }
  }
  EXPECT_EQ(gradients("Reduce", {{}}, {{"function", std::string("mean")}}), "");
}

TEST(Reduce, EqualExtremesShareTheGradient) {
  Graph graph;
  const TensorId x = graph.add_source("x", {4}, DType::f64, Role::input);
  const TensorId y = graph.output(graph.add_op("Reduce", "y", "y", {x}, {{"function", std::string("max")}}));
  const Seed seed{y, graph.add_source("dy", {}, DType::f64, Role::input)};
  const TensorId dx = append_backward(graph, std::span(&seed, 1), std::span(&x, 1))[0];
  Values values(graph);
  for (int64_t i = 0; i < 4; ++i) values[x].set(i, std::array{3.0, 1.0, 3.0, 2.0}[static_cast<size_t>(i)]);
  values[seed.gradient].set(0, 6);
  interpret(graph, values);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(values[dx].at(i), i % 2 == 0 ? 3 : 0);
}

TEST(Reduce, SaysWhatIsWrong) {
  const auto says = [](const char* function, Ints dims) {
    return refusal("Reduce", {{{2, 3}, {}}}, {{"function", std::string(function)}, {"dims", std::move(dims)}});
  };
  EXPECT_THAT(says("median", {0}),
              HasSubstr("function is 'median'; sum, mean, max, min or mean_of_squares is expected"));
  EXPECT_THAT(says("sum", {2}), HasSubstr("dims are [2]; each one dimension of 2x3, once, is expected"));
  EXPECT_THAT(says("sum", {-1}), HasSubstr("dims are [-1]"));
  EXPECT_THAT(says("sum", {1, 1}), HasSubstr("dims are [1, 1]"));
}

TEST(Expand, StretchesAnyDtype) {
  EXPECT_THAT(run_op("Expand", {{{2, 1}, {1, 2}, DType::i64}}, {{"shape", Ints{2, 2, 3}}})[0],
              ElementsAre(1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2));
  EXPECT_EQ(gradients("Expand", {{3, 1}}, {{"shape", Ints{2, 3, 4}}}), "");
  EXPECT_EQ(gradients("Expand", {{}}, {{"shape", Ints{2, 3}}}), "");
  EXPECT_EQ(gradients("Expand", {{4}}, {{"shape", Ints{1, 4}}}), "");
  EXPECT_THAT(refusal("Expand", {{{2, 3}, {}}}, {{"shape", Ints{2, 4}}}), HasSubstr("cannot be stretched to 2x4"));
  EXPECT_THAT(refusal("Expand", {{{2, 3}, {}}}, {{"shape", Ints{3}}}), HasSubstr("cannot be stretched to 3"));
}

TEST(Cast, CutsFractionsAndStaysInRange) {
  const Literal x{{5}, {-1.7, 2.9, 300, 1e20, NAN}};
  EXPECT_THAT(run_op("Cast", {x}, {{"dtype", std::string("u8")}})[0], ElementsAre(0, 2, 255, 255, 0));
  EXPECT_THAT(run_op("Cast", {x}, {{"dtype", std::string("i32")}})[0], ElementsAre(-1, 2, 300, 2147483647, 0));
  EXPECT_THAT(run_op("Cast", {{{2}, {7, 8}, DType::u8}}, {{"dtype", std::string("f32")}})[0], ElementsAre(7, 8));
  EXPECT_EQ(gradients("Cast", {{3}}, {{"dtype", std::string("f64")}}), "");
  EXPECT_THAT(refusal("Cast", {{{2}, {}}}, {{"dtype", std::string("bf16")}}),
              HasSubstr("dtype is 'bf16'; f32, f64, i32, i64 or u8 is expected"));
}

}  // namespace
}  // namespace plimsoll
