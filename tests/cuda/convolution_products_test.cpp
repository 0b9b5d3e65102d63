// Convolutions with a 1 x 1 kernel as products by cuBLASLt: which are offered, and that they give what others do.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "device/cuda/device.h"
#include "device/divided.h"
#include "plimsoll/ops.h"
#include "tests/cuda/fake_door.h"
#include "tests/cuda/run_kernel.h"
#include "tests/support/error_text.h"

namespace plimsoll {
namespace {

using ::testing::Contains;
using testing::error_text;
using testing::FakeDoor;
using ::testing::HasSubstr;
using testing::input_value;
using ::testing::IsEmpty;
using ::testing::Not;

struct Sizes {
  int64_t n, c, h, w, k;
  int64_t kernel = 1, stride = 1, padding = 0, groups = 1;
  bool bias = false, relu = false;
};

enum class Pass { forward, data, weights };
constexpr Pass kPasses[] = {Pass::forward, Pass::data, Pass::weights};

// One op on memory of the device's, in one of the layouts.
class ConvolutionExample {
 public:
  ConvolutionExample(Pass pass, const Sizes& s, LayoutFamily family) : family_(family) {
    const int64_t p = s.padding, oh = (s.h + 2 * p - s.kernel) / s.stride + 1,
                  ow = (s.w + 2 * p - s.kernel) / s.stride + 1;
    Attributes attributes{{"padding", std::vector<int64_t>{p, p, p, p}},
                          {"stride", std::vector<int64_t>{s.stride, s.stride}},
                          {"groups", s.groups}};
    const Shape weights = s.groups > 1 ? Shape{s.groups, s.k / s.groups, s.c / s.groups, s.kernel, s.kernel}
                                       : Shape{s.k, s.c, s.kernel, s.kernel};
    const auto add = [&](const char* name, const Shape& shape) {
      return graph_.add_source(name, shape, DType::f32, Role::activation);
    };
    const Shape x{s.n, s.c, s.h, s.w}, y{s.n, s.k, oh, ow};
    switch (pass) {
      case Pass::forward: {
        std::vector<TensorId> inputs = {add("x", x), add("w", weights)};
        if (s.bias) inputs.push_back(add("b", {s.k}));
        if (s.relu) attributes.set("activation", std::string("relu"));
        op_ = graph_.add_op("ConvForward", "conv", "conv", inputs, attributes);
        break;
      }
      case Pass::data:
        attributes.set("input_size", std::vector<int64_t>{s.h, s.w});
        op_ = graph_.add_op("ConvBackwardData", "conv", "conv", {add("dy", y), add("w", weights)}, attributes);
        break;
      case Pass::weights:
        attributes.set("kernel", std::vector<int64_t>{s.kernel, s.kernel});
        if (s.bias) attributes.set("bias", int64_t{1});
        op_ = graph_.add_op("ConvBackwardWeights", "conv", "conv", {add("x", x), add("dy", y)}, attributes);
        break;
    }
  }
  std::vector<KernelSpec> specs(const Device& device) const { return device.kernels(graph_, op(), family_); }
  std::vector<std::string> products(const Device& device) const {
    std::vector<std::string> names;
    for (const KernelSpec& spec : specs(device)) {
      if (spec.name.starts_with("cublaslt")) names.push_back(spec.name);
    }
    return names;
  }
  std::unique_ptr<Kernel> make(const Device& device, const std::string& kernel) {
    const KernelSpec spec = specs(device).at(0);
    for (size_t i = 0; i < op().inputs.size(); ++i) graph_.tensor(op().inputs[i]).layout = spec.inputs[i];
    for (size_t i = 0; i < op().outputs.size(); ++i) graph_.tensor(op().outputs[i]).layout = spec.outputs[i];
    return make_kernel(device, graph_, op(), kernel);
  }
  std::vector<float> run(const Device& device, const std::string& kernel) {
    return testing::run_kernel(device, graph_, op(), *make(device, kernel));
  }

