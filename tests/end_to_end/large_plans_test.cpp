// What scripts/gpu_check runs inside 12 GiB of a GPU has a plan: found here on a simulated one, before a GPU's time is
// spent.
#include <gtest/gtest.h>

#include "plimsoll/compile.h"
#include "plimsoll/cost.h"
#include "plimsoll/device.h"
#include "plimsoll/models.h"

namespace plimsoll {
namespace {

struct Large {
  const char* model;
  int64_t batch;
};

class LargePlans : public ::testing::TestWithParam<Large> {};

TEST_P(LargePlans, FitTwelveGibibytes) {
  const auto device = open_device("h100", 1);
  CompileOptions options{.memory = 12_GiB, .tiers = device->info().tiers, .first_that_fits = true};
  options.tiers.at(0).capacity = 96_GiB;
  const Network network = build_model(GetParam().model, {.batch = GetParam().batch});
  const auto result = compile_training(network, *device, CostTable(probe_rates(*device)), options);
  ASSERT_TRUE(std::holds_alternative<Program>(result)) << to_text(std::get<Infeasible>(result));
  const Plan& plan = std::get<Program>(result).plan;
  EXPECT_LE(plan.arena, 12_GiB);
  EXPECT_LE(plan.tiers.at(0).used, 96_GiB);
}

// Twice the batches of SuperNeurons' Table 5, and 2498 layers, where its Table 4 has 1920.
INSTANTIATE_TEST_SUITE_P(Networks, LargePlans,
                         ::testing::Values(Large{"alexnet", 3584}, Large{"vgg16", 448}, Large{"inception4", 480},
                                           Large{"resnet50", 768}, Large{"resnet101", 512}, Large{"resnet152", 352},
                                           Large{"resnet:6-32-788-6", 16}),
                         [](const auto& info) {
                           return std::string(info.param.model).substr(0, std::string(info.param.model).find(':'));
                         });

}  // namespace
}  // namespace plimsoll
