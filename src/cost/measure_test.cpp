#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "base/statistics.h"
#include "cost/bench.h"
#include "cost/measure.h"
#include "cost/probe.h"
#include "cost/signature.h"
#include "plimsoll/cost.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

Graph small_graph() {
  Graph g;
  g.name = "small";
  const TensorId x = g.add_source("x", {2, 8, 6, 6}, DType::f32, Role::input);
  const TensorId w = g.add_source("w", {16, 8, 3, 3}, DType::f32, Role::parameter);
  const TensorId w2 = g.add_source("w2", {16, 16, 3, 3}, DType::f32, Role::parameter);
  const Attributes conv{{"padding", std::vector<int64_t>{1, 1, 1, 1}}};
  const TensorId y = g.output(g.add_op("ConvForward", "conv", "conv", {x, w}, conv));
  const TensorId r = g.output(g.add_op("ReluForward", "relu", "relu", {y}));
  const TensorId z = g.output(g.add_op("ConvForward", "conv2", "conv2", {r, w2}, conv));
  g.add_op("ReluForward", "relu2", "relu2", {z});  // the same signature as relu
  return g;
}

TEST(Signature, TellsWhatCostsApartAndNothingElse) {
  Graph g = small_graph();
  const Op &relu = g.op(g.find_op("relu")), &relu2 = g.op(g.find_op("relu2"));
  EXPECT_EQ(op_signature(g, relu), "ReluForward(2x16x6x6 f32)->(2x16x6x6 f32)");
  EXPECT_EQ(op_signature(g, relu), op_signature(g, relu2));
  EXPECT_EQ(op_signature(g, g.op(g.find_op("conv"))),
            "ConvForward{padding=[1,1,1,1]}(2x8x6x6 f32, 16x8x3x3 f32)->(2x16x6x6 f32)");
  g.tensor(relu.inputs[0]).layout = {"aBcd16b"};
  EXPECT_EQ(op_signature(g, relu), "ReluForward(2x16x6x6 f32 aBcd16b)->(2x16x6x6 f32)");
  EXPECT_EQ(signature_without_layouts(g, relu), signature_without_layouts(g, relu2));
  const KernelSpec spec{.name = "k", .inputs = {{"acdb"}}, .outputs = {{"abcd"}}, .workspace = {}};
  EXPECT_EQ(op_signature(g, relu, spec), "ReluForward(2x16x6x6 f32 acdb)->(2x16x6x6 f32)");
}

TEST(Signature, OfAReorderIsTheSameBeforeAndAfterItIsThere) {
  Graph g = small_graph();
  const TensorId x = g.find_tensor("x");
  const OpId reorder = g.add_op("Reorder", "reorder", "conv", {x});
  g.tensor(g.output(reorder)).layout = {"aBcd16b"};
  EXPECT_EQ(op_signature(g, g.op(reorder)), reorder_signature(g.tensor(x).shape, DType::f32, {}, {"aBcd16b"}));
}

TEST(Estimate, IsTheSlowerOfArithmeticAndTrafficPlusTheLaunch) {
  Graph g;
  const TensorId x = g.add_source("x", {1000, 1000}, DType::f32, Role::input);
  const OpId relu = g.add_op("ReluForward", "relu", "relu", {x});
  const CostTable slow_memory({.gflops = 1e6, .memory_gb_per_s = 1, .launch_us = 10});
  const Cost cost = slow_memory.cost(g, g.op(relu), std::string("ours"));
  EXPECT_EQ(cost.source, Cost::Source::estimated);
  EXPECT_NEAR(cost.time_ms, 8e6 / 1e6 + 0.01, 1e-9);
  const CostTable slow_arithmetic({.gflops = 0.01, .memory_gb_per_s = 1e6, .launch_us = 0});
  EXPECT_NEAR(slow_arithmetic.cost(g, g.op(relu), std::string("ours")).time_ms, 1e6 / (0.01 * 1e6), 1e-3);
}

