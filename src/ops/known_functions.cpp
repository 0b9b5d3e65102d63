#include "ops/known_functions.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

namespace plimsoll {
namespace {

using Kind = ExpressionNode::Kind;

constexpr Function kKnown[] = {Function::gelu_tanh, Function::gelu, Function::silu, Function::mish};
constexpr Function kAnalytic[] = {Function::add,     Function::sub,        Function::mul,   Function::div,
                                  Function::neg,     Function::exp,        Function::log1p, Function::expm1,
                                  Function::square,  Function::reciprocal, Function::erf,   Function::tanh,
                                  Function::sigmoid, Function::softplus,   Function::pow};
constexpr size_t kMostNodes = 24;  // of what is looked at
constexpr int kFewestCalls = 2;
constexpr std::array<double, 20> kPlaces = {-12,   -7.3, -5.1, -3.7, -2.9, -2.1, -1.4, -0.9, -0.55, -0.21,
                                            -0.03, 0.04, 0.3,  0.77, 1.3,  1.9,  2.6,  3.4,  4.8,   11};

bool near(double value, double expected) {  // constants are written with 8 digits and more
  return std::abs(value - expected) <= 3e-8 * (0.1 + std::abs(expected));
}

class Recognition {
 public:
  explicit Recognition(const Expression& expression) : nodes_(expression.nodes) {}

  // What `result` is a known function of, if it is one.
  std::optional<std::pair<Function, int32_t>> of(int32_t result) const {
    if (!is_analytic(result)) return {};
    for (int32_t argument = result - 1; argument >= 0; --argument) {
      if (at(argument).kind == Kind::number) continue;
      const std::vector<int32_t> between = calls_between(result, argument);
      if (std::ssize(between) < kFewestCalls) continue;
      for (Function known : kKnown) {
        if (is(known, between, argument)) return std::pair(known, argument);
      }
    }
    return {};
  }

 private:
  const ExpressionNode& at(int32_t i) const { return nodes_[static_cast<size_t>(i)]; }
  bool is_analytic(int32_t i) const {
    return at(i).kind == Kind::call && std::ranges::find(kAnalytic, at(i).function) != std::end(kAnalytic);
  }

  // The calls that make `result` of `argument` and numbers alone, in their order; none where something else is read.
  std::vector<int32_t> calls_between(int32_t result, int32_t argument) const {
    std::vector<int32_t> calls, open = {result};
    bool reads_argument = false;
    while (!open.empty()) {
      const int32_t i = open.back();
      open.pop_back();
      if (i == argument) reads_argument = true;
      if (i == argument || at(i).kind == Kind::number || std::ranges::find(calls, i) != calls.end()) continue;
      if (i < argument || !is_analytic(i) || calls.size() == kMostNodes) return {};
      calls.push_back(i);
      for (int32_t a : at(i).arguments) {
        if (a >= 0) open.push_back(a);
      }
    }
    std::ranges::sort(calls);
    return reads_argument ? calls : std::vector<int32_t>{};
  }

  bool is(Function known, const std::vector<int32_t>& calls, int32_t argument) const {
    std::vector<double> values(nodes_.size());
    for (double x : kPlaces) {
      values[static_cast<size_t>(argument)] = x;
      for (int32_t i : calls) values[static_cast<size_t>(i)] = value_of(at(i), values);
      if (!near(values[static_cast<size_t>(calls.back())], evaluate(known, &x))) return false;
    }
    return true;
  }
  double value_of(const ExpressionNode& call, const std::vector<double>& values) const {
    double arguments[3] = {};
    for (size_t a = 0; a < 3; ++a) {
      const int32_t i = call.arguments[a];
      if (i >= 0) arguments[a] = at(i).kind == Kind::number ? at(i).number : values[static_cast<size_t>(i)];
    }
    return evaluate(call.function, arguments);
  }

  const std::vector<ExpressionNode>& nodes_;
};

}  // namespace

Expression with_known_functions(const Expression& expression) {
  const Recognition recognition(expression);
  ExpressionBuilder builder;
  std::vector<int32_t> now;
  bool any = false;
  for (int32_t i = 0; i < std::ssize(expression.nodes); ++i) {
    const ExpressionNode& node = expression.nodes[static_cast<size_t>(i)];
    const auto there = [&](int32_t a) { return a < 0 ? -1 : now[static_cast<size_t>(a)]; };
    if (const auto known = recognition.of(i)) {
      now.push_back(builder.call(known->first, there(known->second)));
      any = true;
    } else if (node.kind == Kind::input) {
      now.push_back(builder.input(node.input));
    } else if (node.kind == Kind::number) {
      now.push_back(builder.number(node.number));
    } else {
      now.push_back(
          builder.call(node.function, there(node.arguments[0]), there(node.arguments[1]), there(node.arguments[2])));
    }
  }
  return any ? builder.take(now.back()) : expression;
}

}  // namespace plimsoll
