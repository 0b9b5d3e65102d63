// Engines of cuDNN's graph API as kernels: which are offered, what their names carry, that they are made once and run
// within a captured step.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "cost/signature.h"
#include "device/cuda/device.h"
#include "device/divided.h"
#include "plimsoll/compile.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "tests/cuda/fake_door.h"
#include "tests/cuda/lenet.h"
#include "tests/cuda/run_kernel.h"
#include "tests/support/error_text.h"
#include "tests/support/write_inputs.h"

namespace plimsoll {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::error_text;
using testing::FakeCudnn;
using testing::FakeDoor;
using ::testing::HasSubstr;
using testing::lenet;
using ::testing::Not;

std::vector<std::string> kernels_of(const Device& device, const Graph& graph, OpId op) {
  std::vector<std::string> names;
  for (const KernelSpec& spec : device.kernels(graph, graph.op(op), LayoutFamily::plain)) names.push_back(spec.name);
  return names;
}

// A convolution, with bias and ReLU where that is asked for, and its kernel on memory of the device's.
class EngineExample {
 public:
  explicit EngineExample(bool bias, Shape padding = {1, 1, 1, 1}) {
    std::vector<TensorId> inputs = {graph_.add_source("x", {2, 4, 8, 8}, DType::f32, Role::input),
                                    graph_.add_source("w", {4, 4, 3, 3}, DType::f32, Role::parameter)};
    if (bias) inputs.push_back(graph_.add_source("b", {4}, DType::f32, Role::parameter));
    Attributes attributes{{"padding", padding}};
    if (bias) attributes.set("activation", std::string("relu"));
    conv_ = graph_.add_op("ConvForward", "conv", "conv", inputs, attributes);
  }
  const Graph& graph() const { return graph_; }
  const Op& op() const { return graph_.op(conv_); }
  std::vector<KernelSpec> specs(const Device& device) const {
    return device.kernels(graph_, op(), LayoutFamily::plain);
  }
  std::vector<std::string> engines(const Device& device) const {
    std::vector<std::string> names;
    for (const KernelSpec& spec : specs(device)) {
      if (spec.name.find("eng") != std::string::npos) names.push_back(spec.name);
    }
    return names;
  }

  // What it makes of inputs that are the same for every kernel.
  std::vector<float> run(const Device& device, const std::string& kernel) const {
    return testing::run_kernel(device, graph_, op(), *make_kernel(device, graph_, op(), kernel));
  }

 private:
  Graph graph_;
  OpId conv_;
};

FakeCudnn::FakeEngine engine(int64_t number, bool tensor_cores = false) {
  return {{.number = number, .knobs = {}, .tensor_cores = tensor_cores}, 0};
}

TEST(CudaEngines, AreOfferedBehindTheFixedFunctionsByTheirNumbersAndKnobs) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", false);
  const std::vector<KernelSpec> specs = EngineExample(false).specs(*device);
  std::vector<std::string> names;
  for (const KernelSpec& spec : specs) names.push_back(spec.name);
  EXPECT_THAT(names, ElementsAre("cudnn:fft", "cudnn:implicit_precomp_gemm", "cudnn:implicit_gemm", "cudnn:eng70_k2=4",
                                 "cudnn:nondeterministic_eng25_k2=2", "cudnn:winograd_eng12"));
  EXPECT_EQ(specs[3].workspace, 1400_B);
}