TEST(Estimate, IsByWhatTheDeviceToldOfTheKernelAndRemembersItByName) {
  Graph g;
  const TensorId x = g.add_source("x", {16, 64, 56, 56}, DType::f32, Role::input);
  const TensorId w = g.add_source("w", {64, 64, 3, 3}, DType::f32, Role::parameter);
  const Op& conv =
      g.op(g.add_op("ConvForward", "conv", "conv", {x, w}, {{"padding", std::vector<int64_t>{1, 1, 1, 1}}}));
  const CostTable table({.gflops = 1000, .memory_gb_per_s = 1000, .launch_us = 0});
  const double flops = conv.type->work(g, conv).flops;
  EXPECT_NEAR(table.cost(g, conv, std::string("told")).time_ms, flops / (1e9 * 0.5),
              1e-9);  // not yet: an average one
  KernelSpec told{.name = "told", .inputs = {{}, {}}, .outputs = {{}}, .estimate = {.efficiency = 0.25}};
  EXPECT_NEAR(table.cost(g, conv, told).time_ms, flops / (1e9 * 0.25), 1e-9);
  EXPECT_EQ(table.cost(g, conv, std::string("told")).time_ms, table.cost(g, conv, told).time_ms);
  EXPECT_EQ(table.unmeasured(table.rates()).cost(g, conv, std::string("told")).time_ms,
            table.cost(g, conv, told).time_ms);
  const KernelSpec slow_traffic{.name = "s",
                                .inputs = {{}, {}},
                                .outputs = {{}},
                                .estimate = {.bandwidth = 0.001, .flops = 1, .extra_bytes = 1e6}};
  const double bytes = conv.type->work(g, conv).bytes;
  EXPECT_NEAR(table.cost(g, conv, slow_traffic).time_ms, (bytes + 1e6) / (1e9 * 0.001), 1e-6);
}

// The least estimate of the CPU's kernels that satisfy the condition; nothing where this processor has none.
template <class Condition>
std::optional<double> least_ms(const Graph& graph, OpId op, LayoutFamily family, Condition condition) {
  const auto device = open_device("cpu");
  std::optional<double> least;
  for (const KernelSpec& spec : device->kernels(graph, graph.op(op), family)) {
    if (!condition(spec)) continue;
    const double ms = CostTable().cost(graph, graph.op(op), spec).time_ms;
    least = std::min(ms, least.value_or(ms));
  }
  return least;
}

TEST(Estimate, RanksConvolutionKernelsAsTheyAre) {
  const Attributes conv{{"padding", std::vector<int64_t>{1, 1, 1, 1}}};
  auto ms = [&](int64_t batch, LayoutFamily family, Algorithm algorithm, int64_t channels = 64, int64_t pixels = 56) {
    Graph one;
    const TensorId x = one.add_source("x", {batch, channels, pixels, pixels}, DType::f32, Role::input);
    const TensorId w = one.add_source("w", {channels, channels, 3, 3}, DType::f32, Role::parameter);
    const OpId op = one.add_op("ConvForward", "conv", "conv", {x, w}, conv);
    return least_ms(one, op, family, [&](const KernelSpec& spec) { return spec.algorithm == algorithm; });
  };
  const std::optional<double> direct = ms(16, LayoutFamily::blocked, Algorithm::direct);
  ASSERT_TRUE(direct.has_value());
  if (ms(16, LayoutFamily::blocked, Algorithm::winograd)) {  // AVX-512
    EXPECT_LT(*ms(16, LayoutFamily::blocked, Algorithm::winograd), *direct);
    EXPECT_GT(*ms(2, LayoutFamily::blocked, Algorithm::winograd, 512, 7),
              *ms(2, LayoutFamily::blocked, Algorithm::direct, 512, 7));
    EXPECT_LT(*ms(2, LayoutFamily::blocked, Algorithm::winograd, 256, 14),
              *ms(2, LayoutFamily::blocked, Algorithm::direct, 256, 14));
  }
  EXPECT_GT(ms(16, LayoutFamily::plain, Algorithm::gemm).value(), 1.5 * *direct);
  Graph one;
  const TensorId x = one.add_source("x", {16, 64, 56, 56}, DType::f32, Role::input);
  const TensorId w = one.add_source("w", {64, 64, 3, 3}, DType::f32, Role::parameter);
  const Op& op = one.op(one.add_op("ConvForward", "conv", "conv", {x, w}, conv));
  const KernelSpec reference = open_reference_device()->kernels(one, op, LayoutFamily::plain).at(0);
  EXPECT_GT(CostTable().cost(one, op, reference).time_ms, 50 * *direct);
}

