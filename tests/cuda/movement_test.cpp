// Copies that move elements together: which body is asked for, by how many words, and that all of them arrive.
#include "device/cuda/movement.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "device/cuda/bodies/bodies.h"
#include "device/cuda/device.h"
#include "plimsoll/ops.h"
#include "tests/cuda/fake_door.h"
#include "tests/cuda/run_kernel.h"

namespace plimsoll {
namespace {

struct Launch {
  int body = -1;
  int64_t count = 0;
  friend bool operator==(const Launch&, const Launch&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Launch& launch) {
    return out << "body " << launch.body << ", " << launch.count;
  }
};
template <class Body>
Launch launch_of(int64_t count) {
  return {cuda::Bodies::number<Body>(), count};
}

class WatchedDoor final : public testing::FakeDoor {
 public:
  void launch(cuda::Queue queue, int body, const void* parameters, int64_t count) override {
    launches.push_back({body, count});
    FakeDoor::launch(queue, body, parameters, count);
  }
  std::vector<Launch> launches;
};

using cuda::CopyRows, cuda::PermuteElements, cuda::Sixteen, cuda::SpreadSteps, cuda::TakeSteps, cuda::TransposeFours;

std::vector<float> output_of(const Device& device, const Graph& graph) {
  const Op& op = graph.ops().back();
  const auto kernel = device.make_kernel(graph, op, device.kernels(graph, op, LayoutFamily::plain)[0].name, 1);
  return testing::run_kernel(device, graph, op, *kernel);
}

// What the op asks for; its output must be that of the reference device, or what is expected.
std::vector<Launch> launches_of(const Graph& graph, const std::vector<float>& expected) {
  const auto door = std::make_shared<WatchedDoor>();
  EXPECT_EQ(output_of(*cuda::open_behind(door, "cuda:0", false), graph), expected);
  return door->launches;
}
std::vector<Launch> launches_of(const Graph& graph) {
  return launches_of(graph, output_of(*open_reference_device(), graph));
}

Graph with_op(const char* type, const std::vector<Shape>& inputs, Attributes attributes) {
  Graph graph;
  std::vector<TensorId> ids;
  for (const Shape& shape : inputs)
    ids.push_back(graph.add_source("x" + std::to_string(ids.size()), shape, DType::f32, Role::input));
  graph.add_op(type, "op", "", ids, std::move(attributes));
  return graph;
}

using Dims = std::vector<int64_t>;

TEST(CudaMovement, KeepsFloatsThatStayNeighboursTogether) {
  const auto permuted = [](Shape shape, Dims dims) {
    const std::vector<Launch> launches = launches_of(with_op("Permute", {shape}, {{"dims", dims}}));
    return launches.size() == 1 ? launches[0] : Launch{};
  };
  EXPECT_EQ(permuted({2, 7, 3, 8}, {0, 2, 1, 3}), launch_of<PermuteElements<Sixteen>>(84));  // heads of attention
  EXPECT_EQ(permuted({2, 7, 3, 4}, {0, 2, 1, 3}), launch_of<PermuteElements<Sixteen>>(42));
  EXPECT_EQ(permuted({2, 7, 3, 6}, {0, 2, 1, 3}), launch_of<PermuteElements<uint64_t>>(126));
  EXPECT_EQ(permuted({2, 7, 3, 5}, {0, 2, 1, 3}), launch_of<PermuteElements<uint32_t>>(210));
  EXPECT_EQ(permuted({2, 12, 8}, {0, 2, 1}), launch_of<TransposeFours>(2 * 1 * 1 * 32));
  EXPECT_EQ(permuted({2, 5, 8}, {0, 2, 1}), launch_of<PermuteElements<uint32_t>>(80));
}

TEST(CudaMovement, TakesAndJoinsPartsOfRowsByWords) {
  const auto slice = [](Shape shape, int64_t axis, int64_t begin, int64_t size, int64_t step = 1) {
    return launches_of(with_op("Slice", {shape}, {{"axis", axis}, {"begin", begin}, {"size", size}, {"step", step}}));
  };
  EXPECT_EQ(slice({6, 24}, 1, 8, 8), std::vector{launch_of<TakeSteps<Sixteen>>(12)});  // of joined q, k and v
  EXPECT_EQ(slice({6, 24}, 1, 6, 6), std::vector{launch_of<TakeSteps<uint64_t>>(18)});
  EXPECT_EQ(slice({6, 24}, 1, 7, 5), std::vector{launch_of<TakeSteps<uint32_t>>(30)});
  EXPECT_EQ(slice({6, 25}, 1, 8, 8), std::vector{launch_of<TakeSteps<uint32_t>>(48)});
  EXPECT_EQ(slice({3, 6, 4}, 1, 1, 2), std::vector{launch_of<TakeSteps<Sixteen>>(6)});
  EXPECT_EQ(slice({3, 6, 4}, 1, 1, 3, 2), std::vector{launch_of<TakeSteps<Sixteen>>(9)});
  EXPECT_EQ(slice({3, 6, 3}, 1, 1, 3, 2), std::vector{launch_of<TakeSteps<uint32_t>>(27)});
  const auto joined = [](int64_t a, int64_t b) {
    return launches_of(with_op("Concat", {{5, a}, {5, b}}, {{"axis", int64_t{1}}}));
  };
  EXPECT_EQ(joined(8, 4), (std::vector{launch_of<CopyRows<Sixteen>>(10), launch_of<CopyRows<Sixteen>>(5)}));
  EXPECT_EQ(joined(6, 8), (std::vector{launch_of<CopyRows<uint64_t>>(15), launch_of<CopyRows<uint64_t>>(20)}));
  EXPECT_EQ(joined(3, 8), (std::vector{launch_of<CopyRows<uint32_t>>(15), launch_of<CopyRows<uint32_t>>(40)}));
}

TEST(CudaMovement, SpreadsGradientsOfPartsByWords) {
  const auto spread = [](Shape shape, int64_t length, int64_t begin, int64_t step = 1) {
    return launches_of(with_op("SliceBackward", {shape},
                               {{"axis", int64_t{1}}, {"begin", begin}, {"step", step}, {"length", length}}));
  };
  EXPECT_EQ(spread({6, 8}, 24, 8), std::vector{launch_of<SpreadSteps<Sixteen>>(36)});
  EXPECT_EQ(spread({6, 8}, 24, 6), std::vector{launch_of<SpreadSteps<uint64_t>>(72)});
  EXPECT_EQ(spread({3, 2, 4}, 5, 1, 2), std::vector{launch_of<SpreadSteps<Sixteen>>(15)});
}

TEST(CudaMovement, ReordersImagesAsItTransposes) {
  const auto reordered = [](Shape shape, const char* from, const char* to) {
    Graph graph = with_op("Reorder", {shape}, {});
    graph.tensor(graph.ops()[0].inputs[0]).layout = {from};
    graph.tensor(graph.ops()[0].outputs[0]).layout = {to};
    const int64_t count = element_count(shape);
    std::vector<float> x(count), y(count), expected(count);
    for (int64_t i = 0; i < count; ++i) x[i] = testing::input_value(i);
    const auto bytes = [](std::vector<float>& values) { return std::as_writable_bytes(std::span(values)).data(); };
    gather_elements(shape, {from}, 4, 0, count, bytes(x), bytes(y));
    scatter_elements(shape, {to}, 4, 0, count, bytes(y), bytes(expected));
    return launches_of(graph, expected);
  };
  EXPECT_EQ(reordered({2, 8, 3, 4}, "", "acdb"), std::vector{launch_of<TransposeFours>(2 * 32)});
  EXPECT_EQ(reordered({2, 8, 3, 4}, "acdb", ""), std::vector{launch_of<TransposeFours>(2 * 32)});
  EXPECT_EQ(reordered({2, 3, 5, 4}, "", "acdb"), std::vector{launch_of<PermuteElements<uint32_t>>(120)});
  EXPECT_EQ(reordered({4, 8, 3, 2}, "", "Acdb4a"), std::vector{launch_of<cuda::ReorderWords>(192)});
}

// (2, 3, inner) to (3, 2, inner), of 1 or 8 bytes.
template <class T>
Launch exchanged(int64_t inner) {
  const Graph graph = with_op("Permute", {{2, 3, inner}}, {{"dims", Dims{1, 0, 2}}});
  const std::vector<MoveLoop> loops = {{3, inner, 2 * inner}, {2, 3 * inner, inner}, {inner, 1, 1}};
  struct alignas(16) Room {
    T elements[16];
  };
  std::vector<Room> from(6), to(6);
  T *const x = from[0].elements, *const y = to[0].elements;
  for (int64_t i = 0; i < 6 * inner; ++i) x[i] = static_cast<T>(i + 1);
  WatchedDoor door;
  cuda::Movement(graph.ops()[0], loops, sizeof(T)).ask(door, y, x);
  door.synchronize(cuda::Queue::compute);
  for (int64_t i = 0; i < 6 * inner; ++i)
    EXPECT_EQ(y[i], x[(i / inner % 2 * 3 + i / inner / 2) * inner + i % inner]) << i;
  return door.launches.at(0);
}
TEST(CudaMovement, JoinsElementsOfAnyWidth) {
  EXPECT_EQ(exchanged<int64_t>(6), launch_of<PermuteElements<Sixteen>>(18));
  EXPECT_EQ(exchanged<int64_t>(5), launch_of<PermuteElements<uint64_t>>(30));
  EXPECT_EQ(exchanged<uint8_t>(16), launch_of<PermuteElements<Sixteen>>(6));
  EXPECT_EQ(exchanged<uint8_t>(8), launch_of<PermuteElements<uint64_t>>(6));
  EXPECT_EQ(exchanged<uint8_t>(12), launch_of<PermuteElements<uint32_t>>(18));
  EXPECT_EQ(exchanged<uint8_t>(7), launch_of<PermuteElements<uint8_t>>(42));
}

// By addresses as well: a part of a batch begins where it may.
TEST(CudaMovement, TakesTheWidestWordThatDividesAll) {
  const auto at = [](uintptr_t address) { return reinterpret_cast<const void*>(address); };
  EXPECT_EQ(cuda::word_bytes(4, {8, 4}, {at(64), at(16)}), 16);
  EXPECT_EQ(cuda::word_bytes(4, {8, 4}, {at(64), at(8)}), 8);
  EXPECT_EQ(cuda::word_bytes(4, {8, 4}, {at(64), at(4)}), 4);
  EXPECT_EQ(cuda::word_bytes(4, {8, 6}, {at(64)}), 8);
  EXPECT_EQ(cuda::word_bytes(4, {8, 3}, {at(64)}), 4);
  EXPECT_EQ(cuda::word_bytes(1, {8, 4}, {at(64)}), 4);
  EXPECT_EQ(cuda::word_bytes(1, {16, 32}, {at(64)}), 16);
  EXPECT_EQ(cuda::word_bytes(1, {16, 3}, {at(64)}), 1);
  EXPECT_EQ(cuda::word_bytes(8, {4, 2}, {at(64)}), 16);
  EXPECT_EQ(cuda::word_bytes(8, {4, 1}, {at(64)}), 8);
}

}  // namespace
}  // namespace plimsoll
