// Kernels whose threads work through shared memory in phases, and where attention is one of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/device.h"
#include "plimsoll/cost.h"
#include "plimsoll/graph.h"
#include "tests/cuda/fake_door.h"
#include "tests/cuda/on_the_host.h"

namespace plimsoll::testing {
namespace {

// In each round a thread gets the number that its neighbour had. A hasty one does not wait until all have shown theirs.
template <bool kHasty>
struct PassOn {
  using Kind = cuda::EachTile;
  static constexpr int kThreads = 32, kBlocksTogether = 1, kPhases = 2, kFinishes = 1;
  struct Shared {
    int shown[kThreads];
  };
  struct State {
    int number;
  };
  int* y;
  int rounds(int64_t block) const { return 10 * static_cast<int>(block + 1); }
  bool skips(int64_t, int round) const { return round % 2 == 1; }
  void begin(int64_t, int thread, State& state, Shared&) const { state.number = thread; }
  template <int kPhase>
  void phase(int64_t, int, int thread, State& state, Shared& shared) const {
    if (kPhase == 0) shared.shown[thread] = state.number;
    if (kPhase == (kHasty ? 0 : 1)) state.number = shared.shown[(thread + 1) % kThreads];
  }
  template <int>
  void finish(int64_t block, int thread, State& state, Shared&) const {
    y[block * kThreads + thread] = state.number;
  }
};

TEST(CudaTiles, GoThroughPhasesTogether) {
  constexpr int kThreads = PassOn<false>::kThreads;
  std::vector<int> waits(2 * kThreads), hasty(2 * kThreads), expected(2 * kThreads);
  for (int block : {0, 1}) {
    for (int thread = 0; thread < kThreads; ++thread) {
      expected[static_cast<size_t>(block * kThreads + thread)] = (thread + 5 * (block + 1)) % kThreads;
    }
  }
  const PassOn<false> right{waits.data()};
  fake::HostLauncher<PassOn<false>>::launch(&right, 2);
  EXPECT_EQ(waits, expected);
  const PassOn<true> wrong{hasty.data()};
  fake::HostLauncher<PassOn<true>>::launch(&wrong, 2);
  EXPECT_NE(hasty, expected);
}

struct Sizes {
  int64_t width = 64, value_width = 64;
  bool learns_mask = false;
};
// Attention and its backward pass; their ids are 0 and 1.
Graph attention_graph(const Sizes& sizes) {
  Graph graph;
  const auto tensor = [&](const char* name, Shape shape) {
    return graph.add_source(name, std::move(shape), DType::f32, Role::input);
  };
  const TensorId q = tensor("q", {2, 4, 300, sizes.width}), k = tensor("k", {2, 4, 300, sizes.width}),
                 v = tensor("v", {2, 4, 300, sizes.value_width}), mask = tensor("mask", {300, 300}),
                 dy = tensor("dy", {2, 4, 300, sizes.value_width});
  const OpId forward = graph.add_op("AttentionForward", "forward", "", {q, k, v, mask});
  Attributes attributes;
  if (sizes.learns_mask) attributes.set("mask_gradient", int64_t{1});
  graph.add_op("AttentionBackward", "backward", "", {q, k, v, dy, graph.output(forward, 1), mask}, attributes);
  return graph;
}

using Names = std::vector<std::string>;
using Both = std::vector<Names>;  // of the forward op and the backward op
Names kernels_of(const Device& device, const Graph& graph, int32_t op) {
  Names names;
  for (const KernelSpec& spec : device.kernels(graph, graph.op({op}), LayoutFamily::plain)) names.push_back(spec.name);
  return names;
}

TEST(CudaAttention, IsOfferedByTilesWhereABlockHoldsThem) {
  const auto door = std::make_shared<FakeDoor>();
  const auto both = [&](const Sizes& sizes) {
    const auto device = cuda::open_behind(door, "cuda:0", false);
    const Graph graph = attention_graph(sizes);
    return Both{kernels_of(*device, graph, 0), kernels_of(*device, graph, 1)};
  };
  const Names tiles = {"own:tiles", "cublaslt"}, products = {"cublaslt"};
  EXPECT_EQ(both({}), (Both{tiles, tiles}));
  EXPECT_EQ(both({.width = 128, .value_width = 1}), (Both{tiles, tiles}));
  EXPECT_EQ(both({.width = 8, .value_width = 129}), (Both{products, products}));
  EXPECT_EQ(both({.learns_mask = true}), (Both{tiles, products}));
  door->share({99 * 1024});  // as sm_86 and sm_89 do
  EXPECT_EQ(both({}), (Both{tiles, tiles}));
  EXPECT_EQ(both({.width = 80}), (Both{tiles, products}));
  door->share({64 * 1024});
  EXPECT_EQ(both({}), (Both{products, products}));
}

TEST(CudaAttention, GoesByTensorCoresWhereTheUserLetsIt) {
  const auto door = std::make_shared<FakeDoor>();
  const Graph graph = attention_graph({});
  const auto names = [&](bool tf32) { return kernels_of(*cuda::open_behind(door, "cuda:0", tf32), graph, 1); };
  EXPECT_EQ(names(true), (Names{"own:tiles:tf32", "own:tiles", "cublaslt:tf32", "cublaslt"}));
  EXPECT_EQ(names(false), (Names{"own:tiles", "cublaslt"}));
  door->share({99 * 1024});
  EXPECT_EQ(names(true), (Names{"own:tiles:tf32", "own:tiles", "cublaslt:tf32", "cublaslt"}));
  door->be_of_capability(7, 5);
  EXPECT_EQ(names(true), (Names{"own:tiles", "cublaslt:tf32", "cublaslt"}));
}

TEST(CudaAttention, IsByTilesWhereNothingIsMeasured) {
  const Graph graph = attention_graph({});
  const CostTable table({.gflops = 1e4, .memory_gb_per_s = 1e3, .launch_us = 3});
  for (const bool tf32 : {false, true}) {
    const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), tf32 ? "cuda:0+tf32" : "cuda:0", tf32);
    for (const Op& op : graph.ops()) {
      const std::vector<KernelSpec> kernels = device->kernels(graph, op, LayoutFamily::plain);
      const auto best = std::min_element(kernels.begin(), kernels.end(), [&](const auto& a, const auto& b) {
        return table.cost(graph, op, a).time_ms < table.cost(graph, op, b).time_ms;
      });
      EXPECT_EQ(best->name, tf32 ? "own:tiles:tf32" : "own:tiles");
      EXPECT_EQ(best->exact, !tf32);
      EXPECT_LE(best->workspace, 1_MiB);
    }
  }
}

}  // namespace
}  // namespace plimsoll::testing
