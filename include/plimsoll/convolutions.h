// Convolutions of one's own, without a network: which kernel runs each, on how much of the batch at a time, within a limit of
// workspace. For callers that have a framework of their own, and for `plimsoll convolutions`.
//
//   std::vector<Convolution> layers = convolutions_from_csv(text, "layers.csv");
//   measure_convolutions(layers, *device, costs, {.batches = BatchSizes::power_of_two});
//   auto choice = fastest_convolution(layers[0], ConvolutionPass::forward, *device, costs, 64_MiB, BatchSizes::power_of_two);
//   Graph graph = convolution_graph(layers[0]);       make_kernel(*device, ...) of divided.h runs choice->kernel.name on it
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/cost.h"
#include "plimsoll/device.h"
#include "plimsoll/graph.h"
#include "plimsoll/workspace.h"

namespace plimsoll {

// As DeepBench gives them: images of width x height with `channels`, `batch` of them, convolved with `filters` kernels.
struct Convolution {
  int64_t width = 0, height = 0, channels = 0, batch = 0, filters = 0, kernel_width = 0, kernel_height = 0;
  int64_t pad_width = 0, pad_height = 0;  // on both sides
  int64_t stride_width = 1, stride_height = 1;
  friend bool operator==(const Convolution&, const Convolution&) = default;
};
inline constexpr std::string_view kConvolutionColumns[] = {"width",        "height",        "channels",  "batch",      "filters",     "kernel_width",
                                                           "kernel_height", "pad_width", "pad_height", "stride_width", "stride_height"};
int64_t& field(Convolution& convolution, size_t column);  // by its place in kConvolutionColumns
int64_t field(const Convolution& convolution, size_t column);
// "256x56x56, 64 of 3x3, batch 32": for people.
std::string to_string(const Convolution& convolution);
// Throws Error(invalid_input) that says why there is no such convolution: a number below its least or above 2^20, a kernel
// larger than the padded image, a tensor of more than 2^40 elements.
void check(const Convolution& convolution);

// A header line that names the columns, in any order, then a convolution a line. Columns for padding and stride may be left
// out. Throws Error(invalid_input) that names file, line and column.
std::vector<Convolution> convolutions_from_csv(std::string_view text, const std::string& file_name);
inline constexpr size_t kMostConvolutions = 100'000;  // of a file

enum class ConvolutionPass : uint8_t { forward, backward_data, backward_weights };
inline constexpr ConvolutionPass kConvolutionPasses[] = {ConvolutionPass::forward, ConvolutionPass::backward_data, ConvolutionPass::backward_weights};
std::string_view to_string(ConvolutionPass pass);

// The three passes as ops of one graph: x, w -> y; dy, w -> dx; x, dy -> dw. No bias.
Graph convolution_graph(const Convolution& convolution);
OpId convolution_op(ConvolutionPass pass);  // in that graph

// The convolutions of a network, in the order of its ops; grouped and dilated ones are left out.
std::vector<Convolution> convolutions_of(const Graph& graph);

// Measures the kernels of all passes, and where they have workspaces at the micro-batches of the policy, as far as the table lacks
// them; returns how many.
int measure_convolutions(std::span<const Convolution> convolutions, const Device& device, CostTable& table,
                         const MeasureOptions& options = {.batches = BatchSizes::power_of_two});

// What runs a pass: a kernel's name for make_kernel of divided.h, with the layouts that its tensors must have, and what is known
// about its parts.
struct ConvolutionChoice {
  KernelSpec kernel;            // its name is that of a configuration where the batch is divided
  Configuration configuration;
};
// The fastest of all that the device offers, whatever the layouts, with a workspace of at most `limit` (WR). Nothing when none
// has so little.
std::optional<ConvolutionChoice> fastest_convolution(const Convolution& convolution, ConvolutionPass pass, const Device& device, const CostTable& table,
                                                     Bytes limit, BatchSizes batches);
// For every limit what fastest_convolution gives, workspace ascending: what divide_workspace takes, for one total for several (WD).
std::vector<ConvolutionChoice> convolution_front(const Convolution& convolution, ConvolutionPass pass, const Device& device, const CostTable& table,
                                                 BatchSizes batches);

// Two ways to run a pass, as a whole, in turn, on buffers that are cold in the cache as they would be in a training step.
struct ConvolutionTimes {
  Cost a, b;
  int runs = 0;
};
// Nothing when the machine has not the memory for it, or the device runs nothing (simulated).
std::optional<ConvolutionTimes> time_in_turn(const Convolution& convolution, ConvolutionPass pass, const Device& device, const KernelSpec& a,
                                             const KernelSpec& b, double seconds);

}  // namespace plimsoll