TEST(Estimate, RowMajorWeightsAreSlowForFewRows) {
  auto ms = [&](int64_t rows, const char* type, bool turns) {
    Graph one;
    const bool data = std::string(type) == "FullyConnectedBackwardData";
    const TensorId x = one.add_source("x", {rows, data ? 1000 : 4096}, DType::f32, Role::input);
    const TensorId w = one.add_source("w", {1000, 4096}, DType::f32, Role::parameter);
    return least_ms(one, one.add_op(type, "fc", "fc", {x, w}), LayoutFamily::plain, [&](const KernelSpec& spec) {
      const bool ours = spec.name.rfind("own:", 0) == 0;
      return !ours && spec.algorithm == Algorithm::gemm && (spec.name == "x64:gemm:jit") == turns;
    });
  };
  const char *forward = "FullyConnectedForward", *data = "FullyConnectedBackwardData";
  if (!ms(64, data, false)) GTEST_SKIP() << "without AVX-512 oneDNN has one kernel for these";
  EXPECT_GT(ms(64, forward, true).value(), 2 * ms(64, forward, false).value());
  EXPECT_LT(ms(1024, forward, true).value(), 2 * ms(1024, forward, false).value());
  EXPECT_EQ(ms(64, data, true).value(), ms(64, data, false).value());
}

TEST(Estimate, AKnownCostIsTakenInstead) {
  const Graph g = small_graph();
  const Op& relu = g.op(g.find_op("relu"));
  CostTable table;
  table.put({op_signature(g, relu), "ours", 0}, {Cost::Source::measured, 42, 1, 5});
  EXPECT_EQ(table.cost(g, relu, std::string("ours")).time_ms, 42);
  EXPECT_EQ(table.cost(g, g.op(g.find_op("relu2")), std::string("ours")).time_ms, 42);
  EXPECT_NE(table.cost(g, relu, std::string("other")).time_ms, 42);
}

TEST(Estimate, AnElementwiseOpInAnotherLayoutCostsWhatWasMeasuredOnRowMajor) {
  Graph g = small_graph();
  const Op& relu = g.op(g.find_op("relu"));
  CostTable table;
  table.put({op_signature(g, relu), "ours", 0}, {Cost::Source::measured, 42, 1, 5});
  g.tensor(relu.inputs[0]).layout = {"aBcd16b"};
  EXPECT_EQ(table.cost(g, relu, std::string("ours")).source, Cost::Source::estimated);
  g.tensor(relu.outputs[0]).layout = {"aBcd16b"};
  EXPECT_EQ(table.cost(g, relu, std::string("ours")).time_ms, 42);
}

TEST(Statistics, AreMedianAndHalfTheQuartilesDistance) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({1, 2, 3, 10}), 2.5);
  EXPECT_EQ(half_interquartile_distance({1, 2, 3, 4, 5}), 1);
  EXPECT_EQ(half_interquartile_distance({7}), 0);
}

