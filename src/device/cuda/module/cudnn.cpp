// Convolutions by cuDNN's fixed functions, which name their algorithms and the workspace of each.
#include <algorithm>
#include <array>

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

// The descriptors of one convolution.
class Descriptors {
 public:
  Descriptors(const Convolution& c, bool tf32) {
    const cudnnTensorFormat_t format = c.channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
    auto size = [](int64_t v) { return static_cast<int>(v); };
    PLIMSOLL_CUDA(cudnnCreateTensorDescriptor(&x));
    PLIMSOLL_CUDA(cudnnCreateTensorDescriptor(&y));
    PLIMSOLL_CUDA(cudnnCreateFilterDescriptor(&w));
    PLIMSOLL_CUDA(cudnnCreateConvolutionDescriptor(&convolution));
    PLIMSOLL_CUDA(cudnnSetTensor4dDescriptor(x, format, CUDNN_DATA_FLOAT, size(c.n), size(c.c), size(c.h), size(c.w)));
    PLIMSOLL_CUDA(
        cudnnSetTensor4dDescriptor(y, format, CUDNN_DATA_FLOAT, size(c.n), size(c.k), size(c.oh), size(c.ow)));
    PLIMSOLL_CUDA(
        cudnnSetFilter4dDescriptor(w, CUDNN_DATA_FLOAT, format, size(c.k), size(c.c / c.groups), size(c.r), size(c.s)));
    PLIMSOLL_CUDA(cudnnSetConvolution2dDescriptor(convolution, size(c.top), size(c.left), size(c.stride_h),
                                                  size(c.stride_w), size(c.dilation_h), size(c.dilation_w),
                                                  CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    PLIMSOLL_CUDA(cudnnSetConvolutionGroupCount(convolution, size(c.groups)));
    PLIMSOLL_CUDA(cudnnSetConvolutionMathType(convolution, tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH));
  }
  ~Descriptors() {
    if (convolution != nullptr) cudnnDestroyConvolutionDescriptor(convolution);
    if (w != nullptr) cudnnDestroyFilterDescriptor(w);
    if (y != nullptr) cudnnDestroyTensorDescriptor(y);
    if (x != nullptr) cudnnDestroyTensorDescriptor(x);
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t w = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;
};

// What cuDNN does not run, it refuses, by one of several codes.
bool refused(cudnnStatus_t status) {
  const int category = CUDNN_STATUS_CATEGORY(static_cast<int>(status));
  return category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM;
}

// False where cuDNN does not run what the call is about; what else is wrong is thrown.
bool accepted(cudnnStatus_t status, const char* call) {
  if (refused(status)) return false;
  check_call(status, call);
  return true;
}

// False where cuDNN does not run this algorithm here.
bool workspace_of(cudnnHandle_t handle, Pass pass, const Descriptors& d, int number, size_t& bytes) {
  switch (pass) {
    case Pass::forward:
      return accepted(cudnnGetConvolutionForwardWorkspaceSize(handle, d.x, d.w, d.convolution, d.y,
                                                              static_cast<cudnnConvolutionFwdAlgo_t>(number), &bytes),
                      "cudnnGetConvolutionForwardWorkspaceSize");
    case Pass::backward_data:
      return accepted(
          cudnnGetConvolutionBackwardDataWorkspaceSize(handle, d.w, d.y, d.convolution, d.x,
                                                       static_cast<cudnnConvolutionBwdDataAlgo_t>(number), &bytes),
          "cudnnGetConvolutionBackwardDataWorkspaceSize");
    case Pass::backward_weights:
      return accepted(
          cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, d.x, d.y, d.convolution, d.w,
                                                         static_cast<cudnnConvolutionBwdFilterAlgo_t>(number), &bytes),
          "cudnnGetConvolutionBackwardFilterWorkspaceSize");
  }
  return false;
}

class CudnnConvolution final : public Prepared {
 public:
  CudnnConvolution(cudnnHandle_t handle, const Convolution& c, const ConvolutionAlgorithm& algorithm)
      : handle_(handle),
        pass_(c.pass),
        number_(algorithm.number),
        name_(algorithm.name),
        descriptors_(c, algorithm.tf32) {
    if (!workspace_of(handle, pass_, descriptors_, number_, workspace_)) {
      throw Error(ErrorCode::unsupported,
                  "cuDNN does not run the algorithm " + algorithm.name + " for this convolution");
    }
  }

  Bytes workspace() const override { return with_slack(workspace_); }

  void run(const void* a, const void* b, const void*, void* out, void* workspace) override {
    const float one = 1, zero = 0;
    workspace = aligned_workspace(workspace);
    const Descriptors& d = descriptors_;
    switch (pass_) {
      case Pass::forward:
        return check(cudnnConvolutionForward(handle_, &one, d.x, a, d.w, b, d.convolution,
                                             static_cast<cudnnConvolutionFwdAlgo_t>(number_), workspace, workspace_,
                                             &zero, d.y, out),
                     "cudnnConvolutionForward");
      case Pass::backward_data:
        return check(cudnnConvolutionBackwardData(handle_, &one, d.w, b, d.y, a, d.convolution,
                                                  static_cast<cudnnConvolutionBwdDataAlgo_t>(number_), workspace,
                                                  workspace_, &zero, d.x, out),
                     "cudnnConvolutionBackwardData");
      case Pass::backward_weights:
        return check(cudnnConvolutionBackwardFilter(handle_, &one, d.x, a, d.y, b, d.convolution,
                                                    static_cast<cudnnConvolutionBwdFilterAlgo_t>(number_), workspace,
                                                    workspace_, &zero, d.w, out),
                     "cudnnConvolutionBackwardFilter");
    }
  }

 private:
  void check(cudnnStatus_t status, const char* call) const {
    if (refused(status)) {
      throw Error(ErrorCode::unsupported,
                  std::string(call) + " refuses the algorithm " + name_ + " after all: " + reason_of(status));
    }
    check_call(status, call);
  }

  cudnnHandle_t handle_;
  Pass pass_;
  int number_;
  std::string name_;
  Descriptors descriptors_;
  size_t workspace_ = 0;
};

// What cuDNN's heuristics say, the best first, in one form for the three passes.
struct Candidate {
  int number = 0;
  bool deterministic = false, tensor_cores = false;
};
template <class Performance>
std::vector<Candidate> candidates(cudnnStatus_t status, const char* call, std::span<const Performance> found,
                                  int count) {
  std::vector<Candidate> result;
  if (!accepted(status, call)) return result;
  for (const Performance& p : found.first(static_cast<size_t>(count))) {
    if (p.status != CUDNN_STATUS_SUCCESS) continue;
    const bool tensor_cores = p.mathType != CUDNN_FMA_MATH;
    result.push_back({static_cast<int>(p.algo), p.determinism == CUDNN_DETERMINISTIC, tensor_cores});
  }
  return result;
}

std::vector<Candidate> heuristics(cudnnHandle_t handle, Pass pass, const Descriptors& d) {
  int count = 0;
  auto ask = [&]<class Performance, size_t most>(const char* name, std::array<Performance, most> found,
                                                 const auto& call) {
    const cudnnStatus_t status = call(static_cast<int>(most), &count, found.data());
    return candidates(status, name, std::span<const Performance>(found), count);
  };
  switch (pass) {
    case Pass::forward:
      return ask("cudnnGetConvolutionForwardAlgorithm_v7",
                 std::array<cudnnConvolutionFwdAlgoPerf_t, 2 * CUDNN_CONVOLUTION_FWD_ALGO_COUNT>{},
                 [&](int most, int* number, auto* found) {
                   return cudnnGetConvolutionForwardAlgorithm_v7(handle, d.x, d.w, d.convolution, d.y, most, number,
                                                                 found);
                 });
    case Pass::backward_data:
      return ask("cudnnGetConvolutionBackwardDataAlgorithm_v7",
                 std::array<cudnnConvolutionBwdDataAlgoPerf_t, 2 * CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT>{},
                 [&](int most, int* number, auto* found) {
                   return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, d.w, d.y, d.convolution, d.x, most,
                                                                      number, found);
                 });
    case Pass::backward_weights:
      return ask("cudnnGetConvolutionBackwardFilterAlgorithm_v7",
                 std::array<cudnnConvolutionBwdFilterAlgoPerf_t, 2 * CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT>{},
                 [&](int most, int* number, auto* found) {
                   return cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, d.x, d.y, d.convolution, d.w, most,
                                                                        number, found);
                 });
  }
  return {};
}

