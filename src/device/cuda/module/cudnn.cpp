// Convolutions by cuDNN's fixed functions, which name their algorithms and the workspace of each; those by its engines are in
// cudnn_engines.cpp. What their statuses mean is said in convolution_library.h.
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <span>

#include "device/cuda/cudnn_files.h"
#include "device/cuda/module/cudnn_engines.h"
#include "device/cuda/module/libraries.h"

namespace plimsoll::cuda {
namespace {

using Pass = Convolution::Pass;

constexpr const char* kForward[] = {"implicit_gemm", "implicit_precomp_gemm", "gemm", "direct", "fft", "fft_tiling",
                                    "winograd",      "winograd_nonfused"};
constexpr const char* kBackwardData[] = {"algo_0", "algo_1", "fft", "fft_tiling", "winograd", "winograd_nonfused"};
constexpr const char* kBackwardWeights[] = {"algo_0",    "algo_1", "fft", "algo_3", "winograd", "winograd_nonfused",
                                            "fft_tiling"};
static_assert(std::size(kForward) == CUDNN_CONVOLUTION_FWD_ALGO_COUNT);
static_assert(std::size(kBackwardData) == CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT);
static_assert(std::size(kBackwardWeights) == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT);

class Descriptors final : public ConvolutionLibrary::Described {
 public:
  explicit Descriptors(Pass p) : pass(p) {}
  ~Descriptors() override {
    if (convolution != nullptr) cudnnDestroyConvolutionDescriptor(convolution);
    if (w != nullptr) cudnnDestroyFilterDescriptor(w);
    if (y != nullptr) cudnnDestroyTensorDescriptor(y);
    if (x != nullptr) cudnnDestroyTensorDescriptor(x);
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  Answer make(const Convolution& c, bool tf32) {
    const cudnnTensorFormat_t format = c.channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
    auto size = [](int64_t v) { return static_cast<int>(v); };
    PLIMSOLL_ASK(cudnnCreateTensorDescriptor(&x));
    PLIMSOLL_ASK(cudnnCreateTensorDescriptor(&y));
    PLIMSOLL_ASK(cudnnCreateFilterDescriptor(&w));
    PLIMSOLL_ASK(cudnnCreateConvolutionDescriptor(&convolution));
    PLIMSOLL_ASK(cudnnSetTensor4dDescriptor(x, format, CUDNN_DATA_FLOAT, size(c.n), size(c.c), size(c.h), size(c.w)));
    PLIMSOLL_ASK(cudnnSetTensor4dDescriptor(y, format, CUDNN_DATA_FLOAT, size(c.n), size(c.k), size(c.oh), size(c.ow)));
    PLIMSOLL_ASK(
        cudnnSetFilter4dDescriptor(w, CUDNN_DATA_FLOAT, format, size(c.k), size(c.c / c.groups), size(c.r), size(c.s)));
    PLIMSOLL_ASK(cudnnSetConvolution2dDescriptor(convolution, size(c.top), size(c.left), size(c.stride_h),
                                                 size(c.stride_w), size(c.dilation_h), size(c.dilation_w),
                                                 CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    PLIMSOLL_ASK(cudnnSetConvolutionGroupCount(convolution, size(c.groups)));
    PLIMSOLL_ASK(cudnnSetConvolutionMathType(convolution, tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH));
    return {};
  }

  const Pass pass;
  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t w = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;
};

std::string name_of(Pass pass, int number) {
  const size_t i = static_cast<size_t>(number);
  return pass == Pass::forward ? kForward[i] : pass == Pass::backward_data ? kBackwardData[i] : kBackwardWeights[i];
}

class Cudnn final : public ConvolutionLibrary {
 public:
  Cudnn(cudnnHandle_t handle, cudaStream_t stream) : handle_(handle), stream_(stream), engines_(handle, nullptr) {
    size_t free = 0, total = 0;
    PLIMSOLL_CUDA(cudaMemGetInfo(&free, &total));
    memory_ = {static_cast<int64_t>(total)};
  }

  Answer describe(const Convolution& convolution, bool tf32, std::unique_ptr<Described>& described) override {
    auto made = std::make_unique<Descriptors>(convolution.pass);
    Answer answer = made->make(convolution, tf32);
    described = std::move(made);
    return answer;
  }

  Answer guess(const Described& described, std::vector<Candidate>& found) override {
    const auto& d = static_cast<const Descriptors&>(described);
    int count = 0;
    auto ask = [&]<class Performance, size_t most>(const char* name, std::array<Performance, most> list,
                                                   const auto& call) {
      Answer answer = answer_of(call(static_cast<int>(most), &count, list.data()), name);
      if (!answer.is_done()) return answer;
      for (const Performance& p : std::span(list).first(static_cast<size_t>(count))) {
        if (p.status != CUDNN_STATUS_SUCCESS) continue;
        const int number = static_cast<int>(p.algo);
        found.push_back({.name = name_of(d.pass, number),
                         .number = number,
                         .deterministic = p.determinism == CUDNN_DETERMINISTIC,
                         .tensor_cores = p.mathType != CUDNN_FMA_MATH});
      }
      return answer;
    };
    switch (d.pass) {
      case Pass::forward:
        return ask("cudnnGetConvolutionForwardAlgorithm_v7",
                   std::array<cudnnConvolutionFwdAlgoPerf_t, 2 * CUDNN_CONVOLUTION_FWD_ALGO_COUNT>{},
                   [&](int most, int* number, auto* list) {
                     return cudnnGetConvolutionForwardAlgorithm_v7(handle_, d.x, d.w, d.convolution, d.y, most, number,
                                                                   list);
                   });
      case Pass::backward_data:
        return ask("cudnnGetConvolutionBackwardDataAlgorithm_v7",
                   std::array<cudnnConvolutionBwdDataAlgoPerf_t, 2 * CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT>{},
                   [&](int most, int* number, auto* list) {
                     return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle_, d.w, d.y, d.convolution, d.x, most,
                                                                        number, list);
                   });
      case Pass::backward_weights: break;
    }
    return ask("cudnnGetConvolutionBackwardFilterAlgorithm_v7",
               std::array<cudnnConvolutionBwdFilterAlgoPerf_t, 2 * CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT>{},
               [&](int most, int* number, auto* list) {
                 return cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle_, d.x, d.y, d.convolution, d.w, most,
                                                                      number, list);
               });
  }

  // Those that add with atomics are known.
  std::vector<Candidate> every(Pass pass) override {
    const size_t count = pass == Pass::forward         ? std::size(kForward)
                         : pass == Pass::backward_data ? std::size(kBackwardData)
                                                       : std::size(kBackwardWeights);
    std::vector<Candidate> result;
    for (int i = 0; i < static_cast<int>(count); ++i) {
      const bool atomics = (pass == Pass::backward_data && i == CUDNN_CONVOLUTION_BWD_DATA_ALGO_0) ||
                           (pass == Pass::backward_weights &&
                            (i == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 || i == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3));
      result.push_back({.name = name_of(pass, i), .number = i, .deterministic = !atomics, .tensor_cores = false});
    }
    return result;
  }

  Answer workspace(const Described& described, int number, uint64_t& bytes) override {
    const auto& d = static_cast<const Descriptors&>(described);
    size_t asked = 0;
    switch (d.pass) {
      case Pass::forward:
        PLIMSOLL_ASK(cudnnGetConvolutionForwardWorkspaceSize(handle_, d.x, d.w, d.convolution, d.y,
                                                             static_cast<cudnnConvolutionFwdAlgo_t>(number), &asked));
        break;
      case Pass::backward_data:
        PLIMSOLL_ASK(cudnnGetConvolutionBackwardDataWorkspaceSize(
            handle_, d.w, d.y, d.convolution, d.x, static_cast<cudnnConvolutionBwdDataAlgo_t>(number), &asked));
        break;
      case Pass::backward_weights:
        PLIMSOLL_ASK(cudnnGetConvolutionBackwardFilterWorkspaceSize(
            handle_, d.x, d.y, d.convolution, d.w, static_cast<cudnnConvolutionBwdFilterAlgo_t>(number), &asked));
        break;
    }
    bytes = with_slack(asked);
    return {};
  }

  Answer run(const Described& described, int number, const void* a, const void* b, void* out, void* workspace,
             uint64_t bytes) override {
    const auto& d = static_cast<const Descriptors&>(described);
    const float one = 1, zero = 0;
    void* const begin = aligned_workspace(workspace);
    const size_t room = without_slack(bytes);
    switch (d.pass) {
      case Pass::forward:
        PLIMSOLL_ASK(cudnnConvolutionForward(handle_, &one, d.x, a, d.w, b, d.convolution,
                                             static_cast<cudnnConvolutionFwdAlgo_t>(number), begin, room, &zero, d.y,
                                             out));
        break;
      case Pass::backward_data:
        PLIMSOLL_ASK(cudnnConvolutionBackwardData(handle_, &one, d.w, b, d.y, a, d.convolution,
                                                  static_cast<cudnnConvolutionBwdDataAlgo_t>(number), begin, room,
                                                  &zero, d.x, out));
        break;
      case Pass::backward_weights:
        PLIMSOLL_ASK(cudnnConvolutionBackwardFilter(handle_, &one, d.x, a, d.y, b, d.convolution,
                                                    static_cast<cudnnConvolutionBwdFilterAlgo_t>(number), begin, room,
                                                    &zero, d.w, out));
        break;
    }
    return {};
  }

  Answer guess_engines(const Convolution& convolution, bool fused, bool fallback,
                       std::vector<EngineConfiguration>& found) override {
    return engines_.guess(convolution, fused, fallback, found);
  }
  Answer plan(const Convolution& convolution, const EngineConfiguration& configuration,
              std::unique_ptr<Planned>& planned) override {
    return engines_.plan(convolution, configuration, planned);
  }
  Answer run(Planned& planned, const void* a, const void* b, const void* bias, void* out, void* workspace) override {
    return engines_.run(planned, a, b, bias, out, workspace);
  }

  bool still_works() noexcept override {
    static_cast<void>(cudaGetLastError());  // what cuDNN left: told already
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream_, &capture) != cudaSuccess || capture != cudaStreamCaptureStatusNone) return false;
    return cudaStreamSynchronize(stream_) == cudaSuccess;
  }
  Bytes memory() override { return memory_; }

