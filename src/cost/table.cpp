// Costs in memory, and estimates by the roofline model (Williams, Waterman, Patterson 2009): an op takes as long as the
// slower of its arithmetic and its memory traffic, plus a fixed cost.
#include <algorithm>
#include <climits>

#include "cost/offered.h"
#include "cost/signature.h"
#include "device/divided.h"
#include "device/simulated/analytic.h"
#include "ops/micro_op.h"
#include "plimsoll/cost.h"
#include "plimsoll/ops.h"
#include "plimsoll/plan.h"

namespace plimsoll {
namespace {

// `storage_of(position)` is the bytes of the tensor there, inputs first.
template <class StorageOf>
Cost estimate(const Graph& graph, const Op& op, const KernelEstimate& kernel, const MachineRates& rates,
              StorageOf storage_of) {
  if (kernel.ms) return {.time_ms = *kernel.ms};
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
  const double compute_ms = kernel.flops.value_or(work.flops) / (rates.gflops * 1e6 * kernel.efficiency);
  const double traffic_ms = (bytes + kernel.extra_bytes) / (rates.memory_gb_per_s * 1e6 * kernel.bandwidth);
  return {.time_ms = std::max(compute_ms, traffic_ms) + rates.launch_us / 1000};
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
    total.busy = total.busy || part.busy;
    i = end;
  }
  total.time_ms += static_cast<double>(parts.size() - 1) * division_cost(graph, op, table.rates()).ms_a_part;
  return total;
}

}  // namespace

// A part's sum is read, what is there is read and written; and one more call.
DivisionCost division_cost(const Graph& graph, const Op& op, const MachineRates& rates,
                           std::span<const Layout> outputs) {
  const Bytes summed = summing_workspace(graph, op, outputs);
  const double adding_ms =
      summed.count > 0 ? 3 * static_cast<double>(summed.count) / (rates.memory_gb_per_s * 1e6) + rates.launch_us / 1e3
                       : 0;
  return {.workspace = summed, .ms_a_part = adding_ms + rates.launch_us / 1e3};
}

CostTable::CostTable(MachineRates rates) : rates_(rates), offered_(std::make_shared<OfferedKernels>()) {}

CostTable CostTable::unmeasured(MachineRates rates) const {
  CostTable result(rates);
  result.offered_ = offered_;
  return result;
}

void CostTable::note(const Graph& graph, const Op& op, const KernelSpec& kernel) const {
  offered_->note(graph, op, kernel);
}

void CostTable::put(const CostKey& key, const Cost& cost) {
  Cost& place = (cost.source == Cost::Source::in_step ? in_step_ : entries_).try_emplace(key, cost).first->second;
  const bool place_is_quiet = place.source != Cost::Source::estimated && !place.busy;
  if (!cost.busy || !place_is_quiet) place = cost;
}

std::vector<CostKey> CostTable::forget_busy() {
  std::vector<CostKey> forgotten;
  for (auto* entries : {&entries_, &in_step_}) {
    std::erase_if(*entries, [&](const auto& entry) {
      if (entry.second.busy) forgotten.push_back(entry.first);
      return entry.second.busy;
    });
  }
  return forgotten;
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

Cost CostTable::compared(const Graph& graph, const Op& op, const std::string& kernel) const {
  Cost alone = cost(graph, op, kernel);
  return alone.source == Cost::Source::measured ? alone : predict(graph, op, kernel);
}

std::optional<Cost> CostTable::find(const CostKey& key) const {
  auto it = entries_.find(key);
  return it == entries_.end() ? std::nullopt : std::optional(it->second);
}

Cost CostTable::cost(const Graph& graph, const Op& op, const std::string& kernel) const {
  if (const std::vector<MicroBatch> parts = parts_of(kernel); !parts.empty())
    return divided_cost(*this, graph, op, kernel, parts);
  if (!entries_.empty()) {
    if (auto known = find({op_signature(graph, op), kernel, 0})) return *known;
    // A kernel that takes any layout is measured on one: row-major.
    if (is_in_one_layout(graph, op)) {
      if (auto known = find({signature_without_layouts(graph, op), kernel, 0})) return *known;
    }
  }
  if (op.type->is_view) return {};
  return estimate(graph, op, offered_->estimate(graph, op, kernel), rates_, [&](size_t i) {
    return graph.tensor(i < op.inputs.size() ? op.inputs[i] : op.outputs[i - op.inputs.size()]).bytes();
  });
}

Cost CostTable::cost(const Graph& graph, const Op& op, const KernelSpec& kernel) const {
  if (op.type->is_view) return {};
  note(graph, op, kernel);
  if (!entries_.empty()) {
    if (auto known = find({op_signature(graph, op, kernel), kernel.name, 0})) return *known;
  }
  return estimate(graph, op, kernel.estimate, rates_, [&](size_t i) {
    const bool input = i < op.inputs.size();
    const size_t at = input ? i : i - op.inputs.size();
    const Tensor& t = graph.tensor(input ? op.inputs[at] : op.outputs[at]);
    const std::vector<Layout>& side = input ? kernel.inputs : kernel.outputs;
    const bool stated = at < side.size() && side[at].tag != kAnyLayout.tag;
    return storage_bytes(t.shape, t.dtype, stated ? side[at] : t.layout);
  });
}

}  // namespace plimsoll
