// Kernels that move elements, where the conformance suite does not look: large tensors, other numbers of threads, indices
// that are out of range.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "plimsoll/device.h"
#include "plimsoll/ops.h"
#include "tests/support/own_test.h"

namespace plimsoll {
namespace {

using own_test::Buffer;

struct MoveRun {
  Graph graph;
  OpId op;
  std::vector<std::unique_ptr<Buffer>> in, out;

  TensorId source(Shape shape, DType dtype) {
    const TensorId id = graph.add_source(fmt::format("in{}", in.size()), std::move(shape), dtype, Role::input);
    in.push_back(std::make_unique<Buffer>(graph.tensor(id).bytes().count));
    return id;
  }
  TensorId random_floats(Shape shape) {
    const TensorId id = source(std::move(shape), DType::f32);
    std::mt19937 random(7);
    auto* values = static_cast<float*>(in.back()->data());
    for (int64_t i = 0, n = element_count(graph.tensor(id).shape); i < n; ++i)
      values[i] = static_cast<float>(random()) * 0x1p-31f - 1;
    return id;
  }
  TensorId indices(const std::vector<int32_t>& values) {
    const TensorId id = source({std::ssize(values)}, DType::i32);
    std::memcpy(in.back()->data(), values.data(), values.size() * sizeof(int32_t));
    return id;
  }
  // The first output's bytes.
  std::vector<std::byte> run(int threads, const std::string& kernel = "own") {
    const auto device = open_device("cpu", threads);
    const auto made = device->make_kernel(graph, graph.op(op), kernel);
    std::vector<void*> inputs, outputs;
    for (const auto& buffer : in) inputs.push_back(buffer->data());
    out.clear();
    for (TensorId id : graph.op(op).outputs) {
      out.push_back(std::make_unique<Buffer>(graph.tensor(id).bytes().count));
      outputs.push_back(out.back()->data());
    }
    const Buffer workspace(made->workspace().count);
    made->bind(inputs, outputs, workspace.data());
    made->run();
    EXPECT_TRUE(out[0]->guards_hold());
    EXPECT_TRUE(workspace.guards_hold());
    return {out[0]->bytes().begin(), out[0]->bytes().end()};
  }
};

// Pairs that stay together are turned as one element, and short runs copied in pieces that overlap.
TEST(OwnPermute, MovesPairsAndShortRuns) {
  using Ints = std::vector<int64_t>;
  for (const int64_t inner : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17}) {
    for (const auto& [shape, dims] : {std::pair<Shape, Ints>{{3, 33, 18, inner}, {0, 2, 1, 3}},
                                      {{5, 9, inner}, {1, 0, 2}},
                                      {{2, 3, 4, 5, inner}, {3, 1, 0, 2, 4}},
                                      {{2, 3, 4, inner}, {1, 0, 3, 2}},
                                      {{1, 6, inner}, {1, 0, 2}}}) {
      for (const DType dtype : {DType::f32, DType::i64, DType::u8}) {
        std::vector<double> values(static_cast<size_t>(element_count(shape)));
        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 251);
        expect_like_reference({.type = "Permute",
                               .inputs = {{shape, dtype}},
                               .attributes = {{"dims", dims}},
                               .values = {{0, values}},
                               .tolerance = 0});
      }
    }
  }
}

TEST(OwnPermute, WritesLargeTensorsPastTheCachesToo) {
  MoveRun test;
  const TensorId x = test.random_floats({2, 144, 100, 112});
  test.op = test.graph.add_op("Permute", "p", "", {x}, {{"dims", std::vector<int64_t>{0, 2, 3, 1}}});
  const auto* from = static_cast<const float*>(test.in[0]->data());
  for (const int threads : {1, 3}) {
    const auto bytes = test.run(threads);
    const auto* to = reinterpret_cast<const float*>(bytes.data());
    int64_t wrong = 0;
    for (int64_t n = 0; n < 2; ++n) {
      for (int64_t pixel = 0; pixel < 11200; ++pixel) {
        for (int64_t c = 0; c < 144; ++c)
          wrong += to[(n * 11200 + pixel) * 144 + c] != from[(n * 144 + c) * 11200 + pixel];
      }
    }
    EXPECT_EQ(wrong, 0) << threads << " threads";
  }
}

TEST(OwnEmbedding, AddsInOneOrderWhateverTheThreads) {
  for (const int64_t columns : {3, 40, 512}) {
    MoveRun test;
    std::mt19937 random(5);
    std::vector<int32_t> rows(3000);
    for (int32_t& row : rows) row = static_cast<int32_t>(random() % 17);
    const TensorId dy = test.random_floats({std::ssize(rows), columns});
    const TensorId indices = test.indices(rows);
    test.op = test.graph.add_op("EmbeddingBackward", "e", "", {dy, indices}, {{"rows", int64_t{23}}});
    const auto alone = test.run(1);
    for (const int threads : {2, 3, 7}) EXPECT_EQ(test.run(threads), alone) << columns << ", " << threads << " threads";
  }
}

TEST(OwnEmbedding, NamesTheFirstIndexThatIsOutOfRange) {
  for (const int threads : {1, 4}) {
    MoveRun test;
    std::vector<int32_t> rows(9000, 3);
    rows[4711] = 50;
    rows[8999] = -1;
    const TensorId weight = test.random_floats({50, 8});
    const TensorId indices = test.indices(rows);
    test.op = test.graph.add_op("Embedding", "e", "", {weight, indices});
    try {
      test.run(threads);
      ADD_FAILURE() << threads << " threads";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      EXPECT_STREQ(error.what(), "row 4711 of the indices is 50, but dimension 0 has 50 elements");
    }
  }
}

TEST(OwnGather, NamesTheFirstIndexThatIsOutOfRange) {
  for (const char* type : {"Gather", "IndexSelect", "Index"}) {
    MoveRun test;
    const TensorId x = test.random_floats({20});
    const TensorId indices = test.indices({3, -21, 5, 20});
    Attributes attributes;
    if (std::string_view(type) != "Index") attributes.set("axis", int64_t{0});
    test.op = test.graph.add_op(type, "g", "", {x, indices}, attributes);
    try {
      test.run(2);
      ADD_FAILURE() << type;
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "row 1 of the indices is -21, but dimension 0 has 20 elements") << type;
    }
  }
}

}  // namespace
}  // namespace plimsoll
