// Expressions over the elements of tensors, the attribute of Pointwise ops:
//
//   mul(add(x0,x1),2.5)                   x0, x1: inputs
//   t0=sigmoid(x0);mul(t0,sub(1,t0))      a value that is used more than once has a name
//
// An expression is a list of nodes, each after its arguments; the last is the result. ExpressionBuilder puts nodes
// together: equal ones are one, constants are folded, x*1 is x. Derivatives are expressions again. Nothing here recurses
// by the depth of what was read.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/expression_function.h"

namespace plimsoll {

std::string_view to_string(Function function);
int argument_count(Function function);
double flops_of(Function function);  // of one element
double evaluate(Function function, const double* arguments);

inline constexpr int kMostExpressionInputs = 32;
inline constexpr size_t kMostExpressionText = 1 << 16, kMostExpressionNodes = 2048;

struct ExpressionNode {
  enum class Kind : uint8_t { input, number, call } kind = Kind::number;
  Function function = Function::add;
  int32_t input = 0;
  double number = 0;
  std::array<int32_t, 3> arguments{-1, -1, -1};
};

struct Expression {
  std::vector<ExpressionNode> nodes;
};

// Throws Error(invalid_input) with the place in the text.
Expression parse_expression(std::string_view text);
std::string to_string(const Expression& expression);  // reads back to the same expression
int input_count(const Expression& expression);        // one more than the largest xK
double flops_of(const Expression& expression);
// `values` has room for every node.
double evaluate(const Expression& expression, std::span<const double> inputs, std::span<double> values);

class ExpressionBuilder {
 public:
  int32_t input(int32_t i);
  int32_t number(double value);
  int32_t call(Function function, int32_t a, int32_t b = -1, int32_t c = -1);  // simplified
  // All of `expression`, its input i being the node inputs[i]. Returns its result.
  int32_t insert(const Expression& expression, std::span<const int32_t> inputs);
  // What `result` needs. A node of `as_inputs` is taken for an input instead of computed.
  Expression take(int32_t result, std::span<const std::pair<int32_t, int32_t>> as_inputs = {}) const;

  // The derivatives of `result` times `gradient` by the nodes of `by`; -1 where `result` does not change with it.
  std::vector<int32_t> differentiate(int32_t result, int32_t gradient, std::span<const int32_t> by);

  const ExpressionNode& node(int32_t i) const { return nodes_[static_cast<size_t>(i)]; }
  bool is_number(int32_t i) const { return node(i).kind == ExpressionNode::Kind::number; }
  bool is_number(int32_t i, double value) const { return is_number(i) && node(i).number == value; }

 private:
  using Key = std::tuple<uint8_t, uint8_t, uint64_t, int32_t, int32_t, int32_t>;
  int32_t add(const ExpressionNode& node);
  int32_t simplified(Function function, int32_t a, int32_t b, int32_t c);
  int32_t power(int32_t a, double exponent);
  int32_t contribution(int32_t node, int argument, int32_t gradient);

  std::vector<ExpressionNode> nodes_;
  std::map<Key, int32_t> known_;
};

}  // namespace plimsoll
