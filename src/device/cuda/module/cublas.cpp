// Products by cuBLASLt, which counts columns first: out = a * b row-major is out' = b' * a' there, without moving
// anything.
#include <cstdint>

#include "device/cuda/module/libraries.h"

namespace plimsoll::cuda {
namespace {

// With cuBLAS's numbers, the call that failed, and what cuBLAS says of it.
Answer answer_of_cublas(cublasStatus_t status, std::string_view call) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return {static_cast<int>(status), std::string(call) + ": " + reason_of(status)};
}

// Every tensor in the arena begins at a multiple of 64 bytes; a part of a batch, at a row of its matrix.
uint32_t alignment_of(int64_t row_elements) {
  uint32_t alignment = 64;
  while (row_elements * 4 % alignment != 0) alignment /= 2;
  return alignment;
}

struct Preference {
  cublasLtMatmulPreference_t handle = nullptr;
  ~Preference() {
    if (handle != nullptr) cublasLtMatmulPreferenceDestroy(handle);
  }
};

using Heuristic = cublasLtMatmulHeuristicResult_t;

class LtProduct final : public ProductLibrary::Described {
 public:
  LtProduct(cublasLtHandle_t handle, cudaStream_t stream, const Product& p)
      : handle_(handle), stream_(stream), product_(p) {
    PLIMSOLL_CUDA(cublasLtMatmulDescCreate(&operation_, compute_type(), CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    const cublasLtEpilogue_t epilogue = p.bias   ? (p.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS)
                                        : p.relu ? CUBLASLT_EPILOGUE_RELU
                                                 : CUBLASLT_EPILOGUE_DEFAULT;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    // Which bias is not known yet; that there is one, and how it lies, matters.
    if (p.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(uintptr_t{1} << 20));
    const uint64_t m = static_cast<uint64_t>(p.m), n = static_cast<uint64_t>(p.n), k = static_cast<uint64_t>(p.k);
    if (p.transpose_b) {
      PLIMSOLL_CUDA(cublasLtMatrixLayoutCreate(&left_, CUDA_R_32F, k, n, p.row_b()));
    } else {
      PLIMSOLL_CUDA(cublasLtMatrixLayoutCreate(&left_, CUDA_R_32F, n, k, p.row_b()));
    }
    if (p.transpose_a) {
      PLIMSOLL_CUDA(cublasLtMatrixLayoutCreate(&right_, CUDA_R_32F, m, k, p.row_a()));
    } else {
      PLIMSOLL_CUDA(cublasLtMatrixLayoutCreate(&right_, CUDA_R_32F, k, m, p.row_a()));
    }
    PLIMSOLL_CUDA(cublasLtMatrixLayoutCreate(&out_, CUDA_R_32F, n, m, p.row_out()));
    set_batch(left_, p.to_b);
    set_batch(right_, p.to_a);
    set_batch(out_, p.to_out);
  }
  ~LtProduct() override {
    if (out_ != nullptr) cublasLtMatrixLayoutDestroy(out_);
    if (right_ != nullptr) cublasLtMatrixLayoutDestroy(right_);
    if (left_ != nullptr) cublasLtMatrixLayoutDestroy(left_);
    if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
  }
  LtProduct(const LtProduct&) = delete;
  LtProduct& operator=(const LtProduct&) = delete;

  // What its heuristics say with at most this workspace, the best first; as many as there is room for.
  cublasStatus_t guess(Bytes workspace, std::vector<Heuristic>& found) const {
    Preference preference;
    PLIMSOLL_CUDA(cublasLtMatmulPreferenceCreate(&preference.handle));
    auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      PLIMSOLL_CUDA(cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &value, sizeof(value)));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{without_slack(static_cast<size_t>(workspace.count))});
    // Sums of parts are added in a fixed order, by way of the workspace.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    const uint32_t right = alignment_of(product_.row_a()), left = alignment_of(product_.row_b()),
                   out = alignment_of(product_.row_out());
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, left);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, right);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out);
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, operation_, left_, right_, out_, out_, preference.handle,
                                       static_cast<int>(found.size()), found.data(), &count);
    found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(count) : 0);
    std::erase_if(found, [](const Heuristic& one) { return one.state != CUBLAS_STATUS_SUCCESS; });
    return status;
  }

  // One that was guessed, or made.
  void take(const Heuristic& algorithm) { chosen_ = algorithm; }

  // By its number and attributes; whether it runs this product is cuBLASLt's answer.
  Answer make(const ProductConfiguration& configuration) {
    Heuristic made{};
    cublasStatus_t status =
        cublasLtMatmulAlgoInit(handle_, compute_type(), CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F,
                               static_cast<int>(configuration.algorithm), &made.algo);
    if (status != CUBLAS_STATUS_SUCCESS) return answer_of_cublas(status, "cublasLtMatmulAlgoInit");
    const ProductConfiguration unset;
    for_attributes(
        [&]<class T>(T, cublasLtMatmulAlgoConfigAttributes_t attribute, int64_t ProductConfiguration::*field) {
          const T value = static_cast<T>(configuration.*field);
          const cublasStatus_t one = cublasLtMatmulAlgoConfigSetAttribute(&made.algo, attribute, &value, sizeof(value));
          // An algorithm need not have an attribute that is as if it had none.
          if (configuration.*field != unset.*field && status == CUBLAS_STATUS_SUCCESS) status = one;
        });
    if (status != CUBLAS_STATUS_SUCCESS) return answer_of_cublas(status, "cublasLtMatmulAlgoConfigSetAttribute");
    status = cublasLtMatmulAlgoCheck(handle_, operation_, left_, right_, out_, out_, &made.algo, &made);
    if (status == CUBLAS_STATUS_SUCCESS) take(made);
    return answer_of_cublas(status, "cublasLtMatmulAlgoCheck");
  }

  static ProductConfiguration configuration_of(const cublasLtMatmulAlgo_t& algo) {
    ProductConfiguration configuration;
    const auto get = [&]<class T>(T value, cublasLtMatmulAlgoConfigAttributes_t attribute,
                                  int64_t ProductConfiguration::*field) {
      size_t written = 0;
      if (cublasLtMatmulAlgoConfigGetAttribute(&algo, attribute, &value, sizeof(value), &written) ==
          CUBLAS_STATUS_SUCCESS)
        configuration.*field = static_cast<int64_t>(value);
    };
    get(int32_t{}, CUBLASLT_ALGO_CONFIG_ID, &ProductConfiguration::algorithm);
    for_attributes(get);
    return configuration;
  }

  Bytes workspace() const { return {static_cast<int64_t>(with_slack(chosen_.workspaceSize))}; }

  cublasStatus_t run(const void* a, const void* b, const void* bias, void* out, void* workspace) {
    if (product_.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    const float one = 1, before = product_.adds ? 1.0F : 0.0F;
    return cublasLtMatmul(handle_, operation_, &one, b, left_, a, right_, &before, out, out_, out, out_, &chosen_.algo,
                          aligned_workspace(workspace), chosen_.workspaceSize, stream_);
  }

 private:
  template <class Each>
  static void for_attributes(const Each& each) {
    each(uint32_t{}, CUBLASLT_ALGO_CONFIG_TILE_ID, &ProductConfiguration::tile);
    each(uint32_t{}, CUBLASLT_ALGO_CONFIG_STAGES_ID, &ProductConfiguration::stages);
    each(uint16_t{}, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, &ProductConfiguration::inner);
    each(uint16_t{}, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &ProductConfiguration::cluster);
    each(uint32_t{}, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &ProductConfiguration::swizzle);
    each(uint32_t{}, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &ProductConfiguration::custom);
    each(int32_t{}, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &ProductConfiguration::split_k);
    each(uint32_t{}, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &ProductConfiguration::reduction);
  }
  cublasComputeType_t compute_type() const { return product_.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F; }
  void set_batch(cublasLtMatrixLayout_t layout, int64_t distance) const {
    if (product_.batch == 1) return;
    const int32_t count = static_cast<int32_t>(product_.batch);
    PLIMSOLL_CUDA(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
    PLIMSOLL_CUDA(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &distance,
                                                   sizeof(distance)));
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    PLIMSOLL_CUDA(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)));
  }

  cublasLtHandle_t handle_;
  cudaStream_t stream_;
  Product product_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t left_ = nullptr, right_ = nullptr, out_ = nullptr;
  Heuristic chosen_{};
};