TEST(Measure, TimesEveryKernelOfEveryDistinctOpOnce) {
  const Graph g = small_graph();
  const auto device = open_device("cpu");
  std::set<CostKey> wanted;
  for (LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked}) {
    for (const Op& op : g.ops()) {
      for (const KernelSpec& spec : device->kernels(g, op, family))
        wanted.insert({op_signature(g, op, spec), spec.name, 0});
    }
  }
  CostTable table;
  int calls = 0;
  MeasureOptions options{.seconds_per_kernel = 0.005};
  options.progress = [&](int done, int total, const std::string& what) {
    EXPECT_EQ(done, calls++);
    EXPECT_EQ(total, static_cast<int>(wanted.size()));
    EXPECT_NE(what.find(" by "), std::string::npos);
  };
  EXPECT_EQ(measure_costs(g, *device, table, options), static_cast<int>(wanted.size()));
  for (const CostKey& key : wanted) {
    ASSERT_TRUE(table.find(key).has_value()) << key.signature << " by " << key.kernel;
    const Cost cost = *table.find(key);
    EXPECT_EQ(cost.source, Cost::Source::measured);
    EXPECT_GT(cost.time_ms, 0);
    EXPECT_GE(cost.runs, 1);
  }
  EXPECT_EQ(measure_costs(g, *device, table), 0) << "what is known is not measured again";
}

TEST(Measure, LeavesOutWhatDoesNotFitTheMemory) {
  const Graph g = small_graph();
  const auto device = open_device("cpu");
  CostTable table;
  EXPECT_EQ(measure_costs(g, *device, table, {.seconds_per_kernel = 0.001, .memory = 8_KiB}), 0);
  EXPECT_TRUE(table.entries().empty());
}

TEST(Measure, TimesAReorderInTheLayoutsThatItHas) {
  Graph g;
  const TensorId x = g.add_source("x", {2, 32, 8, 8}, DType::f32, Role::input);
  const OpId reorder = g.add_op("Reorder", "reorder", "conv", {x});
  g.tensor(g.output(reorder)).layout = {"aBcd16b"};
  const auto device = open_device("cpu");
  CostTable table;
  EXPECT_EQ(measure_costs(g, *device, table, {.seconds_per_kernel = 0.001}), 1);
  EXPECT_EQ(table.entries().begin()->first.signature, "Reorder(2x32x8x8 f32)->(2x32x8x8 f32 aBcd16b)");
}

// Kernels that wait as long as their names say.
class WaitingDevice : public Device {
 public:
  explicit WaitingDevice(std::vector<std::string> milliseconds, std::string key = "waiting")
      : kernels_(std::move(milliseconds)) {
    info_.name = "waiting";
    info_.key = std::move(key);
    info_.memory_available = 1_GiB;
  }
  const DeviceInfo& info() const override { return info_; }
  std::vector<KernelSpec> kernels(const Graph&, const Op& op, LayoutFamily) const override {
    std::vector<KernelSpec> specs;
    for (const std::string& name : kernels_) {
      specs.push_back({name, std::vector<Layout>(op.inputs.size()), std::vector<Layout>(op.outputs.size()), {}});
    }
    return specs;
  }
  std::unique_ptr<Kernel> make_kernel(const Graph&, const Op&, std::string_view name, int) const override {
    struct Waiting : Kernel {
      int ms = 0;
      Bytes workspace() const override { return {}; }
      void bind(std::span<void* const>, std::span<void* const>, void*) override {}
      void run() override {
        if (ms < 0) throw Error(ErrorCode::unsupported, "it does not run");
        std::this_thread::sleep_for(std::chrono::milliseconds(ms));
      }
    };
    ++made_;
    if (name == "missing") throw Error(ErrorCode::unsupported, "no such kernel");
    auto kernel = std::make_unique<Waiting>();
    kernel->ms = std::stoi(std::string(name));
    return kernel;
  }
  std::unique_ptr<Arena> take_arena(Bytes bytes) const override { return open_reference_device()->take_arena(bytes); }
  void write(std::byte* to, std::span<const std::byte> from) const override { std::copy(from.begin(), from.end(), to); }
  void read(std::span<std::byte>, const std::byte*) const override {}

  int made() const { return made_; }

 private:
  std::vector<std::string> kernels_;
  DeviceInfo info_;
  mutable std::atomic<int> made_ = 0;
};

