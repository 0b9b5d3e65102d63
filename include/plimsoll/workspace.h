// Which kernel runs an op, on how much of the batch at a time, when workspace is scarce: micro-batching as in mu-cuDNN
// (CLUSTER 2018). A fast kernel whose workspace is too large for the whole batch may fit when it runs on parts of it.
//
//   MicroBatchKernels            by micro-batch, each kernel's time and workspace
//    |                                                    time
//    +- fastest_within: one op, one limit (WR)             | o             pareto_front: a configuration is on it when
//    +- pareto_front: one op, every limit                  |   o           nothing is both as fast and as small
//            |                                             |      o    o
//            +- divide_workspace: all ops, one total (WD)  +-------------- workspace
//
// All three are exact (divide_workspace says where it had to give up the proof). Times and workspaces may come from
// anywhere: measured, estimated, or a caller's own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/bytes.h"

namespace plimsoll {

// One way to run one micro-batch.
struct MicroKernel {
  std::string kernel;
  int64_t batch = 0;
  double time_ms = 0;
  Bytes workspace;
  friend bool operator==(const MicroKernel&, const MicroKernel&) = default;
};

// One way to run the whole batch: its parts one after the other, in one workspace.
struct Configuration {
  std::vector<MicroKernel> parts;  // the largest micro-batches first; their batches add up to the whole
  double time_ms = 0;              // the sum over the parts, and what dividing costs
  Bytes workspace;                 // the largest of the parts, and what dividing costs
  bool is_divided() const { return parts.size() > 1; }
  friend bool operator==(const Configuration&, const Configuration&) = default;
};

// The ways to run each micro-batch, by its size.
using MicroBatchKernels = std::map<int64_t, std::vector<MicroKernel>>;

// What dividing costs beside the parts themselves, with more than one part only: a divided weight gradient is made in parts
// that are added up.
struct DivisionCost {
  Bytes workspace;       // beside that of the parts
  double ms_a_part = 0;  // for every part after the first
};

// Which micro-batches are worth measuring (the paper's batch-size policies): the batch alone; powers of two, and the batch;
// every one. The more, the faster what is found, and the longer the measuring.
enum class BatchSizes : uint8_t { undivided, power_of_two, all };
std::string_view to_string(BatchSizes sizes);         // "undivided", "powerOfTwo", "all"
BatchSizes batch_sizes_named(std::string_view name);  // throws Error(invalid_input) with the nearest name
std::vector<int64_t> micro_batch_sizes(BatchSizes sizes, int64_t batch);  // ascending; throws for a batch below 1

// The fastest configuration whose workspace is at most `limit`, by dynamic programming over the division of the batch: the
// paper's WR, section III-B. Of equally fast ones the one with fewer parts. Nothing when none fits. Entries for micro-batches
// larger than the batch are not looked at. Throws Error(invalid_input) for a batch below 1, and for an entry with a time
// that is no number or negative, a negative workspace, or another batch than its place in the candidates.
std::optional<Configuration> fastest_within(const MicroBatchKernels& candidates, int64_t batch, Bytes limit, const DivisionCost& division = {});

// The paper's desirable set, section III-C1: for every limit what fastest_within gives, workspace ascending, time strictly
// descending. Nothing outside it can be part of a best division of workspace among ops.
std::vector<Configuration> pareto_front(const MicroBatchKernels& candidates, int64_t batch, const DivisionCost& division = {});

// How a total of workspace is divided among ops, each with a segment of its own.
struct WorkspaceDivision {
  std::vector<size_t> chosen;  // for each front, the index of its configuration
  double time_ms = 0;          // sum over the ops
  Bytes workspace;             // sum over the ops, at most the total
  bool exact = false;          // proven that nothing is faster; false: the search was cut short, lower_bound_ms still holds
  double lower_bound_ms = 0;   // nothing is faster than this
};
// The fastest choice of one configuration from every front whose workspaces add up to at most `total`: the paper's WD, section
// III-C, solved as a multiple-choice knapsack. Nothing when not even the smallest fit, or when a front is empty. The fronts
// may hold any configurations in any order; only times and workspaces are looked at.
std::optional<WorkspaceDivision> divide_workspace(std::span<const std::vector<Configuration>> fronts, Bytes total);

}  // namespace plimsoll