class BestGuess final : public Prepared {
 public:
  BestGuess(cublasLtHandle_t handle, cudaStream_t stream, const Product& product) : product_(handle, stream, product) {}
  // False where there is no algorithm with so little workspace.
  bool choose(Bytes workspace) {
    std::vector<Heuristic> found(1);
    const cublasStatus_t status = product_.guess(workspace, found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
    check_call(status, "cublasLtMatmulAlgoGetHeuristic");
    if (found.empty()) return false;
    product_.take(found.front());
    return true;
  }
  Bytes workspace() const override { return product_.workspace(); }
  void run(const void* a, const void* b, const void* bias, void* out, void* workspace) override {
    check_call(product_.run(a, b, bias, out, workspace), "cublasLtMatmul");
  }

 private:
  LtProduct product_;
};

class Cublas final : public ProductLibrary {
 public:
  Cublas(cublasLtHandle_t handle, cudaStream_t stream, int processors)
      : handle_(handle), stream_(stream), processors_(processors) {}

  Answer describe(const Product& product, std::unique_ptr<Described>& described) override {
    described = std::make_unique<LtProduct>(handle_, stream_, product);
    return {};
  }
  Answer guess(Described& described, Bytes workspace, int most, std::vector<ProductConfiguration>& found) override {
    std::vector<Heuristic> guessed(static_cast<size_t>(most));
    const cublasStatus_t status = of(described).guess(workspace, guessed);
    for (const Heuristic& one : guessed) found.push_back(LtProduct::configuration_of(one.algo));
    return answer_of_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
  }
  Answer make(Described& described, const ProductConfiguration& configuration, Bytes& workspace) override {
    const Answer answer = of(described).make(configuration);
    if (answer.is_done()) workspace = of(described).workspace();
    return answer;
  }
  Answer run(Described& described, const void* a, const void* b, const void* bias, void* out,
             void* workspace) override {
    return answer_of_cublas(of(described).run(a, b, bias, out, workspace), "cublasLtMatmul");
  }
  bool still_works() noexcept override {
    static_cast<void>(cudaGetLastError());  // what cuBLASLt left: told already
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream_, &capture) != cudaSuccess || capture != cudaStreamCaptureStatusNone) return false;
    return cudaStreamSynchronize(stream_) == cudaSuccess;
  }
  int processors() override { return processors_; }

 private:
  static LtProduct& of(Described& described) { return static_cast<LtProduct&>(described); }

  cublasLtHandle_t handle_;
  cudaStream_t stream_;
  int processors_;
};

}  // namespace

std::unique_ptr<Prepared> prepare_product(cublasLtHandle_t handle, cudaStream_t stream, const Product& product,
                                          Bytes workspace) {
  auto prepared = std::make_unique<BestGuess>(handle, stream, product);
  if (!prepared->choose(workspace)) return nullptr;
  return prepared;
}

std::unique_ptr<ProductLibrary> open_cublas(cublasLtHandle_t handle, cudaStream_t stream, int processors) {
  return std::make_unique<Cublas>(handle, stream, processors);
}

}  // namespace plimsoll::cuda
