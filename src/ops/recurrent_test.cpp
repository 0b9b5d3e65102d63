// Recurrent layers. Expected values are PyTorch's (2.15, double precision).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/gradient_check.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSteps = 3, kSequences = 2, kWidth = 3;

struct Sources {
  std::vector<TensorId> inputs;
  int64_t gates;
};
Sources add_sources(Graph& graph, const std::string& cell, bool bias, int64_t steps = kSteps) {
  const int64_t gates = cell == "lstm" ? 4 : cell == "gru" ? 3 : 1;
  const auto source = [&](const std::string& name, Shape shape) {
    return graph.add_source(name, std::move(shape), DType::f64, Role::input);
  };
  Sources sources{{source("x", {steps, kSequences, gates * kWidth}), source("w", {gates * kWidth, kWidth}),
                   source("h0", {kSequences, kWidth})},
                  gates};
  if (cell == "lstm") sources.inputs.push_back(source("c0", {kSequences, kWidth}));
  if (bias) sources.inputs.push_back(source("b", {gates * kWidth}));
  return sources;
}

Attributes of(const std::string& cell, int64_t reverse = 0) { return {{"cell", cell}, {"reverse", reverse}}; }

TEST(Recurrent, GradientsAgreeWithFiniteDifferences) {
  for (const std::string cell : {"lstm", "gru", "tanh", "relu"}) {
    for (const int64_t reverse : {0, 1}) {
      for (const int64_t steps : {int64_t{1}, kSteps}) {
        Graph graph;
        const Sources sources = add_sources(graph, cell, reverse == 0, steps);
        const OpId op = graph.add_op("RecurrentForward", "op", "op", sources.inputs, of(cell, reverse));
        EXPECT_EQ(check_gradients(graph, {graph.output(op)}, sources.inputs), "") << cell << reverse << steps;
        if (cell != "lstm") continue;
        EXPECT_EQ(check_gradients(graph, {graph.output(op, 1)}, sources.inputs), "") << "c" << reverse << steps;
        EXPECT_EQ(check_gradients(graph, {graph.output(op), graph.output(op, 1)}, sources.inputs), "");
      }
    }
  }
}

TEST(Recurrent, GoesThroughTheStepsFromEitherEnd) {
  // h = tanh(x + h'), of one number
  const Literal x{{3, 1, 1}, {0.5, -1, 2}}, w{{1, 1}, {1}}, h0{{1, 1}, {0.25}};
  const auto forward = run_op("RecurrentForward", {x, w, h0}, of("tanh"))[0];
  EXPECT_THAT(forward, ::testing::Pointwise(::testing::DoubleNear(1e-6), {0.6351490, -0.3494798, 0.9289290}));
  const auto backward = run_op("RecurrentForward", {x, w, h0}, of("tanh", 1))[0];
  EXPECT_THAT(backward, ::testing::Pointwise(::testing::DoubleNear(1e-6), {0.4446642, -0.0219703, 0.9780261}));
}

TEST(Recurrent, SaysWhatDoesNotFit) {
  const Literal x{{3, 1, 4}, std::vector<double>(12, 0)}, w{{4, 1}, {0, 0, 0, 0}}, h{{1, 1}, {0}};
  EXPECT_THAT(refusal("RecurrentForward", {x, w, h}, of("gru")), HasSubstr("'in1' is 4x1; 3x1 is expected"));
  EXPECT_THAT(refusal("RecurrentForward", {x, w, h}, of("lstn")), HasSubstr("did you mean 'lstm'"));
}

}  // namespace
}  // namespace plimsoll