TEST(Measure, DealsKernelsOutAmongDevicesThatAreAlike) {
  Graph g;
  constexpr int kOps = 12;
  for (int i = 0; i < kOps; ++i) {
    const TensorId x = g.add_source(fmt::format("x{}", i), {16 + i}, DType::f32, Role::input);
    g.add_op("ReluForward", fmt::format("relu{}", i), "relu", {x});
  }
  const WaitingDevice a({"2", "3"}), b({"2", "3"}), c({"2", "3"}), other({"2", "3"}, "another kind");
  CostTable table;
  int last = -1, told = 0;
  const MeasureOptions options{.seconds_per_kernel = 0.01, .progress = [&](int done, int total, const std::string&) {
                                 EXPECT_EQ(total, 2 * kOps);
                                 EXPECT_EQ(done, last + 1);  // one bar for all
                                 last = done;
                                 ++told;
                               }};
  const Device* alike[] = {&a, &b, &c};
  EXPECT_EQ(measure_costs(g, alike, table, options), 2 * kOps);
  EXPECT_EQ(table.entries().size(), 2u * kOps);
  EXPECT_EQ(told, 2 * kOps);
  EXPECT_EQ(a.made() + b.made() + c.made(), 2 * kOps);
  for (const auto* device : {&a, &b, &c}) EXPECT_GT(device->made(), 0);
  EXPECT_EQ(measure_costs(g, alike, table, {}), 0);
  const Device* unlike[] = {&a, &other};
  try {
    measure_costs(g, unlike, table, {});
    FAIL() << "devices that differ were taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("another kind"), std::string::npos) << error.what();
  }
}

TEST(Measure, StopsBetweenRunsOfAKernelWhichIsNotMeasuredThen) {
  Graph g;
  for (int i = 0; i < 4; ++i) {  // one kernel each: it runs four times at least, however slow the machine is
    const TensorId x = g.add_source(fmt::format("x{}", i), {16 + i}, DType::f32, Role::input);
    g.add_op("ReluForward", fmt::format("relu{}", i), "relu", {x});
  }
  CostTable table;
  int begun = 0, asked = 0;
  MeasureOptions options{.seconds_per_kernel = 0.001};
  options.progress = [&](int, int, const std::string&) { ++begun; };
  options.stop = [&] { return begun == 3 && ++asked == 2; };  // before the third kernel's second run
  EXPECT_EQ(measure_costs(g, WaitingDevice({"0"}), table, options), 2);
  EXPECT_EQ(begun, 3);
}

TEST(Measure, GivesUpAHopelessKernelAfterOneRunAndOneThatCannotBeMadeAtOnce) {
  Graph g;
  g.add_op("ReluForward", "relu", "relu", {g.add_source("x", {16}, DType::f32, Role::input)});
  CostTable table;
  EXPECT_EQ(measure_costs(g, WaitingDevice({"4", "missing", "400"}), table, {.seconds_per_kernel = 0.02}), 2);
  auto runs = [&](const char* kernel) { return table.find({op_signature(g, g.op({0})), kernel, 0})->runs; };
  EXPECT_GE(runs("4"), 3);
  EXPECT_EQ(runs("400"), 1);
  EXPECT_FALSE(table.find({op_signature(g, g.op({0})), "missing", 0}).has_value());
}

TEST(Measure, AKernelThatRefusesToRunIsNeverTheFastest) {
  Graph g;
  g.add_op("ReluForward", "relu", "relu", {g.add_source("x", {16}, DType::f32, Role::input)});
  CostTable table;
  measure_costs(g, WaitingDevice({"-1", "4"}), table, {.seconds_per_kernel = 0.02});
  auto ms = [&](const char* kernel) { return table.find({op_signature(g, g.op({0})), kernel, 0})->time_ms; };
  EXPECT_GT(ms("-1"), 1000 * ms("4"));
}

