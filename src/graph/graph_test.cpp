#include "plimsoll/graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace plimsoll {
namespace {

TEST(Layout, BlockedStorageIsPaddedToWholeBlocks) {
  EXPECT_EQ(storage_elements({2, 3, 4, 5}, {"aBcd16b"}), 2 * 16 * 4 * 5);
  EXPECT_EQ(storage_elements({2, 3, 4, 5}, {"acdb"}), 2 * 3 * 4 * 5);
  EXPECT_EQ(storage_bytes({20}, DType::bit, {}), 3_B);
}

TEST(Layout, OffsetsFollowTheTag) {
  const auto offsets = storage_offsets({1, 17, 2, 1}, {"aBcd16b"});
  EXPECT_EQ(offsets[0], 0);    // c 0, h 0
  EXPECT_EQ(offsets[1], 16);   // c 0, h 1
  EXPECT_EQ(offsets[2], 1);    // c 1, h 0
  EXPECT_EQ(offsets[32], 32);  // c 16, h 0: the second block
  const auto weights = storage_offsets({32, 32, 1, 1}, {"ABcd16b16a"});
  EXPECT_EQ(weights[1], 16);  // b is the outer of the inner pair
  EXPECT_EQ(weights[32], 1);
  EXPECT_EQ(std::set<int64_t>(weights.begin(), weights.end()).size(), weights.size());
}

TEST(Layout, ScatterAndGatherAgreeWithTheOffsets) {
  const Shape shape{3, 20, 2, 5};
  for (const char* tag : {"", "abcd", "acdb", "aBcd16b", "ABcd16b16a"}) {
    const Layout layout{tag};
    const auto offsets = storage_offsets(shape, layout);
    std::vector<float> rows(offsets.size()), storage(storage_elements(shape, layout), 0), back(7);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i + 1);
    for (int64_t first = 0; first < 600; first += 13) {  // in pieces that cut rows
      scatter_elements(shape, layout, 4, first, std::min<int64_t>(13, 600 - first),
                       reinterpret_cast<const std::byte*>(rows.data() + first),
                       reinterpret_cast<std::byte*>(storage.data()));
    }
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(storage[offsets[i]], rows[i]) << tag << " " << i;
    gather_elements(shape, layout, 4, 101, 7, reinterpret_cast<const std::byte*>(storage.data()),
                    reinterpret_cast<std::byte*>(back.data()));
    for (size_t i = 0; i < 7; ++i) EXPECT_EQ(back[i], rows[101 + i]);
  }
}

TEST(Graph, NamesTheOpAndTheShapesWhenTheyDoNotFit) {
  Graph graph;
  const TensorId a = graph.add_source("a", {2, 3}, DType::f32, Role::input);
  const TensorId b = graph.add_source("b", {3, 2}, DType::f32, Role::input);
  try {
    graph.add_op("ReluBackward", "r", "r", {a, b});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "op 'r' (ReluBackward) on (a 2x3, b 3x2): 'a' is 2x3 but 'b' is 3x2; they must be equal");
  }
}

TEST(Graph, RefusesTensorsThatSizesCannotCount) {
  const auto message_of = [](const auto& body) -> std::string {
    try {
      body();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      return error.what();
    }
    return "no error";
  };
  Graph graph;
  const int64_t huge = int64_t{1} << 32;
  for (const Shape& shape : {Shape{huge, huge}, Shape{2, kMostElements}, Shape{huge, huge, huge, huge}}) {
    EXPECT_EQ(message_of([&] { graph.add_source("x", shape, DType::f32, Role::input); }),
              "tensor 'x' has the shape " + to_string(shape) +
                  ": a tensor has at most 2^40 elements; lower --batch, --image-size or --num-classes");
  }
  const TensorId x = graph.add_source("x", {1 << 20, 1 << 20}, DType::f32, Role::input);
  EXPECT_EQ(graph.tensor(x).bytes(), Bytes{int64_t{1} << 42});
  EXPECT_EQ(
      message_of([&] {
        graph.add_op("Concat", "c", "c", {x, x}, {{"axis", int64_t{0}}});
      }),
      "op 'c' (Concat): its output 'c:0' has the shape 2097152x1048576: a tensor has at most 2^40 elements; lower "
      "--batch, --image-size or --num-classes");
}

}  // namespace
}  // namespace plimsoll
