// Interpolation and adaptive pooling. Expected values are PyTorch's (2.15, double precision).
#include "ops/resize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/gradient_check.h"
#include "tests/support/run_op.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

using Numbers = std::vector<double>;
using Integers = std::vector<int64_t>;

const Literal kPixels{{1, 1, 3, 4}, {0.1, 0.4, 0.9, 1.6, 2.5, 3.6, 4.9, 6.4, 8.1, 10, 12.1, 14.4}};

// Ten digits of numbers up to 15.
auto agrees(const Numbers& expected) { return ::testing::Pointwise(::testing::DoubleNear(1e-8), expected); }

// dy is the cosine of the element's number.
void expect_forward_and_backward(const Attributes& attributes, const Numbers& y, const Numbers& dx) {
  const std::vector<int64_t> size = attributes.integers("size");
  EXPECT_THAT(run_op("ResizeForward", {kPixels}, attributes)[0], agrees(y));
  Literal dy{{1, 1, size[0], size[1]}, {}};
  for (size_t i = 0; i < y.size(); ++i) dy.elements.push_back(std::cos(static_cast<double>(i)));
  Attributes backward = attributes;
  backward.set("input_size", Integers{3, 4});
  EXPECT_THAT(run_op("ResizeBackward", {dy}, backward)[0], agrees(dx));
}

Attributes resized(int64_t h, int64_t w, const char* mode, bool align_corners = false) {
  return {{"size", Integers{h, w}}, {"mode", std::string(mode)}, {"align_corners", int64_t{align_corners}}};
}
Attributes with_factors(Attributes attributes, double h, double w) {
  attributes.set("scale", std::vector<double>{h, w});
  return attributes;
}

TEST(Resize, TakesTheNearestElements) {
  expect_forward_and_backward(resized(5, 7, "nearest"), {0.1, 0.1, 0.4, 0.4, 0.9, 0.9, 1.6, 0.1, 0.1,  0.4,  0.4, 0.9,
                                                         0.9, 1.6, 2.5, 2.5, 3.6, 3.6, 4.9, 4.9, 6.4,  2.5,  2.5, 3.6,
                                                         3.6, 4.9, 4.9, 6.4, 8.1, 8.1, 10,  10,  12.1, 12.1, 14.4},
                              {2.148704526, -3.156341124, 0.4782982213, 1.867617068, -2.170640781, -1.341476831,
                               3.287143461, 0.1159432531, -1.710663396, 1.068993808, 0.8209466133, -0.8485702748});
  expect_forward_and_backward(with_factors(resized(5, 5, "nearest"), 1.7, 1.3),
                              {0.1, 0.1, 0.4, 0.9, 1.6, 0.1, 0.1, 0.4, 0.9, 1.6, 2.5,  2.5, 3.6,
                               4.9, 6.4, 2.5, 2.5, 3.6, 4.9, 6.4, 8.1, 8.1, 10,  12.1, 14.4},
                              {2.784134778, 0.3377554178, -1.13549253, -1.564773883, -2.551993224, 0.5686906207,
                               1.56776349, 1.125441836, -0.1396471984, -0.9999608264, -0.5328330203, 0.4241790073});
}

TEST(Resize, InterpolatesLinearly) {
  expect_forward_and_backward(
      resized(5, 6, "bilinear"),
      {0.1,   0.25, 0.4833333333, 0.8166666667, 1.25,        1.6,   1.06,  1.37, 1.816666667, 2.363333333, 3.01,
       3.52,  2.5,  3.05,         3.816666667,  4.683333333, 5.65,  6.4,   5.86, 6.65,        7.736666667, 8.923333333,
       10.21, 11.2, 8.1,          9.05,         10.35,       11.75, 13.25, 14.4},
      {2.072424001, -0.1793289937, -1.943009957, -0.2922256649, 2.294293522, 0.7798478361, -1.925700974, -1.333162478,
       1.612581824, 1.43189053, -1.149976725, -1.849048523});
  expect_forward_and_backward(
      resized(5, 6, "bilinear", true),
      {0.1,  0.28, 0.5, 0.8, 1.18, 1.6,  1.3,  1.72, 2.18, 2.72, 3.34, 4,     2.5,   3.16,  3.86,
       4.64, 5.5,  6.4, 5.3, 6.2,  7.14, 8.16, 9.26, 10.4, 8.1,  9.24, 10.42, 11.68, 13.02, 14.4},
      {1.846986517, -0.1298769484, -1.898133104, -0.1433967197, 2.365597543, 0.9838491816, -2.263993888, -1.290237262,
       1.34855941, 1.458900667, -1.160162448, -1.599508552});
  expect_forward_and_backward(
      with_factors(resized(5, 5, "bilinear"), 1.7, 1.3),
      {0.1,         0.2961538462, 0.6115384615, 1.034615385, 1.573076923, 1.017647059, 1.413800905,
       1.964479638, 2.622850679,  3.396606335,  2.429411765, 3.133257919, 4.045927602, 5.066289593,
       6.202036199, 5.629411765,  6.640950226,  7.91561086,  9.297963801, 10.79570136, 8.1,
       9.342307692, 10.88846154,  12.54230769,  14.31153846},
      {1.542882596, 0.7839964874, -0.8658255193, -1.368281707, -1.058770943, 0.5353893445, 1.327332733, 0.4267534746,
       -0.3912966189, -1.37365735, -0.582877175, 0.9076191445});
}

