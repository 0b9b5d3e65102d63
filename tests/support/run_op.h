// For tests: one op on literal numbers.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "plimsoll/ops.h"
#include "tests/support/interpreter.h"

namespace plimsoll {

inline constexpr double kPrintedDigits = 1e-9;  // how far a literal with ten digits is from its number
inline auto agrees_with(const std::vector<double>& expected) {
  return ::testing::Pointwise(::testing::DoubleNear(kPrintedDigits), expected);
}

struct Literal {
  Shape shape;
  std::vector<double> elements;
  DType dtype = DType::f64;
};

// The outputs' elements, in row-major order.
inline std::vector<std::vector<double>> run_op(std::string_view type, const std::vector<Literal>& inputs,
                                               Attributes attributes = {}) {
  Graph graph;
  std::vector<TensorId> sources;
  for (const Literal& input : inputs) {
    sources.push_back(graph.add_source(fmt::format("in{}", sources.size()), input.shape, input.dtype, Role::input));
  }
  const OpId op = graph.add_op(type, "op", "op", sources, std::move(attributes));
  Values values(graph);
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (size_t e = 0; e < inputs[i].elements.size(); ++e) {
      values[sources[i]].set(static_cast<int64_t>(e), inputs[i].elements[e]);
    }
  }
  interpret(graph, values);
  std::vector<std::vector<double>> results;
  for (TensorId id : graph.op(op).outputs) {
    std::vector<double>& elements = results.emplace_back();
    for (int64_t e = 0; e < values[id].size(); ++e) elements.push_back(values[id].at(e));
  }
  return results;
}

// What add_op says about inputs of these shapes and dtypes; "" when it takes them.
inline std::string refusal(std::string_view type, const std::vector<Literal>& inputs, Attributes attributes = {}) {
  try {
    Graph graph;
    std::vector<TensorId> sources;
    for (const Literal& input : inputs) {
      sources.push_back(graph.add_source(fmt::format("in{}", sources.size()), input.shape, input.dtype, Role::input));
    }
    graph.add_op(type, "op", "op", sources, std::move(attributes));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace plimsoll
