// Which of cuDNN's and cuBLASLt's kernels are taken where nothing is measured, or where costs are made up.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cost/signature.h"
#include "device/cuda/device.h"
#include "device/divided.h"
#include "kernels/layout.h"
#include "plimsoll/compile.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "tests/cuda/fake_door.h"
#include "tests/cuda/lenet.h"

namespace plimsoll {
namespace {

using testing::FakeDoor;
using ::testing::HasSubstr;
using testing::lenet;

// By kind of op: "Conv", "FullyConnected".
std::set<std::string> kernels_of(const Program& program, std::string_view kind) {
  std::set<std::string> result;
  const Graph& graph = program.network.graph;
  for (OpId id{0}; id.index < graph.op_count(); ++id.index) {
    if (graph.op(id).type->name.starts_with(kind)) result.insert(program.kernels[id.index].kernel);
  }
  return result;
}

// Not the one with the least workspace, nor the one that stands first, where estimates tell them apart.
TEST(CudaChoice, ExactTakesTheKindOfAlgorithmThatIsFast) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", false);
  const Program program = lenet(*device, CostTable(), true);
  EXPECT_EQ(kernels_of(program, "Conv"), std::set<std::string>{"cudnn:implicit_precomp_gemm"});
  EXPECT_EQ(kernels_of(program, "FullyConnected"), std::set<std::string>{"cublaslt"});
}

TEST(CudaChoice, OfKernelsThatEstimatesDoNotTellApartTheDevicesFirstIsTaken) {
  Graph graph;  // a convolution that is all traffic
  const TensorId x = graph.add_source("x", {2, 1, 64, 64}, DType::f32, Role::input);
  const TensorId w = graph.add_source("w", {1, 1, 1, 1}, DType::f32, Role::parameter);
  const OpId conv = graph.add_op("ConvForward", "conv", "conv", {x, w});
  graph.inputs = {x};
  graph.states = {{w, w}};
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", false);
  const LayoutResult result =
      choose_layouts(graph, *device, CostTable(), {.family = LayoutFamily::plain, .exact = true});
  EXPECT_EQ(result.kernels[conv.index].kernel, device->kernels(graph, graph.op(conv), LayoutFamily::plain).at(0).name);
}

// Offers algorithms of these names for every convolution.
class AlgorithmsByName final : public FakeDoor {
 public:
  std::vector<cuda::ConvolutionAlgorithm> algorithms(const cuda::Convolution&, bool tf32) override {
    std::vector<cuda::ConvolutionAlgorithm> list;
    for (const char* name : {"winograd_nonfused", "winograd", "implicit_precomp_gemm", "implicit_gemm", "fft",
                             "fft_tiling", "algo_0", "algo_1", "algo_3"}) {
      const int number = static_cast<int>(list.size());
      list.push_back({.name = name, .number = number, .tf32 = false, .deterministic = true, .workspace = {}});
      if (tf32) list.push_back({.name = name, .number = number, .tf32 = true, .deterministic = true, .workspace = {}});
    }
    return list;
  }
};

TEST(CudaChoice, EstimatesRankAlgorithmsByTheirKindInEachPass) {
  Graph graph;
  const TensorId x = graph.add_source("x", {16, 64, 56, 56}, DType::f32, Role::input);
  const TensorId w = graph.add_source("w", {64, 64, 3, 3}, DType::f32, Role::parameter);
  const Attributes padded{{"padding", std::vector<int64_t>{1, 1, 1, 1}}};
  const OpId forward = graph.add_op("ConvForward", "forward", "", {x, w}, padded);
  Attributes back = padded;
  back.set("kernel", std::vector<int64_t>{3, 3});
  const OpId weights = graph.add_op("ConvBackwardWeights", "weights", "", {x, graph.output(forward)}, back);
  const CostTable table({.gflops = 1e4, .memory_gb_per_s = 1e3, .launch_us = 3});
  const auto library = cuda::open_behind(std::make_shared<AlgorithmsByName>(), "cuda:0", true);
  const auto without = std::make_shared<FakeDoor>();
  without->cudnn().limit_elements(1000);
  const auto ours = cuda::open_behind(without, "cuda:0", false);
  for (const OpId id : {forward, weights}) {
    std::vector<KernelSpec> kernels = library->kernels(graph, graph.op(id), LayoutFamily::plain);
    kernels.push_back(ours->kernels(graph, graph.op(id), LayoutFamily::plain).at(0));
    const auto ms = [&](const std::string& kernel) {
      const auto spec =
          std::find_if(kernels.begin(), kernels.end(), [&](const KernelSpec& one) { return one.name == kernel; });
      if (spec == kernels.end()) throw Error(ErrorCode::internal, kernel);
      return table.cost(graph, graph.op(id), *spec).time_ms;
    };
    const std::string gemm = id == forward ? "cudnn:implicit_precomp_gemm" : "cudnn:algo_1";
    EXPECT_LT(ms("cudnn:winograd_nonfused"), ms(gemm));
    EXPECT_LT(ms(gemm + ":tf32"), ms("cudnn:winograd_nonfused"));
    for (const char* slower :
         {"cudnn:fft", "cudnn:fft_tiling", "cudnn:implicit_gemm", "cudnn:algo_0", "cudnn:algo_3"}) {
      EXPECT_LT(ms(gemm), ms(slower)) << slower;
      EXPECT_LT(5 * ms(slower), ms("own:direct")) << slower;
    }
  }
}

// Costs that make these the fastest, on any layouts.
CostTable liking(const Device& device, const Graph& graph, std::initializer_list<std::string_view> names) {
  CostTable table;
  for (const Op& op : graph.ops()) {
    if (op.type->is_view || op.type->name == "Reorder") continue;
    for (const LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last}) {
      for (const KernelSpec& spec : device.kernels(graph, op, family)) {
        const bool liked = std::any_of(names.begin(), names.end(), [&](std::string_view name) {
          return spec.name.find(name) != std::string::npos;
        });
        table.put({op_signature(graph, op, spec), spec.name, 0},
                  {.source = Cost::Source::measured, .time_ms = liked ? 0.001 : 1, .runs = 3});
      }
    }
  }
  return table;
}

