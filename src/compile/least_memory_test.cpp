// What fits does not depend on timing: the same network, device and flags have the same least memory, whatever a clock
// has told of the machine.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "passes/passes.h"
#include "plimsoll/autodiff.h"
#include "plimsoll/compile.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "tests/support/random_graph.h"

namespace plimsoll {
namespace {

using Random = std::mt19937_64;

double factor(Random& random) { return std::exp(std::uniform_real_distribution(std::log(0.2), std::log(5.0))(random)); }

MachineRates random_rates(Random& random) {
  return {.gflops = 100 * factor(random), .memory_gb_per_s = 10 * factor(random), .launch_us = 5 * factor(random)};
}

// Every kernel at a random multiple of what is estimated of it.
CostTable measured_costs(const Graph& graph, const Device& device, Random& random) {
  CostTable costs(random_rates(random));
  const CostTable estimates;
  for (const Op& op : graph.ops()) {
    if (op.type->is_view) continue;
    for (const LayoutFamily family : {LayoutFamily::plain, LayoutFamily::blocked, LayoutFamily::channels_last}) {
      for (const KernelSpec& spec : device.kernels(graph, op, family)) {
        const CostKey key{op_signature(graph, op, spec), spec.name, 0};
        const double ms = estimates.cost(graph, op, spec).time_ms * factor(random);
        if (!costs.find(key)) costs.put(key, {Cost::Source::measured, ms, 0, 3});
      }
    }
  }
  return costs;
}

std::vector<TierInfo> random_tiers(Random& random, bool disk) {
  std::vector<TierInfo> tiers{{.name = "host",
                               .capacity = 1_GiB,
                               .out_gb_per_s = 5 * factor(random),
                               .in_gb_per_s = 5 * factor(random),
                               .latency_us = 10 * factor(random),
                               .compute_share = 0.1 * factor(random)}};
  if (!disk) return tiers;
  tiers.push_back(tiers[0]);
  tiers[1].name = "disk";
  tiers[1].out_gb_per_s = 5 * factor(random);
  if (random() % 2 == 0) std::swap(tiers[0], tiers[1]);  // a session puts the faster one first
  return tiers;
}

// What is far too little says what would do, whatever the times, and that fits. By some times a plan needs a little less; then that
// is named to who has a plan, and fits as well. With one byte less it does not fit, and says what would, or does.
void expect_least(const std::function<std::variant<Program, Infeasible>(const CompileOptions&)>& compile,
                  CompileOptions options, Bytes& least) {
  options.name_minimum = true;
  const auto roomy = compile(options);
  ASSERT_TRUE(std::holds_alternative<Program>(roomy));
  const Bytes minimum = *std::get<Program>(roomy).minimum;
  options.name_minimum = false;
  options.memory = {minimum.count / 2};
  const auto refused = compile(options);
  ASSERT_TRUE(std::holds_alternative<Infeasible>(refused));
  const Bytes named = std::get<Infeasible>(refused).minimum;
  if (least.count == 0) least = named;
  EXPECT_EQ(named, least);
  EXPECT_LE(minimum, least);
  for (const auto& [memory, first] : {std::pair{minimum, false}, std::pair{least, false}, std::pair{least, true}}) {
    options.first_that_fits = first;
    options.memory = memory;
    const auto enough = compile(options);
    ASSERT_TRUE(std::holds_alternative<Program>(enough));
    EXPECT_LE(std::get<Program>(enough).plan->arena, memory);
    for (const TierUse& use : std::get<Program>(enough).plan->tiers) {
      EXPECT_TRUE(std::find(options.tiers.begin(), options.tiers.end(), use.tier) != options.tiers.end());
    }
  }
  options.first_that_fits = false;
  options.memory = minimum - 1_B;
  const auto less = compile(options);
  if (const auto* program = std::get_if<Program>(&less)) {
    EXPECT_LE(program->plan->arena, options.memory);
    EXPECT_EQ(program->plan->budget, options.memory);
  } else {
    EXPECT_EQ(std::get<Infeasible>(less).minimum, least);
    EXPECT_EQ(std::get<Infeasible>(less).budget, options.memory);
  }
}

struct LeastCase {
  const char *model, *device, *policy;
  int64_t batch, size;
  int tiers;
  bool training = true;  // else a forward pass alone
};
const LeastCase kLeastCases[] = {
    {"lenet", "cpu", "auto", 8, 28, 0},
    {"dcgan:width=8", "cpu", "auto", 4, 64, 0},
    {"resnet:1-1-1-1", "cpu", "auto", 3, 64, 0},
    {"resnet:1-1-1-1", "cpu", "auto", 3, 64, 1},
    {"densenet:depth=7,growth=8", "cpu", "auto", 4, 32, 2},
    {"resnet20", "cpu", "superneurons", 4, 32, 1},
    {"densenet:depth=7,growth=8", "k40c", "auto", 4, 32, 1},
    {"lenet", "cpu", "liveness", 8, 28, 0},
    {"lenet", "cpu", "auto", 8, 28, 0, false},
    {"resnet:1-1-1-1", "cpu", "auto", 3, 64, 0, false},
    {"resnet:1-1-1-1", "cpu", "auto", 3, 64, 1, false},
    {"densenet:depth=7,growth=8", "cpu", "auto", 4, 32, 2, false},
    {"densenet:depth=7,growth=8", "k40c", "auto", 4, 32, 1, false},
};

class TheLeastThatFits : public ::testing::TestWithParam<LeastCase> {};

TEST_P(TheLeastThatFits, FollowsFromNetworkDeviceAndFlagsWhateverTheTimes) {
  const LeastCase& c = GetParam();
  const Network network = build_model(c.model, {.batch = c.batch,
                                                .channels = c.size == 28 ? 1 : 3,
                                                .height = c.size,
                                                .width = c.size,
                                                .classes = 10,
                                                .training = c.training});
  const std::unique_ptr<Device> device = open_device(c.device, 1);
  Network planned = network;
  run_fusion_passes(planned, {});
  if (c.training) planned = make_training_network(planned, {});
  const auto compile = [&](const CostTable& costs, const CompileOptions& options) {
    return c.training ? compile_training(network, *device, costs, options)
                      : compile_inference(network, *device, costs, options);
  };
  for (const bool exact : {false, true}) {
    if (exact && !c.training) continue;
    Bytes least;
    for (const uint64_t seed : {1, 2}) {
      const bool measured = seed == 2;
      SCOPED_TRACE(fmt::format("{} {} on {} by {}: exact {}, seed {}, measured {}", c.training ? "training" : "asking",
                               c.model, c.device, c.policy, exact, seed, measured));
      Random random(seed);
      const CostTable costs =
          measured ? measured_costs(planned.graph, *device, random) : CostTable(random_rates(random));
      CompileOptions options{.policy = c.policy, .exact = exact};
      if (c.tiers > 0) options.tiers = random_tiers(random, c.tiers > 1);
      if (device->info().simulated) options.tiers = device->info().tiers;
      expect_least([&](const CompileOptions& o) { return compile(costs, o); }, options, least);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, TheLeastThatFits, ::testing::ValuesIn(kLeastCases));

// Where weights lie as the fastest kernels like them, the gradient of one is there twice before its update.
TEST(LargeWeights, AreUpdatedInLittleMoreThanTheyTake) {
  const Network network = build_model("mlp:1024-1024-1024", {.batch = 64, .channels = 1, .height = 28, .width = 28});
  const std::unique_ptr<Device> device = open_device("cpu", 1);
  const CompileOptions options{.memory = 1_KiB, .optimizer = {.name = "adamw"}};
  const auto answer = compile_training(network, *device, CostTable(probe_rates(*open_device("k40c", 1))), options);
  ASSERT_TRUE(std::holds_alternative<Infeasible>(answer));
  const Infeasible& why = std::get<Infeasible>(answer);
  EXPECT_LE(why.minimum.count, why.lower_bound.count * 105 / 100);
}

TEST(RandomGraphs, HaveALeastMemoryThatFollowsFromTheGraphWhateverTheTimes) {
  const std::unique_ptr<Device> device = open_device("cpu", 1);
  for (const uint64_t seed : {1, 2, 4}) {
    const Graph graph = testing::random_graph(seed);
    Bytes least;
    for (const uint64_t times : {1, 2}) {
      SCOPED_TRACE(fmt::format("seed {}, times {}", seed, times));
      Random random(times);
      const CostTable costs(random_rates(random));
      CompileOptions options;
      if (seed % 2 == 0) options.tiers = random_tiers(random, seed % 4 == 0);
      expect_least(
          [&](const CompileOptions& o) {
            return compile_graph(graph, testing::random_kernels(graph, seed), *device, costs, o);
          },
          options, least);
    }
  }
}

}  // namespace
}  // namespace plimsoll
