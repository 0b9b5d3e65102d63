// cuBLASLt's algorithms as kernels: which are offered beside its best guess, that their names make them again, and what its
// refusals lead to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cost/signature.h"
#include "device/cuda/device.h"
#include "device/divided.h"
#include "plimsoll/cost.h"
#include "plimsoll/ops.h"
#include "tests/cuda/fake_door.h"
#include "tests/cuda/run_kernel.h"
#include "tests/support/error_text.h"

namespace plimsoll {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::error_text;
using testing::FakeDoor;
using ::testing::HasSubstr;
using ::testing::Not;

// An op on memory of the device's, with inputs that are the same for every kernel.
class ProductExample {
 public:
  // A weight gradient of few tiles: K is the batch.
  static ProductExample weights(int64_t batch = 2048) {
    ProductExample e;
    const TensorId a = e.graph_.add_source("x", {batch, 8}, DType::f32, Role::activation);
    const TensorId b = e.graph_.add_source("dy", {batch, 12}, DType::f32, Role::activation);
    e.op_ = e.graph_.add_op("MatMul", "weights", "layer", {a, b}, {{"transpose_a", int64_t{1}}});
    return e;
  }
  static ProductExample layer() {
    ProductExample e;
    const TensorId x = e.graph_.add_source("x", {6, 20}, DType::f32, Role::activation);
    const TensorId w = e.graph_.add_source("w", {12, 20}, DType::f32, Role::parameter);
    const TensorId b = e.graph_.add_source("b", {12}, DType::f32, Role::parameter);
    e.op_ =
        e.graph_.add_op("FullyConnectedForward", "layer", "layer", {x, w, b}, {{"activation", std::string("relu")}});
    return e;
  }
  const Graph& graph() const { return graph_; }
  const Op& op() const { return graph_.op(op_); }
  std::vector<KernelSpec> specs(const Device& device) const {
    return device.kernels(graph_, op(), LayoutFamily::plain);
  }
  std::vector<std::string> names(const Device& device) const {
    std::vector<std::string> names;
    for (const KernelSpec& spec : specs(device)) names.push_back(spec.name);
    return names;
  }
  std::vector<float> run(const Device& device, const std::string& kernel) const {
    return testing::run_kernel(device, graph_, op(), *make_kernel(device, graph_, op(), kernel));
  }

 private:
  Graph graph_;
  OpId op_;
};

constexpr const char* kFurther = "cublaslt:algo21_tile18_stages15";

TEST(CudaProducts, AreOfferedBehindTheBestGuessWhichIsNotNamedTwice) {
  const auto door = std::make_shared<FakeDoor>();
  const auto device = cuda::open_behind(door, "cuda:0", false);
  EXPECT_THAT(ProductExample::layer().names(*device), ElementsAre("cublaslt", "cublaslt:no_workspace", kFurther));
  EXPECT_THAT(ProductExample::weights(300).names(*device), ElementsAre("cublaslt", kFurther));
  const auto rounds = cuda::open_behind(door, "cuda:0", true);
  EXPECT_THAT(ProductExample::weights(300).names(*rounds),
              ElementsAre("cublaslt:tf32", std::string(kFurther) + ":tf32", "cublaslt", kFurther));
  for (const KernelSpec& spec : ProductExample::weights(300).specs(*rounds))
    EXPECT_EQ(spec.exact, !spec.name.ends_with(":tf32")) << spec.name;
}

TEST(CudaProducts, DivideKWhereTheOutputHasFewTiles) {
  const auto door = std::make_shared<FakeDoor>();
  const auto device = cuda::open_behind(door, "cuda:0", false);
  const std::string divided = std::string(kFurther) + "_splitk";
  EXPECT_THAT(
      ProductExample::weights(1024).names(*device),
      ElementsAre("cublaslt", kFurther, divided + "2_reduction2", divided + "3_reduction2", divided + "4_reduction2"));
  for (const KernelSpec& spec : ProductExample::weights(1024).specs(*device)) {
    EXPECT_TRUE(spec.exact) << spec.name;
    if (!spec.name.ends_with("splitk4_reduction2")) continue;
    EXPECT_EQ(spec.workspace, 1536_B);
  }
  EXPECT_THAT(ProductExample::weights(511).names(*device), ElementsAre("cublaslt", kFurther));
  Graph graph;  // 324 tiles for 132 processors
  const TensorId a = graph.add_source("a", {2048, 2304}, DType::f32, Role::activation);
  const OpId op = graph.add_op("MatMul", "square", "square", {a, a}, {{"transpose_a", int64_t{1}}});
  EXPECT_EQ(device->kernels(graph, graph.op(op), LayoutFamily::plain).size(), 2u);
}

TEST(CudaProducts, ThatNeedMoreThan32MiBAreNoChoice) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", false);
  Graph graph;
  const TensorId x = graph.add_source("x", {8192, 768}, DType::f32, Role::activation);
  const OpId op = graph.add_op("MatMul", "weights", "layer", {x, x}, {{"transpose_a", int64_t{1}}});
  const std::vector<KernelSpec> specs = device->kernels(graph, graph.op(op), LayoutFamily::plain);
  ASSERT_EQ(specs.size(), 8u);
  EXPECT_EQ(specs.back().name, std::string(kFurther) + "_splitk12_reduction2");
}