TEST(CudaChoice, ExactNeverTakesTensorCoresNorAtomicsHoweverCheapTheyAre) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", true);
  const Graph graph = lenet(*device, CostTable(), false).network.graph;
  const auto names_with = [](const Program& program, std::string_view part) {
    int count = 0;
    for (const KernelChoice& choice : program.kernels) count += choice.kernel.find(part) != std::string::npos;
    return count;
  };
  EXPECT_GT(names_with(lenet(*device, liking(*device, graph, {":tf32"}), false), ":tf32"), 3);
  EXPECT_GT(names_with(lenet(*device, liking(*device, graph, {"algo_0"}), false), "algo_0"), 1);
  EXPECT_GT(names_with(lenet(*device, CostTable(), false), ":tf32"), 3);  // by estimates, too
  for (const CostTable& costs : {CostTable(), liking(*device, graph, {":tf32", "algo_0"})}) {
    const Program program = lenet(*device, costs, true);
    EXPECT_EQ(names_with(program, ":tf32"), 0);
    EXPECT_EQ(names_with(program, "algo_0"), 0);
  }
}

struct Example {
  Graph graph;
  OpId conv;
  explicit Example(Shape images) {
    const TensorId x = graph.add_source("x", images, DType::f32, Role::input);
    const TensorId w = graph.add_source("w", {4, images[1], 3, 3}, DType::f32, Role::parameter);
    conv = graph.add_op("ConvForward", "conv", "conv", {x, w}, {{"padding", std::vector<int64_t>{1, 1, 1, 1}}});
    graph.inputs = {x};
    graph.states = {{w, w}};
  }
  std::string kernel(const Device& device, LayoutOptions options) const {
    Graph copy = graph;
    const CostTable costs({.gflops = 1, .memory_gb_per_s = 1000, .launch_us = 0.001});
    options.family = LayoutFamily::plain;
    return choose_layouts(copy, device, costs, options).kernels[conv.index].kernel;
  }
};

TEST(CudaChoice, ALanguageModelsLossIsMadeByRowsOfWhichExactTakesOneNumber) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", true);
  EXPECT_THAT(fusion_on(*device, {}).off, ::testing::IsEmpty());
  Graph graph;
  const TensorId x = graph.add_source("x", {1024, 64}, DType::f32, Role::activation);
  const TensorId w = graph.add_source("w", {50000, 64}, DType::f32, Role::activation);
  const TensorId labels = graph.add_source("labels", {1024}, DType::i64, Role::activation);
  const OpId loss = graph.add_op("LinearCrossEntropyForward", "loss", "loss", {x, w, labels});
  std::vector<std::string> exact;
  std::map<std::string, Bytes> workspaces;
  for (const KernelSpec& spec : device->kernels(graph, graph.op(loss), LayoutFamily::plain)) {
    if (spec.exact) exact.push_back(spec.name);
    workspaces[spec.name] = spec.workspace;
  }
  EXPECT_EQ(exact, (std::vector<std::string>{"rows=256"}));  // logits of up to 64 MiB
  EXPECT_EQ(workspaces.count("rows=256:tf32"), 1u);
  EXPECT_LT(workspaces.at("rows=64"), 16_MiB);
  EXPECT_GT(workspaces.at("rows=1024"), 195_MiB);
}

