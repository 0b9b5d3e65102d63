#include "tests/support/own_test.h"

namespace plimsoll {
namespace {

const std::vector<Shape> kElementwiseShapes = {{2, 40, 13, 13}, {1, 3, 5, 7}, {2, 17, 3, 3},
                                               {2, 64, 12, 12}, {9, 33},      {5}};

TEST(OwnElementwise, ActivationsAreTheReference) {
  for (const char* name : {"Relu", "LeakyRelu", "Sigmoid", "Tanh"}) {
    for (const Shape& shape : kElementwiseShapes) {
      expect_like_reference({.type = std::string(name) + "Forward", .inputs = {{shape}}, .tolerance = 3e-7});
      expect_like_reference({.type = std::string(name) + "Backward", .inputs = {{shape}, {shape}}, .tolerance = 1e-6});
    }
  }
}

TEST(OwnElementwise, SigmoidAndTanhHoldFarOutAndNearZero) {
  std::vector<double> x;
  for (double m : {0.0, 1e-20, 1e-6, 0.3, 0.624, 0.626, 1.0, 5.0, 20.0, 87.0, 89.0, 1e4, 1e38})
    x.push_back(static_cast<float>(m)), x.push_back(static_cast<float>(-m));
  for (const char* name : {"SigmoidForward", "TanhForward"}) {
    expect_like_reference(
        {.type = name, .inputs = {{{static_cast<int64_t>(x.size())}}}, .values = {{0, x}}, .tolerance = 3e-7});
  }
}

TEST(OwnElementwise, AddsAnyNumberOfTensors) {
  for (const char* activation : {"none", "relu"}) {
    for (size_t count : {2, 3, 5}) {
      for (const Shape& shape : kElementwiseShapes) {
        expect_like_reference({.type = "Add",
                               .inputs = std::vector<TensorSpec>(count, {shape}),
                               .attributes = {{"activation", std::string(activation)}}});
      }
    }
  }
}

TEST(OwnElementwise, AConstantLeavesPaddingZero) {
  for (const Shape& shape : kElementwiseShapes) {
    expect_like_reference({.type = "Constant", .inputs = {}, .attributes = {{"shape", shape}, {"value", 1.5}}});
  }
  expect_like_reference({.type = "Constant", .inputs = {}, .attributes = {{"shape", Shape{}}, {"value", int64_t{1}}}});
}

}  // namespace
}  // namespace plimsoll
