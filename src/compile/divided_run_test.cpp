// Steps with kernels that run in parts, from choosing to running.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "device/divided.h"
#include "ops/micro_op.h"
#include "plimsoll/compile.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "plimsoll/verify.h"
#include "tests/support/sanitizer.h"

namespace plimsoll {
namespace {

constexpr int64_t kBatch = 12;

// Convolutions of 3 x 3, for which a CPU with AVX-512 has Winograd kernels, whose workspace grows with the batch.
Network small_network() {
  return build_model("resnet20", {.batch = kBatch, .channels = 3, .height = 16, .width = 16, .classes = 10});
}

bool has_winograd(const Device& device) { return device.info().key.find("avx512") != std::string::npos; }

Program compiled(const Device& device, const CompileOptions& options, const CostTable& costs = CostTable{}) {
  auto result = compile_training(small_network(), device, costs, options);
  if (auto* infeasible = std::get_if<Infeasible>(&result)) throw Error(ErrorCode::internal, to_text(*infeasible));
  return std::get<Program>(std::move(result));
}

// The parameters after some steps on made-up images.
std::vector<float> trained(const Program& program, const Device& device) {
  const Graph& graph = program.network.graph;
  Executor executor(graph, program.plan, device, {.check_memory = true});
  executor.initialize(7);
  std::vector<float> data(element_count(graph.tensor(program.network.data).shape));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(std::sin(static_cast<double>(i) * 0.37));
  std::vector<int32_t> labels(kBatch);
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int32_t>(i % 10);
  const float rate = 0.05f;
  for (int64_t step = 0; step < 3; ++step) {
    executor.write(program.network.data, std::as_bytes(std::span(data)));
    executor.write(program.network.labels, std::as_bytes(std::span(labels)));
    executor.write(graph.find_tensor("learning_rate"), std::as_bytes(std::span(&rate, 1)));
    executor.run_step();
  }
  std::vector<float> weights;
  for (const State& state : graph.states) {
    std::vector<float> one(element_count(graph.tensor(state.before).shape));
    executor.read(state.before, std::as_writable_bytes(std::span(one)));
    weights.insert(weights.end(), one.begin(), one.end());
  }
  return weights;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, static_cast<double>(std::abs(a[i] - b[i])));
  return most;
}

// Every op that can in the same uneven parts by the kernel it has, by a plan made anew with these kernels.
CompileOptions dividing(const Program& program, const CompileOptions& options) {
  CompileOptions divided = options;
  divided.family = program.family;
  for (int32_t i = 0; i < program.network.graph.op_count(); ++i) {
    const Op& op = program.network.graph.op({i});
    std::string kernel = program.kernels[i].kernel;
    if (divisible_batch(program.network.graph, op) == kBatch && op.type->name != "Reorder") {
      const std::vector<MicroBatch> parts = {{kernel, 5}, {kernel, 5}, {kernel, 2}};
      if (why_not_divisible(program.network.graph, op).empty()) kernel = configuration_name(parts);
    }
    divided.kernels[op.name] = kernel;
  }
  return divided;
}

TEST(DividedRun, AStepInPartsTrainsAsAWholeOne) {
  const auto device = open_device("cpu", kKernelThreads);
  const CompileOptions options{.policy = "liveness", .optimizer = {.momentum = 0.9}, .exact = true};
  const Program whole = compiled(*device, options);
  CompileOptions divided = dividing(whole, options);
  divided.exact = false;
  const Program parts = compiled(*device, divided);
  int steps = 0;
  for (const Step& step : parts.plan->steps) steps += parts_of(step.kernel).empty() ? 0 : 1;
  EXPECT_GT(steps, 10);
  EXPECT_LT(largest_difference(trained(whole, *device), trained(parts, *device)), 1e-5);
  EXPECT_EQ(trained(parts, *device), trained(parts, *device));
  // The plan file carries the configurations.
  const Plan back = plan_from_json(to_json(parts.plan, parts.network.graph), parts.network.graph);
  for (size_t s = 0; s < back.steps.size(); ++s) EXPECT_EQ(back.steps[s].kernel, parts.plan->steps[s].kernel);
}

// Measured costs in which every kernel with a workspace is fast, the smaller its part the slower.
CostTable costs_that_like_workspaces(const Device& device, const Graph& graph) {
  CostTable table({.gflops = 1, .memory_gb_per_s = 1, .launch_us = 1});
  for (const Op& op : graph.ops()) {
    const int64_t batch = divisible_batch(graph, op);
    if (batch < 2) continue;
    for (int64_t rows : micro_batch_sizes(BatchSizes::power_of_two, batch)) {
      const MicroOp part = micro_op(graph, op, rows);
      const Op& small = part.graph.op(part.op);
      for (LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked}) {
        for (const KernelSpec& spec : device.kernels(part.graph, small, family)) {
          const double ms =
              spec.workspace.count > 0 ? 0.1 + 0.1 * static_cast<double>(rows) : static_cast<double>(rows);
          table.put({op_signature(part.graph, small, spec), spec.name, 0},
                    {.source = Cost::Source::measured, .time_ms = ms, .runs = 3, .workspace = spec.workspace});
        }
      }
    }
  }
  return table;
}

