#include "report/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plimsoll/models.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Explain : public ::testing::Test {
 protected:
  std::string of(std::string_view name, const std::string& policy = "liveness") {
    auto result = compile_training(build_model("lenet", {.batch = 4}), *device_, costs_, {.policy = policy});
    return explain(std::get<Program>(result), *device_, costs_, name);
  }
  std::unique_ptr<Device> device_ = open_device("cpu", 1);
  CostTable costs_;
};

TEST_F(Explain, AWeightStaysForItsUpdateAndGivesItsBytesToTheUpdatedOne) {
  const std::string text = of("fc3.weight");
  EXPECT_THAT(text, AllOf(HasSubstr("tensor fc3.weight"), HasSubstr("parameter"), HasSubstr("comes from outside"),
                          HasSubstr("lies at offset"), HasSubstr("in place: gives its bytes to fc3.weight.next"),
                          HasSubstr("read by step")));
  EXPECT_THAT(of("fc3.weight.next"), AllOf(HasSubstr("in place: takes the bytes of fc3.weight at"),
                                           HasSubstr("the next training step begins with it")));
}

TEST_F(Explain, ASplitWeightIsKnownByTheNameOfTheWhole) {
  CompileOptions options{.policy = "liveness"};
  options.fusion = {.off = {}, .split_above = 20_KiB, .block_bytes = 16_KiB};
  auto result = compile_training(build_model("lenet", {.batch = 4}), *device_, costs_, options);
  const std::string text = explain(std::get<Program>(result), *device_, costs_, "fc1.weight");
  EXPECT_THAT(text, AllOf(HasSubstr("parameter fc1.weight, "), HasSubstr(" blocks of rows"),
                          HasSubstr("tensor fc1.weight[0:"), HasSubstr("gives its bytes to fc1.weight[0:")));
}

TEST_F(Explain, AnActivationTellsWhichReaderKeepsIt) {
  EXPECT_THAT(of("relu3/y"), AllOf(HasSubstr("activation"), HasSubstr("made by"),
                                   HasSubstr("which is in the backward pass"), HasSubstr("at the peak")));
  EXPECT_THAT(of("relu3/y", "baseline"), HasSubstr("but policy baseline keeps it until"));
  EXPECT_THAT(of("loss"), HasSubstr("it is read from outside after the step"));
}

TEST_F(Explain, AnOpTellsItsKernelAndTheOtherKernelsWithTheirCosts) {
  auto result = compile_training(build_model("lenet", {.batch = 4}), *device_, costs_, {});
  const Program& program = std::get<Program>(result);
  const Graph& graph = program.network.graph;
  for (const Op& op : graph.ops()) {
    const std::string text = explain(program, *device_, costs_, op.name);
    EXPECT_THAT(text, HasSubstr("op " + op.name)) << op.name;
    EXPECT_THAT(text, HasSubstr("step ")) << op.name;
    const auto specs = device_->kernels(graph, op, program.family);
    if (op.type->name != "ConvForward") continue;
    EXPECT_THAT(text, AllOf(HasSubstr("the device offers"), HasSubstr("<- chosen"), HasSubstr("estimated"),
                            HasSubstr("workspace")));
    for (size_t i = 0; i < std::min<size_t>(specs.size(), 3); ++i) EXPECT_THAT(text, HasSubstr(specs[i].name));
  }
}

TEST_F(Explain, SaysWhereACostIsFrom) {
  auto result = compile_training(build_model("lenet", {.batch = 4}), *device_, costs_, {});
  const Program& program = std::get<Program>(result);
  const Graph& graph = program.network.graph;
  const Step& step = program.plan->steps[1];
  const Op& op = graph.op(step.op);
  CostTable costs;
  costs.put({op_signature(graph, op), step.kernel, 0},
            {.source = Cost::Source::measured, .time_ms = 1.25, .spread_ms = 0.5, .runs = 9});
  EXPECT_THAT(explain(program, *device_, costs, op.name), HasSubstr("1.25 ms, measured (+-0.5 ms, 9 runs)"));
}

TEST_F(Explain, ALayerThatWasFusedIsFoundByItsOwnName) {
  EXPECT_THAT(of("conv1"), AllOf(HasSubstr("layer conv1"), HasSubstr("fused into conv1+relu1"),
                                 HasSubstr("ConvForward"), HasSubstr("ConvBackwardWeights")));
  EXPECT_THAT(of("conv1+relu1"), HasSubstr("layer conv1+relu1: "));
}

TEST_F(Explain, AnUnknownNameIsAnErrorWithTheNearestOne) {
  try {
    of("fc3.wieght");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("unknown tensor, op or layer 'fc3.wieght'"), HasSubstr("did you mean 'fc3.weight'?")));
  }
}

}  // namespace
}  // namespace plimsoll
