#include "ops/expression.h"
#include "tests/support/own_test.h"

namespace plimsoll {
namespace {

Attributes expression(std::string text) { return {{"expression", std::move(text)}}; }

const std::vector<Shape> kPointwiseShapes = {{2, 40, 13, 13}, {1, 3, 5, 7}, {2, 64, 12, 12}, {9, 33}, {5}, {},
                                             {3, 700, 7}};

TEST(OwnPointwise, EveryFunctionIsTheReference) {
  for (int f = 0; f < kFunctions; ++f) {
    const Function function = static_cast<Function>(f);
    const std::string name(to_string(function));
    const int count = argument_count(function);
    const std::string text = count == 1 ? name + "(x0)" : count == 2 ? name + "(x0,x1)" : name + "(x0,x1,x2)";
    // Of logarithms and roots only what is a number.
    const bool positive = name.starts_with("log") || name.ends_with("sqrt") || name == "pow" || name == "reciprocal";
    std::vector<double> first;
    for (int i = 0; i < 1000; ++i) {
      const double x = (positive ? 0 : -5) + 10.0 * (i + 0.5) / 1000;
      first.push_back(static_cast<float>(x));
    }
    const Shape shape{1000};
    expect_like_reference({.type = "Pointwise",
                           .inputs = std::vector<TensorSpec>(static_cast<size_t>(count), {shape}),
                           .attributes = expression(text),
                           .values = {{0, first}},
                           .tolerance = 1e-6});
  }
}

TEST(OwnPointwise, FunctionsHoldFarOutAndNearZero) {
  std::vector<double> x;
  for (double m :
       {0.0, 1e-30, 1e-20, 1e-6, 1e-3, 0.3, 0.99, 1.01, 5.0, 20.0, 80.0, 87.5, 88.6, 1e3, 8000.0, 9000.0, 1e5})
    x.push_back(static_cast<float>(m)), x.push_back(static_cast<float>(-m));
  for (const char* name :
       {"erf", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "gelu_derivative", "gelu_tanh_derivative",
        "silu_derivative", "softplus", "mish", "sin", "cos", "atan", "hardswish", "round", "floor", "sign", "square"}) {
    const double size = std::string(name) == "square" ? 1e-15 : 5e-7;  // of the largest element
    expect_like_reference({.type = "Pointwise",
                           .inputs = {{{static_cast<int64_t>(x.size())}}},
                           .attributes = expression(std::string(name) + "(clamp(x0,-9000,9000))"),
                           .values = {{0, x}},
                           .tolerance = name[0] == 's' && name[1] == 'q' ? 1e-7 : size});
  }
  // In parts of themselves: what is small is right, too.
  for (const char* text : {"div(log1p(x0),x0)", "div(expm1(x0),x0)", "div(erf(x0),x0)", "div(tanh(x0),x0)",
                           "div(atan(x0),x0)", "div(atan(mul(x0,5)),x0)", "div(exp(mul(x0,80)),exp(mul(x0,80)))",
                           "log(exp(mul(x0,85)))", "exp(log(abs(x0)))"}) {
    std::vector<double> small;
    for (int i = 1; i <= 64; ++i) {
      small.push_back(static_cast<float>(i / 65.0)), small.push_back(static_cast<float>(-i / 65.0));
      small.push_back(static_cast<float>(std::pow(0.5, i))), small.push_back(static_cast<float>(-std::pow(0.5, i)));
    }
    expect_like_reference({.type = "Pointwise",
                           .inputs = {{{static_cast<int64_t>(small.size())}}},
                           .attributes = expression(text),
                           .values = {{0, small}},
                           .tolerance = 1e-6});
  }
}

TEST(OwnPointwise, InfinitiesAndWhatIsNoNumberComeOutAsTheyShould) {
  const float infinity = std::numeric_limits<float>::infinity(), nothing = std::numeric_limits<float>::quiet_NaN();
  const struct {
    const char* text;
    float x, y;
  } cases[] = {{"exp(x0)", 100, infinity},          {"exp(x0)", -infinity, 0},       {"exp(x0)", nothing, nothing},
               {"log(x0)", 0, -infinity},           {"log(x0)", -1, nothing},        {"log(x0)", infinity, infinity},
               {"relu(x0)", nothing, nothing},      {"max(x0,1)", nothing, nothing}, {"max(1,x0)", nothing, nothing},
               {"clamp(x0,0,1)", nothing, nothing}, {"tanh(x0)", infinity, 1},       {"sigmoid(x0)", -infinity, 0},
               {"gelu(x0)", nothing, nothing},      {"sin(x0)", infinity, nothing},  {"where(x0,1,2)", nothing, 1},
               {"mish(x0)", nothing, nothing},      {"mish(x0)", -200, -0.0f},       {"softplus(x0)", 200, 200},
               {"expm1(x0)", 100, infinity},        {"log1p(x0)", -1, -infinity}};
  for (const auto& [text, x, y] : cases) {
    Graph graph;
    const TensorId in = graph.add_source("x", {1}, DType::f32, Role::input);
    const OpId op = graph.add_op("Pointwise", "op", "op", {in}, expression(text));
    const auto kernel = open_device("cpu", 1)->make_kernel(graph, graph.op(op), "own");
    own_test::Buffer from(4), to(4), workspace(kernel->workspace().count);
    *static_cast<float*>(from.data()) = x;
    kernel->bind(std::array{from.data()}, std::array{to.data()}, workspace.data());
    kernel->run();
    const float got = *static_cast<float*>(to.data());
    EXPECT_TRUE(got == y || (got != got && y != y)) << text << " of " << x << " is " << got;
  }
}

TEST(OwnPointwise, RunsChainsInAnyLayout) {
  for (const Shape& shape : kPointwiseShapes) {
    expect_like_reference({.type = "Pointwise",
                           .inputs = {{shape}, {shape}, {shape}},
                           .attributes = expression("t0=sigmoid(add(x0,2));mul(add(mul(t0,x1),cos(x2)),sub(1,t0))"),
                           .tolerance = 2e-6});
    expect_like_reference({.type = "Pointwise", .inputs = {{shape}}, .attributes = expression("x0")});
    expect_like_reference({.type = "Pointwise", .inputs = {{shape}}, .attributes = expression("2.5")});
  }
}

// What is stretched over few elements each, or begins anew after few, is read in ways of its own.
TEST(OwnPointwise, StretchesOverFewElements) {
  const std::vector<std::vector<Shape>> cases = {{{300, 8}, {300, 1}, {8}},
                                                 {{300, 5}, {300, 1}, {5}},
                                                 {{7, 33, 48}, {7, 33, 1}, {33, 48}},
                                                 {{64, 3, 40}, {3, 40}, {64, 1, 40}},
                                                 {{17, 5, 100}, {17, 1, 100}, {5, 1}},
                                                 {{9, 11, 3, 2}, {11, 1, 2}, {9, 1, 3, 1}},
                                                 {{3, 2}, {3, 1}, {2}},
                                                 {{40, 127}, {40, 1}, {127}},
                                                 {{2000, 2}, {2000, 1}, {1, 2}}};
  for (const std::vector<Shape>& shapes : cases) {
    expect_like_reference({.type = "Pointwise",
                           .inputs = {{shapes[0]}, {shapes[1]}, {shapes[2]}},
                           .attributes = expression("add(mul(x0,x1),x2)"),
                           .tolerance = 1e-6});
  }
}

// The gradient of a layer's weights may lie in blocks that are mostly padding, where it has few neurons.
TEST(OwnPointwise, NeedsNoMoreWorkspaceThanPlannedInAnyLayoutOfWeights) {
  for (const int threads : {2, 7}) {
    const auto device = open_device("cpu", threads);
    Graph layer;
    const TensorId x = layer.add_source("x", {4, 512}, DType::f32, Role::input);
    const TensorId dy = layer.add_source("dy", {4, 1}, DType::f32, Role::input);
    const OpId backward = layer.add_op("FullyConnectedBackwardWeights", "fc", "fc", {x, dy}, {{"bias", int64_t{1}}});
    int padded = 0;
    for (const LayoutFamily family : {LayoutFamily::plain, LayoutFamily::blocked}) {
      for (const KernelSpec& kernel : device->kernels(layer, layer.op(backward), family)) {
        Graph graph;
        const TensorId weights = graph.add_source("w", {1, 512}, DType::f32, Role::parameter);
        const OpId op = graph.add_op("Pointwise", "op", "op", {weights}, expression("mul(x0,exp(x0))"));
        const KernelSpec spec = device->kernels(graph, graph.op(op), family).at(0);
        const Bytes plain = graph.tensor(weights).bytes();
        for (const TensorId id : {weights, graph.output(op)}) graph.tensor(id).layout = kernel.outputs[0];
        padded += graph.tensor(weights).bytes() > plain ? 1 : 0;
        EXPECT_LE(make_kernel(*device, graph, graph.op(op), spec.name, threads)->workspace(), spec.workspace)
            << kernel.outputs[0].tag;
      }
    }
    if (device->kernels(layer, layer.op(backward), LayoutFamily::blocked).size() > 1) {
      EXPECT_GT(padded, 0);
    }
  }
}

TEST(OwnPointwise, StretchesInputsOfAnyKind) {
  struct Sizes {
    Shape a, b;
  };
  const std::vector<Sizes> sizes = {{{2, 40, 13, 13}, {40, 1, 1}},
                                    {{2, 64, 12, 12}, {1, 64, 1, 1}},
                                    {{2, 64, 5, 7}, {2, 64, 1, 1}},
                                    {{2, 48, 5, 7}, {2, 48, 1, 1}},
                                    {{2, 20, 5, 7}, {7}},
                                    {{2, 20, 5, 7}, {2, 1, 5, 7}},
                                    {{30, 1024}, {1024}},
                                    {{30, 1027}, {30, 1}},
                                    {{3, 1, 5}, {4, 1}},
                                    {{2, 1, 3, 1, 2}, {5, 1, 4, 1}},
                                    {{700, 3}, {3}},
                                    {{6, 5}, {}},
                                    {{1}, {2, 3}},
                                    {{2, 64, 1, 1}, {64, 3, 3}}};
  for (const auto& [a, b] : sizes) {
    for (const DType dtype : {DType::f32, DType::i32, DType::i64, DType::u8}) {
      std::vector<double> values(static_cast<size_t>(element_count(b)));
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * 7 % 11);
      expect_like_reference({.type = "Pointwise",
                             .inputs = {{a}, {b, dtype}, {{}}},
                             .attributes = expression("add(mul(x0,x1),tanh(x2))"),
                             .values = {{1, values}}});
    }
  }
}

TEST(OwnExpand, IsTheReference) {
  for (const DType dtype : {DType::f32, DType::i32, DType::i64, DType::u8}) {
    const std::vector<std::pair<Shape, Shape>> cases = {
        {{64, 1, 1}, {2, 64, 12, 12}}, {{2, 20, 1, 1}, {2, 20, 5, 7}}, {{}, {33}},
        {{3, 1}, {2, 3, 1000}},        {{1000}, {20, 1000}},           {{4, 3}, {4, 3}}};
    for (const auto& [from, to] : cases) {
      std::vector<double> values(static_cast<size_t>(element_count(from)));
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 100);
      expect_like_reference(
          {.type = "Expand", .inputs = {{from, dtype}}, .attributes = {{"shape", to}}, .values = {{0, values}}});
    }
  }
}

