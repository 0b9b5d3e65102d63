// Costs in memory, and estimates by the roofline model (Williams, Waterman, Patterson 2009): an op takes as long as the
// slower of its arithmetic and its memory traffic, plus a fixed cost.
#include <algorithm>
#include <climits>

#include "cost/signature.h"
#include "device/divided.h"
#include "device/simulated/analytic.h"
#include "ops/micro_op.h"
#include "plimsoll/cost.h"
#include "plimsoll/ops.h"
#include "plimsoll/plan.h"

namespace plimsoll {
namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }
bool is_reference(std::string_view kernel) { return kernel.starts_with("ref"); }

// Winograd F(4x4,3x3) does a quarter of the multiplications, but transforms its weights at every call, which pays over
// many output pixels only. Measured on AVX-512: 1.5x to 2.3x of direct at batch 16, below 1x at batch 1 and 2, 1.1x at
// 7x7.
double winograd_efficiency(const Graph& graph, const Op& op) {
  int64_t pixels = 0, batch = 1;
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (TensorId id : *list) {
      const Shape& s = graph.tensor(id).shape;
      if (s.size() != 4 || s[2] * s[3] <= pixels) continue;
      pixels = s[2] * s[3];
      batch = s[0];
    }
  }
  const double full = std::clamp(0.55 + 0.1 * static_cast<double>(batch), 0.6, 1.8);
  return pixels <= 64 ? 0.6 * full : full;
}

// oneDNN's plain product turns row-major weights over on every forward pass, which costs the more the fewer rows use
// them: measured 4 % of the dense rate at 16 rows of 4096 and 20 % at 64. Its other products are as fast as brgemm.
double product_efficiency(const Graph& graph, const Op& op, std::string_view kernel) {
  const bool turns = op.type->name == "FullyConnectedForward" && !contains(kernel, "brgemm") && !contains(kernel, "@");
  if (!turns) return 0.8;
  return std::min(0.5, 0.003 * static_cast<double>(graph.tensor(op.inputs[0]).shape[0]));
}

// CUDA's convolutions, as cuDNN's documents and its users rank them; not measured by us. Weight gradients sum over the
// whole batch into few elements, which occupies fewer of a GPU's processors and does Winograd's transforms for less work.
struct CudaKernel {
  std::string_view part;  // of the kernel's name; the first that fits counts
  double data, weights;   // forward and backward to the data; backward to the weights
};
constexpr CudaKernel kCudaKernels[] = {
    {"own:direct", 0.02, 0.02},
    {"nonfused", 0.9, 0.7},       // Winograd with its transforms apart
    {"wino", 0.8, 0.6},
    {"precomp", 0.7, 0.7},
    {"algo_1", 0.7, 0.55},        // the same kind of kernel in the backward passes
    {"algo_0", 0.4, 0.3},         // sums by atomic additions
    {"fft", 0.3, 0.25},           // pays for large windows only
    {"implicit_gemm", 0.35, 0.35},
};
constexpr double kOtherCudnn = 0.4;
constexpr double kTf32Speed = 3;  // tensor cores, by what full multiply-adds reach

double cuda_efficiency(const Op& op, std::string_view kernel) {
  const bool weights = contains(op.type->name, "BackwardWeights");
  double share = kOtherCudnn;
  for (const CudaKernel& known : kCudaKernels) {
    if (!contains(kernel, known.part)) continue;
    share = weights ? known.weights : known.data;
    break;
  }
  return share;
}

// Share of the machine's dense rate that a kernel reaches, by what its name tells.
double efficiency(const Graph& graph, const Op& op, std::string_view kernel) {
  if (is_reference(kernel)) return 0.004;
  const double tf32 = kernel.ends_with(":tf32") ? kTf32Speed : 1;
  if (kernel.starts_with("cudnn:") || kernel == "own:direct") return tf32 * cuda_efficiency(op, kernel);
  if (kernel.starts_with("cublaslt")) return tf32 * 0.8;
  if (contains(kernel, "wino")) return winograd_efficiency(graph, op);
  const bool weights = contains(op.type->name, "BackwardWeights");
  if (contains(op.type->name, "FullyConnected") && contains(kernel, "gemm")) return product_efficiency(graph, op, kernel);
  if (contains(kernel, "gemm")) return weights ? 0.4 : 0.5;
  if (contains(kernel, "sse41")) return 0.15;
  return weights ? 0.8 : 0.9;
}

// `storage_of(position)` is the bytes of the tensor there, inputs first.
template <class StorageOf>
Cost estimate(const Graph& graph, const Op& op, std::string_view kernel, const MachineRates& rates,
              StorageOf storage_of) {
  if (op.type->is_view) return {};
  const Work work = op.type->work ? op.type->work(graph, op) : Work{};
  double storage = 0, plain = 0;
  size_t position = 0;
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (TensorId id : *list) {
      const Tensor& t = graph.tensor(id);
      storage += static_cast<double>(storage_of(position++).count);
      plain += static_cast<double>(storage_bytes(t.shape, t.dtype, {}).count);
    }
  }
  // An op may read less than its inputs (a slice); padding comes on top.
  const double bytes = work.bytes > 0 && plain > 0 ? std::min(work.bytes, plain) * storage / plain : storage;
  if (is_analytic(kernel)) {
    const AnalyticKernel how = analytic_kernel(graph, op, kernel);
    const double compute_ms = how.flops / (rates.gflops * 1e6 * how.efficiency);
    const double traffic_ms = (bytes + how.extra_bytes) / (rates.memory_gb_per_s * 1e6);
    return {.time_ms = std::max(compute_ms, traffic_ms) + rates.launch_us / 1000};
  }
  const double traffic_share = is_reference(kernel) ? 0.02 : 1;
  const double compute_ms = work.flops / (rates.gflops * 1e6 * efficiency(graph, op, kernel));
  const double traffic_ms = bytes / (rates.memory_gb_per_s * 1e6 * traffic_share);
  Cost cost;
  cost.time_ms = std::max(compute_ms, traffic_ms) + rates.launch_us / 1000;
  return cost;
}