TEST(CudaChoice, AWideLayerTakesWorkspaceForABlockOnly) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", true);
  Graph graph;
  const TensorId up = graph.add_source("up", {8192, 3072}, DType::f32, Role::activation);
  const TensorId gate = graph.add_source("gate", {8192, 3072}, DType::f32, Role::activation);
  const TensorId w = graph.add_source("w", {768, 3072}, DType::f32, Role::activation);
  const TensorId dy = graph.add_source("dy", {8192, 768}, DType::f32, Role::activation);
  Attributes attributes{{"expression", std::string("mul(silu(x0),x1)")}, {"operands", int64_t{2}}};
  const OpId forward = graph.add_op("PointwiseLinearForward", "mlp", "mlp", {up, gate, w}, attributes);
  attributes.set("gradients", std::vector<int64_t>{0, 1, 2});
  const OpId backward = graph.add_op("PointwiseLinearBackward", "mlp/back", "mlp", {up, gate, w, dy}, attributes);
  for (const auto& [op, blocks] : {std::pair{forward, 1}, {backward, 2}}) {  // and its gradient
    std::vector<std::string> names, by_name, exact;
    for (const KernelSpec& spec : device->kernels(graph, graph.op(op), LayoutFamily::plain)) {
      const bool of_product = spec.name.find('/') != std::string::npos;
      (of_product ? by_name : names).push_back(spec.name);
      if (spec.exact) exact.push_back(spec.name);
      const Bytes block{blocks * std::stoll(spec.name.substr(5)) * 3072 * 4};
      EXPECT_GE(spec.workspace, block) << spec.name;
      EXPECT_LE(spec.workspace, block + (of_product ? 32_MiB : 64_KiB)) << spec.name;
    }
    EXPECT_THAT(names, ::testing::UnorderedElementsAre("rows=64", "rows=256", "rows=1024", "rows=4096", "rows=8192",
                                                       "rows=64:tf32", "rows=256:tf32", "rows=1024:tf32",
                                                       "rows=4096:tf32", "rows=8192:tf32"));
    EXPECT_THAT(exact, ::testing::ElementsAre("rows=4096"));                    // an expression of up to 64 MiB
    EXPECT_THROW(device->make_kernel(graph, graph.op(op), "rows=100"), Error);  // blocks that begin anywhere
    EXPECT_EQ(by_name.empty(), op == forward);
    EXPECT_THAT(by_name, ::testing::Each(::testing::StartsWith("rows=8192/cublaslt:algo")));
    EXPECT_EQ(std::ranges::count_if(by_name, [](const std::string& name) { return name.ends_with(":tf32"); }) * 2,
              std::ssize(by_name));
    for (const char* name : {"rows=4096/cublaslt:algo66_tile20", "rows=8192/cublaslt", "rows=8192/", "rows=8192/own"}) {
      if (op == backward && std::string_view(name) == "rows=8192/cublaslt") continue;  // the best guess by its name
      EXPECT_THROW(device->make_kernel(graph, graph.op(op), name), Error) << name;
    }
  }
}

TEST(CudaChoice, WideLayersAreByRowsWhereThatIsFasterOrTheyHaveNoRoom) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", false);
  const Network network = build_model("gpt2:layers=2,width=48,heads=2,context=256,positions=256,vocab=64",
                                      {.batch = 32, .channels = 1, .height = 1, .width = 256, .classes = 64});
  const auto compile = [&](const CostTable& costs, const CompileOptions& options) {
    return std::get<Program>(compile_training(network, *device, costs, options));
  };
  const auto is_by_rows = [](const Program& program) {
    return std::ranges::any_of(program.network.graph.ops(),
                               [](const Op& op) { return op.type->name.starts_with("PointwiseLinear"); });
  };
  const Program exact = compile(CostTable(), {.exact = true});
  EXPECT_TRUE(is_by_rows(exact));
  const auto costs_with = [&](double ms) {
    CostTable costs;
    for (const Op& op : exact.network.graph.ops()) {
      if (!op.type->name.starts_with("PointwiseLinear")) continue;
      for (const KernelSpec& spec : device->kernels(exact.network.graph, op, LayoutFamily::plain))
        costs.put({op_signature(exact.network.graph, op, spec), spec.name, 0}, {Cost::Source::measured, ms, 0, 3});
    }
    return costs;
  };
  EXPECT_FALSE(is_by_rows(compile(costs_with(1000), {})));
  const Program fast = compile(costs_with(0.001), {});
  EXPECT_TRUE(is_by_rows(fast));
  EXPECT_TRUE(is_by_rows(compile(costs_with(1000), {.memory = {fast.plan->arena.count * 3 / 4}})));
}

