// What auto promises of a policy's plans, where a user meets it: kernels, layouts and workspaces chosen as well.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "passes/passes.h"
#include "plan/policy.h"
#include "plimsoll/compile.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "plimsoll/verify.h"

namespace plimsoll {
namespace {

struct Case {
  const char* model;
  ModelInput input;
  const char* device;
  uint64_t seed;
  double bus_gb_per_s;  // to the host's memory behind the arena
  Bytes host = 1_GiB;
  int least_percent = 0;  // of what liveness needs: budgets below it are left out
};
const ModelInput kDigits{.batch = 32, .channels = 1, .height = 28, .width = 28, .classes = 10};
const ModelInput kPhotographs{.batch = 4, .channels = 3, .height = 32, .width = 32, .classes = 10};
const Case kCases[] = {
    {"lenet", kDigits, "k40c", 1, 0.5, 0_B},
    {"lenet", kDigits, "k40c", 2, 0.5},
    {"lenet", kDigits, "cpu", 7, 0.5},
    {"mlp:256-128-64", kDigits, "cpu", 4, 0.5},
    {"densenet:depth=7,growth=8", kPhotographs, "k40c", 5, 0.05},
    {"densenet:depth=7,growth=8", kPhotographs, "k40c", 6, 0.5, 0_B},
    // Faster kernels in the room that liveness' plan leaves beat those in auto's own.
    {"densenet:depth=13,growth=8", kPhotographs, "k40c", 3, 0.05, 1_GiB, 65},
};

// Every kernel of every op at a time of its own, whatever its work: what needs more workspace is faster or slower, and
// layouts that suit one op do not suit the next.
CostTable random_costs(const Network& network, const Device& device, uint64_t seed) {
  Network training = network;
  run_fusion_passes(training, {});
  training = make_training_network(training, {});
  std::mt19937_64 random(seed);
  CostTable costs(device.info().simulated ? probe_rates(device) : MachineRates{});
  for (const Op& op : training.graph.ops()) {
    if (op.type->is_view) continue;
    for (const LayoutFamily family : {LayoutFamily::plain, LayoutFamily::blocked, LayoutFamily::channels_last}) {
      for (const KernelSpec& spec : device.kernels(training.graph, op, family)) {
        const CostKey key{op_signature(training.graph, op, spec), spec.name, 0};
        if (!costs.find(key))
          costs.put(key, {Cost::Source::measured, 0.01 + 0.0001 * static_cast<double>(random() % 5000), 0, 3});
      }
    }
  }
  return costs;
}

// At each of the budgets, in percent of what liveness needs and the largest first. Returns how many that are tight fit.
int expect_promises(const Network& network, const Device& device, const CostTable& costs, CompileOptions options,
                    const std::vector<int>& percents) {
  options.policy = "liveness";
  const Bytes most = std::get<Program>(compile_training(network, device, costs, options)).plan->arena;
  double slowest_above = 0;
  int tight = 0;
  for (const int percent : percents) {
    SCOPED_TRACE(fmt::format("at {} %", percent));
    options.memory = {most.count * percent / 100};
    double fastest = 1e300;
    std::string by;
    for (const Policy& policy : policies()) {
      if (policy.name == "auto") continue;
      options.policy = policy.name;
      const auto other = compile_training(network, device, costs, options);
      const Program* program = std::get_if<Program>(&other);
      if (program == nullptr || program->plan->predicted.step_time_ms >= fastest) continue;
      fastest = program->plan->predicted.step_time_ms;
      by = policy.name;
    }
    options.policy = "auto";
    const auto answer = compile_training(network, device, costs, options);
    const Program* program = std::get_if<Program>(&answer);
    if (program == nullptr) {
      EXPECT_EQ(by, "") << "has a plan";
      continue;
    }
    const double ms = program->plan->predicted.step_time_ms;
    EXPECT_LE(program->plan->arena, options.memory);
    EXPECT_LE(ms, fastest * (1 + 1e-9)) << by;
    EXPECT_GE(ms, slowest_above * (1 - 1e-9)) << "more memory was slower";
    slowest_above = std::max(slowest_above, ms);
    tight += percent < 100 ? 1 : 0;
  }
  return tight;
}

CompileOptions with_host(Bytes capacity, double gb_per_s) {
  CompileOptions options;
  options.tiers = {
      {.name = "host", .capacity = capacity, .out_gb_per_s = gb_per_s, .in_gb_per_s = gb_per_s, .latency_us = 2}};
  return options;
}

class AutoPromises : public ::testing::TestWithParam<Case> {};

TEST_P(AutoPromises, ItIsNeverSlowerThanAnotherPolicyNorForMoreMemoryAndFitsWhereAnyDoes) {
  const Case& c = GetParam();
  SCOPED_TRACE(fmt::format("{} on {} with seed {}", c.model, c.device, c.seed));
  const Network network = build_model(c.model, c.input);
  const std::unique_ptr<Device> device = open_device(c.device, 1);
  std::vector<int> percents{110, 95, 85, 65, 45, 35, 22};
  std::erase_if(percents, [&](int percent) { return percent < c.least_percent; });
  EXPECT_GE(expect_promises(network, *device, random_costs(network, *device, c.seed), with_host(c.host, c.bus_gb_per_s),
                            percents),
            2);
}

// Many values of a transformer are short ways from others: what runs again one after another needs far less than what the search
// for the least memory finds by itself.
TEST(Transformers, FitWhereAnyPolicyDoesAndNameLittleMoreAsTheLeast) {
  const std::unique_ptr<Device> device = open_device("cpu", 1);
  const CostTable costs{probe_rates(*open_device("k40c", 1))};
  for (const char* model : {"gpt2:layers=2,width=64,heads=2,context=64,vocab=500",
                            "llama:layers=2,width=64,heads=2,ffn=128,vocab=500,context=64"}) {
    SCOPED_TRACE(model);
    const Network network = build_model(model, {.batch = 4});
    EXPECT_GE(expect_promises(network, *device, costs, {}, {90, 75, 65, 55}), 2);
    CompileOptions options{.memory = 1_KiB};
    options.name_minimum = true;
    const auto least = [&](const char* policy) {
      options.policy = policy;
      return std::get<Infeasible>(compile_training(network, *device, costs, options)).minimum;
    };
    const Bytes ours = least("auto");
    const Bytes rule = std::min(least("dtr"), least("dtr-eq"));
    EXPECT_LE(ours.count, rule.count * 11 / 10);
    options.policy = "auto";
    options.memory = ours;
    EXPECT_TRUE(std::holds_alternative<Program>(compile_training(network, *device, costs, options)));
  }
}

// A sketch of them says only roughly how fast they become.
TEST(Policies, OfOthersGetTheFastestKernelsWhereTheyHaveRoom) {
  const Network network =
      build_model("resnet18", {.batch = 4, .channels = 3, .height = 224, .width = 224, .classes = 1000});
  const std::unique_ptr<Device> device = open_device("p100", 1);
  const CostTable costs(probe_rates(*device));
  CompileOptions options{.memory = 209'175'526_B, .tiers = device->info().tiers};
  options.tiers.at(0).capacity = 128_MiB;
  options.optimizer.name = "adamw";
  options.optimizer.freeze = {"layer1.*"};
  const auto ms = [&](const char* policy) {
    options.policy = policy;
    return std::get<Program>(compile_training(network, *device, costs, options)).plan->predicted.step_time_ms;
  };
  EXPECT_LE(ms("auto"), ms("superneurons") * (1 + 1e-9));
}

// Where much runs again, which steps these are is worth a longer search.
TEST(Runs, OfAPlanThatWaitsLongAreSearchedForLonger) {
  const Network network =
      build_model("resnet20", {.batch = 32, .channels = 3, .height = 32, .width = 32, .classes = 10});
  const std::unique_ptr<Device> device = open_device("k40c", 1);
  const CostTable costs(probe_rates(*device));
  CompileOptions options = with_host(0_B, 1);
  options.name_minimum = true;
  const auto free = std::get<Program>(compile_training(network, *device, costs, options));
  const int64_t least = free.minimum->count, most = free.plan->arena.count;
  options.memory = {least + (most - least) / 50};
  const auto tight = std::get<Program>(compile_training(network, *device, costs, options));
  const double extra = tight.plan->predicted.step_time_ms / free.plan->predicted.step_time_ms - 1;
  EXPECT_LT(extra, 0.53);  // 0.59 by the first search
}

// Beside those that were wrong once, PLIMSOLL_RANDOM_NETWORKS=200 tries so many more, and PLIMSOLL_RANDOM_SEED=7 begins with another.
int number_from(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

TEST(RandomNetworks, AreNeverSlowerByAutoNorForMoreMemory) {
  const int first = number_from("PLIMSOLL_RANDOM_SEED", 1), count = number_from("PLIMSOLL_RANDOM_NETWORKS", 0);
  // Once the plans of the first were not safe. Of the second, the fastest kernels together were not those chosen one by
  // one, which liveness' plan showed.
  std::vector<int> seeds{174, 48};
  for (int seed = first; seed < first + count; ++seed) seeds.push_back(seed);
  for (const int seed : seeds) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    const auto from = [&](int least, int most) {
      return least + static_cast<int>(random() % static_cast<uint64_t>(most - least + 1));
    };
    const std::string models[] = {fmt::format("resnet:{}-{}-{}-{}", from(1, 2), from(1, 2), 1, 1),
                                  fmt::format("densenet:depth={},growth={}", 7 + 3 * from(0, 2), from(4, 12)),
                                  fmt::format("mlp:{}-{}-{}", from(16, 400), from(16, 400), from(16, 400)),
                                  fmt::format("dcgan:width={}", from(4, 12))};
    const std::string model = models[from(0, 3)];
    const Network network =
        build_model(model, {.batch = from(1, 8), .channels = 3, .height = 64, .width = 64, .classes = 10});
    const std::unique_ptr<Device> device = open_device(from(0, 1) == 0 ? "cpu" : "k40c", 1);
    const bool measured = from(0, 1) == 1;
    std::vector<int> percents{from(90, 110), from(60, 89), from(30, 59)};
    SCOPED_TRACE(fmt::format("seed {}: {} on {}, {} costs", seed, model, device->info().name,
                             measured ? "measured" : "estimated"));
    const CostTable costs = measured ? random_costs(network, *device, random()) : CostTable(probe_rates(*device));
    const CompileOptions options = with_host(from(0, 2) == 0 ? 0_B : 1_GiB, 0.05 * from(1, 100));
    try {
      expect_promises(network, *device, costs, options, percents);
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, AutoPromises, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return fmt::format("Case{}", info.param.seed); });

}  // namespace
}  // namespace plimsoll
