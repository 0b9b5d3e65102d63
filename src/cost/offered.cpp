#include "cost/offered.h"

#include <mutex>

#include "cost/signature.h"
#include "plimsoll/ops.h"

namespace plimsoll {

void OfferedKernels::note(const Graph& graph, const Op& op, const KernelSpec& kernel) {
  std::string signature = signature_without_layouts(graph, op);
  const std::unique_lock lock(mutex_);
  estimates_[std::move(signature)].try_emplace(kernel.name, kernel.estimate);
}

KernelEstimate OfferedKernels::estimate(const Graph& graph, const Op& op, const std::string& kernel) const {
  const std::string signature = signature_without_layouts(graph, op);
  {
    const std::shared_lock lock(mutex_);
    if (const auto known = estimates_.find(signature); known != estimates_.end()) {
      if (const auto found = known->second.find(kernel); found != known->second.end()) return found->second;
    }
  }
  const bool dense = layer_kind(op) == LayerKind::convolution || layer_kind(op) == LayerKind::fully_connected;
  return {.efficiency = dense ? 0.5 : 1};
}

}  // namespace plimsoll