// All algorithms by number: the heuristics leave out some that run. Those that add with atomics are known.
std::vector<Candidate> every(Pass pass) {
  const size_t count = pass == Pass::forward         ? std::size(kForward)
                       : pass == Pass::backward_data ? std::size(kBackwardData)
                                                     : std::size(kBackwardWeights);
  std::vector<Candidate> result;
  for (int i = 0; i < static_cast<int>(count); ++i) {
    const bool atomics = (pass == Pass::backward_data && i == CUDNN_CONVOLUTION_BWD_DATA_ALGO_0) ||
                         (pass == Pass::backward_weights &&
                          (i == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 || i == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3));
    result.push_back({.number = i, .deterministic = !atomics, .tensor_cores = false});
  }
  return result;
}

std::string name_of(Pass pass, int number) {
  const size_t i = static_cast<size_t>(number);
  return pass == Pass::forward ? kForward[i] : pass == Pass::backward_data ? kBackwardData[i] : kBackwardWeights[i];
}

// Without TF32 the descriptor allows nothing but full multiply-adds, whatever the heuristics call them.
void add(std::vector<ConvolutionAlgorithm>& list, cudnnHandle_t handle, const Convolution& c, bool tf32) {
  const Descriptors descriptors(c, tf32);
  auto take = [&](const std::vector<Candidate>& from) {
    for (const Candidate& candidate : from) {
      if (tf32 && !candidate.tensor_cores) continue;
      const bool known = std::any_of(list.begin(), list.end(), [&](const ConvolutionAlgorithm& a) {
        return a.number == candidate.number && a.tf32 == tf32;
      });
      size_t bytes = 0;
      if (known || !workspace_of(handle, c.pass, descriptors, candidate.number, bytes)) continue;
      list.push_back({.name = name_of(c.pass, candidate.number),
                      .number = candidate.number,
                      .tf32 = tf32,
                      .deterministic = candidate.deterministic,
                      .workspace = with_slack(bytes)});
    }
  };
  take(heuristics(handle, c.pass, descriptors));
  if (!tf32) take(every(c.pass));
}

}  // namespace

std::vector<ConvolutionAlgorithm> convolution_algorithms(cudnnHandle_t handle, const Convolution& convolution,
                                                         bool tf32) {
  std::vector<ConvolutionAlgorithm> list;
  if (convolution.top != convolution.bottom || convolution.left != convolution.right)
    return list;  // it pads both sides alike
  for (const int64_t size : {convolution.n * convolution.c * convolution.h * convolution.w,
                             convolution.n * convolution.k * convolution.oh * convolution.ow}) {
    if (size > INT32_MAX) return list;
  }
  if (tf32) add(list, handle, convolution, true);
  add(list, handle, convolution, false);
  return list;
}

std::unique_ptr<Prepared> prepare_convolution(cudnnHandle_t handle, const Convolution& convolution,
                                              const ConvolutionAlgorithm& algorithm) {
  return std::make_unique<CudnnConvolution>(handle, convolution, algorithm);
}

}  // namespace plimsoll::cuda