TEST(Measure, WhatABusyMachineGaveIsKeptApartUntilAQuietOneMeasuresItAnew) {
  const Graph g = small_graph();
  const auto device = open_device("cpu", 1);
  CostTable table;
  bool busy = true;
  const MeasureOptions options{.seconds_per_kernel = 0.001, .busy = [&] { return busy; }};
  const int all = measure_costs(g, *device, table, options);
  ASSERT_GT(all, 3);
  EXPECT_EQ(std::ssize(table.entries()), all);
  for (const auto& [key, cost] : table.entries()) EXPECT_TRUE(cost.busy) << key.signature << " " << key.kernel;
  EXPECT_EQ(measure_costs(g, *device, table, options), 0);  // nothing better is to be had
  busy = false;
  EXPECT_EQ(std::ssize(table.forget_busy()), all);
  EXPECT_EQ(measure_costs(g, *device, table, options), all);
  for (const auto& [key, cost] : table.entries()) EXPECT_FALSE(cost.busy) << key.signature << " " << key.kernel;
  EXPECT_TRUE(table.forget_busy().empty());
}

// A kernel whose runs take so long, one after the other, and then as long as the last.
struct Runs {
  std::vector<double> ms;
  size_t done = 0;
  TimedRun run() {
    return [this] { return ms[std::min(done++, ms.size() - 1)]; };
  }
};

TEST(Measure, AKernelIsRunUntilTwoRunsAgreeAsCloselyAsItMatters) {
  Runs steady{{10.2, 10, 10}};
  EXPECT_EQ(time_runs(steady.run(), {.tolerance_ms = 0.5}).time_ms, 10);
  EXPECT_EQ(steady.done, 2U);  // the one that warms up, too
  Runs disturbed_once{{10, 25, 10.2, 10}};
  EXPECT_NEAR(time_runs(disturbed_once.run(), {.tolerance_ms = 0.5}).time_ms, 10.2, 1e-9);
  Runs slow_start{{30, 10, 10.3, 10}};
  EXPECT_NEAR(time_runs(slow_start.run(), {.tolerance_ms = 0.5}).time_ms, 10.15, 1e-9);
  EXPECT_EQ(slow_start.done, 3U);
  Runs disturbed{{30, 25, 10, 10.2, 10}};
  EXPECT_NEAR(time_runs(disturbed.run(), {.tolerance_ms = 0.5}).time_ms, 10.2, 1e-9);
  EXPECT_EQ(disturbed.done, 4U);
  Runs exactly{{10.2, 10, 10.2, 10, 10.2, 10}};
  const Cost cost = time_runs(exactly.run(), {});
  EXPECT_EQ(cost.runs, 5);
  EXPECT_EQ(exactly.done, 6U);
}

TEST(Measure, AKernelThatIsOutOfTheRunningIsNotRunForLong) {
  Runs slower{{26, 25, 24}};
  EXPECT_EQ(time_runs(slower.run(), {.best_ms = 10, .tolerance_ms = 0.1}).time_ms, 25);
  EXPECT_EQ(slower.done, 2U);
  Runs once_slow{{26, 11, 10.95}};
  EXPECT_NEAR(time_runs(once_slow.run(), {.best_ms = 10, .tolerance_ms = 0.1}).time_ms, 10.975, 1e-9);
  Runs thrice{{26, 25, 24, 25}};
  time_runs(thrice.run(), {.best_ms = 10});
  EXPECT_EQ(thrice.done, 4U);
}

TEST(Measure, ATimeIsMeasuredNoCloserThanItMatters) {
  const Graph g = small_graph();
  const auto device = open_device("cpu", 1);
  auto runs = [&](double tolerance) {
    CostTable table;
    measure_costs(g, *device, table, {.tolerance = tolerance, .busy = [] { return false; }});
    int most = 0;
    for (const auto& [key, cost] : table.entries()) most = std::max(most, cost.runs);
    return most;
  };
  EXPECT_EQ(runs(1e6), 1);  // one, and the one that warms up
  EXPECT_GE(runs(0), 3);
}

