#include "ops/expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "base/names.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

using F = Function;
using Kind = ExpressionNode::Kind;

constexpr int kDeepestCall = 256;
constexpr int kDeepestText = 64;  // what is deeper gets a name
constexpr double kPi = 3.14159265358979323846;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double largest(double a, double b) { return std::isnan(a) || a > b ? a : b; }
double least(double a, double b) { return std::isnan(a) || a < b ? a : b; }
constexpr double kGeluTanh = 0.79788456080286535588, kGeluCube = 0.044715;  // sqrt(2/pi)
double gelu_tanh(double x) { return 0.5 * x * (1 + std::tanh(kGeluTanh * (x + kGeluCube * x * x * x))); }
double gelu_derivative(double x) {
  return 0.5 * std::erfc(-x * std::sqrt(0.5)) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * kPi);
}
double gelu_tanh_derivative(double x) {
  const double t = std::tanh(kGeluTanh * (x + kGeluCube * x * x * x));
  return 0.5 * (1 + t + x * (1 - t * t) * kGeluTanh * (1 + 3 * kGeluCube * x * x));
}
double silu_derivative(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }

struct FunctionRow {
  std::string_view name;
  int arguments;
  double flops;
  double (*value)(const double*);
};
constexpr FunctionRow kTable[] = {
    {"add", 2, 1, [](const double* v) { return v[0] + v[1]; }},
    {"sub", 2, 1, [](const double* v) { return v[0] - v[1]; }},
    {"mul", 2, 1, [](const double* v) { return v[0] * v[1]; }},
    {"div", 2, 4, [](const double* v) { return v[0] / v[1]; }},
    {"pow", 2, 100, [](const double* v) { return std::pow(v[0], v[1]); }},
    {"max", 2, 1, [](const double* v) { return largest(v[0], v[1]); }},
    {"min", 2, 1, [](const double* v) { return least(v[0], v[1]); }},
    {"eq", 2, 1, [](const double* v) { return v[0] == v[1] ? 1.0 : 0.0; }},
    {"ne", 2, 1, [](const double* v) { return v[0] != v[1] ? 1.0 : 0.0; }},
    {"lt", 2, 1, [](const double* v) { return v[0] < v[1] ? 1.0 : 0.0; }},
    {"le", 2, 1, [](const double* v) { return v[0] <= v[1] ? 1.0 : 0.0; }},
    {"gt", 2, 1, [](const double* v) { return v[0] > v[1] ? 1.0 : 0.0; }},
    {"ge", 2, 1, [](const double* v) { return v[0] >= v[1] ? 1.0 : 0.0; }},
    {"and", 2, 1, [](const double* v) { return v[0] != 0 && v[1] != 0 ? 1.0 : 0.0; }},
    {"or", 2, 1, [](const double* v) { return v[0] != 0 || v[1] != 0 ? 1.0 : 0.0; }},
    {"neg", 1, 1, [](const double* v) { return -v[0]; }},
    {"abs", 1, 1, [](const double* v) { return std::abs(v[0]); }},
    {"exp", 1, 15, [](const double* v) { return std::exp(v[0]); }},
    {"log", 1, 20, [](const double* v) { return std::log(v[0]); }},
    {"log1p", 1, 25, [](const double* v) { return std::log1p(v[0]); }},
    {"expm1", 1, 35, [](const double* v) { return std::expm1(v[0]); }},
    {"sqrt", 1, 4, [](const double* v) { return std::sqrt(v[0]); }},
    {"rsqrt", 1, 8, [](const double* v) { return 1 / std::sqrt(v[0]); }},
    {"reciprocal", 1, 4, [](const double* v) { return 1 / v[0]; }},
    {"square", 1, 1, [](const double* v) { return v[0] * v[0]; }},
    {"sin", 1, 20, [](const double* v) { return std::sin(v[0]); }},
    {"cos", 1, 20, [](const double* v) { return std::cos(v[0]); }},
    {"atan", 1, 25, [](const double* v) { return std::atan(v[0]); }},
    {"erf", 1, 40, [](const double* v) { return std::erf(v[0]); }},
    {"sigmoid", 1, 20, [](const double* v) { return sigmoid(v[0]); }},
    {"tanh", 1, 30, [](const double* v) { return std::tanh(v[0]); }},
    {"relu", 1, 1, [](const double* v) { return v[0] <= 0 ? 0 : v[0]; }},
    {"gelu", 1, 45, [](const double* v) { return 0.5 * v[0] * std::erfc(-v[0] * std::sqrt(0.5)); }},
    {"gelu_tanh", 1, 38, [](const double* v) { return gelu_tanh(v[0]); }},
    {"silu", 1, 21, [](const double* v) { return v[0] * sigmoid(v[0]); }},
    {"gelu_derivative", 1, 65, [](const double* v) { return gelu_derivative(v[0]); }},
    {"gelu_tanh_derivative", 1, 48, [](const double* v) { return gelu_tanh_derivative(v[0]); }},
    {"silu_derivative", 1, 25, [](const double* v) { return silu_derivative(v[0]); }},
    {"softplus", 1, 45, [](const double* v) { return softplus(v[0]); }},
    {"mish", 1, 25, [](const double* v) { return v[0] * std::tanh(softplus(v[0])); }},
    {"hardsigmoid", 1, 4, [](const double* v) { return least(largest(v[0] + 3, 0), 6) / 6; }},
    {"hardswish", 1, 5, [](const double* v) { return v[0] * least(largest(v[0] + 3, 0), 6) / 6; }},
    {"sign", 1, 2, [](const double* v) { return v[0] > 0   ? 1.0
                                                : v[0] < 0 ? -1.0
                                                           : v[0]; }},
    {"floor", 1, 1, [](const double* v) { return std::floor(v[0]); }},
    {"round", 1, 1, [](const double* v) { return std::nearbyint(v[0]); }},  // halves to the even neighbour
    {"not", 1, 1, [](const double* v) { return v[0] == 0 ? 1.0 : 0.0; }},
    {"leaky_relu", 2, 2, [](const double* v) { return v[0] > 0 ? v[0] : v[1] * v[0]; }},
    {"elu", 2, 37, [](const double* v) { return v[0] > 0 ? v[0] : v[1] * std::expm1(v[0]); }},
    {"hardtanh", 3, 2, [](const double* v) { return least(largest(v[0], v[1]), v[2]); }},
    {"clamp", 3, 2, [](const double* v) { return least(largest(v[0], v[1]), v[2]); }},
    {"where", 3, 1, [](const double* v) { return v[0] != 0 ? v[1] : v[2]; }},
};
static_assert(std::size(kTable) == kFunctions);

