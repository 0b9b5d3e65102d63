// Measuring on a device with a clock of its own: what a first run loads does not count, nothing of the last run is in
// the cache, and a kernel that fails is told from a device that fails.
#include "plimsoll/cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cost/bench.h"
#include "device/cuda/device.h"
#include "plimsoll/ops.h"
#include "tests/cuda/fake_door.h"

namespace plimsoll {
namespace {

using testing::FakeDoor;
using ::testing::HasSubstr;

struct MeasureExample {
  Graph graph;
  OpId conv;
  MeasureExample() {
    const TensorId x = graph.add_source("x", {2, 4, 6, 6}, DType::f32, Role::input);
    const TensorId w = graph.add_source("w", {4, 4, 3, 3}, DType::f32, Role::parameter);
    conv = graph.add_op("ConvForward", "conv", "conv", {x, w}, {{"padding", std::vector<int64_t>{1, 1, 1, 1}}});
  }
  // What is known of a kernel on row-major tensors.
  std::optional<Cost> cost(const Device& device, const CostTable& table, const std::string& kernel) const {
    for (const KernelSpec& spec : device.kernels(graph, graph.op(conv), LayoutFamily::plain)) {
      if (spec.name == kernel) return table.find({op_signature(graph, graph.op(conv), spec), kernel, 0});
    }
    return table.find({op_signature(graph, graph.op(conv)), kernel, 0});  // it is not offered any more
  }
};

TEST(CudaMeasure, WhatAFirstRunLoadsDoesNotCount) {
  const MeasureExample e;
  const auto door = std::make_shared<FakeDoor>();
  door->loads_for(300);
  door->takes("fft", 4);
  door->takes("implicit_precomp_gemm", 2);
  door->takes("implicit_gemm", 3);
  const auto device = cuda::open_behind(door, "cuda:0", false);
  CostTable table;
  measure_costs(e.graph, *device, table);
  for (const auto& [kernel, ms] : {std::pair("cudnn:fft", 4.0), std::pair("cudnn:implicit_precomp_gemm", 2.0),
                                   std::pair("cudnn:implicit_gemm", 3.0)}) {
    const auto cost = e.cost(*device, table, kernel);
    ASSERT_TRUE(cost.has_value()) << kernel;
    EXPECT_GE(cost->runs, 3) << kernel;
    EXPECT_NEAR(cost->time_ms, ms, 0.1) << kernel;
  }
}

TEST(CudaMeasure, TheCacheIsEmptiedBeforeEachRun) {
  const MeasureExample e;
  const auto door = std::make_shared<FakeDoor>();
  const auto device = cuda::open_behind(door, "cuda:0", false);
  const KernelSpec spec = device->kernels(e.graph, e.graph.op(e.conv), LayoutFamily::plain).at(0);
  OpBench bench(*device, isolate(e.graph, e.graph.op(e.conv), spec));
  const Bytes least = bench.set_bytes() + bench.workspace();
  EXPECT_GE(bench.bytes(1) - least, device->info().cache * 2);
  const auto arena = device->take_arena(bench.bytes(1));
  bench.place(arena->base(), 1);
  const auto fills = [&] { return door->calls().at("cudaMemsetAsync"); };
  const int before = fills();
  bench.run();
  EXPECT_EQ(fills(), before + 1);
  EXPECT_THAT(door->conflicts(), ::testing::IsEmpty());
  bench.keep_within(least + 8_KiB);
  EXPECT_EQ(bench.bytes(1), least + 8_KiB);
  bench.keep_within(least - 1_B);
  EXPECT_EQ(bench.bytes(1), least);
}

TEST(CudaMeasure, AKernelThatFailsIsNeverTheFastestAndTheOthersAreMeasured) {
  const MeasureExample e;
  const auto door = std::make_shared<FakeDoor>();
  door->fail("cudnnConvolutionForward", 1);  // the first that is measured: fft
  const auto device = cuda::open_behind(door, "cuda:0", false);
  CostTable table;
  measure_costs(e.graph, *device, table);
  ASSERT_TRUE(e.cost(*device, table, "cudnn:fft").has_value());
  EXPECT_GT(e.cost(*device, table, "cudnn:fft")->time_ms, 1000);
  ASSERT_TRUE(e.cost(*device, table, "cudnn:implicit_gemm").has_value());
  EXPECT_LT(e.cost(*device, table, "cudnn:implicit_gemm")->time_ms, 1);
}

TEST(CudaMeasure, AKernelThatRefusesIsNeverTheFastestAndNotOfferedAgain) {
  const MeasureExample e;
  const auto door = std::make_shared<FakeDoor>();
  door->refuse("fft");
  const auto device = cuda::open_behind(door, "cuda:0", false);
  CostTable table;
  measure_costs(e.graph, *device, table);
  ASSERT_TRUE(e.cost(*device, table, "cudnn:fft").has_value());
  EXPECT_GT(e.cost(*device, table, "cudnn:fft")->time_ms, 1000);
  for (const KernelSpec& spec : device->kernels(e.graph, e.graph.op(e.conv), LayoutFamily::plain))
    EXPECT_NE(spec.name, "cudnn:fft");
}

TEST(CudaMeasure, AFailureThatEndsAllWorkIsToldByTheCallThatFailedFirst) {
  const MeasureExample e;
  const auto door = std::make_shared<FakeDoor>();
  door->fail("cudnnConvolutionForward", 2, true);
  const auto device = cuda::open_behind(door, "cuda:0", false);
  CostTable table;
  try {
    measure_costs(e.graph, *device, table);
    FAIL() << "it went on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device_failure);
    EXPECT_THAT(error.what(), HasSubstr("cudnnConvolutionForward: out of order"));
  }
}

}  // namespace
}  // namespace plimsoll
