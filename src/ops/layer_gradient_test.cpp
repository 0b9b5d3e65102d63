// The gradients of the layers with weights and of pooling against finite differences.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/gradient_check.h"

namespace plimsoll {
namespace {

using Ints = std::vector<int64_t>;

struct ConvCase {
  Shape x, w;
  Attributes attributes;
  const char* what;
};

std::string check_layer(const char* type, const ConvCase& c, int64_t bias, bool relu = false) {
  Graph g;
  const TensorId x = g.add_source("x", c.x, DType::f64, Role::input);
  const TensorId w = g.add_source("w", c.w, DType::f64, Role::parameter);
  std::vector<TensorId> inputs = {x, w};
  if (bias > 0) inputs.push_back(g.add_source("b", {bias}, DType::f64, Role::parameter));
  Attributes attributes = c.attributes;
  if (relu) attributes.set("activation", std::string("relu"));
  const TensorId y = g.output(g.add_op(type, "layer/forward", "layer", inputs, attributes));
  return check_gradients(g, {y}, inputs, {.seed = 3});
}

const std::vector<ConvCase>& conv_cases() {
  static const std::vector<ConvCase> cases = {
      {{2, 3, 5, 4}, {4, 3, 3, 3}, {}, "plain"},
      {{1, 2, 5, 5}, {3, 2, 1, 1}, {{"stride", Ints{2, 2}}}, "1x1 with stride"},
      {{1, 2, 7, 6}, {3, 2, 3, 2}, {{"stride", Ints{2, 3}}, {"padding", Ints{1, 1, 1, 1}}}, "stride and padding"},
      {{1, 2, 5, 4}, {2, 2, 3, 3}, {{"padding", Ints{0, 2, 1, 0}}}, "asymmetric padding"},
      {{1, 2, 5, 4}, {2, 2, 2, 2}, {{"padding", Ints{3, 2, 4, 3}}}, "padding beyond the kernel"},
      {{1, 2, 8, 9},
       {2, 2, 3, 2},
       {{"dilation", Ints{2, 3}}, {"stride", Ints{1, 2}}, {"padding", Ints{2, 1, 0, 3}}},
       "dilation"},
      {{2, 4, 4, 5}, {2, 3, 2, 3, 3}, {{"groups", int64_t{2}}, {"padding", Ints{1, 1, 1, 1}}}, "groups"},
      {{1, 3, 4, 4}, {3, 1, 1, 3, 3}, {{"groups", int64_t{3}}, {"stride", Ints{2, 2}}}, "depthwise"},
      {{1, 1, 3, 3}, {1, 1, 3, 3}, {{"stride", Ints{4, 4}}}, "one place"},
      {{1, 2, 9, 8}, {2, 2, 2, 2}, {{"stride", Ints{3, 3}}}, "stride beyond the kernel"},
      {{2, 2, 4, 3, 4}, {3, 2, 2, 3, 3}, {{"padding", Ints{1, 1, 1, 1, 1, 1}}}, "depth"},
      {{1, 2, 5, 4, 5},
       {2, 2, 2, 2, 3},
       {{"stride", Ints{2, 1, 2}}, {"dilation", Ints{3, 2, 1}}, {"padding", Ints{1, 0, 2, 0, 1, 1}}},
       "depth with stride and dilation"},
      {{1, 4, 3, 3, 2}, {2, 2, 2, 2, 2, 1}, {{"groups", int64_t{2}}}, "depth in groups"},
  };
  return cases;
}

TEST(ConvGradient, AgreesWithFiniteDifferences) {
  for (const ConvCase& c : conv_cases()) {
    EXPECT_EQ(check_layer("ConvForward", c, 0), "") << c.what;
    const int64_t k = c.w.size() > c.x.size() ? c.w[0] * c.w[1] : c.w[0];
    EXPECT_EQ(check_layer("ConvForward", c, k), "") << c.what << " with bias";
    EXPECT_EQ(check_layer("ConvForward", c, k, true), "") << c.what << " with bias and ReLU";
  }
}

TEST(ConvTransposeGradient, AgreesWithFiniteDifferences) {
  const std::vector<ConvCase> cases = {
      {{2, 3, 3, 4}, {3, 2, 3, 3}, {}, "plain"},
      {{1, 3, 3, 2}, {3, 2, 4, 4}, {{"stride", Ints{2, 2}}, {"padding", Ints{1, 1, 1, 1}}}, "DCGAN"},
      {{1, 2, 3, 2}, {2, 2, 3, 2}, {{"stride", Ints{2, 3}}, {"output_padding", Ints{1, 2}}}, "output padding"},
      {{1, 2, 4, 3}, {2, 2, 3, 3}, {{"padding", Ints{2, 0, 1, 1}}, {"stride", Ints{2, 2}}}, "asymmetric padding"},
      {{1, 2, 3, 3}, {2, 2, 3, 2}, {{"dilation", Ints{2, 3}}, {"padding", Ints{1, 0, 1, 2}}}, "dilation"},
      {{1, 2, 3, 3},
       {2, 1, 3, 2},
       {{"dilation", Ints{3, 2}}, {"output_padding", Ints{2, 1}}},
       "output padding below dilation"},
      {{1, 4, 3, 3}, {2, 2, 3, 2, 2}, {{"groups", int64_t{2}}, {"stride", Ints{2, 2}}}, "groups"},
      {{1, 2, 2, 3, 2},
       {2, 2, 2, 3, 3},
       {{"stride", Ints{2, 1, 2}}, {"padding", Ints{0, 1, 1, 1, 1, 1}}, {"output_padding", Ints{1, 0, 1}}},
       "depth"},
      {{1, 4, 2, 2, 2}, {2, 2, 1, 2, 2, 2}, {{"groups", int64_t{2}}, {"stride", Ints{2, 2, 2}}}, "depth in groups"},
  };
  for (const ConvCase& c : cases) {
    const int64_t k = c.w.size() > c.x.size() ? c.w[0] * c.w[2] : c.w[1];
    EXPECT_EQ(check_layer("ConvTransposeForward", c, 0), "") << c.what;
    EXPECT_EQ(check_layer("ConvTransposeForward", c, k), "") << c.what << " with bias";
  }
}

TEST(FullyConnectedGradient, AgreesWithFiniteDifferences) {
  const ConvCase c{{3, 5}, {4, 5}, {}, ""};
  EXPECT_EQ(check_layer("FullyConnectedForward", c, 0), "");
  EXPECT_EQ(check_layer("FullyConnectedForward", c, 4), "");
  EXPECT_EQ(check_layer("FullyConnectedForward", c, 4, true), "");
}

TEST(BiasGradient, AgreesWithFiniteDifferences) {
  EXPECT_EQ(check_layer("BiasForward", {{2, 3, 4, 5}, {3}, {}, ""}, 0), "");
  EXPECT_EQ(check_layer("BiasForward", {{4, 3}, {3}, {}, ""}, 0), "");
}

TEST(PoolGradient, AgreesWithFiniteDifferences) {
  const std::vector<std::pair<Shape, Attributes>> cases = {
      {{2, 2, 6, 6}, {{"kernel", Ints{2, 2}}, {"stride", Ints{2, 2}}}},
      {{1, 2, 7, 5}, {{"kernel", Ints{3, 3}}, {"stride", Ints{2, 2}}}},
      {{1, 2, 7, 6}, {{"kernel", Ints{3, 3}}, {"stride", Ints{2, 2}}, {"ceil_mode", int64_t{1}}}},
      {{1, 1, 5, 5}, {{"kernel", Ints{3, 2}}, {"padding", Ints{1, 1, 1, 1}}}},
      {{1, 1, 6, 5},
       {{"kernel", Ints{3, 3}}, {"stride", Ints{2, 3}}, {"padding", Ints{0, 1, 2, 0}}, {"ceil_mode", int64_t{1}}}},
      {{1, 1, 7, 7},
       {{"kernel", Ints{2, 2}}, {"stride", Ints{3, 3}}, {"padding", Ints{1, 1, 1, 1}}, {"ceil_mode", int64_t{1}}}},
      {{2, 3, 4, 5}, {{"kernel", Ints{4, 5}}}},
      {{1, 2, 8, 7},
       {{"kernel", Ints{3, 2}}, {"dilation", Ints{2, 3}}, {"stride", Ints{1, 2}}, {"padding", Ints{2, 1, 1, 0}}}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    for (const char* type : {"MaxPoolForward", "AvgPoolForward"}) {
      if (cases[i].second.has("dilation") && type == std::string_view("AvgPoolForward")) continue;
      for (int64_t count_padding : {0, 1}) {
        Graph g;
        const TensorId x = g.add_source("x", cases[i].first, DType::f64, Role::input);
        Attributes attributes = cases[i].second;
        attributes.set("count_include_pad", count_padding);
        const OpId y = g.add_op(type, "pool", "pool", {x}, attributes);
        EXPECT_EQ(check_gradients(g, {g.output(y)}, {x}), "") << type << " case " << i;
      }
    }
  }
}

TEST(GraphGradient, FanOutAndJoinAgreeWithFiniteDifferences) {
  Graph g;
  const TensorId x = g.add_source("x", {2, 2, 5, 5}, DType::f64, Role::input);
  const TensorId w = g.add_source("w", {2, 2, 3, 3}, DType::f64, Role::parameter);
  const TensorId v = g.add_source("v", {3, 100}, DType::f64, Role::parameter);
  const Attributes same{{"padding", Ints{1, 1, 1, 1}}};
  const TensorId a = g.output(g.add_op("ConvForward", "a", "a", {x, w}, same));
  const TensorId b = g.output(g.add_op("TanhForward", "b", "b", {a}));
  const TensorId c = g.output(g.add_op("ConvForward", "c", "c", {b, w}, same));  // the same weights again
  const TensorId d = g.output(g.add_op("Add", "d", "d", {a, c, b}));
  const TensorId e = g.output(g.add_op("Concat", "e", "e", {d, a}, {{"axis", int64_t{1}}}));
  const TensorId f = g.output(g.add_op("Reshape", "f", "f", {e}, {{"shape", Ints{2, 100}}}));
  const TensorId y = g.output(g.add_op("FullyConnectedForward", "y", "y", {f, v}));
  EXPECT_EQ(check_gradients(g, {y, b}, {x, w, v}), "");
}

}  // namespace
}  // namespace plimsoll