const FunctionRow& row(F function) { return kTable[static_cast<size_t>(function)]; }

std::optional<F> function_named(std::string_view name) {
  for (int i = 0; i < kFunctions; ++i) {
    if (kTable[i].name == name) return static_cast<F>(i);
  }
  return std::nullopt;
}

uint64_t bits_of(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Reads with a stack of its own, so that the depth of the text costs no stack of the process.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::string_view text) : text_(text) {
    if (text.size() <= kMostExpressionText) return;
    throw Error(ErrorCode::invalid_input,
                fmt::format("an expression of {} characters; at most {} are read", text.size(), kMostExpressionText));
  }

  Expression parse() {
    for (;;) {
      skip_spaces();
      const size_t begin = at_;
      const std::string_view word = read_word();
      if (!word.empty() && is_next('=')) {
        name_value(word, begin);
        continue;
      }
      at_ = begin;
      const int32_t result = read_value();
      skip_spaces();
      if (at_ < text_.size()) fail(fmt::format("the end is expected, not '{}'", text_[at_]));
      return builder_.take(result);
    }
  }

 private:
  struct Open {
    F function;
    int given = 0;
    std::array<int32_t, 3> arguments{-1, -1, -1};
  };

  void name_value(std::string_view word, size_t begin) {
    if (word != fmt::format("t{}", named_.size())) {
      at_ = begin;
      fail(fmt::format("'{}' cannot be named; the next name is t{}", word, named_.size()));
    }
    ++at_;
    named_.push_back(read_value());
    if (!is_next(';')) fail("';' is expected after a named value");
    ++at_;
  }

  int32_t read_value() {
    std::vector<Open> open;
    for (;;) {
      int32_t value = read_leaf_or_open(open);
      while (value >= 0) {
        if (open.empty()) return value;
        value = give(open, value);
      }
    }
  }

  // A leaf's node, or -1 after the parenthesis of a call.
  int32_t read_leaf_or_open(std::vector<Open>& open) {
    skip_spaces();
    const size_t begin = at_;
    if (at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '.' || is_digit(text_[at_]))) return read_number();
    const std::string_view word = read_word();
    if (word.empty()) fail("a call, xK or a number is expected");
    if (is_next('(')) {
      ++at_;
      const std::optional<F> function = function_named(word);
      if (!function) {
        at_ = begin;
        std::vector<std::string> names;
        for (const FunctionRow& known : kTable) names.emplace_back(known.name);
        fail(unknown_name("function", word, names));
      }
      if (open.size() >= kDeepestCall) fail(fmt::format("calls stand {} deep in each other", open.size()));
      open.push_back({*function});
      return -1;
    }
    if (word == "inf") return checked(builder_.number(std::numeric_limits<double>::infinity()));
    if (word == "nan") return checked(builder_.number(std::numeric_limits<double>::quiet_NaN()));
    int32_t index = 0;
    const char* const end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data() + 1, end, index);
    const bool numbered = word.size() > 1 && error == std::errc() && stop == end;
    if (numbered && word[0] == 'x' && index < kMostExpressionInputs) return checked(builder_.input(index));
    if (numbered && word[0] == 't' && index < static_cast<int32_t>(named_.size()))
      return named_[static_cast<size_t>(index)];
    at_ = begin;
    fail(numbered && word[0] == 'x' ? fmt::format("'{}': there are x0 to x{}", word, kMostExpressionInputs - 1)
                                    : fmt::format("'{}' is no input, no number and nothing named before", word));
  }

  int32_t read_number() {
    const char* const end = text_.data() + text_.size();
    if (text_.substr(at_).starts_with("-inf")) {
      at_ += 4;
      return checked(builder_.number(-std::numeric_limits<double>::infinity()));
    }
    double value = 0;
    const auto [stop, error] = std::from_chars(text_.data() + at_, end, value);
    if (error != std::errc() || !std::isfinite(value)) fail("this is no number in the range of f64");
    at_ = static_cast<size_t>(stop - text_.data());
    return checked(builder_.number(value));
  }

  // Hands a value to the innermost call. Returns the call's node where that was the last, else -1.
  int32_t give(std::vector<Open>& open, int32_t value) {
    Open& call = open.back();
    const int wanted = row(call.function).arguments;
    call.arguments[static_cast<size_t>(call.given++)] = value;
    if (call.given < wanted) {
      if (!is_next(',')) fail(fmt::format("{} takes {} arguments", row(call.function).name, wanted));
      ++at_;
      return -1;
    }
    if (!is_next(')')) {
      fail(fmt::format("')' is expected: {} takes {} argument{}", row(call.function).name, wanted,
                       wanted == 1 ? "" : "s"));
    }
    ++at_;
    const int32_t node = builder_.call(call.function, call.arguments[0], call.arguments[1], call.arguments[2]);
    open.pop_back();
    return checked(node);
  }

  int32_t checked(int32_t node) {
    if (node >= static_cast<int32_t>(kMostExpressionNodes))
      fail(fmt::format("an expression has at most {} different values", kMostExpressionNodes));
    return node;
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || c == '_'; }
  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool is_next(char c) {
    skip_spaces();
    return at_ < text_.size() && text_[at_] == c;
  }
  std::string_view read_word() {
    const size_t begin = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || (at_ > begin && is_digit(text_[at_])))) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  [[noreturn]] void fail(const std::string& what) const {
    constexpr size_t kShown = 24;
    const std::string near = at_ < text_.size() ? fmt::format(", at '{}'", text_.substr(at_, kShown)) : "";
    throw Error(ErrorCode::invalid_input, fmt::format("the expression, character {}{}: {}", at_ + 1, near, what));
  }

  std::string_view text_;
  size_t at_ = 0;
  ExpressionBuilder builder_;
  std::vector<int32_t> named_;
};

}  // namespace

