// Convolutions: odd sizes, channels that are no multiple of a block, groups, dilation, lopsided padding.
#pragma once

#include <fmt/format.h>

#include "tests/conformance/case.h"

namespace plimsoll::conformance {

struct ConvolutionShape {
  int64_t n, c, h, w, k, r, s;
  int64_t stride = 1, dilation = 1, groups = 1;
  std::vector<int64_t> padding = {0, 0, 0, 0};
  bool bias = false, relu = false;
  std::vector<int64_t> output_padding = {0, 0};
};

inline std::vector<ConvolutionShape> convolution_shapes() {
  return {
      {.n = 2, .c = 16, .h = 9, .w = 7, .k = 16, .r = 3, .s = 3, .padding = {1, 1, 1, 1}},
      {.n = 1,
       .c = 3,
       .h = 17,
       .w = 15,
       .k = 20,
       .r = 7,
       .s = 7,
       .stride = 2,
       .padding = {3, 3, 3, 3},
       .bias = true,
       .relu = true},
      {.n = 2, .c = 3, .h = 31, .w = 33, .k = 64, .r = 11, .s = 11, .stride = 4, .padding = {2, 2, 2, 2}, .bias = true},
      {.n = 2, .c = 20, .h = 5, .w = 5, .k = 35, .r = 1, .s = 1, .bias = true},
      {.n = 3, .c = 32, .h = 7, .w = 7, .k = 64, .r = 1, .s = 1},
      {.n = 3, .c = 12, .h = 4, .w = 6, .k = 8, .r = 1, .s = 1, .bias = true, .relu = true},
      {.n = 2, .c = 9, .h = 4, .w = 5, .k = 12, .r = 1, .s = 1, .relu = true},
      {.n = 67, .c = 512, .h = 1, .w = 1, .k = 512, .r = 1, .s = 1},  // sums in rounds, and images that are left
      {.n = 2, .c = 32, .h = 8, .w = 9, .k = 32, .r = 1, .s = 1, .stride = 2},
      {.n = 3, .c = 16, .h = 10, .w = 11, .k = 32, .r = 3, .s = 3, .stride = 2, .padding = {1, 1, 1, 1}, .relu = true},
      {.n = 2, .c = 16, .h = 9, .w = 9, .k = 32, .r = 3, .s = 3, .dilation = 2, .padding = {2, 2, 2, 2}, .bias = true},
      {.n = 2, .c = 32, .h = 6, .w = 7, .k = 32, .r = 3, .s = 3, .groups = 2, .padding = {1, 1, 1, 1}, .bias = true},
      {.n = 1, .c = 12, .h = 6, .w = 7, .k = 20, .r = 3, .s = 3, .groups = 4, .padding = {1, 1, 1, 1}},
      {.n = 2, .c = 32, .h = 9, .w = 8, .k = 32, .r = 3, .s = 3, .groups = 32, .padding = {1, 1, 1, 1}},
      {.n = 1,
       .c = 20,
       .h = 9,
       .w = 8,
       .k = 20,
       .r = 3,
       .s = 3,
       .stride = 2,
       .groups = 20,
       .padding = {1, 1, 1, 1},
       .bias = true},
      {.n = 3, .c = 40, .h = 12, .w = 9, .k = 40, .r = 7, .s = 7, .groups = 40, .padding = {3, 3, 3, 3}, .bias = true},
      {.n = 2, .c = 16, .h = 5, .w = 6, .k = 16, .r = 5, .s = 9, .groups = 16, .padding = {2, 4, 2, 4}},
      {.n = 2, .c = 48, .h = 9, .w = 8, .k = 48, .r = 5, .s = 4, .dilation = 2, .groups = 48, .padding = {3, 2, 4, 3}},
      {.n = 5, .c = 33, .h = 3, .w = 2, .k = 33, .r = 5, .s = 5, .stride = 2, .groups = 33, .padding = {2, 2, 2, 2}},
      {.n = 2, .c = 24, .h = 8, .w = 8, .k = 24, .r = 1, .s = 7, .padding = {0, 3, 0, 3}},
      {.n = 2, .c = 16, .h = 8, .w = 8, .k = 16, .r = 4, .s = 3, .stride = 2, .padding = {1, 0, 2, 1}},
      {.n = 1, .c = 48, .h = 7, .w = 7, .k = 40, .r = 5, .s = 5, .padding = {2, 2, 2, 2}, .bias = true, .relu = true},
      // For this batch cuDNN has an engine that it has not for the one above.
      {.n = 4, .c = 48, .h = 7, .w = 7, .k = 40, .r = 5, .s = 5, .padding = {2, 2, 2, 2}},
      {.n = 2, .c = 1, .h = 14, .w = 14, .k = 8, .r = 4, .s = 4, .stride = 2, .padding = {1, 1, 1, 1}},
      {.n = 3, .c = 64, .h = 4, .w = 4, .k = 1, .r = 4, .s = 4},
      {.n = 2, .c = 64, .h = 14, .w = 14, .k = 64, .r = 3, .s = 3, .padding = {1, 1, 1, 1}, .bias = true, .relu = true},
      {.n = 2, .c = 30, .h = 13, .w = 10, .k = 50, .r = 3, .s = 3, .padding = {1, 1, 1, 1}, .bias = true},
  };
}
// c is what goes in, k what comes out.
inline std::vector<ConvolutionShape> transposed_shapes() {
  return {
      {.n = 2, .c = 32, .h = 4, .w = 5, .k = 16, .r = 4, .s = 4, .stride = 2, .padding = {1, 1, 1, 1}},
      {.n = 2, .c = 20, .h = 1, .w = 1, .k = 32, .r = 4, .s = 4, .bias = true},
      {.n = 1, .c = 16, .h = 8, .w = 8, .k = 3, .r = 4, .s = 4, .stride = 2, .padding = {1, 1, 1, 1}},
      {.n = 1, .c = 16, .h = 8, .w = 8, .k = 3, .r = 4, .s = 4, .stride = 2, .padding = {1, 1, 1, 1}, .bias = true},
      {.n = 2,
       .c = 16,
       .h = 5,
       .w = 6,
       .k = 24,
       .r = 3,
       .s = 3,
       .stride = 2,
       .padding = {1, 1, 1, 1},
       .bias = true,
       .output_padding = {1, 1}},
      {.n = 2, .c = 32, .h = 6, .w = 6, .k = 32, .r = 3, .s = 3, .padding = {1, 1, 1, 1}},
      {.n = 2,
       .c = 16,
       .h = 5,
       .w = 6,
       .k = 32,
       .r = 3,
       .s = 3,
       .stride = 2,
       .groups = 2,
       .padding = {1, 1, 1, 1},
       .bias = true},
      {.n = 2, .c = 12, .h = 5, .w = 6, .k = 8, .r = 3, .s = 3, .dilation = 2, .groups = 4, .padding = {1, 1, 1, 1}},
  };
}

inline std::string to_text(const ConvolutionShape& s) {
  return fmt::format("{}x{}x{}x{} -> {} by {}x{} stride {} dilation {} groups {} padding {}{}{}", s.n, s.c, s.h, s.w,
                     s.k, s.r, s.s, s.stride, s.dilation, s.groups, fmt::join(s.padding, ","), s.bias ? " bias" : "",
                     s.relu ? " relu" : "");
}

inline Attributes attributes_of(const ConvolutionShape& s) {
  return {{"stride", std::vector<int64_t>{s.stride, s.stride}},
          {"dilation", std::vector<int64_t>{s.dilation, s.dilation}},
          {"padding", s.padding},
          {"groups", s.groups}};
}

inline void add_convolution_cases(std::vector<Case>& cases, const ConvolutionShape& s, bool transposed) {
  const std::string text = to_text(s), prefix = transposed ? "ConvTranspose" : "Conv";
  const int64_t g = s.groups;
  const int64_t outer = transposed ? s.c : s.k, inner = transposed ? s.k : s.c;
  const Shape weights = g > 1 ? Shape{g, outer / g, inner / g, s.r, s.s} : Shape{outer, inner, s.r, s.s};
  const Shape image = {s.n, s.c, s.h, s.w};
  const double deviation = 1 / std::sqrt(static_cast<double>(s.c / g * s.r * s.s));
  Attributes forward = attributes_of(s);
  if (transposed) forward.set("output_padding", s.output_padding);
  // The forward op, to know the shape of y.
  auto build_forward = [=](CaseBuilder& b, const Attributes& attributes) {
    std::vector<TensorId> inputs = {b.normal(image), b.normal(weights, 0, deviation)};
    if (s.bias) inputs.push_back(b.normal({s.k}));
    return b.op(prefix + "Forward", inputs, attributes)[0];
  };
  cases.push_back({prefix + "Forward", text, [=](CaseBuilder& b) {
                     Attributes attributes = forward;
                     if (s.relu) attributes.set("activation", std::string("relu"));
                     build_forward(b, attributes);
                   }});
  cases.push_back({prefix + "BackwardData", text, [=](CaseBuilder& b) {
                     const Shape y = b.shape(build_forward(b, forward));
                     Attributes attributes = forward;
                     attributes.set("input_size", std::vector<int64_t>{s.h, s.w});
                     b.op(prefix + "BackwardData", {b.normal(y), b.normal(weights)}, attributes);
                   }});
  cases.push_back({prefix + "BackwardWeights", text, [=](CaseBuilder& b) {
                     const Shape y = b.shape(build_forward(b, forward));
                     Attributes attributes = forward;
                     attributes.set("kernel", std::vector<int64_t>{s.r, s.s});
                     attributes.set("bias", int64_t{s.bias});
                     b.op(prefix + "BackwardWeights", {b.normal(image), b.normal(y)}, attributes);
                   }});
}

// Images with depth: d x h x w, windows of q x r x s.
struct DeepConvolution {
  Shape x;        // N, C, D, H, W
  Shape weights;  // as the op has them
  int64_t k = 1;  // channels that come out
  Shape stride = {1, 1, 1}, dilation = {1, 1, 1};
  Shape padding = {0, 0, 0, 0, 0, 0};
  int64_t groups = 1;
  bool bias = false, transposed = false;
};
inline std::vector<DeepConvolution> deep_convolutions() {
  return {
      {{2, 3, 6, 9, 8}, {16, 3, 3, 7, 7}, 16, {1, 2, 2}, {1, 1, 1}, {1, 3, 3, 1, 3, 3}},
      {{2, 16, 4, 7, 6}, {20, 16, 3, 3, 3}, 20, {1, 1, 1}, {1, 1, 1}, {1, 1, 1, 1, 1, 1}, 1, true},
      {{1, 16, 5, 6, 6}, {24, 16, 3, 1, 1}, 24, {2, 1, 1}, {1, 1, 1}, {1, 0, 0, 1, 0, 0}},
      {{2, 20, 3, 5, 5}, {8, 20, 1, 1, 1}, 8, {1, 1, 1}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}, 1, true},
      {{2, 12, 4, 6, 5}, {4, 5, 3, 3, 3, 3}, 20, {1, 1, 1}, {1, 1, 1}, {1, 1, 1, 1, 1, 1}, 4, true},
      {{1, 8, 4, 5, 5}, {8, 1, 1, 3, 3, 3}, 8, {1, 1, 1}, {1, 1, 1}, {1, 1, 1, 1, 1, 1}, 8},
      {{1, 6, 7, 8, 8}, {10, 6, 3, 3, 3}, 10, {1, 1, 1}, {2, 2, 2}, {2, 2, 2, 2, 2, 2}, 1, true},
      {{2, 12, 3, 4, 4}, {12, 8, 2, 2, 2}, 8, {2, 2, 2}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}, 1, true, true},
      {{1, 16, 3, 4, 5}, {16, 6, 3, 4, 4}, 6, {1, 2, 2}, {1, 1, 1}, {1, 1, 1, 1, 1, 1}, 1, false, true},
      {{1, 8, 3, 4, 4}, {2, 4, 3, 3, 3, 3}, 6, {2, 2, 2}, {1, 1, 1}, {1, 1, 1, 1, 1, 1}, 2, false, true},
  };
}
inline void add_deep_cases(std::vector<Case>& cases, const DeepConvolution& s) {
  const std::string prefix = s.transposed ? "ConvTranspose" : "Conv";
  const std::string text =
      fmt::format("{} by {} stride {} dilation {} groups {}{}", to_string(s.x), to_string(s.weights),
                  to_string(s.stride), to_string(s.dilation), s.groups, s.bias ? " bias" : "");
  const Attributes forward = {
      {"stride", s.stride}, {"dilation", s.dilation}, {"padding", s.padding}, {"groups", s.groups}};
  const auto build_forward = [=](CaseBuilder& b) {
    std::vector<TensorId> inputs = {b.normal(s.x), b.normal(s.weights, 0, 0.1)};
    if (s.bias) inputs.push_back(b.normal({s.k}));
    return b.op(prefix + "Forward", inputs, forward)[0];
  };
  cases.push_back({prefix + "Forward", text, [=](CaseBuilder& b) { build_forward(b); }});
  cases.push_back({prefix + "BackwardData", text, [=](CaseBuilder& b) {
                     const Shape y = b.shape(build_forward(b));
                     Attributes attributes = forward;
                     attributes.set("input_size", Shape(s.x.begin() + 2, s.x.end()));
                     b.op(prefix + "BackwardData", {b.normal(y), b.normal(s.weights, 0, 0.1)}, attributes);
                   }});
  cases.push_back({prefix + "BackwardWeights", text, [=](CaseBuilder& b) {
                     const Shape y = b.shape(build_forward(b));
                     Attributes attributes = forward;
                     attributes.set("kernel", Shape(s.weights.end() - 3, s.weights.end()));
                     attributes.set("bias", int64_t{s.bias});
                     b.op(prefix + "BackwardWeights", {b.normal(s.x), b.normal(y)}, attributes);
                   }});
}

inline std::vector<Case> convolution_cases() {
  std::vector<Case> cases;
  for (const ConvolutionShape& shape : convolution_shapes()) add_convolution_cases(cases, shape, false);
  for (const ConvolutionShape& shape : transposed_shapes()) add_convolution_cases(cases, shape, true);
  for (const DeepConvolution& shape : deep_convolutions()) add_deep_cases(cases, shape);
  return cases;
}

}  // namespace plimsoll::conformance
