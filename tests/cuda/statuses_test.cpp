// What each class of cuDNN's statuses leads to, at each call: the algorithm is left out, or the device has failed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "cost/signature.h"
#include "device/cuda/device.h"
#include "plimsoll/compile.h"
#include "plimsoll/cost.h"
#include "plimsoll/execute.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "tests/cuda/fake_door.h"
#include "tests/cuda/lenet.h"
#include "tests/support/error_text.h"
#include "train/session.h"

namespace plimsoll {
namespace {

using ::testing::Contains;
using testing::error_text;
using testing::FakeDoor;
using ::testing::HasSubstr;
using testing::lenet;
using ::testing::Not;

// Of the algorithm: what was asked, no kernel, a part of cuDNN missing, something that went wrong within, or on the GPU.
constexpr int kOfTheAlgorithm[] = {2000, 2003, 3000, 3002, 3005, 3006, 3007, 3008, 3009, 3014, 4000, 4004, 5000, 5003};
// Of cuDNN, and what no version known to us says.
constexpr int kOfTheLibrary[] = {1001, 1002, 1008, 6000};

// An algorithm of each of cuDNN's two ways to a convolution, and the calls that list it and run it.
struct Way {
  const char *algorithm, *listing, *running;
  std::string kernel() const { return std::string("cudnn:") + algorithm; }
};
constexpr Way kWays[] = {{"fft", "cudnnGetConvolution", "cudnnConvolution"},
                         {"eng70_k2=4", "cudnnBackendFinalize(EXECUTION_PLAN)", "cudnnBackendExecute"}};

struct StatusExample {
  Graph graph;
  OpId ops[3];
  StatusExample() {
    const TensorId x = graph.add_source("x", {2, 4, 16, 16}, DType::f32, Role::input);
    const TensorId w = graph.add_source("w", {4, 4, 3, 3}, DType::f32, Role::parameter);
    const Attributes padded{{"padding", std::vector<int64_t>{1, 1, 1, 1}}};
    ops[0] = graph.add_op("ConvForward", "forward", "conv", {x, w}, padded);
    const TensorId y = graph.output(ops[0]);
    Attributes data = padded, weights = padded;
    data.set("input_size", std::vector<int64_t>{16, 16});
    weights.set("kernel", std::vector<int64_t>{3, 3});
    ops[1] = graph.add_op("ConvBackwardData", "data", "conv", {y, w}, data);
    ops[2] = graph.add_op("ConvBackwardWeights", "weights", "conv", {x, y}, weights);
  }
  std::vector<std::string> kernels(const Device& device, int pass) const {
    std::vector<std::string> names;
    for (const KernelSpec& spec : device.kernels(graph, graph.op(ops[pass]), LayoutFamily::plain)) {
      names.push_back(spec.name);
    }
    return names;
  }
};

class CudnnStatuses : public ::testing::TestWithParam<int> {
 protected:
  // Kernels bound to memory of the device's.
  std::unique_ptr<Kernel> kernel(const Device& device, int pass, const std::string& name) {
    const Op& op = example_.graph.op(example_.ops[pass]);
    auto made = device.make_kernel(example_.graph, op, name);
    if (!arena_) arena_ = device.take_arena(1_MiB);
    std::byte* at = arena_->base();
    std::vector<void*> inputs, outputs;
    const auto place = [&](TensorId id) {
      std::byte* const place = at;
      at += align_up(example_.graph.tensor(id).bytes(), 64).count;
      return place;
    };
    for (const TensorId id : op.inputs) inputs.push_back(place(id));
    for (const TensorId id : op.outputs) outputs.push_back(place(id));
    made->bind(inputs, outputs, at);
    return made;
  }