std::string_view to_string(Function function) { return row(function).name; }
int argument_count(Function function) { return row(function).arguments; }
double flops_of(Function function) { return row(function).flops; }
double evaluate(Function function, const double* arguments) { return row(function).value(arguments); }

Expression parse_expression(std::string_view text) { return ExpressionParser(text).parse(); }

std::string to_string(const Expression& expression) {
  const std::vector<ExpressionNode>& nodes = expression.nodes;
  std::vector<int> uses(nodes.size(), 0), depth(nodes.size(), 0);
  for (const ExpressionNode& node : nodes) {
    for (int32_t a : node.arguments) {
      if (a >= 0) ++uses[static_cast<size_t>(a)];
    }
  }
  std::vector<std::string> texts(nodes.size());
  std::string named;
  int names = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const ExpressionNode& node = nodes[i];
    if (node.kind == Kind::input) texts[i] = fmt::format("x{}", node.input);
    // A number that is not one has no sign here.
    if (node.kind == Kind::number) texts[i] = std::isnan(node.number) ? "nan" : fmt::format("{}", node.number);
    if (node.kind != Kind::call) continue;
    std::string text = fmt::format("{}(", row(node.function).name);
    for (int a = 0; a < row(node.function).arguments; ++a) {
      const size_t argument = static_cast<size_t>(node.arguments[static_cast<size_t>(a)]);
      text += (a > 0 ? "," : "") + texts[argument];
      depth[i] = std::max(depth[i], depth[argument] + 1);
    }
    text += ")";
    if (i + 1 < nodes.size() && (uses[i] > 1 || depth[i] >= kDeepestText)) {
      named += fmt::format("t{}={};", names, text);
      text = fmt::format("t{}", names++);
      depth[i] = 0;
    }
    texts[i] = std::move(text);
  }
  return named + texts.back();
}