TEST(OwnCast, IsTheReference) {
  for (const DType from : {DType::f32, DType::i32, DType::i64, DType::u8}) {
    for (const DType to : {DType::f32, DType::i32, DType::i64, DType::u8}) {
      std::vector<double> values = {0, 1, 2.5, 255, 200.9};
      if (from != DType::u8) values.insert(values.end(), {-1, -2.9, 256, 1e9, -70000});
      if (from == DType::f32) values.insert(values.end(), {3e9, -3e9, 1e30, -1e30});
      if (from == DType::i64) values.insert(values.end(), {3e9, -3e9});
      while (values.size() < 20000) values.push_back(static_cast<double>(values.size() % 251));
      expect_like_reference({.type = "Cast",
                             .inputs = {{{static_cast<int64_t>(values.size())}, from}},
                             .attributes = {{"dtype", std::string(to_string(to))}},
                             .values = {{0, values}},
                             .tolerance = 1e-9});
    }
  }
  expect_like_reference({.type = "Cast", .inputs = {{{2, 20, 5, 7}}}, .attributes = {{"dtype", std::string("f32")}}});
}

TEST(OwnReduce, IsTheReference) {
  using Ints = std::vector<int64_t>;
  const std::vector<std::pair<Shape, std::vector<Ints>>> cases = {
      {{2, 64, 12, 12}, {{2, 3}, {0, 2, 3}, {1}, {0}, {3}, {}, {0, 1}, {2}, {1, 3}}},
      {{2, 20, 5, 7}, {{2, 3}, {0, 2, 3}, {1}, {0}, {3}, {}, {0, 3}}},
      {{2, 48, 6, 6}, {{2, 3}, {0, 2, 3}, {1}, {1, 2}}},
      {{3, 5, 2, 4, 3}, {{1, 3}, {0, 2, 4}, {4}, {0}}},
      {{1000, 300}, {{0}, {1}, {}}},
      {{50000}, {{0}}},
      {{20000, 3}, {{0}, {1}}},
      {{37, 48}, {{1}}},
      {{5, 13, 9, 21}, {{3}, {1, 3}, {0, 3}, {0, 1, 3}}},
      {{300, 2, 25, 1}, {{0, 2}, {2}}},
      {{4, 20000}, {{0}, {1}}},
      {{1, 7}, {{0}, {1}}},
      {{}, {{}}}};
  for (const auto& [shape, all] : cases) {
    for (const Ints& dims : all) {
      for (const char* function : {"sum", "mean", "max", "min", "mean_of_squares"}) {
        for (const int64_t keep : {0, 1}) {
          if (keep == 1 && function != std::string("mean")) continue;
          expect_like_reference(
              {.type = "Reduce",
               .inputs = {{shape}},
               .attributes = {{"function", std::string(function)}, {"dims", dims}, {"keep_dims", keep}},
               .tolerance = 2e-6});
        }
      }
      for (const DType dtype : {DType::i32, DType::i64, DType::u8}) {
        if (&dims != &all.front()) break;
        std::vector<double> values(static_cast<size_t>(element_count(shape)));
        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 3);
        expect_like_reference({.type = "Reduce",
                               .inputs = {{shape, dtype}},
                               .attributes = {{"function", std::string("sum")}, {"dims", dims}},
                               .values = {{0, values}}});
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll
