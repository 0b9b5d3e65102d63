#include "tests/support/own_test.h"

namespace plimsoll {
namespace {

struct LayerCase {
  int64_t rows = 150;
  std::string expression = "gelu(x0)";
  int64_t operands = 1, one_row = -1;
  bool transposed = false, bias = false, drops = false;
  std::vector<int64_t> gradients = {};  // none: forward
};

OpCase test_case(const LayerCase& c) {
  const int64_t width = 70, outputs = 20;
  OpCase test{
      .type = c.gradients.empty() ? "PointwiseLinearForward" : "PointwiseLinearBackward",
      .inputs = {},
      .attributes = {{"expression", c.expression}, {"operands", c.operands}, {"transposed", int64_t{c.transposed}}}};
  for (int64_t i = 0; i < c.operands; ++i)
    test.inputs.push_back({i == c.one_row ? Shape{width} : Shape{c.rows, width}});
  test.inputs.push_back({c.transposed ? Shape{width, outputs} : Shape{outputs, width}});
  if (c.drops) {
    test.attributes.set("p", 0.3);
    test.attributes.set("salt", int64_t{5});
    for (const double number : {3.0, 77.0}) {
      test.values[test.inputs.size()] = {number};
      test.inputs.push_back({{}, DType::i64});
    }
  }
  if (!c.gradients.empty()) {
    test.attributes.set("gradients", c.gradients);
    test.inputs.push_back({{c.rows, outputs}});
  } else if (c.bias) {
    test.inputs.push_back({{outputs}});
  }
  return test;
}

// Blocks of 128 rows, the last of 22, and all rows at once.
TEST(OwnPointwiseLinear, IsTheReferenceByBlocksOfEveryLength) {
  const std::string gated = "mul(silu(x0),x1)", biased = "gelu_tanh(add(x0,x1))";
  for (const LayerCase& c :
       {LayerCase{},
        {.transposed = true, .drops = true},
        {.expression = gated, .operands = 2, .bias = true},
        {.gradients = {0, 1, 2}},
        {.expression = gated, .operands = 2, .drops = true, .gradients = {0, 1, 2, 3}},
        {.expression = gated, .operands = 2, .transposed = true, .gradients = {0, 1, 2}},
        {.expression = biased, .operands = 2, .one_row = 1},
        {.expression = biased, .operands = 2, .one_row = 1, .gradients = {0, 1, 2}},
        {.expression = biased, .operands = 2, .one_row = 0, .gradients = {0}},
        {.expression = "mul(mul(x0,x1),x2)", .operands = 3, .gradients = {0, 1, 2}},
        {.expression = "mul(mul(x0,x1),x2)", .operands = 3, .one_row = 1, .gradients = {0, 1, 2}}}) {
    expect_like_reference(test_case(c));
  }
}

TEST(OwnPointwiseLinear, GivesTheGradientsThatAreWanted) {
  for (const std::vector<int64_t>& gradients : {std::vector<int64_t>{1}, {2}, {3}, {0, 3}}) {
    expect_like_reference(test_case({.expression = "mul(gelu_tanh(x0),x1)", .operands = 2, .gradients = gradients}));
  }
}

TEST(OwnPointwiseLinear, TakesWorkspaceForABlockOnly) {
  Graph graph;
  const TensorId h = graph.add_source("h", {4096, 1024}, DType::f32, Role::input);
  const TensorId w = graph.add_source("w", {256, 1024}, DType::f32, Role::parameter);
  const TensorId dy = graph.add_source("dy", {4096, 256}, DType::f32, Role::input);
  const OpId op = graph.add_op(
      "PointwiseLinearBackward", "mlp", "mlp", {h, w, dy},
      {{"expression", std::string("gelu(x0)")}, {"operands", int64_t{1}}, {"gradients", std::vector<int64_t>{0, 1}}});
  const auto kernels = open_device("cpu", 1)->kernels(graph, graph.op(op), LayoutFamily::plain);
  EXPECT_EQ(std::ranges::count_if(kernels, [](const KernelSpec& k) { return k.exact; }), 1);
  EXPECT_TRUE(kernels.front().exact);
  for (const KernelSpec& kernel : kernels) {
    const int64_t rows = std::stoll(kernel.name.substr(std::string("rows=").size()));
    const Bytes expression_and_gradient{rows * 1024 * 4 * 2};
    EXPECT_GE(kernel.workspace, expression_and_gradient) << kernel.name;
    EXPECT_LE(kernel.workspace, expression_and_gradient + 8_MiB) << kernel.name;
  }
}

}  // namespace
}  // namespace plimsoll
