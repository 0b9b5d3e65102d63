#include "tests/support/own_test.h"

namespace plimsoll {
namespace {

std::vector<double> labels(int64_t rows, int64_t classes) {
  std::vector<double> result;
  for (int64_t r = 0; r < rows; ++r) result.push_back(r % 5 == 4 ? -1 : static_cast<double>(r * 7 % classes));
  return result;
}

TEST(OwnLoss, SoftmaxCrossEntropyIsTheReference) {
  for (const Shape& shape : std::vector<Shape>{{64, 1000}, {7, 10}, {1, 1}, {33, 17}, {128, 100}}) {
    for (double smoothing : {0.0, 0.1}) {
      const Attributes attributes{{"label_smoothing", smoothing}};
      const TensorSpec label{{shape[0]}, DType::i32};
      const std::vector<double> answers = labels(shape[0], shape[1]);
      expect_like_reference({.type = "SoftmaxCrossEntropyForward",
                             .inputs = {{shape}, label},
                             .attributes = attributes,
                             .values = {{1, answers}},
                             .tolerance = 1e-6});
      expect_like_reference({.type = "SoftmaxCrossEntropyBackward",
                             .inputs = {{shape}, label, {{}}},
                             .attributes = attributes,
                             .values = {{1, answers}},
                             .tolerance = 1e-6});
    }
  }
}

TEST(OwnLoss, SoftmaxCrossEntropyIsTheReferenceByEveryReduction) {
  for (const std::string reduction : {"mean", "sum"}) {
    for (DType dtype : {DType::i32, DType::i64}) {
      const Attributes attributes{{"reduction", reduction}, {"ignore_index", int64_t{7}}};
      std::vector<double> answers;
      for (int i = 0; i < 40; ++i) answers.push_back(i * 7 % 50);
      expect_like_reference({.type = "SoftmaxCrossEntropyForward",
                             .inputs = {{{40, 50}}, {{40}, dtype}},
                             .attributes = attributes,
                             .values = {{1, answers}},
                             .tolerance = 1e-6});
      expect_like_reference({.type = "SoftmaxCrossEntropyBackward",
                             .inputs = {{{40, 50}}, {{40}, dtype}, {{}}},
                             .attributes = attributes,
                             .values = {{1, answers}},
                             .tolerance = 1e-6});
    }
  }
}

TEST(OwnLoss, OfEqualAnswersTheFirstCounts) {
  expect_like_reference({.type = "SoftmaxCrossEntropyForward",
                         .inputs = {{{3, 20}}, {{3}, DType::i32}},
                         .values = {{0, std::vector<double>(60, 2.0)}, {1, {0, 1, 19}}}});
}

TEST(OwnLoss, LargeLogitsDoNotOverflow) {
  std::vector<double> z;
  for (int i = 0; i < 100; ++i) z.push_back(static_cast<float>(1e4 * (i % 10 - 5)));
  expect_like_reference({.type = "SoftmaxCrossEntropyForward",
                         .inputs = {{{10, 10}}, {{10}, DType::i32}},
                         .values = {{0, z}, {1, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}},
                         .tolerance = 1e-6});
}

TEST(OwnLoss, ALabelBeyondTheClassesIsNamed) {
  Graph graph;
  const TensorId z = graph.add_source("z", {2, 3}, DType::f32, Role::input),
                 y = graph.add_source("y", {2}, DType::i32, Role::input);
  const Op op = graph.op(graph.add_op("SoftmaxCrossEntropyForward", "loss", "loss", {z, y}));
  const auto kernel = open_device("cpu", 1)->make_kernel(graph, op, "own");
  float logits[6] = {}, loss, p[6], correct;
  int32_t label[2] = {0, 3};
  own_test::Buffer workspace(kernel->workspace().count);
  kernel->bind(std::vector<void*>{logits, label}, std::vector<void*>{&loss, p, &correct}, workspace.data());
  try {
    kernel->run();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "row 1 has the label 3, but there are 3 classes");
  }
}

TEST(OwnLoss, SquaredAndSigmoidLossesAreTheReference) {
  for (const Shape& shape : std::vector<Shape>{{2, 40, 13, 13}, {1, 3, 5, 7}, {9, 33}, {6, 1, 1, 1}, {64, 1}}) {
    expect_like_reference({.type = "MeanSquaredErrorForward", .inputs = {{shape}, {shape}}, .tolerance = 1e-6});
    expect_like_reference({.type = "MeanSquaredErrorBackward", .inputs = {{shape}, {shape}, {{}}}, .tolerance = 1e-6});
    for (double target : {0.0, 0.9, 1.0}) {
      const Attributes attributes{{"target", target}};
      expect_like_reference(
          {.type = "SigmoidCrossEntropyForward", .inputs = {{shape}}, .attributes = attributes, .tolerance = 1e-6});
      expect_like_reference({.type = "SigmoidCrossEntropyBackward",
                             .inputs = {{shape}, {{}}},
                             .attributes = attributes,
                             .tolerance = 1e-6});
    }
  }
}

}  // namespace
}  // namespace plimsoll
