// Random candidates and fronts for tests and benchmarks. Times are multiples of 1/1024 ms, so that their sums are
// exact.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "plimsoll/kernels.h"

namespace plimsoll {

inline double in_grains(double ms) { return std::max(1.0, std::round(ms * 1024)) / 1024; }

// Kernels without any pattern: some micro-batches have none.
inline MicroBatchKernels wild_candidates(std::mt19937& random, int64_t batch, int kernels,
                                         BatchSizes sizes = BatchSizes::all) {
  std::uniform_int_distribution<int> count(0, kernels), workspace(0, 9), grains(1, 9000);
  MicroBatchKernels candidates;
  for (int64_t size : micro_batch_sizes(sizes, batch)) {
    const int here = count(random);
    for (int k = 0; k < here; ++k) {
      candidates[size].push_back({"k" + std::to_string(k), size, grains(random) / 1024.0, Bytes{workspace(random)}});
    }
  }
  return candidates;
}

// As convolutions are: a slow kernel without workspace, and faster ones with fixed costs whose workspaces grow with the
// batch.
inline MicroBatchKernels likely_candidates(std::mt19937& random, int64_t batch, int kernels, BatchSizes sizes) {
  std::uniform_real_distribution<double> unit(0, 1);
  const double work = std::exp(unit(random) * 4 - 3);  // ms a sample
  MicroBatchKernels candidates;
  for (int k = 0; k < kernels; ++k) {
    const double speed = k == 0 ? 1 : 1 + 2.5 * unit(random), fixed = work * (k == 0 ? 0.1 : 4 * unit(random));
    const int64_t base = k == 0 ? 0 : static_cast<int64_t>(std::exp(unit(random) * 8 + 8));
    const int64_t each = k == 0 ? 0 : static_cast<int64_t>(std::exp(unit(random) * 7 + 8));
    for (int64_t size : micro_batch_sizes(sizes, batch)) {
      const double noise = 1 + 0.05 * unit(random);
      candidates[size].push_back({"k" + std::to_string(k), size,
                                  in_grains((fixed + work * static_cast<double>(size) / speed) * noise),
                                  Bytes{(base + each * size) / 64 * 64}});
    }
  }
  return candidates;
}

inline std::vector<std::vector<Configuration>> likely_fronts(std::mt19937& random, int ops, int64_t batch, int kernels,
                                                             BatchSizes sizes) {
  std::vector<std::vector<Configuration>> fronts;
  for (int i = 0; i < ops; ++i) fronts.push_back(pareto_front(likely_candidates(random, batch, kernels, sizes), batch));
  return fronts;
}

// So many points an op, on a falling curve with noise.
inline std::vector<std::vector<Configuration>> curved_fronts(std::mt19937& random, int ops, int points) {
  std::uniform_real_distribution<double> unit(0, 1);
  std::vector<std::vector<Configuration>> fronts(ops);
  for (auto& front : fronts) {
    const double ms = std::exp(unit(random) * 4 - 1), bytes = std::exp(unit(random) * 5 + 13);
    std::vector<double> workspaces{0}, times{ms * (1 + unit(random))};
    for (int i = 1; i < points; ++i) {
      workspaces.push_back(workspaces.back() + bytes * (0.1 + unit(random)));
      times.push_back(times.back() - ms * unit(random) / (points * (1 + 3.0 * i / points)));
    }
    for (size_t i = 0; i < workspaces.size(); ++i) {
      const Bytes workspace{static_cast<int64_t>(workspaces[i]) / 64 * 64};
      front.push_back({{{"k", 1, in_grains(times[i]), workspace}}, in_grains(times[i]), workspace});
    }
  }
  return fronts;
}

}  // namespace plimsoll
