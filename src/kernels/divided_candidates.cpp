// Kernels that run in parts of the batch, as further items of the candidates: for each set of layouts the desirable
// configurations (mu-cuDNN's WR for every limit at once), so that a search under any limit finds its fastest among
// them.
#include <algorithm>

#include "cost/signature.h"
#include "device/divided.h"
#include "kernels/layout_search.h"
#include "ops/micro_op.h"
#include "plimsoll/kernels.h"
#include "plimsoll/ops.h"
#include "plimsoll/plan.h"

namespace plimsoll {
namespace {

// A database may hold anything under a name.
bool is_plain_name(const std::string& kernel) {
  try {
    return !kernel.empty() && parts_of(kernel).empty();
  } catch (const Error&) {
    return false;
  }
}

// What the table knows of parts of that many rows with these layouts.
std::vector<MicroKernel> measured_parts(const Graph& graph, const Op& op, const KernelSpec& layouts, int64_t rows,
                                        const CostTable& costs) {
  std::vector<MicroKernel> result;
  const std::string signature = part_signature(graph, op, layouts, rows);
  for (auto it = costs.entries().lower_bound({signature, "", 0});
       it != costs.entries().end() && it->first.signature == signature; ++it) {
    const Cost& cost = it->second;
    if (it->first.threads != 0 || cost.workspace.count < 0 || !is_plain_name(it->first.kernel)) continue;
    result.push_back({it->first.kernel, rows, cost.time_ms, part_workspace(cost.workspace)});
  }
  return result;
}

// What the device offers for parts of which nothing is measured, with estimated costs; asked when first needed.
class OfferedParts {
 public:
  OfferedParts(const Graph& graph, const Op& op, const Device& device, const CostTable& costs, LayoutFamily family)
      : graph_(graph), op_(op), device_(device), costs_(costs), family_(family) {}

  void add_to(MicroBatchKernels& candidates, const KernelSpec& layouts, int64_t batch) {
    if (parts_.empty()) ask(batch);
    for (const auto& [part, specs] : parts_) {
      const Op& op = part.graph.op(part.op);
      const int64_t rows = divisible_batch(part.graph, op);
      for (const KernelSpec& spec : specs) {
        if (!same_layouts(spec, layouts) || spec.last_resort) continue;
        candidates[rows].push_back(
            {spec.name, rows, costs_.cost(part.graph, op, spec).time_ms, part_workspace(spec.workspace)});
      }
    }
  }

 private:
  void ask(int64_t batch) {
    for (int64_t rows : micro_batch_sizes(BatchSizes::power_of_two, batch)) {
      if (rows >= batch) continue;
      MicroOp part = micro_op(graph_, op_, rows);
      try {
        std::vector<KernelSpec> specs = device_.kernels(part.graph, part.graph.op(part.op), family_);
        parts_.emplace_back(std::move(part), std::move(specs));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
      }
    }
  }

