#include "ops/expression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/error_text.h"

namespace plimsoll {
namespace {

using testing::error_text;
using ::testing::HasSubstr;

std::string read_back(std::string_view text) { return to_string(parse_expression(text)); }
double value_of(std::string_view text, std::vector<double> inputs) {
  const Expression expression = parse_expression(text);
  std::vector<double> values(expression.nodes.size());
  return evaluate(expression, inputs, values);
}
std::string message(std::string_view text) {
  return error_text(ErrorCode::invalid_input, [&] { parse_expression(text); });
}
// The derivative by x0, times x9; with what the text computes as x8.
std::string derivative(std::string_view text) {
  const Expression expression = parse_expression(text);
  ExpressionBuilder builder;
  std::vector<int32_t> inputs;
  for (int32_t i = 0; i < 4; ++i) inputs.push_back(builder.input(i));
  const int32_t result = builder.insert(expression, inputs);
  const int32_t node = builder.differentiate(result, builder.input(9), std::span(inputs).first(1))[0];
  const std::pair<int32_t, int32_t> output{result, 8};
  return node < 0 ? "none" : to_string(builder.take(node, std::span(&output, 1)));
}

TEST(Expression, IsWrittenAsItIsRead) {
  for (const char* text : {"x0", "mul(add(x0,x1),2.5)", "clamp(x31,-inf,6)", "where(gt(x0,1e-300),x1,nan)",
                           "t0=sigmoid(x0);mul(t0,sub(1,t0))", "t0=exp(x0);t1=add(t0,x1);div(mul(t0,t1),t1)"}) {
    EXPECT_EQ(read_back(text), text);
  }
  EXPECT_EQ(read_back(" add( x0 ,\n mul(x1, 3) ) "), "add(x0,mul(x1,3))");
}

TEST(Expression, IsSimplified) {
  const std::pair<const char*, const char*> cases[] = {
      {"mul(x0,1)", "x0"},
      {"add(0,x0)", "x0"},
      {"mul(2,mul(3,x0))", "mul(x0,6)"},
      {"add(x0,mul(exp(0),neg(x1)))", "sub(x0,x1)"},
      {"pow(x0,2)", "square(x0)"},
      {"pow(x0,-0.5)", "rsqrt(x0)"},
      {"pow(x0,3)", "mul(square(x0),x0)"},
      {"pow(x0,2.5)", "pow(x0,2.5)"},
      {"div(x0,4)", "mul(x0,0.25)"},
      {"div(x0,3)", "div(x0,3)"},
      {"neg(neg(x0))", "x0"},
      {"where(1,x0,x1)", "x0"},
      {"mul(exp(x0),exp(x0))", "t0=exp(x0);mul(t0,t0)"},
      {"max(3,x0)", "max(x0,3)"},
      {"mul(x0,0)", "mul(x0,0)"},  // not where x0 is infinite
  };
  for (const auto& [text, simple] : cases) EXPECT_EQ(read_back(text), simple) << text;
}

TEST(Expression, GivesWhatItsFunctionsGive) {
  EXPECT_EQ(value_of("sub(mul(x0,x1),div(x0,x1))", {6, 2}), 9);
  EXPECT_EQ(value_of("where(and(ge(x0,0),not(eq(x0,1))),x0,neg(x0))", {1}), -1);
  EXPECT_EQ(value_of("add(round(x0),floor(neg(x0)))", {2.5}), -1);
  EXPECT_DOUBLE_EQ(value_of("gelu(x0)", {-1.5}), -1.5 * 0.5 * std::erfc(1.5 * std::sqrt(0.5)));
  EXPECT_TRUE(std::isnan(value_of("max(x0,0)", {NAN})));
  EXPECT_TRUE(std::isnan(value_of("relu(x0)", {NAN})));
}

TEST(Expression, SlopesAreTakenFromTheOutputWhereItTellsThem) {
  const std::pair<const char*, const char*> cases[] = {
      {"exp(x0)", "mul(x9,x8)"},
      {"relu(x0)", "where(gt(x8,0),x9,0)"},
      {"relu(add(x0,x1))", "where(gt(x8,0),x9,0)"},
      {"tanh(mul(x0,3))", "mul(mul(x9,sub(1,square(x8))),3)"},
      {"sigmoid(x0)", "mul(x9,mul(x8,sub(1,x8)))"},
      {"sqrt(x0)", "div(mul(x9,0.5),x8)"},
      {"reciprocal(x0)", "neg(mul(x9,square(x8)))"},
      {"hardtanh(x0,0,6)", "where(and(gt(x8,0),lt(x8,6)),x9,0)"},
      {"clamp(x0,0,6)", "where(and(ge(x0,0),le(x0,6)),x9,0)"},
      {"leaky_relu(x0,0.1)", "where(gt(x8,0),x9,mul(x9,0.1))"},
      {"leaky_relu(x0,-0.1)", "where(gt(x0,0),x9,mul(x9,-0.1))"},
      {"add(x0,x1)", "x9"},
      {"mul(x0,x1)", "mul(x9,x1)"},
      {"floor(x0)", "none"},
      {"mul(x1,x2)", "none"},
      {"where(x0,x1,x2)", "none"},
  };
  for (const auto& [text, slope] : cases) EXPECT_EQ(derivative(text), slope) << text;
}

// The functions at points where they are smooth, by central differences.
TEST(Expression, DerivativesAgreeWithDifferences) {
  for (int f = 0; f < kFunctions; ++f) {
    const Function function = static_cast<Function>(f);
    const int count = argument_count(function);
    for (const std::array<double, 3> at : {std::array{0.6, 0.3, 0.9}, std::array{1.3, 2.2, 1.7},
                                           std::array{0.2, 0.45, 1.1}, std::array{4.1, 0.4, 3.3}}) {
      ExpressionBuilder builder;
      std::vector<int32_t> inputs = {builder.input(0), builder.input(1), builder.input(2)};
      const int32_t result = builder.call(function, inputs[0], count > 1 ? inputs[1] : -1, count > 2 ? inputs[2] : -1);
      const std::vector<int32_t> nodes = builder.differentiate(result, builder.input(3), inputs);
      for (size_t k = 0; k < static_cast<size_t>(count); ++k) {
        const double step = 1e-6;
        std::array<double, 3> above = at, below = at;
        above[k] += step, below[k] -= step;
        const double difference = (evaluate(function, above.data()) - evaluate(function, below.data())) / (2 * step);
        double slope = 0;
        if (nodes[k] >= 0) {
          const Expression taken = builder.take(nodes[k]);
          std::vector<double> values(taken.nodes.size());
          slope = evaluate(taken, std::array{at[0], at[1], at[2], 1.0}, values);
        }
        EXPECT_NEAR(slope, difference, 1e-7 * std::max(1.0, std::abs(difference)))
            << to_string(function) << " by argument " << k << " at " << at[0] << " " << at[1] << " " << at[2];
      }
    }
  }
}

TEST(Expression, WhatIsWrongIsSaidWithItsPlace) {
  EXPECT_THAT(message("add(x0)"), HasSubstr("character 7, at ')': add takes 2 arguments"));
  EXPECT_THAT(message("neg(x0,x1)"), HasSubstr("neg takes 1 argument"));
  EXPECT_THAT(message("sigmoit(x0)"), HasSubstr("did you mean 'sigmoid'?"));
  EXPECT_THAT(message("x32"), HasSubstr("there are x0 to x31"));
  EXPECT_THAT(message("y"), HasSubstr("'y' is no input, no number and nothing named before"));
  EXPECT_THAT(message(""), HasSubstr("a call, xK or a number is expected"));
  EXPECT_THAT(message("x0 x1"), HasSubstr("the end is expected"));
  EXPECT_THAT(message("t1=x0;t1"), HasSubstr("the next name is t0"));
  EXPECT_THAT(message("1e999"), HasSubstr("no number in the range of f64"));
  std::string deep = "x0";
  for (int i = 0; i < 300; ++i) deep = "exp(" + deep + ")";
  EXPECT_THAT(message(deep), HasSubstr("256 deep"));
  EXPECT_THAT(message(std::string(100000, ' ')), HasSubstr("100000 characters"));
}

TEST(Expression, DeepOnesAreWrittenWithNames) {
  ExpressionBuilder builder;
  int32_t node = builder.input(0);
  for (int i = 0; i < 1000; ++i) node = builder.call(Function::sin, node);
  const Expression expression = builder.take(node);
  const std::string text = to_string(expression);
  EXPECT_EQ(parse_expression(text).nodes.size(), expression.nodes.size());
  EXPECT_EQ(read_back(text), text);
}

// Every value is used twice, so that a tree of it would have 2^40 leaves.
TEST(Expression, WhatIsSharedIsWrittenOnce) {
  ExpressionBuilder builder;
  int32_t node = builder.input(0);
  for (int i = 0; i < 40; ++i) node = builder.call(Function::mul, builder.call(Function::exp, node), node);
  EXPECT_LT(to_string(builder.take(node)).size(), 2000u);
}

}  // namespace
}  // namespace plimsoll