TEST(CudaProducts, AreTheFirstEightWithoutThoseNamedTwice) {
  const auto door = std::make_shared<FakeDoor>();
  door->cublas().guesses.clear();
  for (const int i : {1, 2, 2, 1, 3, 4, 5, 6, 7, 8}) door->cublas().guesses.push_back({.algorithm = i});
  const auto device = cuda::open_behind(door, "cuda:0", false);
  EXPECT_THAT(ProductExample::weights(300).names(*device),
              ElementsAre("cublaslt", "cublaslt:algo2", "cublaslt:algo3", "cublaslt:algo4", "cublaslt:algo5",
                          "cublaslt:algo6"));
}

TEST(CudaProducts, AreListedOnceForAProduct) {
  const auto door = std::make_shared<FakeDoor>();
  const auto device = cuda::open_behind(door, "cuda:0", false);
  for (int i = 0; i < 3; ++i) ProductExample::weights().names(*device);
  EXPECT_EQ(door->calls().at("cublasLtMatmulAlgoGetHeuristic"), 1);
}

TEST(CudaProducts, AreMadeAgainFromTheirNamesAndGiveTheSame) {
  const auto door = std::make_shared<FakeDoor>();
  const auto device = cuda::open_behind(door, "cuda:0", true);
  for (const ProductExample& example : {ProductExample::weights(), ProductExample::layer()}) {
    const std::vector<float> expected = example.run(*device, "cublaslt");
    EXPECT_THAT(expected, Contains(::testing::Gt(1.0F)));
    const std::vector<std::string> names = example.names(*device);
    const auto other = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", true);  // of another process
    for (const std::string& name : names)
      EXPECT_THAT(example.run(*other, name), ::testing::Pointwise(::testing::FloatNear(1e-4F), expected)) << name;
  }
  const ProductExample layer = ProductExample::layer();
  EXPECT_THAT(layer.run(*device, std::string(kFurther) + "@4+cublaslt@2"),
              ::testing::Pointwise(::testing::FloatNear(1e-4F), layer.run(*device, "cublaslt")));
}

TEST(CudaProducts, OfNoNameOfOursOrOfTensorCoresThatWereNotAskedForAreRefused) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", false);
  for (const ProductExample& example : {ProductExample::weights(), ProductExample::layer()}) {
    for (const char* name : {"cublaslt:", "cublaslt:algo", "cublaslt:algo1_tile", "cublasltalgo1", "cudnn:algo1",
                             "cublaslt:algo21_tile18_stages15:tf32", "cublaslt:tf32"}) {
      EXPECT_THAT(error_text(ErrorCode::unsupported, [&] { device->make_kernel(example.graph(), example.op(), name); }),
                  HasSubstr("CUDA has no kernel '" + std::string(name) + "' for it"));
    }
  }
}

// cuBLAS's numbers: what was asked, another GPU's, not supported; it went wrong within, or on the GPU.
class OfOneProduct : public ::testing::TestWithParam<int> {};