// Some of cuDNN's take the padding behind an image for that before it.
TEST(CudaEngines, OfWeightGradientsAreAskedForAPaddedCopyWhereTheSidesDiffer) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", false);
  std::vector<Bytes> workspaces;
  for (const Shape& padding : {Shape{1, 1, 1, 1}, Shape{0, 1, 2, 1}}) {
    Graph graph;
    const TensorId x = graph.add_source("x", {2, 4, 8, 8}, DType::f32, Role::input);
    const TensorId dy = graph.add_source("dy", {2, 4, 8, 8}, DType::f32, Role::input);
    const OpId op =
        graph.add_op("ConvBackwardWeights", "dw", "dw", {x, dy}, {{"padding", padding}, {"kernel", Shape{3, 3}}});
    EXPECT_THAT(kernels_of(*device, graph, op), Contains("cudnn:fft"));  // by no padding, or by the same on both sides
    for (const KernelSpec& spec : device->kernels(graph, graph.op(op), LayoutFamily::plain)) {
      if (spec.name == "cudnn:fft") workspaces.push_back(spec.workspace);
    }
  }
  ASSERT_EQ(workspaces.size(), 2U);
  EXPECT_GE(workspaces[1].count, 2 * 4 * 10 * 10 * 4);
}

TEST(CudaEngines, ByWinogradAreLeftOutOfWideWindows) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", false);
  for (const int64_t side : {3, 5}) {
    Graph graph;
    const TensorId x = graph.add_source("x", {2, 4, 8, 8}, DType::f32, Role::input);
    const TensorId w = graph.add_source("w", {4, 4, side, side}, DType::f32, Role::parameter);
    const OpId op = graph.add_op("ConvForward", "conv", "conv", {x, w});
    const std::vector<std::string> names = kernels_of(*device, graph, op);
    EXPECT_EQ(std::count(names.begin(), names.end(), "cudnn:winograd_eng12"), side == 3);
  }
}

TEST(CudaEngines, ByWinogradThatDoNotNoteItAreLeftOutOfWideWindowsToo) {
  const auto door = std::make_shared<FakeDoor>();
  door->cudnn().engines = {engine(16), engine(17)};
  const auto device = cuda::open_behind(door, "cuda:0", false);
  for (const int64_t side : {3, 5}) {
    for (const char* type : {"ConvForward", "ConvBackwardWeights"}) {
      Graph graph;
      const bool forward = std::string_view(type) == "ConvForward";
      const TensorId x = graph.add_source("x", {2, 4, 8, 8}, DType::f32, Role::input);
      const TensorId other = graph.add_source("other", forward ? Shape{4, 4, side, side} : Shape{2, 4, 8, 8},
                                              DType::f32, Role::activation);
      Attributes attributes{{"padding", std::vector<int64_t>(4, side / 2)}};
      if (!forward) attributes.set("kernel", std::vector<int64_t>{side, side});
      const std::vector<std::string> names =
          kernels_of(*device, graph, graph.add_op(type, "conv", "conv", {x, other}, attributes));
      EXPECT_EQ(std::count(names.begin(), names.end(), "cudnn:eng16"), 1) << type << side;
      EXPECT_EQ(std::count(names.begin(), names.end(), "cudnn:eng17"), forward || side == 3) << type << side;
    }
  }
}

TEST(CudaEngines, AreTheBestTenOfEachPrecision) {
  const auto door = std::make_shared<FakeDoor>();
  std::vector<FakeCudnn::FakeEngine>& engines = door->cudnn().engines;
  engines.clear();
  for (int i = 0; i < 40; ++i) engines.push_back(engine(i, i % 2 == 1));
  for (const bool tf32 : {false, true}) {
    const auto device = cuda::open_behind(door, "cuda:0", tf32);
    std::vector<std::string> expected;
    for (int i = 0; i < 20; ++i) {
      if (i % 2 == 0) expected.push_back(fmt::format("cudnn:eng{}", i));
      if (i % 2 == 1 && tf32) expected.push_back(fmt::format("cudnn:eng{}:tf32", i));
    }
    EXPECT_EQ(EngineExample(false).engines(*device), expected);
  }
}