  const StatusExample example_;
  const std::shared_ptr<FakeDoor> door_ = std::make_shared<FakeDoor>();
  const std::unique_ptr<Device> device_ = cuda::open_behind(door_, "cuda:0", false);
  std::unique_ptr<Arena> arena_;
};

class OfOneAlgorithm : public CudnnStatuses {};

TEST_P(OfOneAlgorithm, InListingLeavesOutThisOneAndNoOther) {
  for (const Way& way : kWays) door_->cudnn().answer(way.listing, GetParam(), way.algorithm);
  for (int pass = 0; pass < 3; ++pass) {
    const std::vector<std::string> names = example_.kernels(*device_, pass);
    for (const Way& way : kWays) EXPECT_THAT(names, Not(Contains(way.kernel())));
    EXPECT_THAT(names, Contains("cudnn:implicit_precomp_gemm"));
    EXPECT_THAT(names, Contains("cudnn:winograd_eng12"));
    EXPECT_THAT(names, Not(Contains("own:direct")));
  }
}

TEST_P(OfOneAlgorithm, FromTheHeuristicsLeavesTheListOfAll) {
  for (const char* call : {"cudnnGetConvolutionForwardAlgorithm", "cudnnGetConvolutionBackwardDataAlgorithm",
                           "cudnnGetConvolutionBackwardFilterAlgorithm"}) {
    door_->cudnn().answer(call, GetParam());
  }
  for (int pass = 0; pass < 3; ++pass) EXPECT_THAT(example_.kernels(*device_, pass), Contains("cudnn:fft"));
}

TEST_P(OfOneAlgorithm, FromEitherWaysHeuristicsLeavesTheOther) {
  door_->cudnn().answer("cudnnBackendFinalize(ENGINEHEUR)", GetParam());
  for (int pass = 0; pass < 3; ++pass) {
    EXPECT_THAT(example_.kernels(*device_, pass), Contains("cudnn:fft"));
    EXPECT_THAT(example_.kernels(*device_, pass), Contains("cudnn:eng1")) << "a fallback";
  }
  const auto other = std::make_shared<FakeDoor>();
  other->cudnn().answer("cudnnSet", GetParam());
  const auto device = cuda::open_behind(other, "cuda:0", false);
  for (int pass = 0; pass < 3; ++pass) {
    EXPECT_THAT(example_.kernels(*device, pass), Contains("cudnn:eng70_k2=4"));
    EXPECT_THAT(example_.kernels(*device, pass), Not(Contains("cudnn:eng1"))) << "there are better ones";
  }
}

TEST_P(OfOneAlgorithm, OfEverythingMeansThatCudnnIsBroken) {
  for (const char* call : {"cudnnGetConvolution", "cudnnSetConvolution2dDescriptor"}) {
    const auto door = std::make_shared<FakeDoor>();
    door->cudnn().answer(call, GetParam());
    door->cudnn().answer("cudnnBackend", GetParam());
    const auto device = cuda::open_behind(door, "cuda:0", false);
    const std::string what = error_text(ErrorCode::device_failure, [&] { example_.kernels(*device, 0); });
    EXPECT_THAT(what, HasSubstr("cuDNN runs no convolution on this GPU, not even a plain one: cudnn"));
    EXPECT_THAT(what, HasSubstr(fmt::format("status {}", GetParam())));
    EXPECT_THAT(what, HasSubstr("LD_LIBRARY_PATH"));
    error_text(ErrorCode::device_failure, [&] { example_.kernels(*device, 0); });  // asked again, too
  }
}

TEST_P(OfOneAlgorithm, WhenItIsPreparedOrRunRefusesThisOneAndItIsNotOfferedAgain) {
  for (const Way& way : kWays) {
    for (const char* call : {way.listing, way.running}) {
      for (int pass = 0; pass < 3; ++pass) {
        const auto device = cuda::open_behind(door_, "cuda:0", false);
        ASSERT_THAT(example_.kernels(*device, pass), Contains(way.kernel()));
        door_->cudnn().answer(call, GetParam(), way.algorithm);
        const auto refused = kernel(*device, pass, way.kernel());
        EXPECT_THAT(error_text(ErrorCode::unsupported, [&] { refused->run(); }),
                    HasSubstr(fmt::format("cuDNN does not run the algorithm {} after all: cudnn", way.algorithm)));
        EXPECT_THAT(example_.kernels(*device, pass), Not(Contains(way.kernel())));
        kernel(*device, pass, "cudnn:implicit_gemm")->run();
        kernel(*device, pass, "cudnn:winograd_eng12")->run();
        door_->cudnn().forget_statuses();
      }
    }
  }
}

TEST_P(OfOneAlgorithm, InMeasuringLeavesTheOthersToBeMeasured) {
  for (const Way& way : kWays) door_->cudnn().answer(way.running, GetParam(), way.algorithm);
  CostTable table;
  measure_costs(example_.graph, *device_, table);
  std::map<std::string, int> refused, measured;
  for (const auto& [key, cost] : table.entries()) {
    refused[key.kernel] += cost.time_ms > 1000;
    measured[key.kernel] += cost.time_ms < 1;
  }
  for (const Way& way : kWays) EXPECT_EQ(refused[way.kernel()], 6) << "three directions in two layouts";
  for (const char* other : {"cudnn:implicit_gemm", "cudnn:winograd_eng12"}) EXPECT_EQ(measured[other], 6) << other;
}

TEST_P(OfOneAlgorithm, InRehearsalIsPlannedWithout) {
  const Program first = lenet(*device_);
  door_->cudnn().answer("cudnnConvolution", GetParam(), "implicit_precomp_gemm");
  {
    Executor executor(first.network.graph, first.plan, *device_);
    EXPECT_EQ(executor.rehearse().size(), 5u);
  }
  const Program second = lenet(*device_);
  Executor executor(second.network.graph, second.plan, *device_);
  EXPECT_TRUE(executor.rehearse().empty());
  EXPECT_EQ(last_resort_text(second, *device_), "");
}

INSTANTIATE_TEST_SUITE_P(Statuses, OfOneAlgorithm, ::testing::ValuesIn(kOfTheAlgorithm));

class OfCudnn : public CudnnStatuses {};

TEST_P(OfCudnn, EndsListing) {
  for (const char* call : {"cudnnSetConvolution2dDescriptor", "cudnnGetConvolutionForwardAlgorithm_v7",
                           "cudnnGetConvolutionForwardWorkspaceSize", "cudnnBackendFinalize(ENGINEHEUR)",
                           "cudnnBackendFinalize(EXECUTION_PLAN)"}) {
    const auto door = std::make_shared<FakeDoor>();
    door->cudnn().answer(call, GetParam());
    const auto device = cuda::open_behind(door, "cuda:0", false);
    EXPECT_EQ(error_text(ErrorCode::device_failure, [&] { example_.kernels(*device, 0); }),
              fmt::format("{}: status {} (fake)", call, GetParam()));
  }
}

TEST_P(OfCudnn, EndsARunAndAPreparation) {
  example_.kernels(*device_, 0);
  const auto prepared = kernel(*device_, 0, "cudnn:fft"), engine = kernel(*device_, 0, "cudnn:eng70_k2=4");
  door_->cudnn().answer("cudnn", GetParam());
  EXPECT_THAT(error_text(ErrorCode::device_failure, [&] { prepared->run(); }), HasSubstr("cudnnConvolutionForward: "));
  EXPECT_THAT(error_text(ErrorCode::device_failure, [&] { engine->run(); }), HasSubstr("cudnnBackendExecute: "));
  EXPECT_THAT(error_text(ErrorCode::device_failure, [&] { kernel(*device_, 0, "cudnn:fft"); }), HasSubstr("cudnnSet"));
  EXPECT_THAT(error_text(ErrorCode::device_failure, [&] { kernel(*device_, 0, "cudnn:eng70_k2=4"); }),
              HasSubstr("cudnnBackendFinalize(EXECUTION_PLAN): "));
  const Program program = lenet(*cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", false));
  door_->cudnn().forget_statuses();
  Executor executor(program.network.graph, program.plan, *device_);
  door_->cudnn().answer("cudnnConvolution", GetParam());
  error_text(ErrorCode::device_failure, [&] { executor.rehearse(); });
}

INSTANTIATE_TEST_SUITE_P(Statuses, OfCudnn, ::testing::ValuesIn(kOfTheLibrary));

using CudnnAnswers = CudnnStatuses;

// Within a capture nothing can be waited for.
TEST_F(CudnnAnswers, ThatItFailedIsTheDevicesFailureWhereTheQueueDoesNotGoOn) {
  for (const Way& way : kWays) {
    const auto door = std::make_shared<FakeDoor>();
    const auto device = cuda::open_behind(door, "cuda:0", false);
    arena_.reset();
    example_.kernels(*device, 0);
    const auto fails = kernel(*device, 0, way.kernel());
    door->cudnn().answer(way.running, 5003, way.algorithm);
    const auto queues = device->open_queues();
    queues->begin_capture();
    EXPECT_THAT(error_text(ErrorCode::device_failure, [&] { fails->run(); }), HasSubstr("status 5003 (fake)"));
    queues->end_capture();
    door->fail("cudaEventCreateWithFlags", 1, true);
    error_text(ErrorCode::device_failure, [&] { queues->make_mark(false); });
    error_text(ErrorCode::device_failure, [&] { fails->run(); });
  }
  arena_.reset();
}

TEST_F(CudnnAnswers, AWorkspaceLargerThanTheGpuIsNoChoice) {
  for (const Way& way : kWays) {
    for (const uint64_t bytes : {uint64_t{8} << 30, (uint64_t{8} << 30) + 1, uint64_t{1} << 63, UINT64_MAX}) {
      const auto door = std::make_shared<FakeDoor>();
      door->cudnn().asks_for(way.algorithm, bytes);
      const auto device = cuda::open_behind(door, "cuda:0", false);
      const bool fits = bytes == uint64_t{8} << 30;
      for (int pass = 0; pass < 3; ++pass) {
        const std::vector<std::string> names = example_.kernels(*device, pass);
        EXPECT_EQ(std::ranges::count(names, way.kernel()), fits ? 1 : 0) << bytes;
        EXPECT_THAT(names, Contains("cudnn:implicit_gemm"));
      }
      if (!fits) continue;
      door->cudnn().asks_for(way.algorithm, bytes + 1);
      const auto made = kernel(*device, 0, way.kernel());
      EXPECT_THAT(error_text(ErrorCode::unsupported, [&] { made->run(); }), HasSubstr("8589934593 bytes of workspace"));
      arena_.reset();
    }
  }
}

TEST_F(CudnnAnswers, ThatItTakesNoAlgorithmForSomeConvolutionsLeavesThemToOursAndTheUserIsTold) {
  door_->cudnn().limit_elements(2000);
  EXPECT_THAT(example_.kernels(*device_, 0), ::testing::ElementsAre("own:direct"));
  const Program program = lenet(*device_);
  EXPECT_EQ(
      last_resort_text(program, *device_),
      "op 'conv1+relu1/forward' (and 4 more) runs by 'own:direct', which is slow: the device's library has no other kernel for it");
}

}  // namespace
}  // namespace plimsoll
