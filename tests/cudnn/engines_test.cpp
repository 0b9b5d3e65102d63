// What cuDNN itself, without a GPU, has for one that is not there: its heuristics and the making of plans go by a GPU's
// properties (those of an H100). Nothing runs. It judges our descriptors: names of attributes, types, shapes, strides.
#include "device/cuda/module/cudnn_engines.h"

#include <cudnn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tests/support/error_text.h"

namespace plimsoll::cuda {
namespace {

using Pass = Convolution::Pass;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::string_view kH100 =
    R"({"deviceVersion":900,"deviceVer":900,"driverVersion":13000,"driverVer":13000,"cudaDeviceId":0,"totalGlobalMem":85017755648,
"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":132,"warpSize":32,
"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,
"maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,
"smClockRateKHz":1980000,"memClockRateKHz":2619000,"l2CacheSize":52428800,"deviceName":"NVIDIA H100 80GB HBM3"})";

// 3 x 3 over 32 images of 64 x 56 x 56.
constexpr Convolution kPlain{.n = 32,
                             .c = 64,
                             .h = 56,
                             .w = 56,
                             .k = 64,
                             .oh = 56,
                             .ow = 56,
                             .r = 3,
                             .s = 3,
                             .top = 1,
                             .left = 1,
                             .bottom = 1,
                             .right = 1};

// A library without fixed functions.
class EnginesAlone final : public ConvolutionLibrary {
 public:
  explicit EnginesAlone(const CudnnEngines& engines) : engines_(engines) {}
  Answer describe(const Convolution&, bool, std::unique_ptr<Described>&) override { return none(); }
  Answer guess(const Described&, std::vector<Candidate>&) override { return none(); }
  std::vector<Candidate> every(Pass) override { return {}; }
  Answer workspace(const Described&, int, uint64_t&) override { return none(); }
  Answer run(const Described&, int, const void*, const void*, void*, void*, uint64_t) override { return none(); }
  Answer guess_engines(const Convolution& c, bool fused, bool fallback,
                       std::vector<EngineConfiguration>& found) override {
    return engines_.guess(c, fused, fallback, found);
  }
  Answer plan(const Convolution& c, const EngineConfiguration& configuration,
              std::unique_ptr<Planned>& planned) override {
    return engines_.plan(c, configuration, planned);
  }
  Answer run(Planned& planned, const void* a, const void* b, const void* bias, void* out, void* workspace) override {
    return engines_.run(planned, a, b, bias, out, workspace);
  }
  bool still_works() noexcept override { return true; }
  Bytes memory() override { return 80_GiB; }

 private:
  static Answer none() { return {3000, "none"}; }
  const CudnnEngines& engines_;
};

class CudnnOfNoGpu : public ::testing::Test {
 protected:
  void SetUp() override {
#if CUDNN_VERSION < 90800
    GTEST_SKIP() << "built with a cuDNN that goes by GPUs that are there";
#else
    const auto made = [](cudnnStatus_t status) { return status == CUDNN_STATUS_SUCCESS; };
    const bool there = made(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &properties_)) &&
                       made(cudnnBackendSetAttribute(properties_, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                                     CUDNN_TYPE_CHAR, std::ssize(kH100), kH100.data())) &&
                       made(cudnnBackendFinalize(properties_));
    char why[256] = {};
    if (!there) cudnnGetLastErrorString(why, sizeof(why));
    if (!there) GTEST_SKIP() << "this cuDNN does not take an H100's properties: " << why;
    engines_.emplace(nullptr, properties_);
#endif
  }
  void TearDown() override {
    if (properties_ != nullptr) cudnnBackendDestroyDescriptor(properties_);
  }

  std::vector<EngineConfiguration> guess(const Convolution& c, bool fused, bool fallback = false) const {
    std::vector<EngineConfiguration> found;
    const Answer answer = engines_->guess(c, fused, fallback, found);
    EXPECT_TRUE(answer.is_done()) << answer.text;
    return found;
  }
  Answer plan(const Convolution& c, const EngineConfiguration& configuration,
              std::unique_ptr<ConvolutionLibrary::Planned>& planned) const {
    return engines_->plan(c, configuration, planned);
  }

  std::optional<CudnnEngines> engines_;

 private:
  cudnnBackendDescriptor_t properties_ = nullptr;
};

TEST_F(CudnnOfNoGpu, HasEnginesForEveryDirectionAndLayoutThatAreMadeFromTheirNamesAlone) {
  for (const bool last : {false, true}) {
    for (const Pass pass : {Pass::forward, Pass::backward_data, Pass::backward_weights}) {
      for (const bool fallback : {false, true}) {
        Convolution c = kPlain;
        c.pass = pass, c.channels_last = last;
        int full = 0, tf32 = 0;
        for (const EngineConfiguration& found : guess(c, false, fallback)) {
          if (found.compiles) continue;
          full += found.deterministic && !found.tensor_cores && !found.less_than_tf32, tf32 += found.tensor_cores;
          const std::optional<EngineConfiguration> named = parse_engine(name_of(found));
          ASSERT_TRUE(named.has_value()) << name_of(found);
          std::unique_ptr<ConvolutionLibrary::Planned> planned;
          const Answer answer = plan(c, *named, planned);
          ASSERT_TRUE(answer.is_done()) << name_of(found) << ": " << answer.text;
          EXPECT_EQ(name_of(planned->configuration), name_of(found));
          EXPECT_EQ(planned->configuration.tensor_cores, found.tensor_cores);
          EXPECT_LT(planned->workspace, uint64_t{1} << 30);
        }
        EXPECT_GT(full, 0);
        EXPECT_TRUE(fallback || tf32 > kMostEngines) << tf32;
      }
    }
  }
}

