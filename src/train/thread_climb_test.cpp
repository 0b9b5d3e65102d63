#include "train/thread_climb.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "plimsoll/compile.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

// The CPU device, on a machine with cores that it has not: what is measured is told it.
class ClimbMachine final : public Device {
 public:
  ClimbMachine(int cores, int cores_a_cache) : cpu_(open_device("cpu", 1)), info_(cpu_->info()) {
    info_.threads = cores;
    info_.cores = {.cores = cores, .cores_a_cache = cores_a_cache};
  }
  const DeviceInfo& info() const override { return info_; }
  std::vector<KernelSpec> kernels(const Graph& graph, const Op& op, LayoutFamily family) const override {
    return cpu_->kernels(graph, op, family);
  }
  std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view kernel, int) const override {
    return cpu_->make_kernel(graph, op, kernel, 1);
  }
  std::unique_ptr<Arena> take_arena(Bytes bytes) const override { return cpu_->take_arena(bytes); }
  void write(std::byte* to, std::span<const std::byte> from) const override { cpu_->write(to, from); }
  void read(std::span<std::byte> to, const std::byte* from) const override { cpu_->read(to, from); }

 private:
  std::unique_ptr<Device> cpu_;
  DeviceInfo info_;
};

Program program_of(const Device& device) {
  const ModelInput input{.batch = 2, .channels = 3, .height = 32, .width = 32, .classes = 10, .training = true};
  const CompileOptions options{.policy = "liveness", .exact = true, .family = LayoutFamily::plain};
  return std::get<Program>(compile_training(build_model("lenet", input), device, CostTable(), options));
}

// Convolutions are fastest with 10 threads next to each other, everything else with one.
double time_of(const Program& program, const Step& step, int cores) {
  if (step.kernel.empty()) return 0;
  const int threads = step.threads > 0 ? step.threads : cores;
  const bool convolution = program.network.graph.op(step.op).type->name.starts_with("Conv");
  const double ms = convolution ? 5 + std::abs(threads - 10) : threads;
  return step.affinity == Affinity::spread ? ms * 1.2 : ms;
}

int climb(ThreadClimb& climb, const Program& program, int cores) {
  int steps = 0;
  while (!climb.done() && steps < 1000) {
    const CheckedPlan plan = check_plan(program.network.graph, climb.next_plan());
    do {
      std::vector<double> times;
      for (const Step& step : plan->steps) times.push_back(time_of(program, step, cores));
      ++steps;
      if (climb.record(times)) break;
    } while (steps < 1000);
  }
  return steps;
}

TEST(ThreadClimb, FindsEveryOpsOptimumWithinTwoCByXSteps) {
  for (const auto& [cores, cores_a_cache, interval] :
       {std::tuple{16, 1, 3}, {16, 2, 1}, {16, 4, 3}, {68, 2, 3}, {16, 16, 1}}) {
    SCOPED_TRACE(::testing::Message() << cores << " cores, " << cores_a_cache << " a cache, interval " << interval);
    const ClimbMachine machine(cores, cores_a_cache);
    const Program program = program_of(machine);
    CostTable costs;
    ThreadClimb first(program.network.graph, program.plan, machine, costs, interval);
    const int steps = climb(first, program, cores);
    EXPECT_EQ(steps, first.steps());
    EXPECT_LE(steps, 2 * cores / interval);
    EXPECT_GT(steps, 1);
    for (const Step& step : program.plan->steps) {
      if (step.kernel.empty()) continue;
      const Op& op = program.network.graph.op(step.op);
      const std::string signature = op_signature(program.network.graph, op);
      const auto one = costs.find_in_step({signature, step.kernel, 1});
      ASSERT_TRUE(one) << op.name;
      EXPECT_EQ(one->source, Cost::Source::in_step);
      if (!op.type->name.starts_with("Conv")) continue;
      const auto best = costs.find_in_step({signature, step.kernel, 10});
      ASSERT_TRUE(best) << op.name;
      EXPECT_EQ(best->time_ms, 5) << op.name;
      if (cores_a_cache > 1 && cores / cores_a_cache >= 10) {
        EXPECT_EQ(costs.find_in_step({signature, step.kernel, 10, true})->time_ms, 6) << op.name;
      }
    }
    // What is known is not measured again.
    EXPECT_TRUE(ThreadClimb(program.network.graph, program.plan, machine, costs, interval).done());
  }
}

TEST(ThreadClimb, ThreadsThatAreNotPinnedAreNotMeasuredSpread) {
  const ClimbMachine machine(16, 2);
  for (const bool pinned : {true, false}) {
    const Program program = program_of(machine);
    CostTable costs;
    ThreadClimb climbing(program.network.graph, program.plan, machine, costs, 1, pinned);
    climb(climbing, program, 16);
    const auto& entries = costs.in_step_entries();
    EXPECT_EQ(std::any_of(entries.begin(), entries.end(), [](const auto& entry) { return entry.first.spread; }),
              pinned);
  }
}

TEST(ThreadClimb, WhereFewCasesAreToBeTriedTheShortestOfSeveralTimesCounts) {
  const ClimbMachine machine(2, 2);
  const Program program = program_of(machine);
  CostTable costs;
  ThreadClimb climb(program.network.graph, program.plan, machine, costs, 1);
  EXPECT_EQ(climb.most_steps(), 4);
  const Plan plan = climb.next_plan();
  for (const Step& step : plan.steps) EXPECT_EQ(step.threads, step.kernel.empty() ? 0 : 1);
  const std::vector<double> slow(program.plan->steps.size(), 9), fast(program.plan->steps.size(), 7);
  EXPECT_FALSE(climb.record(slow));
  EXPECT_TRUE(climb.record(fast));
  for (const auto& [key, cost] : costs.in_step_entries()) {
    EXPECT_EQ(key.threads, 1);
    EXPECT_EQ(cost.time_ms, 7);
    EXPECT_EQ(cost.runs, 2);
  }
}

}  // namespace
}  // namespace plimsoll
