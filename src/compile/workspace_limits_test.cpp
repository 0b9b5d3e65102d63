// Limits on workspace: kept by every plan, or refused with what would do; and what may be had by them never costs time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "device/divided.h"
#include "kernels/selection.h"
#include "kernels/workspace_limits.h"
#include "ops/micro_op.h"
#include "plimsoll/compile.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "plimsoll/verify.h"

namespace plimsoll {
namespace {

struct LimitsCase {
  std::string model;
  ModelInput input;
};
const LimitsCase kLimitsCases[] = {
    {"resnet20", {.batch = 6, .channels = 3, .height = 32, .width = 32, .classes = 10}},
    {"densenet:depth=22,growth=12", {.batch = 5, .channels = 3, .height = 16, .width = 16, .classes = 10}},
    {"lenet", {.batch = 8, .channels = 1, .height = 28, .width = 28, .classes = 10}},
};

using Result = std::variant<Program, Infeasible>;

Bytes largest_workspace(const Program& program) {
  Bytes most;
  for (const Step& step : program.plan->steps) most = std::max(most, step.workspace);
  return most;
}

Bytes sum_of_workspaces(const Program& program) {
  std::map<int32_t, Bytes> by_op;
  for (const Step& step : program.plan->steps) {
    if (counts_in_total(program.network.graph.op(step.op)))
      by_op[step.op.index] = std::max(by_op[step.op.index], step.workspace);
  }
  Bytes sum;
  for (const auto& [op, bytes] : by_op) sum += bytes;
  return sum;
}

// The plan keeps the limits; or the answer names the flag, what needs more, and a least value that does.
void expect_kept(const Device& device, const LimitsCase& net, const CostTable& costs, CompileOptions options) {
  const Network network = build_model(net.model, net.input);
  Result result = compile_training(network, device, costs, options);
  if (const auto* infeasible = std::get_if<Infeasible>(&result)) {
    if (infeasible->flag.empty() && options.memory.count < INT64_MAX) return;
    const bool total = infeasible->flag == "--workspace-total";
    ASSERT_TRUE(total || infeasible->flag == "--workspace") << infeasible->flag;
    const Bytes limit = total ? options.workspace_total.value_or(Bytes{-1}) : options.workspace;
    EXPECT_EQ(infeasible->budget, limit);
    EXPECT_GT(infeasible->minimum, limit);
    ASSERT_FALSE(infeasible->needs.empty());
    for (const auto& need : infeasible->needs) EXPECT_GT(need.bytes, total ? 0_B : limit) << need.tensor;
    const std::string text = to_text(*infeasible);
    EXPECT_NE(text.find(infeasible->needs[0].tensor), std::string::npos) << text;
    EXPECT_NE(text.find(fmt::format("raise {} to {}", infeasible->flag, infeasible->minimum.count)), std::string::npos)
        << text;
    (total ? options.workspace_total.emplace() : options.workspace) = infeasible->minimum;
    result = compile_training(network, device, costs, options);
    if (const auto* again = std::get_if<Infeasible>(&result)) {
      ASSERT_NE(again->flag, infeasible->flag) << to_text(*again);
      return;
    }
  }
  const Program& program = std::get<Program>(result);
  EXPECT_LE(largest_workspace(program), options.workspace);
  if (options.workspace_total) {
    EXPECT_LE(sum_of_workspaces(program), *options.workspace_total);
  }
}

TEST(WorkspaceLimits, AreKeptByEveryOpOfAPlanOrRefused) {
  const auto device = open_device("cpu", 2);
  for (const LimitsCase& net : kLimitsCases) {
    for (bool exact : {false, true}) {
      for (std::optional<BatchSizes> sizes : {std::optional<BatchSizes>(), std::optional(BatchSizes::power_of_two),
                                              std::optional(BatchSizes::undivided)}) {
        for (Bytes limit : {0_B, 20_KiB, 512_KiB}) {
          SCOPED_TRACE(fmt::format("{} exact {} sizes {} limit {}", net.model, exact, sizes ? to_string(*sizes) : "-",
                                   limit.count));
          CompileOptions options{.exact = exact, .batch_sizes = sizes};
          options.workspace = limit;
          expect_kept(*device, net, CostTable{}, options);
          options.workspace = {INT64_MAX};
          options.workspace_total = limit;
          expect_kept(*device, net, CostTable{}, options);
        }
        if (exact) break;
      }
    }
  }
}

TEST(WorkspaceLimits, HoldTogetherAndWithABudget) {
  const auto device = open_device("cpu", 2);
  for (const LimitsCase& net : kLimitsCases) {
    const Network network = build_model(net.model, net.input);
    const Result free = compile_training(network, *device, CostTable{}, {});
    CompileOptions options{.batch_sizes = BatchSizes::power_of_two};
    options.memory = {std::get<Program>(free).plan->arena.count * 8 / 10};
    options.workspace = 100_KiB;
    options.workspace_total = 300_KiB;
    expect_kept(*device, net, CostTable{}, options);
    options.exact = true;
    options.memory = {INT64_MAX};
    expect_kept(*device, net, CostTable{}, options);
  }
}

// As if measured: what each kernel and part takes, by chance within a factor of three of an estimate; some reorders are
// far slower within a step than anybody would think.
CostTable random_costs(const Device& device, const Graph& graph, uint32_t seed) {
  std::mt19937 draw(seed);
  std::uniform_real_distribution<double> power(-1, 1);
  CostTable table({.gflops = 20, .memory_gb_per_s = 5, .launch_us = 2});
  const CostTable estimates = table;
  for (const Op& op : graph.ops()) {
    const int64_t batch = divisible_batch(graph, op);
    if (batch < 2) continue;
    for (int64_t rows : micro_batch_sizes(BatchSizes::all, batch)) {
      const MicroOp part = micro_op(graph, op, rows);
      const Op& small = part.graph.op(part.op);
      for (LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked}) {
        for (const KernelSpec& spec : device.kernels(part.graph, small, family)) {
          const CostKey key{op_signature(part.graph, small, spec), spec.name, 0};
          if (table.find(key)) continue;
          const double ms = estimates.cost(part.graph, small, spec).time_ms * std::pow(3, power(draw));
          table.put(key, {.source = Cost::Source::measured, .time_ms = ms, .runs = 3, .workspace = spec.workspace});
        }
      }
    }
  }
  return table;
}

// Reorders that a plan of these options has become slow.
void slow_reorders(const Program& program, CostTable& costs, uint32_t seed) {
  std::mt19937 draw(seed);
  const Graph& graph = program.network.graph;
  for (const Step& step : program.plan->steps) {
    const Op& op = graph.op(step.op);
    if (op.type->name != "Reorder" || draw() % 2 == 0) continue;
    costs.put({op_signature(graph, op), step.kernel, 0},
              {.source = Cost::Source::in_step, .time_ms = 0.1 * static_cast<double>(1 + draw() % 9), .runs = 5});
  }
}

// The times of this run's first steps, which were slow, do not make way for kernels that never ran.
TEST(Choices, StayAfterASlowStep) {
  const auto device = open_device("cpu", 2);
  const Network network =
      build_model("resnet20", {.batch = 5, .channels = 3, .height = 12, .width = 12, .classes = 10});
  const Network step = make_training_network(network, {});
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    CostTable costs = random_costs(*device, step.graph, seed);
    const auto kernels = [&] {
      std::vector<std::string> names;
      const auto found = compile_training(network, *device, costs, {});
      for (const KernelChoice& choice : std::get<Program>(found).kernels) names.push_back(choice.kernel);
      return names;
    };
    const std::vector<std::string> chosen = kernels();
    const auto found = compile_training(network, *device, costs, {});
    const Program& program = std::get<Program>(found);
    const Graph& graph = program.network.graph;
    for (const Step& s : program.plan->steps) {
      if (s.kernel.empty() || graph.op(s.op).type->name == "Reorder") continue;  // which have no time but that
      costs.put({op_signature(graph, graph.op(s.op)), s.kernel, 0},
                {.source = Cost::Source::in_step, .time_ms = 2 * s.time_ms, .runs = 5});
    }
    EXPECT_EQ(kernels(), chosen);
  }
}