 private:
  const Op& op() const { return graph_.op(op_); }
  Graph graph_;
  OpId op_;
  LayoutFamily family_;
};

constexpr LayoutFamily kFamiliesHere[] = {LayoutFamily::plain, LayoutFamily::channels_last};

TEST(CudaConvolutionProducts, AreOfferedBehindCudnnForKernelsOfOnePixelThatGoOverAll) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", true);
  for (const Pass pass : kPasses) {
    for (const LayoutFamily family : kFamiliesHere) {
      const ConvolutionExample one(pass, {.n = 3, .c = 6, .h = 4, .w = 5, .k = 8}, family);
      EXPECT_THAT(one.specs(*device).at(0).name, ::testing::StartsWith("cudnn:"));
      const bool in_parts = pass == Pass::weights && family == LayoutFamily::plain;
      EXPECT_THAT(one.products(*device), Contains(in_parts ? "cublaslt_in_parts" : "cublaslt"));
      EXPECT_THAT(one.products(*device), Contains(in_parts ? "cublaslt_in_parts:tf32" : "cublaslt:tf32"));
      double best = 0, product = 0;
      for (const KernelSpec& spec : one.specs(*device)) {
        const bool is_product = spec.name.starts_with("cublaslt");
        if (is_product) {
          EXPECT_EQ(spec.exact, !spec.name.ends_with(":tf32")) << spec.name;
        }
        if (spec.exact) (is_product ? product : best) = std::max(is_product ? product : best, spec.estimate.efficiency);
      }
      EXPECT_LT(product, best);
      for (const Sizes& other : {Sizes{.n = 3, .c = 6, .h = 4, .w = 5, .k = 8, .kernel = 3, .padding = 1},
                                 Sizes{.n = 3, .c = 6, .h = 4, .w = 5, .k = 8, .stride = 2},
                                 Sizes{.n = 3, .c = 6, .h = 1, .w = 1, .k = 8, .stride = 2, .padding = 1},
                                 Sizes{.n = 3, .c = 6, .h = 4, .w = 5, .k = 8, .padding = 1},
                                 Sizes{.n = 3, .c = 6, .h = 4, .w = 5, .k = 8, .groups = 2}}) {
        ConvolutionExample example(pass, other, family);
        EXPECT_THAT(example.products(*device), IsEmpty());
        EXPECT_THAT(error_text(ErrorCode::unsupported, [&] { example.make(*device, "cublaslt"); }),
                    HasSubstr("CUDA has no kernel 'cublaslt' for it"));
      }
    }
  }
}

TEST(CudaConvolutionProducts, GiveWhatCudnnGives) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", true);
  for (const Pass pass : kPasses) {
    for (const LayoutFamily family : kFamiliesHere) {
      for (const Sizes& sizes :
           {Sizes{.n = 3, .c = 6, .h = 4, .w = 5, .k = 8}, Sizes{.n = 1, .c = 5, .h = 7, .w = 7, .k = 3},
            Sizes{.n = 2, .c = 5, .h = 3, .w = 3, .k = 7, .bias = true, .relu = true},
            Sizes{.n = 2, .c = 4, .h = 1, .w = 3, .k = 8, .bias = true},
            Sizes{.n = 2, .c = 4, .h = 1, .w = 3, .k = 8, .relu = true}}) {
        ConvolutionExample example(pass, sizes, family);
        const auto as_expected =
            ::testing::Pointwise(::testing::FloatNear(1e-4F), example.run(*device, "cudnn:implicit_gemm"));
        const std::vector<std::string> names = example.products(*device);
        EXPECT_GE(names.size(), 4u);
        for (const std::string& name : names) EXPECT_THAT(example.run(*device, name), as_expected) << name;
        if (sizes.n < 3) continue;
        EXPECT_THAT(example.run(*device, names.back() + "@2+" + names.front() + "@1"), as_expected);
      }
    }
  }
}