TEST(CostTable, ATimeOfABusyMachineStaysOnlyWhereThereIsNoOther) {
  const CostKey key{"Add(8)->(8)", "own", 0};
  for (const Cost::Source source : {Cost::Source::measured, Cost::Source::in_step}) {
    CostTable table;
    auto put = [&](double ms, bool busy) {
      table.put(key, {.source = source, .time_ms = ms, .busy = busy});
      return source == Cost::Source::measured ? table.find(key)->time_ms : table.find_in_step(key)->time_ms;
    };
    EXPECT_EQ(put(9, true), 9);
    EXPECT_EQ(put(8, true), 8);
    EXPECT_EQ(put(2, false), 2);
    EXPECT_EQ(put(1, true), 2);
    EXPECT_EQ(put(3, false), 3);
  }
}

TEST(Probe, FindsPlausibleRatesInAFractionOfASecond) {
  for (const auto& device : {open_device("cpu"), open_reference_device()}) {
    const MachineRates rates = probe_rates(*device);
    EXPECT_GT(rates.gflops, 0.001) << device->info().name;
    EXPECT_LT(rates.gflops, 1e6);
    EXPECT_GT(rates.memory_gb_per_s, 0.005);
    EXPECT_LT(rates.memory_gb_per_s, 1e4);
    EXPECT_GT(rates.launch_us, 0.001);
    EXPECT_LT(rates.launch_us, 1e4);
    RecordProperty(device->info().name + "_gflops", std::to_string(rates.gflops));
  }
}

// A machine of 100 GFLOP/s, 10 GB/s and 4 us an op for each thread, up to two of them, in a time of its own. While it
// is busy, which lasts `busy_ms` from the start, every run of two threads takes `late_ms` longer.
class FakeMachine {
 public:
  FakeMachine(double busy_ms, double late_ms) : busy_ms_(busy_ms), late_ms_(late_ms) {}

  ProbeRuns runs() {
    return {
        .product = [this](int64_t n, int threads) { return run(2e-8 * std::pow(n, 3), threads); },
        .relu = [this](int64_t elements, int threads) { return run(8e-7 * static_cast<double>(elements), threads); },
        .wait = [this](double ms) { now_ms_ += ms; }};
  }
  double now_ms() const { return now_ms_; }

 private:
  TimedRun run(double alone_ms, int threads) {
    return [=, this] {
      const double ms = 0.004 + alone_ms / threads + (threads > 1 && now_ms_ < busy_ms_ ? late_ms_ : 0);
      now_ms_ += ms;
      return ms;
    };
  }

  double busy_ms_, late_ms_, now_ms_ = 0;
};

TEST(Probe, FindsTheRatesOfAQuietMachineInAFractionOfASecond) {
  FakeMachine machine(0, 0);
  const MachineRates rates = probe_rates(machine.runs(), 2);
  EXPECT_NEAR(rates.gflops, 200, 2);
  EXPECT_NEAR(rates.memory_gb_per_s, 20, 1);
  EXPECT_NEAR(rates.launch_us, 4, 0.1);
  EXPECT_LT(machine.now_ms(), 500);
}

// A GPU loads a kernel's code when it first runs.
TEST(Probe, FirstRunsThatLoadForLongDoNotCount) {
  FakeMachine machine(0, 0);
  const ProbeRuns fast = machine.runs();
  auto loading = [](const auto& make) {
    return [make](int64_t size, int threads) -> TimedRun {
      return [run = make(size, threads), loaded = false]() mutable {
        return run() + (std::exchange(loaded, true) ? 0 : 300);
      };
    };
  };
  const MachineRates rates =
      probe_rates({.product = loading(fast.product), .relu = loading(fast.relu), .wait = fast.wait}, 2);
  EXPECT_NEAR(rates.gflops, 200, 2);
  EXPECT_NEAR(rates.memory_gb_per_s, 20, 1);
  EXPECT_NEAR(rates.launch_us, 4, 0.1);
}