int input_count(const Expression& expression) {
  int count = 0;
  for (const ExpressionNode& node : expression.nodes) {
    if (node.kind == Kind::input) count = std::max(count, node.input + 1);
  }
  return count;
}

double flops_of(const Expression& expression) {
  double flops = 0;
  for (const ExpressionNode& node : expression.nodes) {
    if (node.kind == Kind::call) flops += row(node.function).flops;
  }
  return flops;
}

double evaluate(const Expression& expression, std::span<const double> inputs, std::span<double> values) {
  size_t i = 0;
  for (const ExpressionNode& node : expression.nodes) {
    double& value = values[i++];
    switch (node.kind) {
      case Kind::input: value = inputs[static_cast<size_t>(node.input)]; break;
      case Kind::number: value = node.number; break;
      case Kind::call: {
        double arguments[3] = {};
        for (size_t a = 0; a < 3; ++a) {
          if (node.arguments[a] >= 0) arguments[a] = values[static_cast<size_t>(node.arguments[a])];
        }
        value = row(node.function).value(arguments);
        break;
      }
    }
  }
  return values[expression.nodes.size() - 1];
}

int32_t ExpressionBuilder::add(const ExpressionNode& node) {
  const uint64_t payload = node.kind == Kind::input    ? static_cast<uint64_t>(node.input)
                           : node.kind == Kind::number ? bits_of(node.number)
                                                       : 0;
  const Key key{static_cast<uint8_t>(node.kind),
                static_cast<uint8_t>(node.function),
                payload,
                node.arguments[0],
                node.arguments[1],
                node.arguments[2]};
  const auto [place, fresh] = known_.emplace(key, static_cast<int32_t>(nodes_.size()));
  if (fresh) nodes_.push_back(node);
  return place->second;
}