TEST_F(CudnnOfNoGpu, AddsTheBiasAndEndsWithReluInOneOperationGraph) {
  for (const bool last : {false, true}) {
    for (const bool relu : {false, true}) {
      Convolution c = kPlain;
      c.channels_last = last, c.bias = true, c.relu = relu;
      int full = 0, tf32 = 0;
      for (const EngineConfiguration& found : guess(c, true)) {
        EXPECT_TRUE(found.fused);
        if (found.compiles) continue;
        full += found.deterministic && !found.tensor_cores && !found.less_than_tf32, tf32 += found.tensor_cores;
        std::unique_ptr<ConvolutionLibrary::Planned> planned;
        EXPECT_TRUE(plan(c, found, planned).is_done()) << name_of(found);
      }
      EXPECT_GT(full, 0);
      EXPECT_GT(tf32, kMostEngines);
    }
  }
}

TEST_F(CudnnOfNoGpu, IsListedAsTheBestTenOfEachPrecisionWhichAreMadeAgainAndCannotRun) {
  EnginesAlone library(*engines_);
  Convolution c = kPlain;
  c.bias = c.relu = true;
  int count[2] = {}, fused = 0;
  for (const ConvolutionAlgorithm& a : list_algorithms(library, c, true)) {
    ++count[a.tf32];
    fused += a.fused;
    const std::unique_ptr<Prepared> prepared =
        prepare_convolution(library, c, {.name = a.name, .tf32 = a.tf32, .workspace = {}});
    EXPECT_EQ(prepared->workspace(), a.workspace);
    float nothing[4] = {};
    // Up to the call itself, which has no GPU.
    EXPECT_THAT(testing::error_text(ErrorCode::unsupported,
                                    [&] { prepared->run(nothing, nothing, nothing, nothing, nothing); }),
                HasSubstr("cudnnBackendExecute: CUDNN_STATUS_BAD_PARAM"));
  }
  EXPECT_EQ(count[true], kMostEngines);
  EXPECT_GT(count[false], 2);
  EXPECT_LE(count[false], kMostEngines);
  EXPECT_GT(fused, kMostEngines);
  for (const ConvolutionAlgorithm& a : list_algorithms(library, c, false)) EXPECT_FALSE(a.tf32) << a.name;
}

TEST_F(CudnnOfNoGpu, TakesWhatItsFixedFunctionsDoNot) {
  Convolution c = kPlain;
  c.top = c.left = 0, c.bottom = c.right = 2;  // padded on one side
  for (const Pass pass : {Pass::forward, Pass::backward_data, Pass::backward_weights}) {
    c.pass = pass;
    EXPECT_THAT(guess(c, false), Not(IsEmpty()));
  }
}

TEST_F(CudnnOfNoGpu, TakesImagesWithDepth) {
  Convolution c = kPlain;
  c.n = 4, c.deep = true, c.d = c.od = 16, c.q = 3, c.front = c.rear = 1;
  for (const Pass pass : {Pass::forward, Pass::backward_data, Pass::backward_weights}) {
    c.pass = pass;
    int full = 0;
    for (const EngineConfiguration& found : guess(c, false)) {
      if (found.compiles) continue;
      std::unique_ptr<ConvolutionLibrary::Planned> planned;
      EXPECT_TRUE(plan(c, found, planned).is_done()) << name_of(found);
      full += found.deterministic && !found.tensor_cores && !found.less_than_tf32;
    }
    EXPECT_GT(full, 0);
  }
  c.pass = Pass::forward, c.bias = true;
  EXPECT_THAT(guess(c, true), Not(IsEmpty()));
}

TEST_F(CudnnOfNoGpu, TakesGroupsAndStridesAndDilation) {
  Convolution c = kPlain;
  c.groups = 32, c.stride_h = c.stride_w = 2, c.dilation_h = c.dilation_w = 2;
  c.top = c.left = c.bottom = c.right = 2, c.oh = c.ow = 28;
  for (const Pass pass : {Pass::forward, Pass::backward_data, Pass::backward_weights}) {
    c.pass = pass;
    EXPECT_THAT(guess(c, false), Not(IsEmpty()));
  }
}

TEST_F(CudnnOfNoGpu, SaysWhyAnEngineIsNotMade) {
  const auto told = [&](const EngineConfiguration& configuration) {
    std::unique_ptr<ConvolutionLibrary::Planned> planned;
    const Answer answer = plan(kPlain, configuration, planned);
    EXPECT_GE(answer.status, 3000) << answer.text;
    EXPECT_LT(answer.status, 4000) << answer.text;
    return answer.text;
  };
  EXPECT_THAT(told({.number = 70000, .knobs = {}}),
              HasSubstr("cudnnBackendFinalize(ENGINE): CUDNN_STATUS_NOT_SUPPORTED"));
  EngineConfiguration first = guess(kPlain, false).at(0);
  ASSERT_THAT(first.knobs, Not(IsEmpty()));
  first.knobs[0].second = 12345;
  EXPECT_THAT(told(first), HasSubstr("cudnnBackendFinalize(ENGINECFG): CUDNN_STATUS_NOT_SUPPORTED"));
}

}  // namespace
}  // namespace plimsoll::cuda