// Planning does: each answer is that of one thread alone. (Two at once broke the heap of the library's double.)
TEST(CudaChoice, SeveralThreadsMayAskForKernels) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", false);
  Network network = build_model("gpt2:layers=2,width=48,heads=2,context=256,positions=256,vocab=64",
                                {.batch = 32, .channels = 1, .height = 1, .width = 256, .classes = 64});
  network = std::get<Program>(compile_training(network, *device, CostTable(), {.exact = true})).network;
  std::vector<std::vector<std::string>> names(4);
  std::vector<std::thread> threads;
  for (std::vector<std::string>& of : names) {
    threads.emplace_back([&] {
      for (int again = 0; again < 40; ++again) {
        of.clear();
        for (const Op& op : network.graph.ops()) {
          for (const KernelSpec& spec : device->kernels(network.graph, op, LayoutFamily::plain))
            of.push_back(spec.name);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(names[0].size(), 20u);
  for (const std::vector<std::string>& of : names) EXPECT_EQ(of, names[0]);
}

TEST(CudaChoice, WhatCudnnDoesNotTakeWholeItTakesInParts) {
  const Example e({8, 4, 9, 9});
  const auto door = std::make_shared<FakeDoor>();
  const auto device = cuda::open_behind(door, "cuda:0", false);
  EXPECT_EQ(e.kernel(*device, {}), "cudnn:implicit_precomp_gemm");
  door->cudnn().limit_elements(6 * 4 * 9 * 9);
  const auto limited = cuda::open_behind(door, "cuda:0", false);
  EXPECT_EQ(e.kernel(*limited, {}), "cudnn:implicit_precomp_gemm@4*2");
  EXPECT_EQ(e.kernel(*limited, {.batch_sizes = BatchSizes::undivided}), "own:direct");
  EXPECT_EQ(e.kernel(*limited, {.exact = true}), "own:direct");
}

TEST(CudaChoice, PartsByCudnnBeginAtMultiplesOf16Bytes) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", false);
  // The workspace allows two rows at once: of 400 bytes each, and of 300.
  LayoutOptions limited{.asked_limit = 2048_B, .batch_sizes = BatchSizes::power_of_two};
  limited.workspace_limit = limited.asked_limit;
  EXPECT_EQ(Example({8, 4, 5, 5}).kernel(*device, limited), "cudnn:implicit_precomp_gemm@2*4");
  EXPECT_EQ(Example({8, 3, 5, 5}).kernel(*device, limited), "cudnn:implicit_gemm");
  const Example e({8, 3, 5, 5});
  EXPECT_NO_THROW(make_kernel(*device, e.graph, e.graph.op(e.conv), "cudnn:implicit_gemm@4*2"));
  EXPECT_NO_THROW(
      make_kernel(*device, e.graph, e.graph.op(e.conv), "cudnn:implicit_gemm@4+cudnn:implicit_gemm@3+own:direct@1"));
  try {
    make_kernel(*device, e.graph, e.graph.op(e.conv), "cudnn:implicit_gemm@2*4");
    ADD_FAILURE() << "it was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_THAT(error.what(), HasSubstr("row 2 of a tensor is at no multiple of 16 bytes"));
  }
}

TEST(CudaChoice, AKernelThatRefusesToRunIsNamedAndNotOfferedAgain) {
  const auto door = std::make_shared<FakeDoor>();
  const auto device = cuda::open_behind(door, "cuda:0", false);
  const Program first = lenet(*device, CostTable(), true);
  door->refuse("implicit_precomp_gemm");
  {
    Executor executor(first.network.graph, first.plan, *device);
    for (int step = 0; step < 2; ++step) {
      try {
        executor.run_step();
        ADD_FAILURE() << "the step ran";
      } catch (const KernelRefused& refusal) {
        EXPECT_EQ(refusal.code(), ErrorCode::device_failure);
        EXPECT_THAT(refusal.what(),
                    HasSubstr("op '" + refusal.op() + "': kernel 'cudnn:implicit_precomp_gemm' was offered"));
        EXPECT_THAT(
            refusal.what(),
            HasSubstr(
                "cuDNN does not run the algorithm implicit_precomp_gemm after all: cudnnConvolutionForward: status 3000"));
      }
    }
  }
  const auto other = cuda::open_behind(door, "cuda:0", false);
  {
    Executor executor(first.network.graph, first.plan, *other);
    EXPECT_EQ(executor.rehearse().size(), 5u);  // two convolutions: forward, and back but to the images
  }
  const Program second = lenet(*other, CostTable(), true);
  EXPECT_FALSE(kernels_of(second, "Conv").contains("cudnn:implicit_precomp_gemm"));
  Executor executor(second.network.graph, second.plan, *other);
  EXPECT_TRUE(executor.rehearse().empty());
}

}  // namespace
}  // namespace plimsoll