int32_t ExpressionBuilder::input(int32_t i) { return add({.kind = Kind::input, .input = i}); }

int32_t ExpressionBuilder::number(double value) {
  if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();
  return add({.kind = Kind::number, .number = value});
}

int32_t ExpressionBuilder::call(Function function, int32_t a, int32_t b, int32_t c) {
  const std::array<int32_t, 3> arguments{a, b, c};
  const int count = row(function).arguments;
  double values[3] = {};
  bool constant = true;
  for (int i = 0; i < count; ++i) {
    const int32_t argument = arguments[static_cast<size_t>(i)];
    constant = constant && is_number(argument);
    values[i] = node(argument).number;
  }
  if (constant) return number(row(function).value(values));
  if (const int32_t simple = simplified(function, a, b, c); simple >= 0) return simple;
  return add({.kind = Kind::call, .function = function, .arguments = arguments});
}

int32_t ExpressionBuilder::power(int32_t a, double exponent) {
  if (exponent == 0) return number(1);
  if (exponent == 1) return a;
  if (exponent == 2) return call(F::square, a);
  if (exponent == 3) return call(F::mul, call(F::square, a), a);
  if (exponent == 4) return call(F::square, call(F::square, a));
  if (exponent == 0.5) return call(F::sqrt, a);
  if (exponent == -1) return call(F::reciprocal, a);
  if (exponent == -0.5) return call(F::rsqrt, a);
  if (exponent == -2) return call(F::reciprocal, call(F::square, a));
  return -1;
}

// A simpler node for the call, or -1. Numbers stand on the right of what commutes.
int32_t ExpressionBuilder::simplified(Function function, int32_t a, int32_t b, int32_t c) {
  const auto is_call = [this](int32_t i, F f) { return node(i).kind == Kind::call && node(i).function == f; };
  const auto argument = [this](int32_t i, size_t k) { return node(i).arguments[k]; };
  switch (function) {
    case F::add:
      if (is_number(a)) return call(F::add, b, a);
      if (is_number(b, 0)) return a;
      if (is_call(b, F::neg)) return call(F::sub, a, argument(b, 0));
      if (is_call(a, F::neg)) return call(F::sub, b, argument(a, 0));
      break;
    case F::sub:
      if (is_number(b, 0)) return a;
      if (is_number(a, 0)) return call(F::neg, b);
      if (is_call(b, F::neg)) return call(F::add, a, argument(b, 0));
      break;
    case F::mul:
      if (is_number(a)) return call(F::mul, b, a);
      if (is_number(b, 1)) return a;
      if (is_number(b, -1)) return call(F::neg, a);
      if (is_number(b) && is_call(a, F::neg)) return call(F::mul, argument(a, 0), number(-node(b).number));
      if (is_number(b) && is_call(a, F::mul) && is_number(argument(a, 1)))
        return call(F::mul, argument(a, 0), number(node(argument(a, 1)).number * node(b).number));
      if (is_call(b, F::reciprocal)) return call(F::div, a, argument(b, 0));
      break;
    case F::div:
      if (is_number(b, 1)) return a;
      if (is_number(a, 1)) return call(F::reciprocal, b);
      if (is_number(b)) {  // where the product is the same to the bit
        int exponent = 0;
        if (std::abs(std::frexp(node(b).number, &exponent)) == 0.5 && std::abs(exponent) < 100)
          return call(F::mul, a, number(1 / node(b).number));
      }
      break;
    case F::neg:
      if (is_call(a, F::neg)) return argument(a, 0);
      if (is_call(a, F::sub)) return call(F::sub, argument(a, 1), argument(a, 0));
      if (is_call(a, F::mul) && is_number(argument(a, 1)))
        return call(F::mul, argument(a, 0), number(-node(argument(a, 1)).number));
      break;
    case F::pow:
      if (is_number(b)) return power(a, node(b).number);
      break;
    case F::where:
      if (is_number(a)) return node(a).number != 0 ? b : c;
      if (b == c) return b;
      break;
    case F::square:
      if (is_call(a, F::neg) || is_call(a, F::abs)) return call(F::square, argument(a, 0));
      break;
    case F::abs:
      if (is_call(a, F::neg) || is_call(a, F::abs)) return call(F::abs, argument(a, 0));
      break;
    case F::max:
    case F::min:
    case F::logical_and:
    case F::logical_or:
      if (is_number(a)) return call(function, b, a);
      break;
    default: break;
  }
  return -1;
}

