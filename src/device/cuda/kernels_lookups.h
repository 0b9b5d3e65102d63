// What kernels share that read the gradient of an embedding's table by its lookups.
#pragma once

#include "device/cuda/kernels.h"
#include "ops/take.h"

namespace plimsoll::cuda {

// The indices are the op's last input. The workspace begins with kHead bytes for the kernel itself; behind them are the lists of
// lookups by row.
class LookupsKernel : public CudaKernel {
 public:
  LookupsKernel(const Context& context, const Graph& graph, const Op& op);
  static Bytes workspace_for(const Graph& graph, const Op& op);

 protected:
  static constexpr int64_t kHead = 256;
  // Asks for the lists.
  LookupGradient gradient() const;

 private:
  Take take_;
  MakeRows rows_{};
  size_t dy_at_, indices_at_;
  int64_t padding_;
};

}  // namespace plimsoll::cuda
