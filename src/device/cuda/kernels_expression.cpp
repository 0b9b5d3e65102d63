#include "device/cuda/kernels_expression.h"

#include <fmt/format.h>

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

}  // namespace

void write_program(const Op& op, const Expression& expression, RunExpression& body) {
  ExpressionProgram(op, expression, body);
}

RunExpression expression_of_rows(const Op& op, const Expression& expression, const std::vector<bool>& one_row,
                                 int64_t width) {
  if (one_row.size() > static_cast<size_t>(kMostPointwiseInputs))
    refuse(op, fmt::format("it has {} inputs; CUDA takes at most {}", one_row.size(), kMostPointwiseInputs));
  RunExpression body{};
  write_program(op, expression, body);
  body.sizes.count = 2;
  body.sizes.size[1] = width;
  for (size_t i = 0; i < one_row.size(); ++i) {
    body.inputs[i].dtype = Number::f32;
    body.inputs[i].alongside = !one_row[i];
    body.inputs[i].steps.step[1] = 1;
  }
  return body;
}

}  // namespace plimsoll::cuda
