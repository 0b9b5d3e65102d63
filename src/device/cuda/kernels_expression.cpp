#include "device/cuda/kernels_expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

// The program of an expression; `body` has room for it.
class ExpressionProgram {
 public:
  ExpressionProgram(const Op& op, const Expression& expression, RunExpression& body) : op_(op), body_(body) {
    const std::vector<ExpressionNode>& nodes = expression.nodes;
    std::vector<size_t> last_use(nodes.size(), nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (int32_t a : nodes[i].arguments) {
        if (a >= 0) last_use[static_cast<size_t>(a)] = i;
      }
    }
    std::vector<uint8_t> place(nodes.size(), 0);
    for (uint8_t r = kMostRegisters; r-- > 1;) free_.push_back(r);
    for (size_t i = 0; i < nodes.size(); ++i) {
      const ExpressionNode& node = nodes[i];
      std::array<uint8_t, 3> arguments{};
      for (size_t a = 0; a < 3; ++a) {
        if (node.arguments[a] < 0) continue;
        const size_t argument = static_cast<size_t>(node.arguments[a]);
        arguments[a] = place[argument];
        if (last_use[argument] == i) {
          free_.push_back(place[argument]);
          last_use[argument] = nodes.size();
        }
      }
      place[i] = i + 1 == nodes.size() ? 0 : take_register();
      switch (node.kind) {
        case ExpressionNode::Kind::input: add(kLoadInput, place[i], {static_cast<uint8_t>(node.input), 0, 0}); break;
        case ExpressionNode::Kind::number: add(kLoadNumber, place[i], {number(node.number), 0, 0}); break;
        case ExpressionNode::Kind::call: add(static_cast<uint8_t>(node.function), place[i], arguments); break;
      }
    }
  }

 private:
  uint8_t take_register() {
    if (free_.empty()) refuse(op_, fmt::format("CUDA keeps at most {} values of an expression", kMostRegisters));
    const uint8_t r = free_.back();
    free_.pop_back();
    return r;
  }
  uint8_t number(double value) {
    if (numbers_ == kMostNumbers) refuse(op_, fmt::format("CUDA takes at most {} numbers", kMostNumbers));
    body_.numbers[numbers_] = static_cast<float>(value);
    return static_cast<uint8_t>(numbers_++);
  }
  void add(uint8_t function, uint8_t to, const std::array<uint8_t, 3>& arguments) {
    const int32_t i = body_.length++;
    if (i == kMostInstructions)
      refuse(op_, fmt::format("its expression has more than {} steps, the most on CUDA", kMostInstructions));
    body_.function[i] = function;
    body_.to[i] = to;
    body_.a[i] = arguments[0], body_.b[i] = arguments[1], body_.c[i] = arguments[2];
  }

  const Op& op_;
  RunExpression& body_;
  std::vector<uint8_t> free_;
  int numbers_ = 0;
};

// False where it is no chain, or too long for one.
class Chain {
 public:
  Chain(const Expression& expression, RunChain& body) : nodes_(expression.nodes), body_(body) {}

  bool make() {
    if (nodes_.empty() || nodes_.back().kind != ExpressionNode::Kind::call) return false;
    int32_t before = -1;  // the call before
    for (int32_t i = 0; i < std::ssize(nodes_); ++i) {
      const ExpressionNode& node = nodes_[static_cast<size_t>(i)];
      if (node.kind != ExpressionNode::Kind::call) continue;
      if (body_.length == kMostChained || !add(node, before)) return false;
      before = i;
    }
    return true;
  }

 private:
  bool add(const ExpressionNode& node, int32_t before) {
    const int arguments = argument_count(node.function);
    uint8_t operands[3] = {kMade, kMade, kMade};
    bool takes_what_was_made = before < 0;
    for (int a = 0; a < arguments; ++a) {
      const int32_t argument = node.arguments[static_cast<size_t>(a)];
      takes_what_was_made = takes_what_was_made || argument == before;
      if (!operand(argument, before, operands[a])) return false;
    }
    if (!takes_what_was_made) return false;
    const int32_t i = body_.length++;
    body_.function[i] = static_cast<uint8_t>(node.function);
    body_.operands[i] = static_cast<uint8_t>(arguments);
    body_.a[i] = operands[0], body_.b[i] = operands[1], body_.c[i] = operands[2];
    return true;
  }
  bool operand(int32_t argument, int32_t before, uint8_t& operand) {
    const ExpressionNode& node = nodes_[static_cast<size_t>(argument)];
    switch (node.kind) {
      case ExpressionNode::Kind::call: return argument == before;
      case ExpressionNode::Kind::input:
        operand = static_cast<uint8_t>(node.input);
        return node.input < kMostChainInputs;
      case ExpressionNode::Kind::number: break;
    }
    if (numbers_ == kMostChained) return false;
    body_.numbers[numbers_] = static_cast<float>(node.number);
    operand = static_cast<uint8_t>(kFirstNumber + numbers_++);
    return true;
  }

  const std::vector<ExpressionNode>& nodes_;
  RunChain& body_;
  int numbers_ = 0;
};

}  // namespace

PreparedExpression::PreparedExpression(const Op& op, const Expression& expression, const WalkSizes& sizes,
                                       const std::vector<PointwiseSource>& inputs) {
  if (inputs.size() > static_cast<size_t>(kMostPointwiseInputs))
    refuse(op, fmt::format("it has {} inputs; CUDA takes at most {}", inputs.size(), kMostPointwiseInputs));
  ExpressionProgram(op, expression, general_);
  chained_ = inputs.size() <= static_cast<size_t>(kMostChainInputs) && Chain(expression, chain_).make();
  general_.sizes = chain_.sizes = sizes;
  std::copy(inputs.begin(), inputs.end(), general_.inputs);
  if (chained_) std::copy(inputs.begin(), inputs.end(), chain_.inputs);
}

InFours in_fours(const WalkSizes& sizes, const WalkSteps& steps, Number dtype) {
  if (dtype != Number::f32) return InFours::each;
  if (sizes.count == 0) return InFours::same;  // one element
  const int last = sizes.count - 1;
  if (sizes.size[last] % kFour != 0) return InFours::each;
  if (steps.step[last] == 0) return InFours::same;
  for (int d = 0; d < last; ++d) {
    if (steps.step[d] % kFour != 0) return InFours::each;
  }
  return steps.step[last] == 1 ? InFours::next : InFours::each;
}

PreparedExpression expression_of_rows(const Op& op, const Expression& expression, const std::vector<bool>& one_row,
                                      int64_t width) {
  WalkSizes sizes;
  sizes.count = 2;
  sizes.size[1] = width;
  std::vector<PointwiseSource> inputs(one_row.size());
  for (size_t i = 0; i < one_row.size(); ++i) {
    inputs[i].dtype = Number::f32;
    inputs[i].alongside = !one_row[i];
    inputs[i].steps.step[1] = 1;
    inputs[i].fours = one_row[i] ? in_fours(sizes, inputs[i].steps, Number::f32) : InFours::each;
  }
  return {op, expression, sizes, inputs};
}

}  // namespace plimsoll::cuda