TEST(CudaEngines, ThatAreRefusedOrNamedTwiceLeaveTheirPlacesToOthers) {
  const auto door = std::make_shared<FakeDoor>();
  door->cudnn().engines.clear();
  for (const int i : {3, 3, 4, 5, 4, 6}) door->cudnn().engines.push_back(engine(i));
  for (int i = 10; i < 30; ++i) door->cudnn().engines.push_back(engine(i));
  door->cudnn().answer("cudnnBackendFinalize(EXECUTION_PLAN)", 3007, "eng4");
  door->cudnn().asks_for("eng5", UINT64_MAX);
  const auto device = cuda::open_behind(door, "cuda:0", false);
  EXPECT_THAT(EngineExample(false).engines(*device),
              ElementsAre("cudnn:eng3", "cudnn:eng6", "cudnn:eng10", "cudnn:eng11", "cudnn:eng12", "cudnn:eng13",
                          "cudnn:eng14", "cudnn:eng15", "cudnn:eng16", "cudnn:eng17"));
}

TEST(CudaEngines, ThatCompileOrRoundToLessThanTf32AreNoChoice) {
  const auto door = std::make_shared<FakeDoor>();
  FakeCudnn::FakeEngine compiles = engine(1), rounds = engine(2, true), plain = engine(3);
  compiles.configuration.compiles = true;
  rounds.configuration.less_than_tf32 = true;
  door->cudnn().engines = {compiles, rounds, plain};
  const auto device = cuda::open_behind(door, "cuda:0", true);
  EXPECT_THAT(EngineExample(false).engines(*device), ElementsAre("cudnn:eng3"));
  EXPECT_THAT(door->cudnn().planned(), ElementsAre("eng3"));
}

TEST(CudaEngines, FallbackHeuristicsAreAskedWhereTheOthersHaveNoneOfFullPrecision) {
  const auto door = std::make_shared<FakeDoor>();
  door->cudnn().engines = {engine(7, true)};
  const auto device = cuda::open_behind(door, "cuda:0", true);
  EXPECT_THAT(EngineExample(false).engines(*device), ElementsAre("cudnn:eng7:tf32", "cudnn:eng1"));
}

TEST(CudaEngines, OfTheFusedGraphAddTheBiasAndEndWithReluInOneOperation) {
  const auto door = std::make_shared<FakeDoor>();
  const auto device = cuda::open_behind(door, "cuda:0", true);
  const EngineExample example(true);
  EXPECT_THAT(example.engines(*device), ElementsAre("cudnn:fused_eng51_k2=1_k13=0:tf32", "cudnn:fused_eng44_k2=4_k18=0",
                                                    "cudnn:eng67_k2=5_k12=-1:tf32", "cudnn:eng70_k2=4",
                                                    "cudnn:nondeterministic_eng25_k2=2", "cudnn:winograd_eng12"));
  const std::vector<float> expected = example.run(*device, "cudnn:implicit_gemm");
  EXPECT_THAT(expected, Contains(0.0F));
  EXPECT_THAT(expected, Contains(::testing::Gt(1.0F)));
  const auto as_expected = ::testing::Pointwise(::testing::FloatNear(1e-5F), expected);
  const auto calls = [&](const char* name) { return door->calls().contains(name) ? door->calls().at(name) : 0; };
  const int launches = calls("cudaLaunchKernel");
  EXPECT_THAT(example.run(*device, "cudnn:fused_eng44_k2=4_k18=0"), as_expected);
  EXPECT_EQ(calls("cudnnBackendExecute"), 1);
  EXPECT_EQ(calls("cudaLaunchKernel"), launches);
  EXPECT_THAT(example.run(*device, "cudnn:eng70_k2=4"), as_expected);
  EXPECT_EQ(calls("cudnnBackendExecute"), 2);
  EXPECT_EQ(calls("cudaLaunchKernel"), launches + 1);
  EXPECT_THAT(example.run(*device, "cudnn:fused_eng44_k2=4_k18=0@1*2"), as_expected);
  EXPECT_THAT(
      error_text(ErrorCode::unsupported, [&] { EngineExample(false).run(*device, "cudnn:fused_eng44_k2=4_k18=0"); }),
      HasSubstr("CUDA has no kernel 'cudnn:fused_eng44_k2=4_k18=0' for it"));
}

