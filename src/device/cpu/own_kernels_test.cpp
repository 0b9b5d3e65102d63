// Bias, updates, LRN, dropout, noise, concat and slice against their references.
#include <cmath>

#include "tests/support/own_test.h"

namespace plimsoll {
namespace {

const std::vector<Shape> kKernelShapes = {{2, 40, 13, 13}, {1, 3, 5, 7}, {2, 17, 3, 3},
                                          {2, 64, 12, 12}, {9, 33},      {3, 16, 1, 1}};

TEST(OwnBias, IsTheReferenceForwardAndBackward) {
  for (const Shape& shape : kKernelShapes) {
    expect_like_reference({.type = "BiasForward", .inputs = {{shape}, {{shape[1]}}}, .tolerance = 1e-6});
    expect_like_reference({.type = "BiasBackward", .inputs = {{shape}}, .tolerance = 1e-6});
  }
}

TEST(OwnUpdate, SgdIsTheReference) {
  for (const Shape& shape : std::vector<Shape>{{100, 90}, {64, 20, 3, 3}, {7}, {}}) {
    for (double momentum : {0.0, 0.9}) {
      for (int64_t nesterov : {0, 1}) {
        OpCase test{.type = "SgdUpdate", .inputs = {{shape}, {shape}, {{}}}, .tolerance = 1e-6};
        if (momentum != 0) test.inputs.push_back({shape});
        if (momentum == 0 && nesterov == 1) continue;
        test.attributes = {{"momentum", momentum}, {"nesterov", nesterov}, {"weight_decay", 1e-2}};
        test.values[2] = {0.125};
        expect_like_reference(test);
      }
    }
  }
}

TEST(OwnUpdate, AdamIsTheReferenceAtAnyStep) {
  for (const Shape& shape : std::vector<Shape>{{100, 90}, {64, 20, 3, 3}, {7}}) {
    for (int64_t decoupled : {0, 1}) {
      for (double step : {0.0, 1.0, 5000.0}) {
        OpCase test{.type = "AdamUpdate",
                    .inputs = {{shape}, {shape}, {{}}, {{}, DType::i64}, {shape}, {shape}},
                    .tolerance = 1e-6};
        test.attributes = {{"decoupled", decoupled}, {"weight_decay", 1e-2}};
        test.values[2] = {0.01};
        test.values[3] = {step};
        for (int64_t i = 0; i < element_count(shape); ++i)
          test.values[5].push_back(0.01 + 0.001 * static_cast<double>(i % 97));
        expect_like_reference(test);
      }
    }
  }
}

// Numbers that are not normal take a processor many times as long, and a state that fades would keep them.
TEST(OwnUpdate, StatesFadeToZero) {
  const auto device = open_device("cpu", 1);
  const auto run = [&](std::string_view type, std::vector<float> settings, std::vector<float> state) {
    Graph graph;
    const bool adam = type == "AdamUpdate";
    const Shape shape{static_cast<int64_t>(state.size())};
    std::vector<TensorId> inputs{graph.add_source("w", shape, DType::f32, Role::parameter),
                                 graph.add_source("g", shape, DType::f32, Role::gradient),
                                 graph.add_source("rate", {}, DType::f32, Role::hyperparameter)};
    if (adam) inputs.push_back(graph.add_source("step", {}, DType::i64, Role::hyperparameter));
    for (int i = 0; i < (adam ? 2 : 1); ++i)
      inputs.push_back(graph.add_source(fmt::format("state {}", i), shape, DType::f32, Role::optimizer_state));
    const OpId op = graph.add_op(std::string(type), "update", "update", inputs,
                                 adam ? Attributes{} : Attributes{{"momentum", 0.9}});
    const auto kernel = device->make_kernel(graph, graph.op(op), "own");
    std::vector<float> w(state.size(), 1.0f), g(state.size()), second = state;
    int64_t step = 1000;
    std::vector<void*> in{w.data(), g.data(), settings.data()}, out{w.data(), state.data()};
    if (adam) in.push_back(&step);
    in.push_back(state.data());
    if (adam) {
      in.push_back(second.data());
      out.push_back(second.data());
    }
    std::vector<std::byte> workspace(static_cast<size_t>(kernel->workspace().count) + 1);
    kernel->bind(in, out, workspace.data());
    kernel->run();
    if (adam) state.insert(state.end(), second.begin(), second.end());
    return state;
  };
  const float least = std::numeric_limits<float>::min();
  EXPECT_THAT(run("SgdUpdate", {0.1f}, std::vector<float>(20, least)), ::testing::Each(0.0f));
  EXPECT_THAT(run("AdamUpdate", {0.1f}, std::vector<float>(20, least)), ::testing::Each(0.0f));
  EXPECT_THAT(run("AdamUpdate", {0.1f}, std::vector<float>(20, 2 * least)), ::testing::Each(::testing::Ge(least)));
}

// A plan asks for the workspace before it chooses the layout.
TEST(OwnGradientNorm, NeedsTheSameWorkspaceHoweverTheGradientIsPadded) {
  const auto device = open_device("cpu", 1);
  Graph graph;
  const TensorId g = graph.add_source("g", {84, 120}, DType::f32, Role::gradient);
  const OpId op = graph.add_op("GradientNorm", "norm", "norm", {g});
  const Bytes plain = device->make_kernel(graph, graph.op(op), "own")->workspace();
  graph.tensor(g).layout = {"AB16b64a"};
  const int64_t stored = storage_elements(graph.tensor(g).shape, graph.tensor(g).layout);
  ASSERT_EQ(stored, 128 * 128);
  const auto kernel = device->make_kernel(graph, graph.op(op), "own");
  EXPECT_EQ(kernel->workspace(), plain);

  std::vector<float> storage(static_cast<size_t>(stored));
  double squares = 0;
  for (size_t i = 0; i < storage.size(); ++i) {
    storage[i] = static_cast<float>(i % 13) - 6;
    squares += double{storage[i]} * double{storage[i]};
  }
  std::vector<double> workspace(static_cast<size_t>(plain.count) / sizeof(double));
  float norm = 0;
  void *const in = storage.data(), *const out = &norm;
  kernel->bind(std::span(&in, 1), std::span(&out, 1), workspace.data());
  kernel->run();
  EXPECT_NEAR(norm, std::sqrt(squares), 1e-3) << "every element once";
}

TEST(OwnLrn, IsTheReferenceForEveryWindowAndPower) {
  for (const Shape& shape : kKernelShapes) {
    for (int64_t size : {5, 4, 1, 3, 9}) {
      for (double beta : {0.75, 0.5, 1.0, 0.6}) {
        const Attributes attributes{{"size", size}, {"beta", beta}, {"alpha", 0.5}, {"k", 2.0}};
        if (size != 5 && beta != 0.75) continue;
        expect_like_reference({.type = "LrnForward", .inputs = {{shape}}, .attributes = attributes, .tolerance = 1e-6});
        expect_like_reference(
            {.type = "LrnBackward", .inputs = {{shape}, {shape}}, .attributes = attributes, .tolerance = 2e-6});
      }
    }
  }
}

TEST(OwnRandom, DropoutDropsWhatTheReferenceDrops) {
  std::vector<Shape> shapes = kKernelShapes;
  shapes.push_back({3, 50, 4, 2});
  shapes.push_back({130});
  for (const Shape& shape : shapes) {
    for (double p : {0.5, 0.2, 0.0}) {
      expect_like_reference({.type = p == 0.2 ? "DropoutBackward" : "DropoutForward",
                             .inputs = {{shape}, {{}, DType::i64}, {{}, DType::i64}},
                             .attributes = {{"p", p}, {"salt", int64_t{77}}},
                             .values = {{1, {3}}, {2, {1234567890123.0}}},
                             .tolerance = 1e-6});
    }
  }
}

TEST(OwnRandom, NoiseIsTheReference) {
  for (const Shape& shape : kKernelShapes) {
    expect_like_reference({.type = "RandomNormal",
                           .inputs = {{{}, DType::i64}, {{}, DType::i64}},
                           .attributes = {{"shape", shape}, {"salt", int64_t{5}}, {"mean", 1.0}, {"stddev", 3.0}},
                           .values = {{0, {3}}, {1, {42}}},
                           .tolerance = 1e-6});
  }
}

TEST(OwnConcat, JoinsAlongEveryAxis) {
  const auto join = [](const std::vector<Shape>& shapes, int64_t axis) {
    OpCase test{.type = "Concat", .inputs = {}, .attributes = {{"axis", axis}}, .tolerance = 0};
    for (const Shape& shape : shapes) test.inputs.push_back({shape});
    expect_like_reference(test);
  };
  join({{2, 32, 9, 9}, {2, 16, 9, 9}, {2, 40, 9, 9}}, 1);
  join({{2, 12, 9, 9}, {2, 12, 9, 9}, {2, 12, 9, 9}, {2, 1, 9, 9}, {2, 40, 9, 9}}, 1);
  join({{1, 3, 5, 5}, {1, 3, 5, 5}}, 1);
  join({{2, 17, 5, 5}, {3, 17, 5, 5}}, 0);
  join({{2, 17, 5, 5}, {2, 17, 9, 5}}, 2);
  join({{2, 17, 5, 5}, {2, 17, 5, 2}}, 3);
  join({{40, 30}, {40, 300}}, 1);
  join({{7}, {9000}}, 0);
}

TEST(OwnConcat, SlicesAlongEveryAxis) {
  const auto slice = [](const Shape& shape, int64_t axis, int64_t begin, int64_t size) {
    expect_like_reference({.type = "Slice",
                           .inputs = {{shape}},
                           .attributes = {{"axis", axis}, {"begin", begin}, {"size", size}},
                           .tolerance = 0});
  };
  for (auto [begin, size] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 70}, {0, 16}, {16, 32}, {32, 38}, {12, 12}, {7, 63}, {40, 5}, {0, 20}, {31, 2}}) {
    slice({2, 70, 9, 9}, 1, begin, size);
  }
  slice({4, 20, 5, 5}, 0, 1, 2);
  slice({2, 20, 9, 5}, 2, 3, 4);
  slice({2, 20, 9, 5}, 3, 2, 3);
  slice({40, 330}, 1, 30, 300);
}

TEST(OwnConcat, JoinsAndSlicesRowsOfFewElements) {
  for (const int64_t length : {1, 2, 3, 4, 5}) {
    for (int64_t begin = 0; begin < length; ++begin) {
      for (int64_t size = 1; begin + size <= length; ++size) {
        expect_like_reference({.type = "Slice",
                               .inputs = {{{7, 41, length}}},
                               .attributes = {{"axis", int64_t{2}}, {"begin", begin}, {"size", size}},
                               .tolerance = 0});
        expect_like_reference({.type = "SliceBackward",
                               .inputs = {{{7, 41, size}}},
                               .attributes = {{"axis", int64_t{2}}, {"begin", begin}, {"length", length}},
                               .tolerance = 0});
      }
      if (begin == 0) continue;
      expect_like_reference({.type = "Concat",
                             .inputs = {{{7, 41, begin}}, {{7, 41, length - begin}}},
                             .attributes = {{"axis", int64_t{2}}},
                             .tolerance = 0});
    }
  }
}

}  // namespace
}  // namespace plimsoll
