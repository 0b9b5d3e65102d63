// Kernels that run in parts, in the choice of kernels: what a limit on workspace makes of measured parts.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cost/signature.h"
#include "device/divided.h"
#include "kernels/layout_search.h"
#include "plimsoll/ops.h"
#include "plimsoll/plan.h"
#include "tests/support/error_text.h"

namespace plimsoll {
namespace {

constexpr int64_t kBatch = 8;

// "direct" needs no workspace; "fast" 1 MiB, and 1 MiB for each row. On plain layouts.
class TwoKernels : public Device {
 public:
  const DeviceInfo& info() const override { return info_; }
  std::vector<KernelSpec> kernels(const Graph& graph, const Op& op, LayoutFamily) const override {
    auto spec = [&](std::string name, Bytes workspace) {
      return KernelSpec{std::move(name), std::vector<Layout>(op.inputs.size()), std::vector<Layout>(op.outputs.size()),
                        workspace};
    };
    if (divisible_batch(graph, op) == 0) return {spec("only", {})};
    return {spec("direct", {}), spec("fast", fast_workspace(divisible_batch(graph, op)))};
  }
  static Bytes fast_workspace(int64_t rows) { return 1_MiB * (1 + rows); }
  std::unique_ptr<Kernel> make_kernel(const Graph&, const Op&, std::string_view, int) const override { return nullptr; }
  std::unique_ptr<Arena> take_arena(Bytes) const override { return nullptr; }
  void write(std::byte*, std::span<const std::byte>) const override {}
  void read(std::span<std::byte>, const std::byte*) const override {}

