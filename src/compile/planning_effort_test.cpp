// Planning stays cheap: what it takes is counted in things done, not in time, so the test is the same on every machine.
#include <gtest/gtest.h>

#include "plan/effort.h"
#include "plimsoll/compile.h"
#include "plimsoll/models.h"

namespace plimsoll {
namespace {

struct EffortCase {
  const char *model, *device;
  int64_t batch;
  int percent;  // of what liveness needs
  int64_t placements, looks, steps;
  int64_t host = -1;  // bytes; -1: what the device comes with
};
const EffortCase kEffortCases[] = {
    {"resnet18", "k40c", 8, 60, 200, 70'000'000, 15'000'000},  // another order, and parts of its batch, too
    {"resnet34", "k40c", 8, 40, 200, 60'000'000, 25'000'000},
    {"densenet121", "k40c", 4, 60, 200, 60'000'000, 26'000'000, 64 << 10},  // no tensor has room there
};

class PlanningEffortOf : public ::testing::TestWithParam<EffortCase> {};

TEST_P(PlanningEffortOf, ANetworkStaysWithinWhatItIsHeldTo) {
  const EffortCase& c = GetParam();
  const Network network = build_model(c.model, {.batch = c.batch, .height = 224, .width = 224, .classes = 1000});
  const std::unique_ptr<Device> device = open_device(c.device, 1);
  const CostTable costs(probe_rates(*device));
  CompileOptions options{.policy = "liveness"};
  const Bytes most = std::get<Program>(compile_training(network, *device, costs, options)).plan->arena;
  options = {.memory = {most.count / 100 * c.percent}, .name_minimum = true};
  if (c.host >= 0) {
    options.tiers = device->info().tiers;
    options.tiers.at(0).capacity = {c.host};
  }
  PlanningEffort& effort = planning_effort();
  effort.placements = effort.placement_looks = effort.scheduled_steps = 0;
  ASSERT_TRUE(std::holds_alternative<Program>(compile_training(network, *device, costs, options)));
  EXPECT_LE(effort.placements, c.placements);
  EXPECT_LE(effort.placement_looks, c.looks);
  EXPECT_LE(effort.scheduled_steps, c.steps);
}

INSTANTIATE_TEST_SUITE_P(Networks, PlanningEffortOf, ::testing::ValuesIn(kEffortCases));

}  // namespace
}  // namespace plimsoll