TEST(Resize, InterpolatesCubically) {
  expect_forward_and_backward(resized(2, 6, "bicubic"),
                              {0.4075412326, 0.6122070313, 1.018258102, 1.393200231, 2.040917969, 2.48030599,
                               6.763986545, 7.606542969, 9.056278935, 10.1739294, 11.86533203, 12.94261068},
                              {1.039815584, -0.2040095753, -1.08139601, 0.06942897258, 0.7483025623, -0.02549763653,
                               -0.7632506317, -0.06764990832, 1.071067763, 0.1320834066, -1.071654279, -0.2602622961});
  expect_forward_and_backward(
      resized(5, 2, "bicubic", true), {0.1, 1.6, 0.775, 3.25, 2.5, 6.4, 5.525, 10.85, 8.1, 14.4},
      {0.7019106174, 0, 0, -0.02537227878, -0.3306296974, 0, 0, 0.1434836041, 0.3735988754, 0, 0, -0.4413673382});
  expect_forward_and_backward(
      with_factors(resized(5, 3, "bicubic"), 1.7, 0.8),
      {-0.1148219075, 0.2238953991, 0.9362465965, 0.6539567105, 1.40991688, 2.536711696, 2.42749613, 3.870750423,
       5.680228369, 6.016238013, 8.183824315, 10.71277479, 8.732394869, 11.35335531, 14.33263827},
      {0.4797062992, 0.2828660045, -0.01244189097, -0.1973744865, -0.08699316861, -0.08102297566, -0.0331099795,
       0.01258694326, 0.3379561487, 0.4421363865, 0.2801685502, 0.05053807897});
}

TEST(Resize, GradientsAgreeWithFiniteDifferences) {
  for (const char* mode : {"nearest", "bilinear", "bicubic"}) {
    for (const auto& [h, w] : {std::pair<int64_t, int64_t>{7, 2}, {3, 9}}) {
      Graph graph;
      const TensorId x = graph.add_source("x", {2, 2, 3, 5}, DType::f64, Role::input);
      const OpId op = graph.add_op("ResizeForward", "r", "r", {x}, resized(h, w, mode));
      EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {x}), "") << mode;
    }
  }
}

TEST(Resize, NamesWhatDoesNotFit) {
  EXPECT_THAT(refusal("ResizeForward", {kPixels}, resized(5, 2, "area")),
              HasSubstr("mode is 'area'; 'nearest', 'bilinear' or 'bicubic' is expected"));
  EXPECT_THAT(refusal("ResizeForward", {kPixels}, resized(5, 2, "nearest", true)),
              HasSubstr("align_corners is for 'bilinear' and 'bicubic', mode is 'nearest'"));
  EXPECT_THAT(refusal("ResizeForward", {kPixels}, with_factors(resized(5, 2, "nearest"), -1, 2)),
              HasSubstr("scale is [-1, 2]; two numbers above 0 are expected"));
  EXPECT_THAT(refusal("ResizeForward", {{{3, 4}, {}}}, resized(5, 2, "nearest")),
              HasSubstr("4 dimensions are expected"));
}

TEST(AdaptivePool, AgreesWithPyTorch) {
  const Attributes attributes = {{"size", Integers{2, 3}}};
  const Attributes backward = {{"size", Integers{2, 3}}, {"input_size", Integers{3, 4}}};
  Literal dy{{1, 1, 2, 3}, {}};
  for (int i = 0; i < 6; ++i) dy.elements.push_back(std::cos(i));
  EXPECT_THAT(run_op("AdaptiveAvgPoolForward", {kPixels}, attributes)[0],
              agrees_with({1.65, 2.45, 3.45, 6.05, 7.65, 9.45}));
  EXPECT_THAT(
      run_op("AdaptiveAvgPoolBackward", {dy}, backward)[0],
      agrees_with({0.25, 0.3850755765, 0.03103886733, -0.1040367091, 0.00250187585, -0.0258334529, -0.06145649152,
                   -0.03312116277, -0.2474981242, -0.4109090294, -0.09249535885, 0.07091554637}));
  const auto most = run_op("AdaptiveMaxPoolForward", {kPixels}, attributes);
  EXPECT_THAT(most[0], agrees_with({3.6, 4.9, 6.4, 10, 12.1, 14.4}));
  EXPECT_THAT(most[1], ::testing::ElementsAre(5, 6, 7, 9, 10, 11));
  EXPECT_THAT(
      run_op("AdaptiveMaxPoolBackward", {dy, {{1, 1, 2, 3}, most[1], DType::i32}}, backward)[0],
      agrees_with({0, 0, 0, 0, 0, 1, 0.5403023059, -0.4161468365, 0, -0.9899924966, -0.6536436209, 0.2836621855}));
  const Attributes more = {{"size", Integers{4, 2}}};  // windows overlap
  EXPECT_THAT(run_op("AdaptiveAvgPoolForward", {kPixels}, more)[0],
              agrees_with({0.25, 1.25, 1.65, 3.45, 6.05, 9.45, 9.05, 13.25}));
  EXPECT_THAT(run_op("AdaptiveMaxPoolForward", {kPixels}, more)[0],
              agrees_with({0.4, 1.6, 3.6, 6.4, 10, 14.4, 10, 14.4}));
}

TEST(AdaptivePool, GradientsAgreeWithFiniteDifferences) {
  for (const char* type : {"AdaptiveAvgPoolForward", "AdaptiveMaxPoolForward"}) {
    for (const auto& [h, w] : {std::pair<int64_t, int64_t>{2, 3}, {1, 1}, {5, 8}}) {
      Graph graph;
      const TensorId x = graph.add_source("x", {2, 2, 3, 5}, DType::f64, Role::input);
      const OpId op = graph.add_op(type, "p", "p", {x}, {{"size", Integers{h, w}}});
      EXPECT_EQ(check_gradients(graph, {graph.output(op)}, {x}), "") << type;
    }
  }
}

}  // namespace
}  // namespace plimsoll
