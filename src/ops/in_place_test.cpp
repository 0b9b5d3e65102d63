// What an op type allows to be overwritten, its reference kernel must survive: outputs that take inputs' bytes come out
// as they do in memory of their own.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

struct Case {
  std::string type;
  std::vector<Literal> inputs;  // without elements: drawn
  Attributes attributes;
};

struct OpOnData {
  Graph graph;
  OpId op;
  std::vector<Value> inputs, outputs;

  explicit OpOnData(const Case& c) {
    std::vector<TensorId> sources;
    for (const Literal& literal : c.inputs) {
      sources.push_back(
          graph.add_source(fmt::format("in{}", sources.size()), literal.shape, literal.dtype, Role::input));
    }
    op = graph.add_op(c.type, "op", "op", sources, c.attributes);
    Values values(graph);
    fill_sources(graph, values, 1);
    for (size_t i = 0; i < sources.size(); ++i) {
      for (size_t e = 0; e < c.inputs[i].elements.size(); ++e)
        values[sources[i]].set(static_cast<int64_t>(e), c.inputs[i].elements[e]);
      inputs.push_back(values[sources[i]]);
    }
    for (TensorId id : graph.op(op).outputs) outputs.push_back(values[id]);
  }

  // Runs with these outputs in their inputs' bytes; returns every output's bytes.
  std::vector<std::vector<std::byte>> outputs_with(const std::vector<InPlace>& pairs) {
    std::vector<Value> in = inputs, out = outputs;
    std::vector<TensorView> in_views, out_views;
    for (Value& value : in) in_views.push_back(value.view());
    for (Value& value : out) out_views.push_back(value.view());
    for (const InPlace& pair : pairs) {
      out_views[pair.output].data = in_views[pair.input].data;
    }
    graph.op(op).type->reference(graph.op(op), in_views, out_views);
    std::vector<std::vector<std::byte>> result;
    for (size_t i = 0; i < out.size(); ++i) {
      const std::byte* begin = static_cast<const std::byte*>(out_views[i].data);
      result.emplace_back(begin, begin + out[i].data.size());
    }
    return result;
  }
};

class InPlaceKernels : public ::testing::TestWithParam<Case> {};

TEST_P(InPlaceKernels, GiveWhatTheyGiveElsewhere) {
  OpOnData run(GetParam());
  const Op& op = run.graph.op(run.op);
  const std::vector<InPlace> pairs = op.type->in_place(run.graph, op);
  ASSERT_FALSE(pairs.empty());
  const auto expected = run.outputs_with({});
  for (const InPlace& a : pairs) {
    EXPECT_LE(run.outputs[a.output].data.size(), run.inputs[a.input].data.size());
    EXPECT_EQ(run.outputs_with({a}), expected) << a.output << " in " << a.input;
    for (const InPlace& b : pairs) {
      if (a.output == b.output || a.input == b.input) continue;
      EXPECT_EQ(run.outputs_with({a, b}), expected)
          << a.output << " in " << a.input << ", " << b.output << " in " << b.input;
    }
  }
}

const Literal kImage{{3, 2, 2, 3}, {}, DType::f32}, kChannel{{2}, {}, DType::f32}, kScalar{{}, {0.5}, DType::f32};
const Literal kMask{{3, 2, 2, 3}, {1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1}, DType::bit};
const Literal kRows{{4, 3}, {}, DType::f32}, kLabels{{4}, {2, 0, -1, 1}, DType::i32}, kCounter{{}, {3}, DType::i64};
const Attribute kRelu = std::string("relu"), kBoth = std::string("xw");

INSTANTIATE_TEST_SUITE_P(
    Families, InPlaceKernels,
    ::testing::Values(
        Case{"ReluForward", {kImage}, {}}, Case{"ReluBackward", {kImage, kImage}, {}},
        Case{"TanhBackward", {kImage, kImage}, {}}, Case{"Add", {kImage, kImage, kImage}, {{"activation", kRelu}}},
        Case{"BatchNormForward", {kImage, kChannel, kChannel, kChannel, kChannel}, {}},
        Case{"BatchNormForward", {kImage, kChannel, kChannel, kChannel, kChannel, kImage}, {{"activation", kRelu}}},
        Case{"BatchNormForward",
             {kImage, kChannel, kChannel, kChannel, {{2}, {0.5, 2}, DType::f32}, kImage},
             {{"training", int64_t{0}}}},
        Case{"BatchNormBackward", {kImage, kImage, kChannel, kChannel, kChannel}, {}},
        Case{"BatchNormBackward",
             {kImage, kImage, kChannel, kChannel, kChannel, kMask},
             {{"activation", kRelu}, {"residual", int64_t{1}}}},
        Case{"SyncBatchNormForward",
             {kImage, kChannel, kChannel, kChannel, kChannel, kChannel, {{2}, {5, 9}, DType::f32}, kImage},
             {{"activation", kRelu}, {"ranks", int64_t{2}}}},
        Case{"SyncBatchNormBackward",
             {kImage, kImage, kChannel, kChannel, {{2}, {5, 9}, DType::f32}, kChannel, kChannel, kMask},
             {{"activation", kRelu}, {"residual", int64_t{1}}, {"ranks", int64_t{2}}}},
        Case{"SumOverRanks", {kChannel, kChannel}, {{"ranks", int64_t{2}}}},
        Case{"DropoutForward", {kImage, kCounter, kCounter}, {{"p", 0.5}}},
        Case{"DropoutBackward", {kImage, kCounter, kCounter}, {{"p", 0.5}}},
        Case{"Reshape", {kRows}, {{"shape", Shape{12}}}},
        Case{"SoftmaxCrossEntropyForward", {kRows, kLabels}, {{"label_smoothing", 0.1}}},
        Case{"SoftmaxCrossEntropyBackward", {kRows, kLabels, kScalar}, {}},
        Case{"LinearCrossEntropyBackward", {kRows, {{5, 3}, {}, DType::f32}, kLabels, kScalar}, {{"gradients", kBoth}}},
        Case{"LinearCrossEntropyTraining", {kRows, {{5, 3}, {}, DType::f32}, kLabels, kScalar}, {{"gradients", kBoth}}},
        Case{"PointwiseLinearBackward",
             {kRows, kRows, {{5, 3}, {}, DType::f32}, {{4, 5}, {}, DType::f32}},
             {{"expression", std::string("mul(silu(x0),x1)")},
              {"operands", int64_t{2}},
              {"gradients", std::vector<int64_t>{0, 1, 2}}}},
        Case{"MeanSquaredErrorBackward", {kRows, kRows, kScalar}, {}},
        Case{"SigmoidCrossEntropyBackward", {kRows, kScalar}, {{"target", 1.0}}}),
    [](const auto& info) { return fmt::format("{}{}", info.param.type, info.index); });

}  // namespace
}  // namespace plimsoll