int32_t ExpressionBuilder::insert(const Expression& expression, std::span<const int32_t> inputs) {
  std::vector<int32_t> placed;
  placed.reserve(expression.nodes.size());
  for (const ExpressionNode& node : expression.nodes) {
    switch (node.kind) {
      case Kind::input: placed.push_back(inputs[static_cast<size_t>(node.input)]); break;
      case Kind::number: placed.push_back(number(node.number)); break;
      case Kind::call: {
        std::array<int32_t, 3> arguments{-1, -1, -1};
        for (size_t a = 0; a < 3; ++a) {
          if (node.arguments[a] >= 0) arguments[a] = placed[static_cast<size_t>(node.arguments[a])];
        }
        placed.push_back(call(node.function, arguments[0], arguments[1], arguments[2]));
        break;
      }
    }
  }
  return placed.back();
}

Expression ExpressionBuilder::take(int32_t result, std::span<const std::pair<int32_t, int32_t>> as_inputs) const {
  std::vector<int32_t> as_input(nodes_.size(), -1);
  for (const auto& [node, i] : as_inputs) as_input[static_cast<size_t>(node)] = i;
  std::vector<bool> needed(nodes_.size(), false);
  needed[static_cast<size_t>(result)] = true;
  for (int32_t i = result; i >= 0; --i) {
    if (!needed[static_cast<size_t>(i)] || as_input[static_cast<size_t>(i)] >= 0) continue;
    for (int32_t a : node(i).arguments) {
      if (a >= 0) needed[static_cast<size_t>(a)] = true;
    }
  }
  Expression taken;
  std::vector<int32_t> renumbered(nodes_.size(), -1);
  for (int32_t i = 0; i <= result; ++i) {
    if (!needed[static_cast<size_t>(i)]) continue;
    ExpressionNode copy = node(i);
    if (const int32_t input = as_input[static_cast<size_t>(i)]; input >= 0) {
      copy = {.kind = Kind::input, .input = input};
    }
    for (int32_t& a : copy.arguments) {
      if (a >= 0) a = renumbered[static_cast<size_t>(a)];
    }
    renumbered[static_cast<size_t>(i)] = static_cast<int32_t>(taken.nodes.size());
    taken.nodes.push_back(copy);
  }
  return taken;
}

