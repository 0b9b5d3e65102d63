#include "plimsoll/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/statistics.h"
#include "cost/bench.h"
#include "cost/signature.h"
#include "device/divided.h"
#include "plimsoll/models.h"
#include "plimsoll/ops.h"
#include "plimsoll/plan.h"

namespace plimsoll {
namespace {

constexpr int kLeastPairs = 5, kMostPairs = 40;
constexpr int64_t kBeyondCaches = int64_t{96} << 20;  // bytes that pass between two uses of the same buffers

std::string text_of(const Convolution& convolution) {
  std::string text;
  for (size_t i = 0; i < std::size(kConvolutionColumns); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : "x", field(convolution, i));
  return text;
}

// The three passes, their names ending in `suffix`.
void add_convolution(Graph& graph, const Convolution& c, const std::string& suffix) {
  check(c);
  Builder net("convolution",
              {.batch = c.batch, .channels = c.channels, .height = c.height, .width = c.width, .classes = 1}, false);
  net.conv("conv", net.data(),
           {.channels = c.filters,
            .kernel = {c.kernel_height, c.kernel_width},
            .stride = {c.stride_height, c.stride_width},
            .padding = {c.pad_height, c.pad_width},
            .bias = false});
  const Op& forward = net.graph().op({0});
  const TensorId x = graph.add_source("x" + suffix, net.shape(forward.inputs[0]), DType::f32, Role::activation);
  const TensorId w = graph.add_source("w" + suffix, net.shape(forward.inputs[1]), DType::f32, Role::activation);
  const OpId conv = graph.add_op(forward.type->name, "conv" + suffix, "conv" + suffix, {x, w}, forward.attributes);
  const TensorId dy =
      graph.add_source("dy" + suffix, graph.tensor(graph.output(conv)).shape, DType::f32, Role::gradient);
  const auto gradient = graph.op(conv).type->gradient;
  gradient(graph, conv, std::span(&dy, 1), {true, false});
  gradient(graph, conv, std::span(&dy, 1), {false, true});
}

struct Choices {
  KernelSpec spec;  // of any of the kernels: the layouts
  MicroBatchKernels candidates;
  DivisionCost division;
};

// Kernels that leave and take tensors alike can be parts of one division.
std::string layouts_of(const KernelSpec& spec) {
  std::string key;
  for (const auto* side : {&spec.inputs, &spec.outputs}) {
    for (const Layout& layout : *side) key += layout.is_plain() ? "plain " : layout.tag + " ";
  }
  return key;
}

DivisionCost division_cost(const Graph& graph, const Op& op, ConvolutionPass pass, const KernelSpec& spec,
                           const MachineRates& rates) {
  if (pass != ConvolutionPass::backward_weights) return {};
  const Tensor& dw = graph.tensor(op.outputs[0]);
  const Bytes bytes = align_up(storage_bytes(dw.shape, dw.dtype, spec.outputs.at(0)), kStayAlignment);
  return {bytes, 3 * static_cast<double>(bytes.count) / (rates.memory_gb_per_s * 1e6)};  // two are read, one is written
}

struct Priced {
  MicroKernel kernel;
  bool measured = false;
};

std::vector<Choices> list_choices(const Convolution& convolution, ConvolutionPass pass, const Device& device,
                                  const CostTable& table, BatchSizes batches) {
  std::map<std::string, Choices> groups;
  std::map<std::string, std::vector<Priced>> kernels;
  bool any_measured = false;
  for (int64_t size : micro_batch_sizes(batches, convolution.batch)) {
    if (convolution.batch / size > kMostMicroBatches) continue;
    Convolution part = convolution;
    part.batch = size;
    const Graph graph = convolution_graph(part);
    const Op& op = graph.op(convolution_op(pass));
    for (LayoutFamily family : {LayoutFamily::blocked, LayoutFamily::channels_last, LayoutFamily::plain}) {
      std::vector<KernelSpec> specs;
      try {
        specs = device.kernels(graph, op, family);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
      }
      for (const KernelSpec& spec : specs) {
        const std::string key = layouts_of(spec);
        if (!groups.contains(key)) groups[key] = {spec, {}, division_cost(graph, op, pass, spec, table.rates())};
        const std::optional<Cost> known = table.find({op_signature(graph, op, spec), spec.name, 0});
        const bool measured = known && known->source != Cost::Source::estimated;
        any_measured = any_measured || measured;
        kernels[key].push_back({{spec.name, size, known ? known->time_ms : table.cost(graph, op, spec).time_ms,
                                 size < convolution.batch ? part_workspace(spec.workspace) : spec.workspace},
                                measured});
      }
    }
  }
  std::vector<Choices> list;
  for (auto& [key, group] : groups) {
    // An estimate does not stand against a measurement.
    for (const Priced& priced : kernels[key]) {
      if (priced.measured || !any_measured) group.candidates[priced.kernel.batch].push_back(priced.kernel);
    }
    list.push_back(std::move(group));
  }
  return list;
}

ConvolutionChoice make_choice(const KernelSpec& layouts, Configuration configuration) {
  ConvolutionChoice choice{layouts, std::move(configuration)};
  std::vector<MicroBatch> parts;
  for (const MicroKernel& part : choice.configuration.parts) parts.push_back({part.kernel, part.batch});
  choice.kernel.name = configuration_name(parts);
  choice.kernel.workspace = choice.configuration.workspace;
  return choice;
}

}  // namespace

std::string_view to_string(ConvolutionPass pass) {
  switch (pass) {
    case ConvolutionPass::forward: return "forward";
    case ConvolutionPass::backward_data: return "backward_data";
    case ConvolutionPass::backward_weights: return "backward_weights";
  }
  return "?";
}

std::string to_string(const Convolution& c) {
  std::string text =
      fmt::format("{}x{}x{}, {} of {}x{}", c.channels, c.height, c.width, c.filters, c.kernel_height, c.kernel_width);
  if (c.stride_height != 1 || c.stride_width != 1) {
    text += c.stride_height == c.stride_width ? fmt::format(" /{}", c.stride_height)
                                              : fmt::format(" /{}x{}", c.stride_height, c.stride_width);
  }
  return text + fmt::format(", batch {}", c.batch);
}

Graph convolution_graph(const Convolution& convolution) {
  Graph graph;
  graph.name = "convolution";
  add_convolution(graph, convolution, "");
  return graph;
}

OpId convolution_op(ConvolutionPass pass) { return {static_cast<int32_t>(pass)}; }

std::vector<Convolution> convolutions_of(const Graph& graph) {
  std::vector<Convolution> list;
  for (const Op& op : graph.ops()) {
    if (op.type->name != "ConvForward") continue;
    const Shape &x = graph.tensor(op.inputs[0]).shape, &w = graph.tensor(op.inputs[1]).shape;
    const std::vector<int64_t> one{1, 1}, none{0, 0, 0, 0};
    const std::vector<int64_t> stride = op.attributes.integers("stride", one),
                               padding = op.attributes.integers("padding", none);
    if (w.size() != 4 || op.attributes.integers("dilation", one) != one || padding[0] != padding[2] ||
        padding[1] != padding[3])
      continue;
    list.push_back({.width = x[3],
                    .height = x[2],
                    .channels = x[1],
                    .batch = x[0],
                    .filters = w[0],
                    .kernel_width = w[3],
                    .kernel_height = w[2],
                    .pad_width = padding[1],
                    .pad_height = padding[0],
                    .stride_width = stride[1],
                    .stride_height = stride[0]});
  }
  return list;
}

int measure_convolutions(std::span<const Convolution> convolutions, const Device& device, CostTable& table,
                         const MeasureOptions& options) {
  Graph all;
  for (const Convolution& convolution : convolutions) {
    const std::string name = " " + text_of(convolution);
    if (!all.find_tensor("x" + name).valid()) add_convolution(all, convolution, name);
  }
  return measure_costs(all, device, table, options);
}

std::optional<ConvolutionChoice> fastest_convolution(const Convolution& convolution, ConvolutionPass pass,
                                                     const Device& device, const CostTable& table, Bytes limit,
                                                     BatchSizes batches) {
  std::optional<ConvolutionChoice> best;
  for (const Choices& choices : list_choices(convolution, pass, device, table, batches)) {
    std::optional<Configuration> made = fastest_within(choices.candidates, convolution.batch, limit, choices.division);
    if (made && (!best || made->time_ms < best->configuration.time_ms))
      best = make_choice(choices.spec, std::move(*made));
  }
  return best;
}

std::vector<ConvolutionChoice> convolution_front(const Convolution& convolution, ConvolutionPass pass,
                                                 const Device& device, const CostTable& table, BatchSizes batches) {
  std::vector<ConvolutionChoice> all, front;
  for (const Choices& choices : list_choices(convolution, pass, device, table, batches)) {
    for (Configuration& made : pareto_front(choices.candidates, convolution.batch, choices.division)) {
      all.push_back(make_choice(choices.spec, std::move(made)));
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const ConvolutionChoice& a, const ConvolutionChoice& b) {
    const Configuration &x = a.configuration, &y = b.configuration;
    return x.workspace != y.workspace ? x.workspace < y.workspace : x.time_ms < y.time_ms;
  });
  for (ConvolutionChoice& choice : all) {
    if (front.empty() || choice.configuration.time_ms < front.back().configuration.time_ms)
      front.push_back(std::move(choice));
  }
  return front;
}

std::optional<ConvolutionTimes> time_in_turn(const Convolution& convolution, ConvolutionPass pass, const Device& device,
                                             const KernelSpec& a, const KernelSpec& b, double seconds) {
  if (device.info().simulated) return std::nullopt;
  const Graph graph = convolution_graph(convolution);
  const Op& op = graph.op(convolution_op(pass));
  OpBench first(device, isolate(graph, op, a)), second(device, isolate(graph, op, b));
  const int64_t set = std::max<int64_t>(1, std::min(first.set_bytes(), second.set_bytes()).count);
  int sets = static_cast<int>(kBeyondCaches / set) + 1;
  const Bytes limit{device.info().memory_available.count / 10 * 8};
  while (sets > 1 && first.bytes(sets) + second.bytes(sets) > limit) --sets;
  if (first.bytes(sets) + second.bytes(sets) > limit) return std::nullopt;
  const Bytes second_at = align_up(first.bytes(sets), 4096);
  const std::unique_ptr<Arena> arena = device.take_arena(second_at + second.bytes(sets));
  first.place(arena->base(), sets);
  second.place(arena->base() + second_at.count, sets);
  first.run();
  second.run();
  std::vector<double> times[2];
  double total_ms = 0;
  for (int pair = 0; pair < kMostPairs && (pair < kLeastPairs || total_ms < seconds * 1000); ++pair) {
    for (int turn : {pair % 2, 1 - pair % 2}) {
      times[turn].push_back((turn == 0 ? first : second).run());
      total_ms += times[turn].back();
    }
  }
  const auto cost = [](const std::vector<double>& t) {
    return Cost{.source = Cost::Source::measured,
                .time_ms = median(t),
                .spread_ms = half_interquartile_distance(t),
                .runs = static_cast<int>(t.size())};
  };
  return ConvolutionTimes{cost(times[0]), cost(times[1]), static_cast<int>(times[0].size())};
}

}  // namespace plimsoll