TEST(CudaEngines, TakePaddingThatDiffersBetweenTwoSides) {
  const auto door = std::make_shared<FakeDoor>();
  const auto device = cuda::open_behind(door, "cuda:0", false);
  const EngineExample example(true, {0, 2, 2, 0});
  std::vector<std::string> names;
  for (const KernelSpec& spec : example.specs(*device)) names.push_back(spec.name);
  EXPECT_THAT(names, Contains("cudnn:fused_eng44_k2=4_k18=0"));
  EXPECT_THAT(names, Not(Contains("cudnn:implicit_gemm")));
  EXPECT_THAT(names, Not(Contains("own:direct")));
  EXPECT_EQ(example.run(*device, "cudnn:fused_eng44_k2=4_k18=0"), example.run(*device, "own:direct"));
}

TEST(CudaEngines, TakeImagesWithDepthWhichAreOursWhereThereAreNone) {
  Graph graph;
  const TensorId x = graph.add_source("x", {2, 4, 3, 8, 8}, DType::f32, Role::input);
  const TensorId w = graph.add_source("w", {4, 4, 3, 3, 3}, DType::f32, Role::parameter);
  const OpId conv = graph.add_op("ConvForward", "conv", "conv", {x, w});
  const auto names = [&](const std::shared_ptr<FakeDoor>& door) {
    const auto device = cuda::open_behind(door, "cuda:0", false);
    std::vector<std::string> list;
    for (const LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last}) {
      for (const KernelSpec& spec : device->kernels(graph, graph.op(conv), family)) {
        EXPECT_TRUE(spec.inputs[0].is_plain());
        list.push_back(spec.name);
      }
    }
    return list;
  };
  EXPECT_THAT(names(std::make_shared<FakeDoor>()),
              ElementsAre("cudnn:eng70_k2=4", "cudnn:nondeterministic_eng25_k2=2", "cudnn:winograd_eng12",
                          "cudnn:eng70_k2=4", "cudnn:nondeterministic_eng25_k2=2", "cudnn:winograd_eng12"));
  const auto without = std::make_shared<FakeDoor>();
  without->cudnn().leave_out_engines();
  EXPECT_THAT(names(without), ElementsAre("own:direct", "own:direct"));
}

TEST(CudaEngines, OnlyDeterministicOnesOfFullPrecisionAreExact) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", true);
  std::map<std::string, bool> exact;
  for (const KernelSpec& spec : EngineExample(true).specs(*device)) {
    exact[spec.name] = spec.exact;
    // Left out by the rule of its own that leaves out all of Winograd's.
    EXPECT_EQ(spec.algorithm == Algorithm::winograd, spec.name == "cudnn:winograd_eng12") << spec.name;
  }
  EXPECT_TRUE(exact.at("cudnn:eng70_k2=4"));
  EXPECT_TRUE(exact.at("cudnn:fused_eng44_k2=4_k18=0"));
  EXPECT_FALSE(exact.at("cudnn:fused_eng51_k2=1_k13=0:tf32"));
  EXPECT_FALSE(exact.at("cudnn:nondeterministic_eng25_k2=2"));
}

// Costs by which every kernel whose name has the part is fast.
CostTable liking(const Device& device, const Graph& graph, std::string_view part) {
  CostTable table;
  for (const Op& op : graph.ops()) {
    if (op.type->is_view || op.type->name == "Reorder") continue;
    for (const LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last}) {
      for (const KernelSpec& spec : device.kernels(graph, op, family)) {
        table.put({op_signature(graph, op, spec), spec.name, 0},
                  {.source = Cost::Source::measured,
                   .time_ms = spec.name.find(part) != std::string::npos ? 0.001 : 1,
                   .runs = 3});
      }
    }
  }
  return table;
}

Program lenet_by(const Device& device, std::string_view part, bool exact = false) {
  return lenet(device, liking(device, lenet(device, CostTable(), false).network.graph, part), exact);
}