  const Graph& graph_;
  const Op& op_;
  const Device& device_;
  const CostTable& costs_;
  LayoutFamily family_;
  std::vector<std::pair<MicroOp, std::vector<KernelSpec>>> parts_;
};

bool is_settled(const KernelSpec& spec) {
  auto open = [](const Layout& layout) { return layout.tag == kAnyLayout.tag; };
  return std::none_of(spec.inputs.begin(), spec.inputs.end(), open) &&
         std::none_of(spec.outputs.begin(), spec.outputs.end(), open);
}

bool rows_lie_apart(const Op& op, const KernelSpec& spec) {
  auto all = [](const std::vector<int>& divided, const std::vector<Layout>& layouts) {
    return std::all_of(divided.begin(), divided.end(), [&](int i) { return is_divisible(layouts[i]); });
  };
  return all(op.type->division.inputs, spec.inputs) && all(op.type->division.outputs, spec.outputs);
}

// All parts end where any other may begin.
void drop_unaligned(const Device& device, const Graph& graph, const Op& op, const KernelSpec& layouts, int64_t batch,
                    MicroBatchKernels& candidates) {
  int64_t alignment = 1;
  for (const auto& [rows, kernels] : candidates) {
    if (rows >= batch) continue;
    for (const MicroKernel& part : kernels) alignment = std::max(alignment, device.row_alignment(op, part.kernel));
  }
  std::erase_if(candidates, [&](const auto& entry) {
    return entry.first < batch && !is_aligned_at(graph, op, entry.first, alignment, &layouts);
  });
}

std::string name_of(const Configuration& configuration) {
  std::vector<MicroBatch> parts;
  for (const MicroKernel& part : configuration.parts) parts.push_back({part.kernel, part.batch});
  return configuration_name(parts);
}

}  // namespace

bool same_layouts(const KernelSpec& a, const KernelSpec& b) {
  return std::equal(a.inputs.begin(), a.inputs.end(), b.inputs.begin(), b.inputs.end(), same_layout) &&
         std::equal(a.outputs.begin(), a.outputs.end(), b.outputs.begin(), b.outputs.end(), same_layout);
}

void KernelCandidates::add_divided(const Op& op, LayoutFamily family, std::vector<Item>& items) {
  const int64_t batch = divisible_batch(graph_, op);
  const BatchSizes sizes = batch_sizes_.value_or(BatchSizes::power_of_two);
  // A library may refuse the whole for its size, as cuDNN does from 2^31 elements: parts of it are worth estimating.
  const bool slow =
      !items.empty() && std::all_of(items.begin(), items.end(), [](const Item& item) { return item.spec.last_resort; });
  if (batch < 2 || sizes == BatchSizes::undivided || (!batch_sizes_ && costs_.entries().empty() && !slow)) return;
  const bool spacious =
      std::any_of(items.begin(), items.end(), [](const Item& item) { return item.spec.workspace.count > 0; });
  if (!spacious && !slow) return;
  if (sizes == BatchSizes::all && batch > kMostMicroBatches) return;
  const std::vector<int64_t> rows = micro_batch_sizes(sizes, batch);
  OfferedParts offered(graph_, op, device_, costs_, family);
  const size_t whole = items.size();
  for (size_t first = 0; first < whole; ++first) {
    if (items[first].layouts != static_cast<int>(first)) continue;
    const KernelSpec layouts = items[first].spec;
    if (!is_settled(layouts) || !rows_lie_apart(op, layouts)) continue;
    MicroBatchKernels candidates;
    bool has_workspaces = false;
    for (size_t i = first; i < whole; ++i) {
      const Item& item = items[i];
      if (item.layouts != static_cast<int>(first)) continue;
      candidates[batch].push_back({item.spec.name, batch, item.time_ms, item.spec.workspace});
      has_workspaces = has_workspaces || item.spec.workspace.count > 0;
    }
    if (!has_workspaces && !slow) continue;
    for (int64_t n : rows) {
      if (n >= batch) continue;
      if (std::vector<MicroKernel> known = measured_parts(graph_, op, layouts, n, costs_); !known.empty())
        candidates.emplace(n, std::move(known));
    }
    if (candidates.size() < 2 && (batch_sizes_ || slow)) offered.add_to(candidates, layouts, batch);
    drop_unaligned(device_, graph_, op, layouts, batch, candidates);
    if (candidates.size() < 2) continue;
    const DivisionCost division = division_cost(graph_, op, costs_.rates(), layouts.outputs);
    for (const Configuration& configuration : pareto_front(candidates, batch, division)) {
      if (!configuration.is_divided() || static_cast<int64_t>(configuration.parts.size()) > kMostMicroBatches) continue;
      KernelSpec spec = layouts;
      spec.name = name_of(configuration);
      spec.workspace = configuration.workspace;
      items.push_back({std::move(spec), configuration.time_ms, static_cast<int>(first), true});
    }
  }
}

std::optional<KernelCandidates::Item> KernelCandidates::assemble(const Op& op, LayoutFamily family,
                                                                 const std::string& kernel) const {
  const std::vector<MicroBatch> parts = parts_of(kernel);
  if (parts.empty() || divisible_batch(graph_, op) == 0) return std::nullopt;
  std::optional<Item> result;
  Bytes most;
  int64_t left = divisible_batch(graph_, op), row = 0;
  for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    while (end < parts.size() && parts[end] == parts[begin]) left -= parts[end++].batch;
    if (left < 0) return std::nullopt;
    const MicroOp part = micro_op(graph_, op, parts[begin].batch);
    const Op& small = part.graph.op(part.op);
    const std::vector<KernelSpec> offered = device_.kernels(part.graph, small, family);
    const auto spec = std::find_if(offered.begin(), offered.end(), [&](const KernelSpec& one) {
      return one.name == parts[begin].kernel && (!result || same_layouts(one, result->spec));
    });
    if (spec == offered.end()) return std::nullopt;
    if (!result) result = Item{*spec, 0, -1, true};
    result->time_ms += static_cast<double>(end - begin) * costs_.cost(part.graph, small, *spec).time_ms;
    most = std::max(most, part_workspace(spec->workspace));
    const int64_t alignment = device_.row_alignment(op, parts[begin].kernel);
    if (begin > 0 && !is_aligned_at(graph_, op, row, alignment, &result->spec)) return std::nullopt;
    if (end - begin > 1 && !is_aligned_at(graph_, op, row + parts[begin].batch, alignment, &result->spec))
      return std::nullopt;
    row += static_cast<int64_t>(end - begin) * parts[begin].batch;
  }
  if (left != 0 || !rows_lie_apart(op, result->spec)) return std::nullopt;
  result->spec.name = kernel;
  result->spec.workspace = most + summing_workspace(graph_, op, result->spec.outputs);
  return result;
}

std::vector<const KernelCandidates::Item*> KernelCandidates::named(OpId id, LayoutFamily family,
                                                                   const std::string& kernel) {
  std::vector<const Item*> result;
  for (const Item& item : of(id, family)) {
    if (item.spec.name == kernel) result.push_back(&item);
  }
  if (!result.empty()) return result;
  if (std::optional<Item> item = assemble(graph_.op(id), family, kernel))
    result.push_back(&assembled_.emplace_back(std::move(*item)));
  return result;
}

}  // namespace plimsoll
