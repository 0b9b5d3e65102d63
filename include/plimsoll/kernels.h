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
// All three are exact; divide_workspace says so where it had to stop before the proof. Times and workspaces may come
// from anywhere: measured, estimated, or a caller's own.
//
// The second half answers the same questions for convolutions without a network. It is for callers that have a
// framework of their own, and for `plimsoll convolutions`.
//
//   std::vector<Convolution> layers = convolutions_from_csv(text, "layers.csv");
//   measure_convolutions(layers, *device, costs, {.batches = BatchSizes::power_of_two});
//   auto choice = fastest_convolution(layers[0], ConvolutionPass::forward, *device, costs, 64_MiB,
//                                     BatchSizes::power_of_two);
//   Graph graph = convolution_graph(layers[0]);  // make_kernel(*device, ...) of device.h runs choice->kernel.name
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/bytes.h"
#include "plimsoll/cost.h"
#include "plimsoll/device.h"
#include "plimsoll/graph.h"

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

// The fastest configuration whose workspace is at most `limit`, by dynamic programming over the division of the batch:
// the paper's WR, section III-B. Of equally fast ones the one with fewer parts. Nothing when none fits. Entries for
// micro-batches larger than the batch are not looked at. Throws Error(invalid_input) for a batch below 1, and for an
// entry with a time that is no number or negative, a negative workspace, or another batch than its place in the
// candidates.
std::optional<Configuration> fastest_within(const MicroBatchKernels& candidates, int64_t batch, Bytes limit,
                                            const DivisionCost& division = {});

// The paper's desirable set, section III-C1: for every limit what fastest_within gives, workspace ascending, time
// strictly descending. Nothing outside it can be part of a best division of workspace among ops.
std::vector<Configuration> pareto_front(const MicroBatchKernels& candidates, int64_t batch,
                                        const DivisionCost& division = {});

// How a total of workspace is divided among ops, each with a segment of its own.
struct WorkspaceDivision {
  std::vector<size_t> chosen;  // for each front, the index of its configuration
  double time_ms = 0;          // sum over the ops
  Bytes workspace;             // sum over the ops, at most the total
  bool exact = false;  // proven that nothing is faster; false: the search was cut short, lower_bound_ms still holds
  double lower_bound_ms = 0;  // nothing is faster than this
};
// The fastest choice of one configuration from every front whose workspaces add up to at most `total`: the paper's WD,
// section III-C, solved as a multiple-choice knapsack. Nothing when not even the smallest fit, or when a front is
// empty. The fronts may hold any configurations in any order; only times and workspaces are looked at.
std::optional<WorkspaceDivision> divide_workspace(std::span<const std::vector<Configuration>> fronts, Bytes total);

// As DeepBench gives them: images of width x height with `channels`, `batch` of them, convolved with `filters` kernels.
struct Convolution {
  int64_t width = 0, height = 0, channels = 0, batch = 0, filters = 0, kernel_width = 0, kernel_height = 0;
  int64_t pad_width = 0, pad_height = 0;  // on both sides
  int64_t stride_width = 1, stride_height = 1;
  friend bool operator==(const Convolution&, const Convolution&) = default;
};
inline constexpr std::string_view kConvolutionColumns[] = {"width",      "height",       "channels",      "batch",
                                                           "filters",    "kernel_width", "kernel_height", "pad_width",
                                                           "pad_height", "stride_width", "stride_height"};
int64_t& field(Convolution& convolution, size_t column);  // by its place in kConvolutionColumns
int64_t field(const Convolution& convolution, size_t column);
// "256x56x56, 64 of 3x3, batch 32": for people.
std::string to_string(const Convolution& convolution);
// Throws Error(invalid_input) that says why there is no such convolution: a number below its least or above 2^20, a
// kernel larger than the padded image, a tensor of more than 2^40 elements.
void check(const Convolution& convolution);

// A header line that names the columns, in any order, then a convolution a line. Columns for padding and stride may be
// left out. Throws Error(invalid_input) that names file, line and column.
std::vector<Convolution> convolutions_from_csv(std::string_view text, const std::string& file_name);
inline constexpr size_t kMostConvolutions = 100'000;  // of a file

enum class ConvolutionPass : uint8_t { forward, backward_data, backward_weights };
inline constexpr ConvolutionPass kConvolutionPasses[] = {ConvolutionPass::forward, ConvolutionPass::backward_data,
                                                         ConvolutionPass::backward_weights};
std::string_view to_string(ConvolutionPass pass);

// The three passes as ops of one graph: x, w -> y; dy, w -> dx; x, dy -> dw. No bias.
Graph convolution_graph(const Convolution& convolution);
OpId convolution_op(ConvolutionPass pass);  // in that graph

// The convolutions of a network, in the order of its ops; grouped and dilated ones are left out.
std::vector<Convolution> convolutions_of(const Graph& graph);

// Measures the kernels of all passes that the table lacks; those with workspaces also at the micro-batches that the
// options ask for. Returns how many were measured.
int measure_convolutions(std::span<const Convolution> convolutions, const Device& device, CostTable& table,
                         const MeasureOptions& options = {.batches = BatchSizes::power_of_two});

// What runs a pass: a kernel for make_kernel of device.h, the layouts that its tensors must have, and what its parts
// cost.
struct ConvolutionChoice {
  KernelSpec kernel;  // its name is that of a configuration where the batch is divided
  Configuration configuration;
};
// The fastest kernel or configuration that the device offers, in any layouts, with a workspace of at most `limit` (WR).
// Nothing where all need more.
std::optional<ConvolutionChoice> fastest_convolution(const Convolution& convolution, ConvolutionPass pass,
                                                     const Device& device, const CostTable& table, Bytes limit,
                                                     BatchSizes batches);
// For every limit what fastest_convolution gives, workspace ascending: what divide_workspace takes, for one total for
// several (WD).
std::vector<ConvolutionChoice> convolution_front(const Convolution& convolution, ConvolutionPass pass,
                                                 const Device& device, const CostTable& table, BatchSizes batches);

// Two ways to run a pass, as a whole, in turn, on buffers that are cold in the cache as they would be in a training
// step.
struct ConvolutionTimes {
  Cost a, b;
  int runs = 0;
};
// Nothing where the machine lacks the memory, and on a simulated device, which runs nothing.
std::optional<ConvolutionTimes> time_in_turn(const Convolution& convolution, ConvolutionPass pass, const Device& device,
                                             const KernelSpec& a, const KernelSpec& b, double seconds);

}  // namespace plimsoll
