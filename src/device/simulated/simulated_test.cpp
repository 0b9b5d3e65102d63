#include "device/simulated/simulated.h"

#include <gtest/gtest.h>

#include "device/simulated/analytic.h"
#include "kernels/layout.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr double kMiB = 1 << 20;

// AlexNet's second convolution: 27x27, 5x5, two groups of 48 to 128 maps.
Graph conv2(int64_t batch) {
  Graph graph;
  const TensorId x = graph.add_source("x", {batch, 96, 27, 27}, DType::f32, Role::activation);
  const TensorId w = graph.add_source("w", {2, 128, 48, 5, 5}, DType::f32, Role::activation);
  graph.add_op("ConvForward", "conv2", "conv2", {x, w},
               {{"padding", std::vector<int64_t>{2, 2, 2, 2}}, {"groups", int64_t{2}}});
  return graph;
}

Bytes workspace(const Graph& graph, const Device& device, std::string_view kernel) {
  for (const KernelSpec& spec : device.kernels(graph, graph.op({0}), LayoutFamily::plain)) {
    if (spec.name == kernel) return spec.workspace;
  }
  return {-1};
}

// mu-cuDNN, figure 1 and its table of workspaces.
TEST(SimulatedDevice, FftTakesThePapersWorkspace) {
  const auto device = open_device("p100");
  EXPECT_EQ(static_cast<double>(workspace(conv2(256), *device, "analytic_fft").count) / kMiB, 212.5);
  EXPECT_EQ(static_cast<double>(workspace(conv2(32), *device, "analytic_fft").count) / kMiB, 48.875);
}

TEST(SimulatedDevice, HasAConvolutionWithoutWorkspaceAndPricesThemAll) {
  const auto device = open_device("k40c");
  const Graph graph = conv2(128);
  const auto specs = device->kernels(graph, graph.op({0}), LayoutFamily::plain);
  ASSERT_GE(specs.size(), 3u);
  EXPECT_EQ(specs[0].workspace, 0_B);
  const CostTable costs(probe_rates(*device));
  for (const KernelSpec& spec : specs) {
    const Cost cost = costs.cost(graph, graph.op({0}), spec);
    EXPECT_EQ(cost.source, Cost::Source::estimated);
    EXPECT_GT(cost.time_ms, 0.1) << spec.name;
    EXPECT_LT(cost.time_ms, 1000) << spec.name;
  }
  EXPECT_LT(costs.cost(graph, graph.op({0}), "analytic_fft").time_ms,
            costs.cost(graph, graph.op({0}), "analytic_implicit_gemm").time_ms);
}

TEST(SimulatedDevice, PlansAnyNetworkButRunsNone) {
  for (const DeviceListing& listing : simulated::list()) {
    SCOPED_TRACE(listing.name);
    EXPECT_TRUE(listing.simulated);
    EXPECT_TRUE(listing.description.starts_with("simulated: "));
    const auto device = open_device(listing.name);
    EXPECT_TRUE(device->info().simulated);
    ASSERT_EQ(device->info().tiers.size(), 1u);
    EXPECT_EQ(device->info().tiers[0].capacity, 107_GiB);
    const CostTable costs(probe_rates(*device));
    Network network = make_training_network(build_model("resnet20", {.batch = 2}), {});
    const LayoutResult layouts = choose_layouts(network.graph, *device, costs);
    EXPECT_EQ(layouts.family, LayoutFamily::plain);
    EXPECT_GT(layouts.estimated_ms, 0);
    try {
      device->take_arena(1_MiB);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      EXPECT_EQ(error.what(), "device '" + listing.name + "' is simulated: it plans, it does not run");
    }
  }
}

TEST(SimulatedDevice, AK40cIsAsInSuperNeurons) {
  const auto device = open_device("k40c");
  EXPECT_EQ(device->info().memory_total, 12_GiB);
  EXPECT_EQ(device->info().memory_available, Bytes{12'025'908'428});  // 11.2 GiB
  EXPECT_EQ(device->info().tiers[0].out_gb_per_s, 8);
  EXPECT_EQ(probe_rates(*device).gflops, 4290);
}

}  // namespace
}  // namespace plimsoll