std::map<std::string, int> kernels_of(const Program& program) {
  std::map<std::string, int> count;
  const Graph& graph = program.network.graph;
  for (OpId id{0}; id.index < graph.op_count(); ++id.index) {
    if (graph.op(id).type->name.starts_with("Conv")) ++count[program.kernels[id.index].kernel];
  }
  return count;
}

TEST(CudaEngines, AreTakenWhereTheyWereMeasuredToBeFastAndExactTakesNoneThatRoundsOrAddsInAnyOrder) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", true);
  EXPECT_EQ(kernels_of(lenet_by(*device, "fused_eng44")).at("cudnn:fused_eng44_k2=4_k18=0"), 2);
  EXPECT_EQ(kernels_of(lenet_by(*device, "eng25")).at("cudnn:nondeterministic_eng25_k2=2"), 5);
  EXPECT_EQ(kernels_of(lenet_by(*device, "eng67")).at("cudnn:eng67_k2=5_k12=-1:tf32"), 5);
  for (const char* part : {"eng25", "eng67", "eng51", "winograd_eng12"}) {
    for (const auto& [kernel, count] : kernels_of(lenet_by(*device, part, true))) {
      EXPECT_THAT(kernel, Not(HasSubstr(part)));
      EXPECT_THAT(kernel, Not(HasSubstr(":tf32")));
    }
  }
}

