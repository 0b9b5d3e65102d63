// Wide layers run by rows or undivided, whichever is faster, where there is room for both.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "passes/passes.h"
#include "plimsoll/compile.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

class WideLayers : public ::testing::Test {
 protected:
  const std::unique_ptr<Device> device_ = open_device("cpu", 2);
  const Network network_ = build_model("gpt2:layers=2,width=48,heads=2,context=256,positions=256,vocab=64",
                                       {.batch = 32, .channels = 1, .height = 1, .width = 256, .classes = 64});

  static bool is_by_rows(const Program& program) {
    return std::ranges::any_of(program.network.graph.ops(), runs_wide_layers_by_rows);
  }
  Program compile(const CostTable& costs, const CompileOptions& options = {}) const {
    return std::get<Program>(compile_training(network_, *device_, costs, options));
  }
  // Each of the layers takes so long by rows.
  CostTable costs_with(double ms) const {
    CostTable costs;
    const Program by_rows = compile(costs, {.exact = true});
    for (const Op& op : by_rows.network.graph.ops()) {
      if (!runs_wide_layers_by_rows(op)) continue;
      for (const KernelSpec& spec : device_->kernels(by_rows.network.graph, op, LayoutFamily::plain))
        costs.put({op_signature(by_rows.network.graph, op, spec), spec.name, 0}, {Cost::Source::measured, ms, 0, 3});
    }
    return costs;
  }
  static std::map<std::string, std::string, std::less<>> kernels_of(const Program& program) {
    std::map<std::string, std::string, std::less<>> kernels;
    for (const Step& step : program.plan->steps) kernels[program.network.graph.op(step.op).name] = step.kernel;
    return kernels;
  }
};

TEST_F(WideLayers, AreUndividedWhereThereIsRoomAndThatIsFaster) {
  const Program slow = compile(costs_with(1000)), fast = compile(costs_with(0.001));
  EXPECT_FALSE(is_by_rows(slow));
  EXPECT_TRUE(is_by_rows(fast));
  EXPECT_LT(fast.plan->arena, slow.plan->arena);
}

TEST_F(WideLayers, AreByRowsWhereThereIsNoRoom) {
  const Bytes all = compile(costs_with(0.001)).plan->arena;
  const Program tight = compile(costs_with(1000), {.memory = {all.count * 3 / 4}});
  EXPECT_TRUE(is_by_rows(tight));
}

TEST_F(WideLayers, AreByRowsUnderEveryBudgetWhereResultsMustBeTheSame) {
  EXPECT_TRUE(is_by_rows(compile(costs_with(1000), {.exact = true})));
}

TEST_F(WideLayers, StayAsTheyWereWhereKernelsAreRepeated) {
  CompileOptions options;
  options.kernels = kernels_of(compile(costs_with(1000)));
  EXPECT_FALSE(is_by_rows(compile(costs_with(0.001), options)));
  options.kernels = kernels_of(compile(costs_with(0.001)));
  EXPECT_TRUE(is_by_rows(compile(costs_with(1000), options)));
}

}  // namespace
}  // namespace plimsoll