// The derivative of node `i` by one of its arguments, times `g`: -1 for none. Where a function's own value gives its
// slope it is used: the value may be at hand when the argument is not.
int32_t ExpressionBuilder::contribution(int32_t i, int which, int32_t g) {
  const ExpressionNode self = node(i);
  const int32_t x = self.arguments[0], y = self.arguments[1], z = self.arguments[2];
  const auto num = [this](double value) { return number(value); };
  const auto f1 = [this](F f, int32_t a) { return call(f, a); };
  const auto f2 = [this](F f, int32_t a, int32_t b) { return call(f, a, b); };
  const auto times = [&](int32_t slope) { return call(F::mul, g, slope); };
  const auto where = [&](int32_t condition, int32_t yes, int32_t no) { return call(F::where, condition, yes, no); };
  const int32_t zero = num(0);
  switch (self.function) {
    case F::add: return g;
    case F::sub: return which == 0 ? g : f1(F::neg, g);
    case F::mul: return times(which == 0 ? y : x);
    case F::div: return which == 0 ? f2(F::div, g, y) : f1(F::neg, times(f2(F::div, i, y)));
    case F::pow: {
      if (which == 0) {
        const int32_t slope = times(f2(F::mul, y, f2(F::pow, x, f2(F::sub, y, num(1)))));
        return is_number(y) ? slope : where(f2(F::eq, y, zero), zero, slope);
      }
      const int32_t flat = f2(F::logical_and, f2(F::eq, x, zero), f2(F::ge, y, zero));
      return where(flat, zero, times(f2(F::mul, i, f1(F::log, x))));
    }
    case F::max:
    case F::min: {  // equal arguments share
      const int32_t wins = f2(self.function == F::max ? F::gt : F::lt, which == 0 ? x : y, which == 0 ? y : x);
      return where(f2(F::eq, x, y), times(num(0.5)), where(wins, g, zero));
    }
    case F::neg: return f1(F::neg, g);
    case F::abs: return times(f1(F::sign, x));
    case F::exp: return times(i);
    case F::log: return f2(F::div, g, x);
    case F::log1p: return f2(F::div, g, f2(F::add, x, num(1)));
    case F::expm1: return times(f2(F::add, i, num(1)));
    case F::sqrt: return f2(F::div, times(num(0.5)), i);
    case F::rsqrt: return times(f2(F::mul, f2(F::mul, f1(F::square, i), i), num(-0.5)));
    case F::reciprocal: return f1(F::neg, times(f1(F::square, i)));
    case F::square: return times(f2(F::mul, x, num(2)));
    case F::sin: return times(f1(F::cos, x));
    case F::cos: return f1(F::neg, times(f1(F::sin, x)));
    case F::atan: return f2(F::div, g, f2(F::add, f1(F::square, x), num(1)));
    case F::erf: return times(f2(F::mul, f1(F::exp, f1(F::neg, f1(F::square, x))), num(2 / std::sqrt(kPi))));
    case F::sigmoid: return times(f2(F::mul, i, f2(F::sub, num(1), i)));
    case F::tanh: return times(f2(F::sub, num(1), f1(F::square, i)));
    case F::relu: return where(f2(F::gt, i, zero), g, zero);
    case F::gelu: return times(f1(F::gelu_derivative, x));
    case F::gelu_tanh: return times(f1(F::gelu_tanh_derivative, x));
    case F::silu: return times(f1(F::silu_derivative, x));
    case F::gelu_derivative: {  // the bell curve times 2 - x^2
      const int32_t square = f1(F::square, x);
      const int32_t bell = f2(F::mul, f1(F::exp, f2(F::mul, square, num(-0.5))), num(1 / std::sqrt(2 * kPi)));
      return times(f2(F::mul, bell, f2(F::sub, num(2), square)));
    }
    case F::gelu_tanh_derivative: {  // of (1 + t + x t') / 2 by t = tanh(u): t' + x t'' / 2
      const int32_t square = f1(F::square, x);
      const int32_t bent = f2(F::add, f2(F::mul, square, num(kGeluTanh * kGeluCube)), num(kGeluTanh));
      const int32_t t = f1(F::tanh, f2(F::mul, x, bent));
      const int32_t steep = f2(F::sub, num(1), f1(F::square, t));
      const int32_t u1 = f2(F::add, f2(F::mul, square, num(3 * kGeluTanh * kGeluCube)), num(kGeluTanh));
      const int32_t u2 = f2(F::mul, x, num(6 * kGeluTanh * kGeluCube));
      const int32_t bend = f2(F::sub, u2, f2(F::mul, f2(F::mul, t, num(2)), f1(F::square, u1)));
      return times(f2(F::mul, steep, f2(F::add, u1, f2(F::mul, f2(F::mul, x, num(0.5)), bend))));
    }
    case F::silu_derivative: {
      const int32_t s = f1(F::sigmoid, x), left = f2(F::sub, num(1), s);
      const int32_t bend = f2(F::add, f2(F::mul, x, f2(F::sub, left, s)), num(2));
      return times(f2(F::mul, f2(F::mul, s, left), bend));
    }
    case F::softplus: return times(f1(F::sigmoid, x));
    case F::mish: {
      const int32_t t = f1(F::tanh, f1(F::softplus, x));
      const int32_t steep = f2(F::mul, f2(F::mul, x, f1(F::sigmoid, x)), f2(F::sub, num(1), f1(F::square, t)));
      return times(f2(F::add, t, steep));
    }
    case F::hardsigmoid: {
      const int32_t inside = f2(F::logical_and, f2(F::gt, i, zero), f2(F::lt, i, num(1)));
      return where(inside, times(num(1.0 / 6)), zero);
    }
    case F::hardswish: {
      const int32_t bent = times(f2(F::add, f2(F::mul, x, num(1.0 / 3)), num(0.5)));
      return where(f2(F::ge, x, num(3)), g, where(f2(F::le, x, num(-3)), zero, bent));
    }
    case F::leaky_relu: {
      if (which == 1) return where(f2(F::gt, x, zero), zero, times(x));
      const bool keeps_sign = is_number(y) && node(y).number >= 0;
      return where(f2(F::gt, keeps_sign ? i : x, zero), g, times(y));
    }
    case F::elu: {
      if (which == 1) return where(f2(F::gt, x, zero), zero, times(f1(F::expm1, x)));
      if (is_number(y) && node(y).number >= 0) return where(f2(F::gt, i, zero), g, times(f2(F::add, i, y)));
      return where(f2(F::gt, x, zero), g, times(f2(F::mul, y, f1(F::exp, x))));
    }
    case F::hardtanh:
    case F::clamp: {
      const bool strict = self.function == F::hardtanh;
      // Where the least is above the largest, the largest is taken.
      if (which == 1) return where(f2(F::logical_and, f2(F::lt, x, y), f2(F::le, y, z)), g, zero);
      if (which == 2) return where(f2(F::gt, f2(F::max, x, y), z), g, zero);
      // The value tells what lies between the bounds, but not what lies on them from what was brought there.
      const int32_t of = strict ? i : x;
      const int32_t inside = f2(F::logical_and, f2(strict ? F::gt : F::ge, of, y), f2(strict ? F::lt : F::le, of, z));
      return where(inside, g, zero);
    }
    case F::where: return which == 0 ? -1 : which == 1 ? where(x, g, zero) : where(x, zero, g);
    case F::eq:
    case F::ne:
    case F::lt:
    case F::le:
    case F::gt:
    case F::ge:
    case F::logical_and:
    case F::logical_or:
    case F::logical_not:
    case F::sign:
    case F::floor:
    case F::round: return -1;
  }
  return -1;
}

