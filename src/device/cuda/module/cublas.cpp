// Products by cuBLASLt, which counts columns first: out = a * b row-major is out' = b' * a' there, without moving
// anything.
#include "device/cuda/module/libraries.h"

namespace plimsoll::cuda {
namespace {

// Every tensor in the arena begins at a multiple of 64 bytes; a part of a batch, at a row of its matrix.
uint32_t alignment_of(int64_t row_elements) {
  uint32_t alignment = 64;
  while (row_elements * 4 % alignment != 0) alignment /= 2;
  return alignment;
}

class LtProduct final : public Prepared {
 public:
  LtProduct(cublasLtHandle_t handle, cudaStream_t stream, const Product& p)
      : handle_(handle), stream_(stream), product_(p), bias_(p.bias) {
    PLIMSOLL_CUDA(
        cublasLtMatmulDescCreate(&operation_, p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    const cublasLtEpilogue_t epilogue = p.bias   ? (p.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS)
                                        : p.relu ? CUBLASLT_EPILOGUE_RELU
                                                 : CUBLASLT_EPILOGUE_DEFAULT;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    const uint64_t m = static_cast<uint64_t>(p.m), n = static_cast<uint64_t>(p.n), k = static_cast<uint64_t>(p.k);
    if (p.transpose_b) {
      PLIMSOLL_CUDA(cublasLtMatrixLayoutCreate(&left_, CUDA_R_32F, k, n, p.k));
    } else {
      PLIMSOLL_CUDA(cublasLtMatrixLayoutCreate(&left_, CUDA_R_32F, n, k, p.n));
    }
    if (p.transpose_a) {
      PLIMSOLL_CUDA(cublasLtMatrixLayoutCreate(&right_, CUDA_R_32F, m, k, p.m));
    } else {
      PLIMSOLL_CUDA(cublasLtMatrixLayoutCreate(&right_, CUDA_R_32F, k, m, p.k));
    }
    PLIMSOLL_CUDA(cublasLtMatrixLayoutCreate(&out_, CUDA_R_32F, n, m, p.n));
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

  // False where there is no algorithm with so little workspace.
  bool choose(size_t most) {
    struct Preference {
      cublasLtMatmulPreference_t handle = nullptr;
      ~Preference() {
        if (handle != nullptr) cublasLtMatmulPreferenceDestroy(handle);
      }
    } preference;
    PLIMSOLL_CUDA(cublasLtMatmulPreferenceCreate(&preference.handle));
    auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      PLIMSOLL_CUDA(cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &value, sizeof(value)));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{most});
    // Sums of parts are added in a fixed order, by way of the workspace.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    const uint32_t right = alignment_of(product_.transpose_a ? product_.m : product_.k);
    const uint32_t left = alignment_of(product_.transpose_b ? product_.k : product_.n), out = alignment_of(product_.n);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, left);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, right);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out);
    // Which bias is not known yet; that there is one, and how it lies, matters.
    if (bias_) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(uintptr_t{1} << 20));
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, operation_, left_, right_, out_, out_,
                                                                 preference.handle, 1, &chosen_, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
    check_call(status, "cublasLtMatmulAlgoGetHeuristic");
    return found > 0 && chosen_.state == CUBLAS_STATUS_SUCCESS;
  }

  Bytes workspace() const override { return {static_cast<int64_t>(with_slack(chosen_.workspaceSize))}; }

  void run(const void* a, const void* b, const void* bias, void* out, void* workspace) override {
    if (bias_) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    const float one = 1, before = product_.adds ? 1.0F : 0.0F;
    PLIMSOLL_CUDA(cublasLtMatmul(handle_, operation_, &one, b, left_, a, right_, &before, out, out_, out, out_,
                                 &chosen_.algo, aligned_workspace(workspace), chosen_.workspaceSize, stream_));
  }

 private:
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
  bool bias_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t left_ = nullptr, right_ = nullptr, out_ = nullptr;
  cublasLtMatmulHeuristicResult_t chosen_{};
};

}  // namespace

std::unique_ptr<Prepared> prepare_product(cublasLtHandle_t handle, cudaStream_t stream, const Product& product,
                                          Bytes workspace) {
  auto prepared = std::make_unique<LtProduct>(handle, stream, product);
  if (!prepared->choose(without_slack(static_cast<size_t>(workspace.count)))) return nullptr;
  return prepared;
}

}  // namespace plimsoll::cuda
