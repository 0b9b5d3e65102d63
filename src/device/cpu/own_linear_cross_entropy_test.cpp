#include "tests/support/own_test.h"

namespace plimsoll {
namespace {

// Labels of which `share` of ten count.
std::vector<double> labels(int64_t rows, int64_t classes, int64_t share) {
  std::vector<double> result;
  for (int64_t r = 0; r < rows; ++r) result.push_back(r % 10 < share ? static_cast<double>(r * 7 % classes) : -100);
  return result;
}

OpCase test_case(const std::string& type, int64_t rows, int64_t share, bool transposed, bool bias) {
  const int64_t width = 20, classes = 70;
  OpCase test{.type = type,
              .inputs = {{{rows, width}}, {transposed ? Shape{width, classes} : Shape{classes, width}}},
              .attributes = {{"transposed", int64_t{transposed}},
                             {"ignore_index", int64_t{-100}},
                             {"label_smoothing", 0.1},
                             {"reduction", std::string("mean")}},
              .values = {{2, labels(rows, classes, share)}}};
  test.inputs.push_back({{rows}, DType::i64});
  if (type != "LinearCrossEntropyForward") {
    test.inputs.push_back({{}});
    test.attributes.set("gradients", std::string(bias ? "xwb" : "xw"));
  }
  if (bias) test.inputs.push_back({{classes}});
  return test;
}

// Every kernel that is offered: blocks of 32, 64 and 128 rows, and all rows at once.
TEST(OwnLinearCrossEntropy, IsTheReferenceByBlocksOfEveryLength) {
  for (const std::string part : {"Forward", "Backward", "Training"}) {
    for (const bool transposed : {false, true}) {
      for (const bool bias : {false, true}) {
        expect_like_reference(test_case("LinearCrossEntropy" + part, 150, 10, transposed, bias));
      }
    }
  }
}

TEST(OwnLinearCrossEntropy, GathersTheRowsThatCount) {
  for (const int64_t share : {1, 5, 9}) {
    for (const std::string part : {"Forward", "Backward", "Training"})
      expect_like_reference(test_case("LinearCrossEntropy" + part, 150, share, false, true));
  }
}

TEST(OwnLinearCrossEntropy, OfRowsThatDoNotCountTheGradientsAreZero) {
  expect_like_reference(test_case("LinearCrossEntropyBackward", 150, 0, false, true));
}

TEST(OwnLinearCrossEntropy, TakesWorkspaceForTheLogitsOfABlockOnly) {
  Graph graph;
  const TensorId x = graph.add_source("x", {4096, 64}, DType::f32, Role::input);
  const TensorId w = graph.add_source("w", {10000, 64}, DType::f32, Role::parameter);
  const TensorId labels = graph.add_source("labels", {4096}, DType::i64, Role::input);
  const OpId loss = graph.add_op("LinearCrossEntropyForward", "loss", "loss", {x, w, labels});
  const auto kernels = open_device("cpu", 1)->kernels(graph, graph.op(loss), LayoutFamily::plain);
  EXPECT_EQ(std::count_if(kernels.begin(), kernels.end(), [](const KernelSpec& k) { return k.exact; }), 1);
  EXPECT_TRUE(kernels.front().exact);
  for (const KernelSpec& kernel : kernels) {
    const int64_t rows = std::stoll(kernel.name.substr(std::string("rows=").size()));
    const Bytes logits{rows * 10000 * 4};
    EXPECT_GE(kernel.workspace, logits) << kernel.name;
    EXPECT_LE(kernel.workspace, logits + 8_MiB) << kernel.name;
  }
}

}  // namespace
}  // namespace plimsoll
