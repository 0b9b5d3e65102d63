#include "tests/support/own_test.h"

namespace plimsoll {
namespace {

const std::vector<Shape> kShapes = {{2, 40, 13, 13}, {1, 3, 5, 7}, {2, 17, 3, 3}, {3, 20, 8, 8},  {2, 64, 12, 12},
                                    {5, 48, 1, 1},   {9, 33},      {1, 16, 2, 2}, {2, 130, 11, 9}};

OpCase forward(const Shape& shape, bool training, bool relu, bool residual, uint64_t seed) {
  const Shape channels{shape[1]};
  OpCase test{.type = "BatchNormForward", .inputs = {{shape}, {channels}, {channels}, {channels}, {channels}}};
  if (residual) test.inputs.push_back({shape});
  test.attributes = {{"training", int64_t{training}}, {"activation", std::string(relu ? "relu" : "none")}};
  std::vector<double> variance;
  for (int64_t c = 0; c < shape[1]; ++c) variance.push_back(0.5 + 0.25 * static_cast<double>(c % 7));
  test.values[4] = variance;
  test.seed = seed;
  return test;
}

TEST(OwnBatchNorm, ForwardIsTheReferenceInEveryForm) {
  uint64_t seed = 1;
  for (const Shape& shape : kShapes) {
    for (bool training : {true, false}) {
      for (bool relu : {true, false}) {
        for (bool residual : {true, false}) expect_like_reference(forward(shape, training, relu, residual, seed++));
      }
    }
  }
}

TEST(OwnBatchNorm, VarianceKeepsItsDigitsUnderALargeMean) {
  OpCase test = forward({2, 40, 13, 13}, true, false, false, 7);
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal(1000, 1);
  for (int64_t i = 0; i < element_count(test.inputs[0].shape); ++i)
    test.values[0].push_back(static_cast<float>(normal(random)));
  test.tolerance = 1e-4;
  expect_like_reference(test);
}

TEST(OwnBatchNorm, BackwardIsTheReferenceInEveryForm) {
  uint64_t seed = 100;
  for (const Shape& shape : kShapes) {
    for (bool relu : {true, false}) {
      for (bool residual : {true, false}) {
        const Shape channels{shape[1]};
        OpCase test{.type = "BatchNormBackward", .inputs = {{shape}, {shape}, {channels}, {channels}, {channels}}};
        if (relu) test.inputs.push_back({shape, DType::bit});
        test.attributes = {{"residual", int64_t{residual}}, {"activation", std::string(relu ? "relu" : "none")}};
        for (int64_t c = 0; c < shape[1]; ++c) test.values[4].push_back(0.5 + 0.25 * static_cast<double>(c % 7));
        test.seed = seed++;
        expect_like_reference(test);
      }
    }
  }
}

TEST(OwnBatchNorm, ARecomputationLeavesTheRunningStatisticsAlone) {
  Graph graph;
  std::vector<TensorId> in{graph.add_source("x", {2, 2, 4, 4}, DType::f32, Role::input)};
  for (const char* name : {"gamma", "beta", "mean", "variance"})
    in.push_back(graph.add_source(name, {2}, DType::f32, Role::input));
  const Op op = graph.op(graph.add_op("BatchNormForward", "bn", "bn", in));
  const auto kernel = open_device("cpu", 1)->make_kernel(graph, op, "own");
  float x[64] = {1, 2, 3}, channel[4][2] = {{1, 1}, {0, 0}, {5, 5}, {6, 6}}, y[64], mean[2], inv_std[2];
  own_test::Buffer workspace(kernel->workspace().count);
  kernel->bind(std::vector<void*>{x, channel[0], channel[1], channel[2], channel[3]},
               std::vector<void*>{y, mean, inv_std, nullptr, nullptr}, workspace.data());
  kernel->run();
  EXPECT_EQ(channel[2][0], 5);
  EXPECT_EQ(channel[3][1], 6);
  EXPECT_FLOAT_EQ(mean[0], 6.0f / 32);
}

TEST(OwnBatchNorm, TensorsInDifferentLayoutsAreRefused) {
  Graph graph;
  std::vector<TensorId> in{graph.add_source("x", {2, 2, 4, 4}, DType::f32, Role::input)};
  for (const char* name : {"gamma", "beta", "mean", "variance"})
    in.push_back(graph.add_source(name, {2}, DType::f32, Role::input));
  const Op op = graph.op(graph.add_op("BatchNormForward", "bn", "bn", in));
  graph.tensor(in[0]).layout = {"acdb"};
  try {
    open_device("cpu", 1)->make_kernel(graph, op, "own");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_STREQ(error.what(), "op 'bn' wants its tensors in one layout, but 'x' lies in 'acdb' and 'bn:0' in ''");
  }
}

}  // namespace
}  // namespace plimsoll
