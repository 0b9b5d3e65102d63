// What devices told of their kernels, kept so that a kernel that is known by its name only can be estimated.
#pragma once

#include <map>
#include <shared_mutex>
#include <string>

#include "plimsoll/device.h"
#include "plimsoll/graph.h"

namespace plimsoll {

// For several threads.
class OfferedKernels {
 public:
  void note(const Graph& graph, const Op& op, const KernelSpec& kernel);
  // Of a kernel that was not noted for such an op: half of the dense rate for products and convolutions, all of it
  // else.
  KernelEstimate estimate(const Graph& graph, const Op& op, const std::string& kernel) const;

 private:
  mutable std::shared_mutex mutex_;
  std::map<std::string, std::map<std::string, KernelEstimate>> estimates_;  // by signature without layouts, name
};

}  // namespace plimsoll
