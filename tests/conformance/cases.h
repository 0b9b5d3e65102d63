// The cases of every other op type.
#pragma once

#include <fmt/format.h>

#include "tests/conformance/attention_cases.h"
#include "tests/conformance/case.h"
#include "tests/conformance/convolution_cases.h"
#include "tests/conformance/move_cases.h"
#include "tests/conformance/norm_cases.h"
#include "tests/conformance/recurrent_cases.h"
#include "tests/conformance/sort_cases.h"

namespace plimsoll::conformance {

inline std::vector<Case> fully_connected_cases() {
  struct Sizes {
    int64_t n, c, k;
    bool bias, relu;
  };
  std::vector<Case> cases;
  for (const Sizes s : {Sizes{4, 20, 10, true, false},
                        {1, 64, 33, false, false},
                        {7, 100, 64, true, true},
                        {16, 256, 128, true, false}}) {
    const std::string text =
        fmt::format("{}x{} -> {}{}{}", s.n, s.c, s.k, s.bias ? " bias" : "", s.relu ? " relu" : "");
    cases.push_back({"FullyConnectedForward", text, [=](CaseBuilder& b) {
                       std::vector<TensorId> inputs = {b.normal({s.n, s.c}), b.normal({s.k, s.c})};
                       if (s.bias) inputs.push_back(b.normal({s.k}));
                       Attributes attributes;
                       if (s.relu) attributes.set("activation", std::string("relu"));
                       b.op("FullyConnectedForward", inputs, attributes);
                     }});
    cases.push_back({"FullyConnectedBackwardData", text, [=](CaseBuilder& b) {
                       b.op("FullyConnectedBackwardData", {b.normal({s.n, s.k}), b.normal({s.k, s.c})});
                     }});
    cases.push_back({"FullyConnectedBackwardWeights", text, [=](CaseBuilder& b) {
                       b.op("FullyConnectedBackwardWeights", {b.normal({s.n, s.c}), b.normal({s.n, s.k})},
                            {{"bias", int64_t{s.bias}}});
                     }});
  }
  return cases;
}

inline std::vector<Case> pool_cases() {
  struct Sizes {
    Shape x;
    Integers kernel, stride, padding;
    bool ceil = false;
    bool count_padding = true;
    Integers dilation = {1, 1};  // of max pooling
  };
  const std::vector<Sizes> sizes = {
      {{2, 16, 8, 8}, {2, 2}, {2, 2}, {0, 0, 0, 0}},
      {{1, 20, 9, 7}, {3, 3}, {2, 2}, {1, 1, 1, 1}},
      {{2, 3, 9, 8}, {3, 3}, {2, 2}, {1, 1, 1, 1}, false, false},
      {{2, 24, 10, 13}, {3, 3}, {2, 2}, {0, 0, 0, 0}, true},
      {{2, 24, 10, 13}, {3, 3}, {2, 2}, {1, 1, 1, 1}, true},
      {{2, 24, 10, 13}, {3, 3}, {2, 2}, {1, 1, 1, 1}, true, false},
      {{3, 16, 6, 5}, {3, 3}, {1, 1}, {1, 1, 1, 1}},
      {{2, 3, 9, 12}, {3, 3}, {2, 2}, {1, 1, 1, 1}},
      {{2, 4, 8, 8}, {3, 3}, {2, 2}, {0, 0, 0, 0}, true},
      {{2, 4, 10, 8}, {2, 2}, {2, 2}, {1, 1, 1, 1}},
      {{3, 35, 7, 7}, {7, 7}, {1, 1}, {0, 0, 0, 0}},
      {{2, 17, 11, 12}, {5, 5}, {3, 3}, {0, 0, 0, 0}},
      {{1, 1, 5, 4}, {2, 3}, {1, 2}, {0, 1, 1, 0}},
      {{2, 20, 16, 16}, {16, 16}, {1, 1}, {0, 0, 0, 0}},
      {{2, 20, 12, 11}, {3, 3}, {2, 2}, {1, 1, 1, 1}, false, true, {2, 2}},
      {{2, 16, 12, 11}, {2, 3}, {1, 2}, {2, 0, 2, 1}, true, true, {3, 1}},
  };
  std::vector<Case> cases;
  for (const Sizes& s : sizes) {
    const std::string text =
        fmt::format("{} by {} stride {} padding {}{}{}", fmt::join(s.x, "x"), fmt::join(s.kernel, "x"),
                    fmt::join(s.stride, "x"), fmt::join(s.padding, ","), s.ceil ? " ceil" : "",
                    s.count_padding ? "" : " padding not counted") +
        (s.dilation == Integers{1, 1} ? "" : fmt::format(" dilation {}", fmt::join(s.dilation, "x")));
    Attributes attributes = {
        {"kernel", s.kernel}, {"stride", s.stride}, {"padding", s.padding}, {"ceil_mode", int64_t{s.ceil}}};
    Attributes average = attributes;
    attributes.set("dilation", s.dilation);
    average.set("count_include_pad", int64_t{s.count_padding});
    auto with_input_size = [s](Attributes a) {
      a.set("input_size", Integers{s.x[2], s.x[3]});
      return a;
    };
    if (s.dilation == Integers{1, 1}) {
      cases.push_back(
          {"AvgPoolForward", text, [=](CaseBuilder& b) { b.op("AvgPoolForward", {b.normal(s.x)}, average); }});
      cases.push_back({"AvgPoolBackward", text, [=](CaseBuilder& b) {
                         const Shape y = b.shape(b.op("AvgPoolForward", {b.normal(s.x)}, average)[0]);
                         b.op("AvgPoolBackward", {b.normal(y)}, with_input_size(average));
                       }});
    }
    if (!s.count_padding) continue;
    cases.push_back(
        {"MaxPoolForward", text, [=](CaseBuilder& b) { b.op("MaxPoolForward", {b.normal(s.x)}, attributes); }});
    cases.push_back(
        {"MaxPoolBackward", text, [=](CaseBuilder& b) {
           const auto forward = b.op("MaxPoolForward", {b.normal(s.x)}, attributes);
           b.op("MaxPoolBackward", {b.normal(b.shape(forward[0])), forward[1]}, with_input_size(attributes));
         }});
  }
  // Negative numbers beside padding, and equal ones: the first wins.
  cases.push_back({"MaxPoolForward", "all equal", [](CaseBuilder& b) {
                     b.op("MaxPoolForward", {b.uniform({1, 20, 6, 6}, -1, -1)},
                          {{"kernel", Integers{3, 3}}, {"stride", Integers{2, 2}}, {"padding", Integers{1, 1, 1, 1}}});
                   }});
  return cases;
}

inline const std::vector<Shape>& any_shapes() {
  static const std::vector<Shape> shapes = {{2, 20, 5, 7}, {1, 16, 3, 3}, {3, 64, 8, 8}, {4, 37}, {129}, {2, 3, 4, 5}};
  return shapes;
}

inline std::vector<Case> elementwise_cases() {
  std::vector<Case> cases;
  // In pieces of rows, and in strips of columns.
  for (const Shape& shape : {Shape{9000, 8}, Shape{70, 520}, Shape{3, 1000}, Shape{6, 24, 30, 31}}) {
    cases.push_back(
        {"BiasBackward", to_string(shape), [=](CaseBuilder& b) { b.op("BiasBackward", {b.normal(shape)}); }});
  }
  for (const Shape& shape : any_shapes()) {
    const std::string text = to_string(shape);
    for (const std::string kind : {"Relu", "LeakyRelu", "Sigmoid", "Tanh"}) {
      Attributes attributes;
      if (kind == "LeakyRelu") attributes.set("slope", 0.2);
      cases.push_back(
          {kind + "Forward", text, [=](CaseBuilder& b) { b.op(kind + "Forward", {b.normal(shape)}, attributes); }});
      cases.push_back({kind + "Backward", text, [=](CaseBuilder& b) {
                         const TensorId y = b.op(kind + "Forward", {b.normal(shape)}, attributes)[0];
                         b.op(kind + "Backward", {b.normal(shape), y}, attributes);
                       }});
    }
    for (int terms : {2, 3, 5}) {
      cases.push_back({"Add", fmt::format("{} {} terms", text, terms), [=](CaseBuilder& b) {
                         std::vector<TensorId> inputs;
                         for (int i = 0; i < terms; ++i) inputs.push_back(b.normal(shape));
                         b.op("Add", inputs, {{"activation", std::string(terms == 3 ? "relu" : "none")}});
                       }});
    }
    cases.push_back({"Constant", text, [=](CaseBuilder& b) {
                       b.op("Constant", {}, {{"shape", shape}, {"value", 0.5}});
                     }});
    if (shape.size() > 1) {
      cases.push_back({"BiasForward", text, [=](CaseBuilder& b) {
                         b.op("BiasForward", {b.normal(shape), b.normal({shape[1]})});
                       }});
      cases.push_back({"BiasBackward", text, [=](CaseBuilder& b) { b.op("BiasBackward", {b.normal(shape)}); }});
    }
    for (const int64_t part : {0, 3}) {
      const std::string of_part = part == 0 ? text : fmt::format("{} of part {}", text, part);
      cases.push_back({"DropoutForward", of_part, [=](CaseBuilder& b) {
                         b.op("DropoutForward", {b.normal(shape), b.number(3), b.seed(77, part)},
                              {{"p", 0.3}, {"salt", int64_t{5}}});
                       }});
      cases.push_back({"DropoutBackward", of_part, [=](CaseBuilder& b) {
                         b.op("DropoutBackward", {b.normal(shape), b.number(4), b.seed(77, part)},
                              {{"p", 0.5}, {"salt", int64_t{6}}});
                       }});
      for (const double p : {0.0, 0.3, 1.0}) {
        cases.push_back(
            {"Bernoulli", fmt::format("{} p {}", of_part, p), [=](CaseBuilder& b) {
               b.op("Bernoulli", {b.number(4), b.seed(78, part)}, {{"shape", shape}, {"salt", int64_t{3}}, {"p", p}});
             }});
      }
      cases.push_back({"RandomNormal", of_part, [=](CaseBuilder& b) {
                         b.op("RandomNormal", {b.number(4), b.seed(78, part)},
                              {{"shape", shape}, {"salt", int64_t{2}}, {"mean", 1.0}, {"stddev", 0.25}});
                       }});
    }
  }
  cases.push_back({"Constant", "scalar", [](CaseBuilder& b) {
                     b.op("Constant", {}, {{"shape", Integers{}}, {"value", 1.0}});
                   }});
  cases.push_back({"Reshape", "", [](CaseBuilder& b) {
                     b.op("Reshape", {b.normal({2, 20, 3, 3})}, {{"shape", Integers{2, 180}}});
                   }});
  cases.push_back({"StopGradient", "", [](CaseBuilder& b) { b.op("StopGradient", {b.normal({2, 20, 3, 3})}); }});
  return cases;
}

inline std::vector<Case> batch_norm_cases() {
  std::vector<Case> cases;
  for (const Shape& x : {Shape{2, 20, 5, 7}, Shape{3, 64, 8, 8}, Shape{1, 16, 4, 4}, Shape{2, 3, 6, 5}, Shape{8, 37}}) {
    for (const bool relu : {false, true}) {
      for (const bool residual : {false, true}) {
        const std::string activation = relu ? "relu" : "none";
        const std::string text = fmt::format("{}{}{}", to_string(x), relu ? " relu" : "", residual ? " residual" : "");
        auto build = [=](CaseBuilder& b, bool training) {
          const Shape c = {x[1]};
          std::vector<TensorId> inputs = {b.normal(x, 0.5, 2), b.normal(c, 1, 0.3), b.normal(c), b.normal(c),
                                          b.uniform(c, 0.5, 2)};
          if (residual) inputs.push_back(b.normal(x));
          const auto outputs =
              b.op("BatchNormForward", inputs,
                   {{"training", int64_t{training}}, {"activation", activation}, {"epsilon", 1e-4}, {"momentum", 0.2}});
          return std::pair(inputs, outputs);
        };
        cases.push_back({"BatchNormForward", text + " training", [=](CaseBuilder& b) { build(b, true); }});
        cases.push_back({"BatchNormForward", text + " evaluation", [=](CaseBuilder& b) { build(b, false); }});
        cases.push_back(
            {"BatchNormBackward", text, [=](CaseBuilder& b) {
               const auto [in, out] = build(b, true);
               std::vector<TensorId> inputs = {in[0], b.normal(x), in[1], out[1], out[2]};
               if (relu) inputs.push_back(out[5]);
               b.op("BatchNormBackward", inputs, {{"activation", activation}, {"residual", int64_t{residual}}});
             }});
        // One of three ranks, which have found much the same.
        const Attributes whole = {
            {"activation", activation}, {"epsilon", 1e-4}, {"momentum", 0.2}, {"ranks", int64_t{3}}};
        auto sync = [=](CaseBuilder& b) {
          const Shape c = {x[1]};
          const double count = 3.0 * static_cast<double>(element_count(x) / x[1]);
          std::vector<TensorId> inputs = {
              b.normal(x, 0.5, 2),   b.normal(c, 1, 0.3),           b.normal(c), b.normal(c), b.uniform(c, 0.5, 2),
              b.normal(c, 0.5, 0.2), b.uniform(c, count, 5 * count)};
          if (residual) inputs.push_back(b.normal(x));
          return std::pair(inputs, b.op("SyncBatchNormForward", inputs, whole));
        };
        cases.push_back({"SyncBatchNormForward", text, [=](CaseBuilder& b) { sync(b); }});
        cases.push_back({"SyncBatchNormBackward", text, [=](CaseBuilder& b) {
                           const auto [in, out] = sync(b);
                           std::vector<TensorId> inputs = {in[0], b.normal(x),      in[1],           in[5],
                                                           in[6], b.normal({x[1]}), b.normal({x[1]})};
                           if (relu) inputs.push_back(out[3]);
                           Attributes attributes = whole;
                           attributes.set("residual", int64_t{residual});
                           b.op("SyncBatchNormBackward", inputs, attributes);
                         }});
        if (residual) continue;
        cases.push_back({"BatchNormGradientSums", text, [=](CaseBuilder& b) {
                           const auto [in, out] = sync(b);
                           std::vector<TensorId> inputs = {in[0], b.normal(x), in[5], in[6]};
                           if (relu) inputs.push_back(out[3]);
                           b.op("BatchNormGradientSums", inputs, whole);
                         }});
        if (relu) continue;
        cases.push_back({"BatchMoments", text, [=](CaseBuilder& b) { b.op("BatchMoments", {b.normal(x, 30, 2)}); }});
      }
    }
  }
  return cases;
}

inline std::vector<Case> other_image_cases() {
  std::vector<Case> cases;
  for (const Shape& x : {Shape{2, 20, 5, 7}, Shape{1, 3, 4, 4}, Shape{2, 64, 6, 6}}) {
    const Attributes lrn = {{"size", int64_t{5}}, {"alpha", 0.1}, {"beta", 0.75}, {"k", 2.0}};
    cases.push_back({"LrnForward", to_string(x), [=](CaseBuilder& b) { b.op("LrnForward", {b.normal(x)}, lrn); }});
    cases.push_back({"LrnBackward", to_string(x), [=](CaseBuilder& b) {
                       b.op("LrnBackward", {b.normal(x), b.normal(x)}, lrn);
                     }});
  }
  for (const Integers& channels : {Integers{16, 32}, Integers{20, 12, 7}, Integers{64, 3}}) {
    cases.push_back({"Concat", fmt::format("channels {}", fmt::join(channels, "+")), [=](CaseBuilder& b) {
                       std::vector<TensorId> inputs;
                       for (int64_t c : channels) inputs.push_back(b.normal({2, c, 5, 3}));
                       b.op("Concat", inputs, {{"axis", int64_t{1}}});
                     }});
    cases.push_back({"Slice", fmt::format("after {} take {}", channels[0], channels[1]), [=](CaseBuilder& b) {
                       int64_t all = 0;
                       for (int64_t c : channels) all += c;
                       b.op("Slice", {b.normal({2, all, 5, 3})},
                            {{"axis", int64_t{1}}, {"begin", channels[0]}, {"size", channels[1]}});
                     }});
  }
  cases.push_back({"Concat", "images", [](CaseBuilder& b) {
                     b.op("Concat", {b.normal({2, 20, 3, 3}), b.normal({1, 20, 3, 3})}, {{"axis", int64_t{0}}});
                   }});
  cases.push_back(
      {"Slice", "images", [](CaseBuilder& b) {
         b.op("Slice", {b.normal({5, 20, 3, 3})}, {{"axis", int64_t{0}}, {"begin", int64_t{1}}, {"size", int64_t{3}}});
       }});
  cases.push_back({"Concat", "rows", [](CaseBuilder& b) {
                     b.op("Concat", {b.normal({4, 20}), b.normal({4, 9})}, {{"axis", int64_t{1}}});
                   }});
  return cases;
}

inline std::vector<Case> loss_cases() {
  std::vector<Case> cases;
  struct Sizes {
    int64_t n, classes;
    double smoothing;
  };
  for (const Sizes s : {Sizes{8, 10, 0.0}, {5, 37, 0.1}, {1, 1000, 0.0}, {7, 5008, 0.1}, {3, 4099, 0.0}}) {
    const std::string text = fmt::format("{}x{} smoothing {}", s.n, s.classes, s.smoothing);
    const Attributes attributes = {{"label_smoothing", s.smoothing}};
    cases.push_back({"SoftmaxCrossEntropyForward", text, [=](CaseBuilder& b) {
                       b.op("SoftmaxCrossEntropyForward",
                            {b.normal({s.n, s.classes}, 0, 3), b.labels(s.n, s.classes, s.n > 5)}, attributes);
                     }});
    cases.push_back({"SoftmaxCrossEntropyBackward", text, [=](CaseBuilder& b) {
                       const TensorId labels = b.labels(s.n, s.classes, s.n > 5);
                       const auto forward =
                           b.op("SoftmaxCrossEntropyForward", {b.normal({s.n, s.classes}, 0, 3), labels}, attributes);
                       b.op("SoftmaxCrossEntropyBackward", {forward[1], labels, b.scalar(0.7)}, attributes);
                     }});
    for (const std::string reduction : {"mean", "sum"}) {
      Attributes reduced = attributes;
      reduced.set("reduction", reduction);
      reduced.set("ignore_index", int64_t{3});
      auto build = [=](CaseBuilder& b, bool backward) {
        const TensorId labels = b.wide_labels(s.n, s.classes, 3);
        const auto forward = b.op("SoftmaxCrossEntropyForward", {b.normal({s.n, s.classes}, 0, 3), labels}, reduced);
        if (backward) b.op("SoftmaxCrossEntropyBackward", {forward[1], labels, b.scalar(0.7)}, reduced);
      };
      cases.push_back({"SoftmaxCrossEntropyForward", text + " " + reduction, [=](CaseBuilder& b) { build(b, false); }});
      cases.push_back({"SoftmaxCrossEntropyBackward", text + " " + reduction, [=](CaseBuilder& b) { build(b, true); }});
    }
  }
  struct Linear {
    int64_t n, width, classes;
    bool transposed = false, bias = false;
    std::string gradients = "xw", reduction = "mean";
  };
  for (const Linear& s : {Linear{8, 5, 10},
                          {80, 20, 37, true},
                          {70, 16, 100, false, true, "xwb"},
                          {40, 7, 9, true, true, "wb"},
                          {150, 6, 5, false, true, "xwb", "sum"},
                          {70, 8, 1043, false, true, "xwb"},  // and with columns apart
                          {130, 12, 4107, false, false, "xw", "sum"},
                          {1, 1, 1, false, false, "x"}}) {
    const std::string text =
        fmt::format("{}x{}x{}{}{}", s.n, s.width, s.classes, s.transposed ? " transposed" : "", s.bias ? " bias" : "");
    for (const std::string type :
         {"LinearCrossEntropyForward", "LinearCrossEntropyBackward", "LinearCrossEntropyTraining"}) {
      cases.push_back(
          {type, text, [=](CaseBuilder& b) {
             Attributes attributes = {
                 {"transposed", int64_t{s.transposed}}, {"label_smoothing", 0.1}, {"reduction", s.reduction}};
             const bool wide = s.reduction == "mean";
             if (wide) attributes.set("ignore_index", int64_t{-1});
             const Shape weights = s.transposed ? Shape{s.width, s.classes} : Shape{s.classes, s.width};
             std::vector<TensorId> inputs = {b.normal({s.n, s.width}), b.normal(weights),
                                             wide ? b.wide_labels(s.n, s.classes, -1) : b.labels(s.n, s.classes, true)};
             if (type != "LinearCrossEntropyForward") {
               inputs.push_back(b.scalar(0.7));
               attributes.set("gradients", s.gradients);
             }
             if (s.bias) inputs.push_back(b.normal({s.classes}));
             b.op(type, inputs, attributes);
           }});
    }
  }
  for (const Shape& shape : any_shapes()) {
    const std::string text = to_string(shape);
    const Attributes target = {{"target", 0.9}};
    cases.push_back({"MeanSquaredErrorForward", text, [=](CaseBuilder& b) {
                       b.op("MeanSquaredErrorForward", {b.normal(shape), b.normal(shape)});
                     }});
    cases.push_back({"MeanSquaredErrorBackward", text, [=](CaseBuilder& b) {
                       b.op("MeanSquaredErrorBackward", {b.normal(shape), b.normal(shape), b.scalar(0.7)});
                     }});
    cases.push_back({"SigmoidCrossEntropyForward", text,
                     [=](CaseBuilder& b) { b.op("SigmoidCrossEntropyForward", {b.normal(shape, 0, 3)}, target); }});
    cases.push_back({"SigmoidCrossEntropyBackward", text, [=](CaseBuilder& b) {
                       b.op("SigmoidCrossEntropyBackward", {b.normal(shape, 0, 3), b.scalar(0.7)}, target);
                     }});
  }
  return cases;
}

inline std::vector<Case> update_cases() {
  std::vector<Case> cases;
  for (const Shape& shape : {Shape{20, 16, 3, 3}, Shape{5}, Shape{1000, 33}}) {
    for (const double momentum : {0.0, 0.9}) {
      for (const bool nesterov : {false, true}) {
        if (nesterov && momentum == 0) continue;
        cases.push_back({"SgdUpdate",
                         fmt::format("{} momentum {}{}", to_string(shape), momentum, nesterov ? " nesterov" : ""),
                         [=](CaseBuilder& b) {
                           std::vector<TensorId> inputs = {b.normal(shape), b.normal(shape), b.scalar(0.1)};
                           if (momentum != 0) inputs.push_back(b.normal(shape));
                           b.op("SgdUpdate", inputs,
                                {{"momentum", momentum}, {"weight_decay", 1e-2}, {"nesterov", int64_t{nesterov}}});
                         }});
      }
    }
    for (const bool decoupled : {false, true}) {
      cases.push_back(
          {"AdamUpdate", fmt::format("{}{}", to_string(shape), decoupled ? " decoupled" : ""), [=](CaseBuilder& b) {
             b.op("AdamUpdate",
                  {b.normal(shape), b.normal(shape), b.scalar(0.01), b.number(decoupled ? 0 : 6), b.normal(shape),
                   b.uniform(shape, 0.5, 2)},
                  {{"beta1", 0.9},
                   {"beta2", 0.99},
                   {"epsilon", 1e-6},
                   {"weight_decay", 1e-2},
                   {"decoupled", int64_t{decoupled}}});
           }});
    }
    // A state by an expression, the parameter by another, and a value that several read.
    for (const auto& [place, expression] :
         {std::pair{2, "where(lt(x3,0),x2,add(mul(0.9,x2),square(add(x1,mul(x4,x0)))))"},
          std::pair{0, "where(lt(x3,0),x0,sub(x0,mul(x4,div(x1,add(sqrt(x2),1e-3)))))"},
          std::pair{-1, "mul(div(sqrt(add(x2,x4)),sqrt(add(x0,8))),x1)"}}) {
      for (const double scale : {1.0, -1.0}) {
        cases.push_back(
            {"PointwiseUpdate", fmt::format("{} place {} scale {}", to_string(shape), place, scale),
             [=, place = place, expression = std::string(expression)](CaseBuilder& b) {
               b.op("PointwiseUpdate",
                    {b.normal(shape), b.normal(shape), b.uniform(shape, 0.5, 2), b.scalar(scale), b.scalar(0.1)},
                    {{"expression", expression}, {"place", int64_t{place}}});
             }});
      }
    }
  }
  return cases;
}

// By what is known of the parameter's rows and columns.
inline std::vector<Case> factored_update_cases() {
  std::vector<Case> cases;
  for (const Shape& shape : {Shape{20, 16, 3, 3}, Shape{64, 128}, Shape{10, 84}, Shape{5, 1}}) {
    Shape rows = shape, columns = shape;
    rows.back() = 1;
    columns[shape.size() - 2] = 1;
    for (const int64_t place : {0, -1}) {
      cases.push_back({"PointwiseUpdate", fmt::format("{} by rows and columns, place {}", to_string(shape), place),
                       [=](CaseBuilder& b) {
                         b.op("PointwiseUpdate",
                              {b.normal(shape), b.normal(shape), b.uniform(rows, 0.5, 2), b.uniform(columns, 0.5, 2)},
                              {{"expression", std::string("sub(x0,div(x1,mul(x2,sqrt(x3))))")}, {"place", place}});
                       }});
    }
  }
  return cases;
}

inline std::vector<Case> clip_cases() {
  std::vector<Case> cases;
  for (const Shape& shape : {Shape{20, 16, 3, 3}, Shape{5}, Shape{1000, 33}}) {
    cases.push_back(
        {"GradientNorm", to_string(shape), [=](CaseBuilder& b) { b.op("GradientNorm", {b.normal(shape)}); }});
    cases.push_back({"Wait", to_string(shape), [=](CaseBuilder& b) {
                       b.op("Wait", {b.normal(shape), b.normal(shape)});
                     }});
    cases.push_back({"ScaleGradient", to_string(shape), [=](CaseBuilder& b) {
                       b.op("ScaleGradient", {b.normal(shape), b.scalar(0.3)});
                     }});
  }
  for (const double max_norm : {0.5, 100.0}) {
    cases.push_back({"ClipScale", fmt::format("{}", max_norm), [=](CaseBuilder& b) {
                       b.op("ClipScale", {b.scalar(0.3), b.scalar(4), b.scalar(1.5)}, {{"max_norm", max_norm}});
                     }});
  }
  return cases;
}

// Gradients that are summed over batches, and the updates by such sums; a scale below 0 says: no update yet.
inline std::vector<Case> accumulation_cases() {
  std::vector<Case> cases;
  const int64_t on = 1;
  for (const Shape& shape : {Shape{20, 16, 3, 3}, Shape{5}, Shape{1000, 33}, Shape{}}) {
    cases.push_back({"Assign", to_string(shape), [=](CaseBuilder& b) {
                       b.op("Assign", {b.normal(shape), b.normal(shape)});
                     }});
  }
  cases.push_back({"Assign", "i64", [](CaseBuilder& b) { b.op("Assign", {b.number(3), b.number(5)}); }});
  for (const Shape& shape : {Shape{20, 16, 3, 3}, Shape{5}, Shape{1000, 33}}) {
    for (const int64_t count : {0, 1, 5}) {
      cases.push_back(
          {"AccumulateGradient", fmt::format("{} count {}", to_string(shape), count), [=](CaseBuilder& b) {
             b.op("AccumulateGradient", {b.normal(shape), b.normal(shape), b.normal(shape), b.number(count)});
           }});
    }
    for (const double scale : {0.25, -1.0}) {
      const std::string text = fmt::format("{} scaled {}", to_string(shape), scale);
      for (const double momentum : {0.0, 0.9}) {
        cases.push_back({"SgdUpdate", fmt::format("{} momentum {}", text, momentum), [=](CaseBuilder& b) {
                           std::vector<TensorId> inputs = {b.normal(shape), b.normal(shape), b.scalar(0.1)};
                           if (momentum != 0) inputs.push_back(b.normal(shape));
                           inputs.push_back(b.scalar(scale));
                           b.op("SgdUpdate", inputs, {{"momentum", momentum}, {"weight_decay", 1e-2}, {"scaled", on}});
                         }});
      }
      cases.push_back({"AdamUpdate", text, [=](CaseBuilder& b) {
                         b.op("AdamUpdate",
                              {b.normal(shape), b.normal(shape), b.scalar(0.01), b.number(6), b.normal(shape),
                               b.uniform(shape, 0.5, 2), b.scalar(scale)},
                              {{"beta2", 0.99}, {"epsilon", 1e-6}, {"weight_decay", 1e-2}, {"scaled", on}});
                       }});
    }
  }
  for (const double scale : {0.25, -1.0}) {
    cases.push_back(
        {"ClipScale", fmt::format("scaled {}", scale), [=](CaseBuilder& b) {
           b.op("ClipScale", {b.scalar(0.3), b.scalar(4), b.scalar(scale)}, {{"max_norm", 0.5}, {"scaled", on}});
         }});
  }
  return cases;
}

inline TensorId whole_numbers(CaseBuilder& b, const Shape& shape, const std::string& dtype) {
  return b.op("Cast", {b.uniform(shape, 0, 5)}, {{"dtype", dtype}})[0];
}
inline std::vector<Case> pointwise_cases() {
  std::vector<Case> cases;
  const auto expression = [](std::string text) { return Attributes{{"expression", std::move(text)}}; };
  std::vector<Shape> shapes = any_shapes();
  shapes.insert(shapes.end(), {{}, {1}, {3, 1, 2, 1, 3}, {700, 3}, {3, 1027}});
  for (const Shape& shape : shapes) {
    for (const char* text : {"t0=sigmoid(x0);mul(add(mul(t0,x1),cos(x2)),sub(1,t0))", "where(gt(x0,x1),exp(x2),-2)",
                             "gelu(add(x0,mul(x1,x2)))", "x1", "2.5"}) {
      cases.push_back({"Pointwise", fmt::format("{} {}", to_string(shape), text), [=](CaseBuilder& b) {
                         b.op("Pointwise", {b.normal(shape), b.normal(shape), b.normal(shape)}, expression(text));
                       }});
    }
  }
  for (const char* one : {"neg",
                          "abs",
                          "exp",
                          "expm1",
                          "reciprocal",
                          "square",
                          "sin",
                          "cos",
                          "atan",
                          "erf",
                          "sigmoid",
                          "tanh",
                          "relu",
                          "gelu",
                          "gelu_tanh",
                          "silu",
                          "softplus",
                          "mish",
                          "hardsigmoid",
                          "hardswish",
                          "sign",
                          "floor",
                          "round",
                          "not",
                          "gelu_derivative",
                          "gelu_tanh_derivative",
                          "silu_derivative"}) {
    cases.push_back({"Pointwise", one, [=](CaseBuilder& b) {
                       b.op("Pointwise", {b.normal({3, 333}, 0, 3)}, expression(fmt::format("{}(x0)", one)));
                     }});
  }
  struct Wide {
    Shape x;
    int64_t outputs;
    std::string text;
    int64_t operands = 1;
    bool transposed = false, bias = false, drops = false;
    std::vector<int64_t> gradients = {0, 1};
    int64_t one_row = -1;  // an operand that is one row for all
    int64_t part = 0;      // of a batch that ranks share
  };
  for (const Wide& s : {Wide{{80, 12}, 7, "gelu(x0)"},
                        {{2, 40, 16}, 8, "mul(silu(x0),x1)", 2, true, true, false, {0, 1, 2, 3}},
                        {{70, 9}, 5, "mul(silu(x0),x1)", 2, false, true, true, {0, 1, 2}},
                        {{3, 30, 6}, 10, "gelu_tanh(x0)", 1, true, false, true, {1}},
                        {{200, 10}, 6, "gelu_tanh(add(x0,x1))", 2, false, false, true, {0, 1, 2, 3}, 1, 2},
                        {{130, 7}, 4, "mul(mul(x0,x1),x2)", 3, true, true, false, {0, 1, 2, 4}, 0},
                        {{70, 3}, 2, "mul(x0,x1)", 2, false, false, false, {0}, 0},
                        {{1, 1}, 1, "sigmoid(x0)", 1, false, true, false, {0}}}) {
    for (const bool backward : {false, true}) {
      const std::string text =
          fmt::format("{} to {} {}{}{}{}{}", to_string(s.x), s.outputs, s.text, s.transposed ? " transposed" : "",
                      s.bias ? " bias" : "", s.drops ? " dropout" : "", s.one_row >= 0 ? " one row" : "");
      cases.push_back({backward ? "PointwiseLinearBackward" : "PointwiseLinearForward", text, [=](CaseBuilder& b) {
                         Attributes attributes = expression(s.text);
                         attributes.set("operands", s.operands);
                         attributes.set("transposed", int64_t{s.transposed});
                         const int64_t width = s.x.back();
                         Shape y = s.x;
                         y.back() = s.outputs;
                         std::vector<TensorId> inputs;
                         for (int64_t i = 0; i < s.operands; ++i)
                           inputs.push_back(b.normal(i == s.one_row ? Shape{width} : s.x));
                         inputs.push_back(b.normal(s.transposed ? Shape{width, s.outputs} : Shape{s.outputs, width}));
                         if (s.drops) {
                           attributes.set("p", 0.3);
                           attributes.set("salt", int64_t{5});
                           inputs.insert(inputs.end(), {b.number(3), b.seed(77, s.part)});
                         }
                         if (backward) {
                           attributes.set("gradients", s.gradients);
                           inputs.push_back(b.normal(y));
                         } else if (s.bias) {
                           inputs.push_back(b.normal({s.outputs}));
                         }
                         b.op(backward ? "PointwiseLinearBackward" : "PointwiseLinearForward", inputs, attributes);
                       }});
    }
  }
  for (const char* positive : {"log(x0)", "log1p(x0)", "sqrt(x0)", "rsqrt(x0)", "pow(x0,x1)", "pow(x0,2.5)"}) {
    cases.push_back({"Pointwise", positive, [=](CaseBuilder& b) {
                       b.op("Pointwise", {b.uniform({3, 333}, 0.1, 4), b.normal({3, 333})}, expression(positive));
                     }});
  }
  for (const char* two : {"add", "sub", "mul", "div", "max", "min", "eq", "ne", "lt", "le", "gt", "ge", "and", "or",
                          "leaky_relu", "elu"}) {
    cases.push_back(
        {"Pointwise", two, [=](CaseBuilder& b) {
           const Shape shape = {2, 20, 5, 7};
           b.op("Pointwise", {b.normal(shape), b.uniform(shape, 0.5, 2)}, expression(fmt::format("{}(x0,x1)", two)));
         }});
  }
  for (const char* three : {"hardtanh(x0,-0.5,x1)", "clamp(x0,-0.5,x1)", "where(gt(x0,0),x1,x0)"}) {
    cases.push_back({"Pointwise", three, [=](CaseBuilder& b) {
                       b.op("Pointwise", {b.normal({129}), b.normal({129})}, expression(three));
                     }});
  }
  const std::vector<std::pair<Shape, Shape>> stretched = {{{2, 20, 5, 7}, {20, 1, 1}},
                                                          {{2, 64, 5, 7}, {1, 64, 1, 1}},
                                                          {{2, 48, 5, 7}, {2, 48, 1, 1}},
                                                          {{2, 20, 5, 7}, {7}},
                                                          {{2, 20, 5, 7}, {2, 1, 5, 7}},
                                                          {{2, 64, 5, 7}, {2, 1, 5, 7}},
                                                          {{4, 37}, {37}},
                                                          {{4, 37}, {4, 1}},
                                                          {{3, 1, 5}, {4, 1}},
                                                          {{2, 1, 3, 1}, {5, 1, 4}},
                                                          {{6, 5}, {}},
                                                          {{2, 20, 5, 7}, {2, 20, 5, 7}}};
  for (const auto& [x, other] : stretched) {
    for (const std::string dtype : {"f32", "i32", "i64", "u8"}) {
      cases.push_back({"Pointwise", fmt::format("{} and {} {}", to_string(x), to_string(other), dtype),
                       [=, x = x, other = other](CaseBuilder& b) {
                         const TensorId second = dtype == "f32" ? b.normal(other) : whole_numbers(b, other, dtype);
                         b.op("Pointwise", {b.normal(x), second, b.scalar(0.3)}, expression("add(mul(x0,x1),x2)"));
                       }});
    }
  }
  for (const auto& [to, from] : stretched) {
    const Shape reach = to;
    if (reach == Shape{3, 1, 5} || reach == Shape{2, 1, 3, 1}) continue;  // both are stretched
    for (const std::string dtype : {"f32", "i32", "i64", "u8"}) {
      cases.push_back({"Expand", fmt::format("{} to {} {}", to_string(from), to_string(reach), dtype),
                       [=, from = from](CaseBuilder& b) {
                         const TensorId x = dtype == "f32" ? b.normal(from) : whole_numbers(b, from, dtype);
                         b.op("Expand", {x}, {{"shape", reach}});
                       }});
    }
  }
  for (const std::string from : {"f32", "i32", "i64", "u8"}) {
    for (const std::string to : {"f32", "i32", "i64", "u8"}) {
      for (const Shape& shape : {Shape{2, 20, 5, 7}, Shape{129}}) {
        cases.push_back({"Cast", fmt::format("{} {} to {}", to_string(shape), from, to), [=](CaseBuilder& b) {
                           const TensorId x = from == "f32" ? b.normal(shape, 0, 300) : whole_numbers(b, shape, from);
                           b.op("Cast", {x}, {{"dtype", to}});
                         }});
      }
    }
  }
  return cases;
}

inline std::vector<Case> reduce_cases() {
  std::vector<Case> cases;
  const std::vector<std::pair<Shape, std::vector<Integers>>> sizes = {
      {{2, 20, 5, 7}, {{2, 3}, {0, 2, 3}, {1}, {0}, {3}, {}, {0, 3}}},
      {{2, 64, 6, 5}, {{2, 3}, {0, 2, 3}, {1}, {1, 3}}},
      {{3, 5, 2, 4, 3}, {{1, 3}, {0, 2, 4}}},
      {{1000, 37}, {{0}, {1}}},
      {{1000, 40}, {{0}}},
      {{4, 50, 24}, {{0, 1}}},
      {{5000}, {{0}}},
      {{1, 7}, {{0}, {1}}},
      {{}, {{}}}};
  for (const auto& [shape, all] : sizes) {
    for (const Integers& dims : all) {
      for (const std::string function : {"sum", "mean", "max", "min", "mean_of_squares"}) {
        for (const int64_t keep : {0, 1}) {
          cases.push_back(
              {"Reduce",
               fmt::format("{} of {} over {}{}", function, to_string(shape), fmt::join(dims, ","),
                           keep != 0 ? " kept" : ""),
               [=, shape = shape](CaseBuilder& b) {
                 b.op("Reduce", {b.normal(shape, 0.2)}, {{"function", function}, {"dims", dims}, {"keep_dims", keep}});
               }});
        }
      }
    }
  }
  for (const std::string dtype : {"i32", "i64", "u8"}) {
    cases.push_back({"Reduce", dtype, [=](CaseBuilder& b) {
                       b.op("Reduce", {whole_numbers(b, {4, 333}, dtype)},
                            {{"function", std::string("sum")}, {"dims", Integers{1}}});
                     }});
  }
  return cases;
}

inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (auto family : {convolution_cases,
                      fully_connected_cases,
                      pool_cases,
                      elementwise_cases,
                      batch_norm_cases,
                      other_image_cases,
                      loss_cases,
                      update_cases,
                      factored_update_cases,
                      clip_cases,
                      accumulation_cases,
                      pointwise_cases,
                      reduce_cases,
                      move_cases,
                      resize_cases,
                      take_cases,
                      lookup_cases,
                      sort_cases,
                      cumulative_sum_cases,
                      norm_cases,
                      rotary_cases,
                      matmul_cases,
                      softmax_cases,
                      attention_cases,
                      recurrent_cases}) {
    for (Case& one : family()) cases.push_back(std::move(one));
  }
  return cases;
}

}  // namespace plimsoll::conformance