 private:
  cudnnHandle_t handle_;
  cudaStream_t stream_;
  CudnnEngines engines_;
  Bytes memory_;
};

}  // namespace

// cuDNN's own checks load its parts, as its calls would.
void require_one_cudnn() {
  struct Check {
    const char* name;
    cudnnStatus_t (*call)();
  };
  for (const Check& check :
       {Check{"cudnnGraphVersionCheck", cudnnGraphVersionCheck}, Check{"cudnnOpsVersionCheck", cudnnOpsVersionCheck},
        Check{"cudnnCnnVersionCheck", cudnnCnnVersionCheck}}) {
    const Answer answer = answer_of(check.call(), check.name);
    if (answer.is_done()) continue;
    std::vector<std::string> loaded;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* list) {
          static_cast<std::vector<std::string>*>(list)->emplace_back(info->dlpi_name);
          return 0;
        },
        &loaded);
    const std::string why = why_cudnn_is_mixed(loaded, cudnn_version(cudnnGetVersion()), cudnn_version(CUDNN_VERSION));
    throw Error(ErrorCode::unsupported, answer.text + (why.empty() ? "" : "; " + why));
  }
}

std::string cudnn_version(size_t number) {
  return fmt::format("{}.{}.{}", number / 10000, number % 10000 / 100, number % 100);
}

std::unique_ptr<ConvolutionLibrary> open_cudnn(cudnnHandle_t handle, cudaStream_t stream) {
  return std::make_unique<Cudnn>(handle, stream);
}

}  // namespace plimsoll::cuda