// By which kernels are compared.
double step_ms(const Result& result) {
  const auto* program = std::get_if<Program>(&result);
  return program == nullptr ? std::numeric_limits<double>::infinity() : program->compared_ms;
}

TEST(WorkspaceLimits, MoreChoiceIsNeverPredictedSlower) {
  const auto device = open_device("cpu", 2);
  const LimitsCase nets[] = {
      {"resnet20", {.batch = 5, .channels = 3, .height = 12, .width = 12, .classes = 10}},
      {"densenet:depth=10,growth=12", {.batch = 6, .channels = 3, .height = 16, .width = 16, .classes = 10}}};
  uint32_t seed = 1;
  for (const LimitsCase& net : nets) {
    const Network network = build_model(net.model, net.input);
    const Network step = make_training_network(network, {});
    CostTable costs = random_costs(*device, step.graph, seed++);
    for (BatchSizes sizes : {BatchSizes::all, BatchSizes::undivided}) {
      CompileOptions options{.batch_sizes = sizes};
      options.workspace = 64_KiB;
      const Result result = compile_training(network, *device, costs, options);
      if (const auto* program = std::get_if<Program>(&result)) slow_reorders(*program, costs, seed++);
    }
    int64_t ops = 0;
    for (const Op& op : step.graph.ops()) ops += counts_in_total(op);
    const double unlimited = step_ms(compile_training(network, *device, costs, {.batch_sizes = BatchSizes::all}));
    for (Bytes limit : {24_KiB, 48_KiB, 64_KiB, 200_KiB, 1_MiB}) {
      SCOPED_TRACE(fmt::format("{} seed {} limit {}", net.model, seed, limit.count));
      double before = 0;
      for (BatchSizes sizes : {BatchSizes::all, BatchSizes::power_of_two, BatchSizes::undivided}) {
        CompileOptions options{.batch_sizes = sizes};
        options.workspace = limit;
        const Result each = compile_training(network, *device, costs, options);
        EXPECT_LE(before, step_ms(each)) << to_string(sizes);
        before = step_ms(each);
        EXPECT_LE(unlimited, step_ms(each) * 1.0001) << to_string(sizes);
        options.workspace = {INT64_MAX};
        options.workspace_total = limit * ops;
        const Result total = compile_training(network, *device, costs, options);
        const auto* program = std::get_if<Program>(&each);
        if (program != nullptr && sum_of_workspaces(*program) <= *options.workspace_total) {
          EXPECT_LE(step_ms(total), step_ms(each)) << to_string(sizes);
        }
      }
    }
  }
}