TEST(Probe, TriesAgainWhenThreadsWereLate) {
  for (double late_ms : {2.0, 12.0, 40.0, 300.0}) {  // of every run: a core is another program's for a while
    FakeMachine machine(350, late_ms);
    const MachineRates rates = probe_rates(machine.runs(), 2);
    EXPECT_GE(rates.gflops, 95) << late_ms;
    EXPECT_GE(rates.memory_gb_per_s, 2.4) << late_ms;
    EXPECT_LT(rates.launch_us, 100) << late_ms;
  }
}

TEST(Probe, BelievesOneThreadWhereAllAreLateAllTheTime) {
  for (double late_ms : {15.0, 40.0, 300.0}) {
    FakeMachine machine(1e9, late_ms);
    const MachineRates rates = probe_rates(machine.runs(), 2);
    EXPECT_NEAR(rates.gflops, 100, 2) << late_ms;
    EXPECT_GE(rates.memory_gb_per_s, 2.4) << late_ms;
    EXPECT_NEAR(rates.launch_us, 20 * 4, 2) << late_ms;
  }
}

TEST(Probe, KeepsTheDefaultOfWhatADeviceCannotRun) {
  FakeMachine machine(0, 0);
  ProbeRuns runs = machine.runs();
  runs.product = [](int64_t, int) -> TimedRun { throw Error(ErrorCode::unsupported, "no products"); };
  const MachineRates rates = probe_rates(runs, 2);
  EXPECT_EQ(rates.gflops, MachineRates{}.gflops);
  EXPECT_NEAR(rates.memory_gb_per_s, 20, 1);
}

TEST(KernelLoad, RunsWhatAnotherMeasuresUntilItIsTold) {
  const auto device = open_device("cpu", 1);
  std::vector<std::string> kernels;
  MeasureOptions options{.seconds_per_kernel = 0.001};
  options.progress = [&](int, int, const std::string& what) { kernels.push_back(what); };
  CostTable table;
  measure_costs(small_graph(), *device, table, options);
  ASSERT_GT(kernels.size(), 2u);
  KernelLoad load(small_graph(), *device, options);
  for (const std::string& what : kernels) {
    int asked = 0;
    load.run(what, [&] { return ++asked == 3; });
    EXPECT_EQ(asked, 3) << what;
  }
  load.run("nothing by nobody", [] { return ADD_FAILURE() << "nothing is run", true; });
}

// All of one row would be a chain of sums on a GPU, and a cache's work on a CPU.
TEST(OpBench, LooksUpRowsAllOverTheTable) {
  const auto device = open_device("cpu", 1);
  for (const DType dtype : {DType::i32, DType::i64}) {
    Graph g;
    const TensorId table = g.add_source("table", {5000, 2}, DType::f32, Role::parameter);
    const TensorId ids = g.add_source("ids", {4000}, dtype, Role::input);
    const OpId op = g.add_op("Embedding", "embedding", "embedding", {table, ids});
    OpBench bench(*device, isolate(g, g.op(op), device->kernels(g, g.op(op), LayoutFamily::plain).at(0)));
    const auto arena = device->take_arena(bench.bytes(1));
    bench.place(arena->base(), 1);
    const std::byte* const at = arena->base() + 40960;  // behind the table's 40,000 bytes, at the next page
    std::vector<int64_t> rows(4000);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (dtype == DType::i64) {
        std::memcpy(&rows[i], at + 8 * i, 8);
      } else {
        int32_t row = 0;
        std::memcpy(&row, at + 4 * i, 4);
        rows[i] = row;
      }
    }
    const auto [least, most] = std::minmax_element(rows.begin(), rows.end());
    EXPECT_TRUE(*least >= 0 && *least < 50) << *least;
    EXPECT_TRUE(*most < 5000 && *most >= 4950) << *most;
    EXPECT_GT(std::set<int64_t>(rows.begin(), rows.end()).size(), 2000U);
    EXPECT_GE(bench.run(), 0);
  }
}

}  // namespace
}  // namespace plimsoll