TEST_P(OfOneProduct, InListingLeavesOutThisOne) {
  const auto door = std::make_shared<FakeDoor>();
  door->cublas().answer("cublasLtMatmulAlgoCheck", GetParam(), "algo21_tile18_stages15");
  const auto device = cuda::open_behind(door, "cuda:0", false);
  EXPECT_THAT(ProductExample::weights(512).names(*device),
              ElementsAre("cublaslt", std::string(kFurther) + "_splitk2_reduction2"));
  const auto other = std::make_shared<FakeDoor>();
  other->cublas().answer("cublasLtMatmulAlgoGetHeuristic", GetParam());
  EXPECT_THAT(ProductExample::weights().names(*cuda::open_behind(other, "cuda:0", false)), ElementsAre("cublaslt"));
}

TEST_P(OfOneProduct, WhenItIsMadeOrRunRefusesThisOneAndItIsNotOfferedAgain) {
  for (const char* call : {"cublasLtMatmulAlgoCheck", "cublasLtMatmul"}) {
    for (const ProductExample& example : {ProductExample::weights(), ProductExample::layer()}) {
      const auto door = std::make_shared<FakeDoor>();
      const auto device = cuda::open_behind(door, "cuda:0", false);
      ASSERT_THAT(example.names(*device), Contains(kFurther));
      door->cublas().answer(call, GetParam(), "algo21_tile18_stages15");
      EXPECT_THAT(error_text(ErrorCode::unsupported, [&] { example.run(*device, kFurther); }),
                  HasSubstr("cuBLASLt does not run the algorithm algo21_tile18_stages15 after all: " +
                            std::string(call) + ": status "));
      EXPECT_THAT(example.names(*device), Not(Contains(kFurther)));
      example.run(*device, "cublaslt");
    }
  }
}

TEST_P(OfOneProduct, InMeasuringIsNeverTheFastest) {
  const auto door = std::make_shared<FakeDoor>();
  door->cublas().answer("cublasLtMatmul", GetParam(), "algo21_tile18_stages15");
  const auto device = cuda::open_behind(door, "cuda:0", false);
  CostTable table;
  measure_costs(ProductExample::weights(300).graph(), *device, table);
  int refused = 0, measured = 0;
  for (const auto& [key, cost] : table.entries()) {
    refused += key.kernel == kFurther && cost.time_ms > 1000;
    measured += key.kernel == "cublaslt" && cost.time_ms < 1;
  }
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(measured, 1);
}

INSTANTIATE_TEST_SUITE_P(Statuses, OfOneProduct, ::testing::Values(3, 7, 8, 13, 14, 15));

TEST(CudaProducts, WhatElseCublasSaysEndsTheProgram) {
  for (const int status : {1, 11, 16, 99}) {
    for (const char* call : {"cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmulAlgoCheck"}) {
      const auto door = std::make_shared<FakeDoor>();
      door->cublas().answer(call, status);
      const auto device = cuda::open_behind(door, "cuda:0", false);
      EXPECT_THAT(error_text(ErrorCode::device_failure, [&] { ProductExample::weights().names(*device); }),
                  HasSubstr(call));
    }
    const auto door = std::make_shared<FakeDoor>();
    door->cublas().answer("cublasLtMatmul", status);
    const auto device = cuda::open_behind(door, "cuda:0", false);
    error_text(ErrorCode::device_failure, [&] { ProductExample::weights().run(*device, kFurther); });
  }
}

TEST(CudaProducts, ThatOneFailedIsTheDevicesFailureWhereTheQueueDoesNotGoOn) {
  const ProductExample example = ProductExample::weights();
  const auto door = std::make_shared<FakeDoor>();
  const auto device = cuda::open_behind(door, "cuda:0", false);
  const auto made = device->make_kernel(example.graph(), example.op(), kFurther);
  door->cublas().answer("cublasLtMatmul", 13);
  const auto queues = device->open_queues();
  queues->begin_capture();
  error_text(ErrorCode::device_failure, [&] { made->run(); });
  queues->end_capture();
}

TEST(CudaProducts, AConfigurationThatAsksForMoreThanItMayIsRefused) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", false);
  const ProductExample example = ProductExample::weights();
  EXPECT_THAT(error_text(ErrorCode::unsupported,
                         [&] { example.run(*device, std::string(kFurther) + "_splitk100000_reduction2"); }),
              HasSubstr("it asks for 38400000 bytes of workspace"));
}

}  // namespace
}  // namespace plimsoll