// No choice of kernels is better at the price of a byte by which another was made.
TEST(WorkspacePrices, GiveTimeForWorkspace) {
  const auto device = open_device("k40c", 1);
  const CostTable costs(probe_rates(*device));
  const Network network = make_training_network(
      build_model("alexnet", {.batch = 16, .channels = 3, .height = 227, .width = 227, .classes = 1000}), {});
  const CompileOptions options{.batch_sizes = BatchSizes::power_of_two};
  KernelSelection selection(network, *device, costs, options);
  const LaidOut fastest = *selection.choose({});
  const std::vector<double> prices = selection.prices(fastest, {});
  ASSERT_GT(prices.size(), 10U);
  struct Made {
    double ms, bytes;
  };
  std::vector<Made> made;
  for (const double price : prices) {
    const LaidOut laid = *selection.choose({.ms_of_byte = price});
    Bytes sum;
    for (const KernelChoice& kernel : laid.layouts.kernels) sum += kernel.workspace;
    made.push_back({laid.layouts.estimated_ms, static_cast<double>(sum.count)});
  }
  EXPECT_LT(made.back().bytes, made.front().bytes);
  for (size_t i = 0; i < prices.size(); ++i) {
    if (i > 0) {
      EXPECT_GT(prices[i], prices[i - 1]);
      EXPECT_LE(made[i].bytes, made[i - 1].bytes);  // the same where two are the same but for rounding
    }
    for (const Made& other : made)
      EXPECT_LE(made[i].ms + prices[i] * made[i].bytes, (1 + 1e-6) * (other.ms + prices[i] * other.bytes)) << i;
  }
}

// Who gives no limit on workspace is not much behind who tries some.
TEST(WorkspaceLimits, AreFoundWithoutBeingAskedForWhereMemoryIsShort) {
  struct Tight {
    LimitsCase net;
    int percent;  // of what liveness needs
    bool host;
  };
  const Tight cases[] = {
      {{"gpt2:layers=1,width=128,heads=2,context=128", {.batch = 8}}, 50, true},
      {{"gpt2:layers=1,width=128,heads=2,context=128", {.batch = 8}}, 40, false},
      {{"bert:layers=2,width=128,heads=2,context=64", {.batch = 8}}, 50, true},
  };
  const auto device = open_device("cpu", 2);
  for (const Tight& tight : cases) {
    SCOPED_TRACE(fmt::format("{} in {} %", tight.net.model, tight.percent));
    const Network network = build_model(tight.net.model, tight.net.input);
    const Result most = compile_training(network, *device, CostTable{}, {.policy = "liveness"});
    CompileOptions options;
    options.memory = {std::get<Program>(most).plan->arena.count / 100 * tight.percent};
    if (tight.host)
      options.tiers = {{.name = "host", .capacity = 1_GiB, .out_gb_per_s = 5, .in_gb_per_s = 5, .compute_share = 1}};
    const double found = step_ms(compile_training(network, *device, CostTable{}, options));
    for (const Bytes limit : {256_KiB, 1_MiB, 4_MiB, 16_MiB, 64_MiB}) {
      options.workspace = limit;
      EXPECT_LE(found, 1.05 * step_ms(compile_training(network, *device, CostTable{}, options))) << limit.count;
    }
  }
}

}  // namespace
}  // namespace plimsoll