 private:
  DeviceInfo info_;
};

struct Example {
  Graph graph;
  OpId forward, weights;
  Example() {
    const TensorId x = graph.add_source("x", {kBatch, 16, 5, 5}, DType::f32, Role::input);
    const TensorId w = graph.add_source("w", {16, 16, 3, 3}, DType::f32, Role::parameter);
    const Attributes conv{{"padding", std::vector<int64_t>{1, 1, 1, 1}}};
    forward = graph.add_op("ConvForward", "forward", "", {x, w}, conv);
    Attributes back = conv;
    back.set("kernel", std::vector<int64_t>{3, 3});
    weights = graph.add_op("ConvBackwardWeights", "weights", "", {x, graph.output(forward)}, back);
    graph.inputs = {x};
    graph.states = {{w, w}};
  }
};

// A row takes 1 ms by direct and half of it by fast, in parts of any size that is a power of two.
CostTable measured(const Example& e, bool with_workspaces = true) {
  CostTable table({.gflops = 1000, .memory_gb_per_s = 1000, .launch_us = 1});
  const TwoKernels device;
  for (OpId id : {e.forward, e.weights}) {
    for (int64_t rows : {1, 2, 4, 8}) {
      for (const KernelSpec& spec : device.kernels(e.graph, e.graph.op(id), LayoutFamily::plain)) {
        const bool fast = spec.name == "fast";
        Cost cost{.source = Cost::Source::measured, .time_ms = static_cast<double>(rows) * (fast ? 0.5 : 1), .runs = 3};
        if (with_workspaces) cost.workspace = fast ? TwoKernels::fast_workspace(rows) : 0_B;
        table.put({part_signature(e.graph, e.graph.op(id), spec, rows), spec.name, 0}, cost);
      }
    }
  }
  return table;
}

KernelChoice chosen(const Example& e, OpId id, const CostTable& table, LayoutOptions options) {
  Graph graph = e.graph;
  options.family = LayoutFamily::plain;
  return choose_layouts(graph, TwoKernels(), table, options).kernels[id.index];
}

TEST(DividedCandidates, ALimitOnWorkspaceDividesTheBatchAndKeepsTheFastKernel) {
  const Example e;
  const CostTable table = measured(e);
  auto under = [&](Bytes limit) { return chosen(e, e.forward, table, {.workspace_limit = limit}).kernel; };
  EXPECT_EQ(under({INT64_MAX}), "fast");
  EXPECT_EQ(under(9_MiB), "fast");
  EXPECT_EQ(under(9_MiB - 1_B), "fast@4*2");
  EXPECT_EQ(under(3_MiB), "fast@2*4");
  EXPECT_EQ(under(2_MiB), "fast@1*8");
  EXPECT_EQ(under(1_MiB), "direct");
  EXPECT_EQ(chosen(e, e.forward, table, {.workspace_limit = 3_MiB}).workspace, 3_MiB);
}

TEST(DividedCandidates, AWeightGradientInPartsNeedsRoomForASecondOne) {
  const Example e;
  const CostTable table = measured(e);
  const Bytes second = summing_workspace(e.graph, e.graph.op(e.weights));
  EXPECT_EQ(second, Bytes{16 * 16 * 9 * 4});
  const KernelChoice divided = chosen(e, e.weights, table, {.workspace_limit = 5_MiB + second});
  EXPECT_EQ(divided.kernel, "fast@4*2");
  EXPECT_EQ(divided.workspace, 5_MiB + second);
  EXPECT_EQ(chosen(e, e.weights, table, {.workspace_limit = 5_MiB}).kernel, "fast@2*4");
}

TEST(DividedCandidates, NothingIsDividedWithoutMeasurementsOrAgainstTheWish) {
  const Example e;
  const LayoutOptions limited{.workspace_limit = 5_MiB};
  EXPECT_EQ(chosen(e, e.forward, CostTable{}, limited).kernel, "direct");
  EXPECT_EQ(chosen(e, e.forward, measured(e, false), limited).kernel, "direct");
  LayoutOptions undivided = limited;
  undivided.batch_sizes = BatchSizes::undivided;
  EXPECT_EQ(chosen(e, e.forward, measured(e), undivided).kernel, "direct");
  LayoutOptions exact = limited;
  exact.exact = true;
  EXPECT_TRUE(parts_of(chosen(e, e.forward, measured(e), exact).kernel).empty());
}

TEST(DividedCandidates, APinnedConfigurationIsRepeatedWhateverTheCosts) {
  const Example e;
  LayoutOptions options;
  options.pinned_kernels = {{"forward", "fast@4+direct@2*2"}, {"weights", "direct"}};
  for (const CostTable& table : {CostTable{}, measured(e)}) {
    const KernelChoice choice = chosen(e, e.forward, table, options);
    EXPECT_EQ(choice.kernel, "fast@4+direct@2*2");
    EXPECT_EQ(choice.workspace, 5_MiB);
  }
  for (const char* wrong : {"fast@4+direct@2", "slow@4*2", "fast@4+direct@8"}) {
    options.pinned_kernels["forward"] = wrong;
    EXPECT_THAT(
        testing::error_text(ErrorCode::unsupported, [&] { chosen(e, e.forward, CostTable{}, options); }),
        ::testing::HasSubstr(std::string("is to run by kernel '") + wrong + "', which this device does not offer"));
  }
}

TEST(DividedCandidates, PartsAreNeverPredictedSlowerThanTheWholeAtAnyLimit) {
  const Example e;
  const CostTable table = measured(e);
  for (int64_t limit = 0; limit <= 10; ++limit) {
    Graph parts = e.graph, whole = e.graph;
    const LayoutOptions options{.family = LayoutFamily::plain, .workspace_limit = 1_MiB * limit};
    LayoutOptions undivided = options;
    undivided.batch_sizes = BatchSizes::undivided;
    EXPECT_LE(choose_layouts(parts, TwoKernels(), table, options).estimated_ms,
              choose_layouts(whole, TwoKernels(), table, undivided).estimated_ms);
  }
}

TEST(DividedCandidates, AConfigurationCostsWhatItsPartsDo) {
  const Example e;
  const CostTable table = measured(e);
  const Op& op = e.graph.op(e.forward);
  EXPECT_NEAR(table.cost(e.graph, op, "fast@2*3+direct@2").time_ms, 5, 0.01);
  EXPECT_EQ(table.cost(e.graph, op, "fast@2*4").source, Cost::Source::measured);
  EXPECT_EQ(table.cost(e.graph, op, "fast@3+fast@5").source, Cost::Source::estimated);
  CostTable in_step = table;
  in_step.put({op_signature(e.graph, op), "fast@2*4", 0}, {.source = Cost::Source::in_step, .time_ms = 7});
  EXPECT_EQ(in_step.predict(e.graph, op, "fast@2*4").time_ms, 7);
}

}  // namespace
}  // namespace plimsoll