// 16 MiB of weights: sums of four parts at most.
TEST(CudaConvolutionProducts, InPartsTakeSumsOf64MiBAndTheImagesThatAreLeft) {
  const auto door = std::make_shared<FakeDoor>();
  const auto device = cuda::open_behind(door, "cuda:0", false);
  constexpr int64_t kChannels = 2048;
  for (const LayoutFamily family : kFamiliesHere) {
    for (const int64_t images : {9, 10}) {
      ConvolutionExample example(Pass::weights, {.n = images, .c = kChannels, .h = 1, .w = 1, .k = kChannels}, family);
      for (const KernelSpec& spec : example.specs(*device)) {
        if (!spec.name.starts_with("cublaslt_in_parts")) continue;
        EXPECT_GT(spec.workspace, 16_MiB);
        EXPECT_LT(spec.workspace, 65_MiB);
      }
      const int before = door->calls().contains("cublasLtMatmul") ? door->calls().at("cublasLtMatmul") : 0;
      const std::vector<float> sums = example.run(*device, "cublaslt_in_parts");
      const bool rounds = family == LayoutFamily::plain;
      EXPECT_EQ(door->calls().at("cublasLtMatmul") - before, rounds ? 3 : images == 9 ? 1 : 2);
      double error = 0;
      for (int64_t k = 0; k < kChannels; ++k) {
        for (int64_t c = 0; c < kChannels; ++c) {
          double sum = -sums[static_cast<size_t>(k * kChannels + c)];
          for (int64_t i = 0; i < images; ++i)
            sum += static_cast<double>(input_value(i * kChannels + k)) * input_value(i * kChannels + c);
          error = std::max(error, std::abs(sum));
        }
      }
      EXPECT_LT(error, 1e-4);
    }
  }
}

TEST(CudaConvolutionProducts, InPartsAddAnyNumberOfThem) {
  const auto door = std::make_shared<FakeDoor>();
  const auto device = cuda::open_behind(door, "cuda:0", false);
  for (const LayoutFamily family : kFamiliesHere) {
    for (const int64_t images : {64, 65, 130, 1100}) {
      ConvolutionExample example(Pass::weights, {.n = images, .c = 5, .h = 2, .w = 1, .k = 3, .bias = true}, family);
      const auto as_expected =
          ::testing::Pointwise(::testing::FloatNear(1e-3F), example.run(*device, "cudnn:implicit_gemm"));
      for (const std::string& name : example.products(*device)) {
        EXPECT_THAT(example.run(*device, name), as_expected) << name << " of " << images;
      }
    }
  }
}

TEST(CudaConvolutionProducts, WholeWeightGradientsDivideKChannelsLast) {
  const auto device = cuda::open_behind(std::make_shared<FakeDoor>(), "cuda:0", false);
  const Sizes sizes{.n = 8, .c = 8, .h = 8, .w = 8, .k = 16};
  EXPECT_THAT(ConvolutionExample(Pass::weights, sizes, LayoutFamily::channels_last).products(*device),
              ::testing::ElementsAre("cublaslt", "cublaslt:algo21_tile18_stages15",
                                     "cublaslt:algo21_tile18_stages15_splitk2_reduction2", "cublaslt_in_parts",
                                     "cublaslt_in_parts:algo21_tile18_stages15"));
  EXPECT_THAT(ConvolutionExample(Pass::weights, sizes, LayoutFamily::plain).products(*device),
              ::testing::ElementsAre("cublaslt_in_parts", "cublaslt_in_parts:algo21_tile18_stages15"));
}

TEST(CudaConvolutionProducts, AnAlgorithmThatRefusesToRunIsNotOfferedAgain) {
  for (const LayoutFamily family : kFamiliesHere) {
    const auto door = std::make_shared<FakeDoor>();
    const auto device = cuda::open_behind(door, "cuda:0", false);
    ConvolutionExample example(Pass::weights, {.n = 2, .c = 8, .h = 2, .w = 2, .k = 16}, family);
    const std::string name = "cublaslt_in_parts:algo21_tile18_stages15";
    EXPECT_THAT(example.products(*device), Contains(name));
    door->cublas().answer("cublasLtMatmul", 15, "algo21_tile18_stages15");
    EXPECT_THAT(error_text(ErrorCode::unsupported, [&] { example.run(*device, name); }),
                HasSubstr("cuBLASLt does not run the algorithm algo21_tile18_stages15 after all"));
    EXPECT_THAT(example.products(*device), Not(Contains(name)));
  }
}

}  // namespace
}  // namespace plimsoll