std::vector<float> train(const Device& device, const Graph& graph, const Plan& plan, int steps) {
  Executor executor(graph, plan, device);
  executor.initialize(7);
  for (int step = 0; step < steps; ++step) {
    write_inputs(executor, graph, step, 0.01F);
    executor.run_step();
  }
  EXPECT_TRUE(executor.is_captured());
  std::vector<float> all;
  for (const State& state : graph.states) {
    std::vector<float> values(static_cast<size_t>(element_count(graph.tensor(state.before).shape)));
    executor.read(state.before, std::as_writable_bytes(std::span(values)));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST(CudaEngines, ArePlannedOnceForAllStepsAndRunWithinACapturedOne) {
  const auto door = std::make_shared<FakeDoor>();
  const auto device = cuda::open_behind(door, "cuda:0", false);
  const Program program = lenet_by(*device, "eng");
  const Graph& graph = program.network.graph;
  Executor executor(graph, program.plan, *device);
  const size_t planned = door->cudnn().planned().size();
  std::vector<int> executed;
  for (int step = 0; step < 5; ++step) {
    executor.run_step();
    executed.push_back(door->calls().at("cudnnBackendExecute"));
  }
  EXPECT_TRUE(executor.is_captured());
  EXPECT_EQ(door->captures(), 1);
  EXPECT_EQ(door->cudnn().planned().size(), planned);
  EXPECT_EQ(executed[0], 5);   // two convolutions: forward, and back but to the images
  EXPECT_EQ(executed[2], 15);  // captured
  EXPECT_EQ(executed[4], 15) << "launched as a whole";
  EXPECT_THAT(door->conflicts(), ::testing::IsEmpty());
}

// In another process, whose cuDNN is not asked what its heuristics say.
TEST(CudaEngines, OfASavedPlanAreMadeAgainFromTheirNamesAlone) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", false);
  const Program program = lenet_by(*device, "eng");
  const std::string graph_text = to_json(program.network.graph),
                    plan_text = to_json(*program.plan, program.network.graph);
  const std::vector<float> expected = train(*device, program.network.graph, program.plan, 4);
  const auto door = std::make_shared<FakeDoor>();
  const auto other = cuda::open_behind(door, "cuda:0", false);
  const Graph graph = graph_from_json(graph_text);
  EXPECT_EQ(train(*other, graph, plan_from_json(plan_text, graph), 4), expected);
  EXPECT_FALSE(door->calls().contains("cudnnBackendFinalize(ENGINEHEUR)"));
  EXPECT_THAT(door->cudnn().planned(), Contains("fused_eng44_k2=4_k18=0"));
}

TEST(CudaEngines, ThatAreOthersInThisCudnnAreRefusedByNameBeforeTheyRun) {
  const auto said = [](const auto& change, const std::string& kernel, bool tf32 = false) {
    const auto door = std::make_shared<FakeDoor>();
    change(door->cudnn().engines);
    const auto device = cuda::open_behind(door, "cuda:0", tf32);
    const std::string text = error_text(ErrorCode::unsupported, [&] { EngineExample(false).run(*device, kernel); });
    EXPECT_FALSE(door->calls().contains("cudnnBackendExecute"));
    return text;
  };
  const auto nothing = [](auto&) {};
  const auto find = [](auto& engines, int64_t number) -> cuda::EngineConfiguration& {
    return std::find_if(engines.begin(), engines.end(), [&](const auto& e) { return e.configuration.number == number; })
        ->configuration;
  };
  EXPECT_THAT(
      said(nothing, "cudnn:eng71_k2=4"),
      HasSubstr("cuDNN does not run the algorithm eng71_k2=4 after all: cudnnBackendFinalize(ENGINECFG): status 3000"));
  EXPECT_THAT(said(nothing, "cudnn:eng70_k2=5"), HasSubstr("algorithm eng70_k2=5 after all"));
  EXPECT_THAT(
      said([&](auto& engines) { find(engines, 70).deterministic = false; }, "cudnn:eng70_k2=4"),
      HasSubstr("algorithm eng70_k2=4 after all: this engine is 'nondeterministic_eng70_k2=4' with no TF32 here"));
  EXPECT_THAT(said([&](auto& engines) { find(engines, 70).tensor_cores = true; }, "cudnn:eng70_k2=4", true),
              HasSubstr("this engine is 'eng70_k2=4' with TF32 here"));
  EXPECT_THAT(
      said([&](auto& engines) { find(engines, 67).tensor_cores = false; }, "cudnn:eng67_k2=5_k12=-1:tf32", true),
      HasSubstr("this engine is 'eng67_k2=5_k12=-1' with no TF32 here"));
  EXPECT_THAT(said([&](auto& engines) { find(engines, 70).less_than_tf32 = true; }, "cudnn:eng70_k2=4"),
              HasSubstr("with less precision than TF32 here"));
  EXPECT_THAT(said([&](auto& engines) { find(engines, 12).winograd = false; }, "cudnn:winograd_eng12"),
              HasSubstr("this engine is 'eng12' with no TF32 here"));
  EXPECT_THAT(said(nothing, "cudnn:eng67_k2=5_k12=-1:tf32"),
              HasSubstr("CUDA has no kernel 'cudnn:eng67_k2=5_k12=-1:tf32' for it"));
}

TEST(CudaEngines, ThatRefuseToRunArePlannedWithout) {
  const auto door = std::make_shared<FakeDoor>();
  const auto device = cuda::open_behind(door, "cuda:0", false);
  const CostTable costs = liking(*device, lenet(*device, CostTable(), false).network.graph, "eng70");
  door->cudnn().answer("cudnnBackendExecute", 3000, "eng70_k2=4");
  for (int layout = 0; layout < 2; ++layout) {  // known to be refused in one of them
    const Program program = lenet(*device, costs, false);
    ASSERT_EQ(kernels_of(program).at("cudnn:eng70_k2=4"), 5);
    Executor executor(program.network.graph, program.plan, *device);
    const std::vector<KernelRefused> refused = executor.rehearse();
    ASSERT_EQ(refused.size(), 5u);
    EXPECT_THAT(refused[0].what(),
                HasSubstr("kernel 'cudnn:eng70_k2=4' was offered, but does not run: cuDNN does not run the "
                          "algorithm eng70_k2=4 after all: cudnnBackendExecute: status 3000"));
  }
  const Program last = lenet(*device, costs, false);
  EXPECT_FALSE(kernels_of(last).contains("cudnn:eng70_k2=4"));
  Executor executor(last.network.graph, last.plan, *device);
  EXPECT_TRUE(executor.rehearse().empty());
}

}  // namespace
}  // namespace plimsoll
