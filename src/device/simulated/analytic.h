// What the convolution algorithms of a GPU library need and do, by formulas: there are no measurements of a machine
// that is not there. Workspaces as in mu-cuDNN's tables: AlexNet's conv2 forward in two groups by FFT is 212.5 MiB at
// batch 256.
#pragma once

#include <string>
#include <vector>

#include "plimsoll/device.h"
#include "plimsoll/graph.h"

namespace plimsoll {

struct AnalyticKernel {
  std::string name;  // "analytic_fft"
  Bytes workspace;
  double flops = 0;  // that it does, at `efficiency` of the machine's dense rate
  double efficiency = 1;
  double extra_bytes = 0;  // memory traffic beyond the op's inputs and outputs
  Algorithm algorithm = Algorithm::direct;
};

// For a convolution the algorithms that take it, the one without workspace first; for any other op the one "analytic".
std::vector<AnalyticKernel> analytic_kernels(const Graph& graph, const Op& op);

}  // namespace plimsoll