TEST(DividedRun, IsNeverPredictedSlowerThanUndividedAtAnyBudgetAndFasterAtSome) {
  const auto device = open_device("cpu", kKernelThreads);
  if (!has_winograd(*device))
    GTEST_SKIP() << "without AVX-512 oneDNN has no kernel whose workspace grows with the batch";
  const Network network = make_training_network(small_network(), {.momentum = 0.9});
  const CostTable costs = costs_that_like_workspaces(*device, network.graph);
  CompileOptions options{.optimizer = {.momentum = 0.9}};
  const Program free = compiled(*device, options, costs);
  int faster = 0;
  for (int percent = 95; percent >= 40; percent -= 10) {
    options.memory = {free.plan->arena.count * percent / 100};
    CompileOptions undivided = options;
    undivided.batch_sizes = BatchSizes::undivided;
    const auto parts = compile_training(small_network(), *device, costs, options);
    const auto whole = compile_training(small_network(), *device, costs, undivided);
    const auto* a = std::get_if<Program>(&parts);
    const auto* b = std::get_if<Program>(&whole);
    ASSERT_GE(a != nullptr, b != nullptr) << percent;
    if (b == nullptr) continue;
    EXPECT_LE(a->plan->predicted.step_time_ms, b->plan->predicted.step_time_ms * 1.0001) << percent;
    EXPECT_LE(a->plan->arena, options.memory);
    faster += a->plan->predicted.step_time_ms < 0.999 * b->plan->predicted.step_time_ms;
    EXPECT_TRUE(verify(a->network.graph, a->plan).empty());
  }
  EXPECT_GT(faster, 0);
}

Bytes workspaces(const Program& program, bool sum) {
  Bytes result;
  for (const Step& step : program.plan->steps) {
    const LayerKind kind = layer_kind(program.network.graph.op(step.op));
    if (kind != LayerKind::convolution && (!sum || kind != LayerKind::fully_connected)) continue;
    result = sum ? result + step.workspace : std::max(result, step.workspace);
  }
  return result;
}

TEST(DividedRun, LimitsOnWorkspaceAreKeptAndATotalIsNoSlowerThanEqualShares) {
  const auto device = open_device("cpu", kKernelThreads);
  if (!has_winograd(*device))
    GTEST_SKIP() << "without AVX-512 oneDNN has no kernel whose workspace grows with the batch";
  const Network network = make_training_network(small_network(), {});
  const CostTable costs = costs_that_like_workspaces(*device, network.graph);
  int64_t ops = 0;
  for (const Op& op : network.graph.ops()) {
    ops += layer_kind(op) == LayerKind::convolution || layer_kind(op) == LayerKind::fully_connected;
  }
  const Bytes most = workspaces(compiled(*device, {}, costs), false);
  ASSERT_GT(most.count, 0);
  double before = 0;
  for (int64_t part : {1, 2, 4, 8, 16}) {
    CompileOptions share;
    share.workspace = {most.count / part};
    const Program each = compiled(*device, share, costs);
    EXPECT_LE(workspaces(each, false), share.workspace);
    EXPECT_GE(each.plan->predicted.step_time_ms, before * 0.9999);
    before = each.plan->predicted.step_time_ms;
    CompileOptions total;
    total.workspace_total = share.workspace * ops;
    const Program all = compiled(*device, total, costs);
    EXPECT_LE(workspaces(all, true), *total.workspace_total);
    EXPECT_LE(all.plan->predicted.step_time_ms, each.plan->predicted.step_time_ms * 1.0001) << part;
  }
}

TEST(DividedRun, AResumedRunRepeatsConfigurationsWithoutTheirCosts) {
  const auto device = open_device("cpu", 2);
  if (!has_winograd(*device))
    GTEST_SKIP() << "without AVX-512 oneDNN has no kernel whose workspace grows with the batch";
  const Network network = make_training_network(small_network(), {});
  const CostTable costs = costs_that_like_workspaces(*device, network.graph);
  CompileOptions options;
  options.workspace = {workspaces(compiled(*device, {}, costs), false).count / 3};
  const Program first = compiled(*device, options, costs);
  CompileOptions again;
  again.family = first.family;
  bool divided = false;
  for (int32_t i = 0; i < first.network.graph.op_count(); ++i) {
    const std::string& kernel = first.kernels[i].kernel;
    divided = divided || !parts_of(kernel).empty();
    again.kernels[first.network.graph.op({i}).name] = kernel;
  }
  EXPECT_TRUE(divided);
  for (const State& state : first.network.graph.states) {
    const Tensor& tensor = first.network.graph.tensor(state.before);
    again.state_layouts[tensor.name] = tensor.layout;
  }
  const Program second = compiled(*device, again);
  EXPECT_EQ(fingerprint(second.network.graph), fingerprint(first.network.graph));
  EXPECT_EQ(trained(second, *device), trained(first, *device));
}

}  // namespace
}  // namespace plimsoll