// Whether all tensors of the first input's shape lie alike and all others are row-major.
bool is_in_one_layout(const Graph& graph, const Op& op) {
  if (op.inputs.empty()) return false;
  const Tensor& first = graph.tensor(op.inputs[0]);
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (TensorId id : *list) {
      const Tensor& t = graph.tensor(id);
      if (!(t.shape == first.shape ? same_layout(t.layout, first.layout) : t.layout.is_plain())) return false;
    }
  }
  return true;
}

// The sum over the parts, equal ones looked up once, and the sums of what they make together.
Cost divided_cost(const CostTable& table, const Graph& graph, const Op& op, const std::string& kernel,
                  const std::vector<MicroBatch>& parts) {
  if (auto known = table.find({op_signature(graph, op), kernel, 0})) return *known;
  Cost total{.source = Cost::Source::measured, .runs = INT_MAX};
  for (size_t i = 0; i < parts.size();) {
    size_t end = i;
    while (end < parts.size() && parts[end] == parts[i]) ++end;
    const MicroOp micro = micro_op(graph, op, parts[i].batch);
    const Cost part = table.cost(micro.graph, micro.graph.op(micro.op), parts[i].kernel);
    total.time_ms += static_cast<double>(end - i) * part.time_ms;
    total.spread_ms += static_cast<double>(end - i) * part.spread_ms;
    total.runs = std::min(total.runs, part.runs);
    total.source = std::min(total.source, part.source);
    i = end;
  }
  total.time_ms += static_cast<double>(parts.size() - 1) * division_cost(graph, op, table.rates()).ms_a_part;
  return total;
}

}  // namespace

// A part's sum is read, what is there is read and written; and one more call.
DivisionCost division_cost(const Graph& graph, const Op& op, const MachineRates& rates, std::span<const Layout> outputs) {
  const Bytes summed = summing_workspace(graph, op, outputs);
  const double adding_ms = summed.count > 0 ? 3 * static_cast<double>(summed.count) / (rates.memory_gb_per_s * 1e6) + rates.launch_us / 1e3 : 0;
  return {.workspace = summed, .ms_a_part = adding_ms + rates.launch_us / 1e3};
}

void CostTable::put(const CostKey& key, const Cost& cost) {
  (cost.source == Cost::Source::in_step ? in_step_ : entries_)[key] = cost;
}

std::optional<Cost> CostTable::find_in_step(const CostKey& key) const {
  auto it = in_step_.find(key);
  return it == in_step_.end() ? std::nullopt : std::optional(it->second);
}

Cost CostTable::predict(const Graph& graph, const Op& op, const std::string& kernel, int threads) const {
  if (!in_step_.empty()) {
    if (auto known = find_in_step({op_signature(graph, op), kernel, threads})) return *known;
  }
  return cost(graph, op, kernel);
}

std::optional<Cost> CostTable::find(const CostKey& key) const {
  auto it = entries_.find(key);
  return it == entries_.end() ? std::nullopt : std::optional(it->second);
}

Cost CostTable::cost(const Graph& graph, const Op& op, const std::string& kernel) const {
  if (const std::vector<MicroBatch> parts = parts_of(kernel); !parts.empty()) return divided_cost(*this, graph, op, kernel, parts);
  if (!entries_.empty()) {
    if (auto known = find({op_signature(graph, op), kernel, 0})) return *known;
    // A kernel that takes any layout is measured on one: row-major.
    if (is_in_one_layout(graph, op)) {
      if (auto known = find({signature_without_layouts(graph, op), kernel, 0})) return *known;
    }
  }
  return estimate(graph, op, kernel, rates_, [&](size_t i) {
    return graph.tensor(i < op.inputs.size() ? op.inputs[i] : op.outputs[i - op.inputs.size()]).bytes();
  });
}

Cost CostTable::cost(const Graph& graph, const Op& op, const KernelSpec& kernel) const {
  if (!entries_.empty()) {
    if (auto known = find({op_signature(graph, op, kernel), kernel.name, 0})) return *known;
  }
  return estimate(graph, op, kernel.name, rates_, [&](size_t i) {
    const bool input = i < op.inputs.size();
    const size_t at = input ? i : i - op.inputs.size();
    const Tensor& t = graph.tensor(input ? op.inputs[at] : op.outputs[at]);
    const std::vector<Layout>& side = input ? kernel.inputs : kernel.outputs;
    const bool stated = at < side.size() && side[at].tag != kAnyLayout.tag;
    return storage_bytes(t.shape, t.dtype, stated ? side[at] : t.layout);
  });
}

}  // namespace plimsoll