std::vector<int32_t> ExpressionBuilder::differentiate(int32_t result, int32_t gradient, std::span<const int32_t> by) {
  const size_t count = static_cast<size_t>(result) + 1;
  std::vector<bool> leads(count, false);  // to one of `by`
  for (int32_t id : by) {
    if (id <= result) leads[static_cast<size_t>(id)] = true;
  }
  for (size_t i = 0; i < count; ++i) {
    for (int32_t a : nodes_[i].arguments) {
      if (a >= 0 && leads[static_cast<size_t>(a)]) leads[i] = true;
    }
  }
  std::vector<int32_t> adjoint(count, -1);
  adjoint.back() = gradient;
  for (int32_t i = result; i >= 0; --i) {
    const int32_t g = adjoint[static_cast<size_t>(i)];
    if (g < 0 || node(i).kind != Kind::call) continue;
    const std::array<int32_t, 3> arguments = node(i).arguments;
    for (size_t a = 0; a < 3; ++a) {
      if (arguments[a] < 0 || !leads[static_cast<size_t>(arguments[a])]) continue;
      const int32_t term = contribution(i, static_cast<int>(a), g);
      if (term < 0 || is_number(term, 0)) continue;
      int32_t& sum = adjoint[static_cast<size_t>(arguments[a])];
      sum = sum < 0 ? term : call(F::add, sum, term);
    }
  }
  std::vector<int32_t> derivatives;
  for (int32_t id : by) derivatives.push_back(id <= result ? adjoint[static_cast<size_t>(id)] : -1);
  return derivatives;
}

}  // namespace plimsoll
