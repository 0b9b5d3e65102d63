#include "kernels/workspace_limits.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "cost/signature.h"
#include "plimsoll/kernels.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr double kBeyond = 1 + 1e-9;  // times a price at which two kernels are worth the same

bool has_layouts(const Graph& graph, const Op& op, const KernelSpec& spec) {
  auto fits = [&](const std::vector<TensorId>& ids, const std::vector<Layout>& layouts) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!same_layout(graph.tensor(ids[i]).layout, layouts[i])) return false;
    }
    return true;
  };
  return fits(op.inputs, spec.inputs) && fits(op.outputs, spec.outputs);
}

void take(LayoutResult& layouts, OpId op, const KernelCandidates::Item& from, const KernelCandidates::Item& to) {
  layouts.kernels[op.index] = {to.spec.name, to.spec.workspace};
  layouts.estimated_ms += to.time_ms - from.time_ms;
}

// Ops of the graph before Reorders were added: those that the candidates knows.
int32_t known_ops(const Graph& graph) {
  int32_t count = graph.op_count();
  while (count > 0 && graph.op({count - 1}).type->name == "Reorder") --count;
  return count;
}

const KernelCandidates::Item* find(const std::vector<const KernelCandidates::Item*>& items,
                                   const KernelChoice& choice) {
  const auto it =
      std::find_if(items.begin(), items.end(), [&](const auto* item) { return item->spec.name == choice.kernel; });
  return it == items.end() ? nullptr : *it;
}

}  // namespace

std::vector<const KernelCandidates::Item*> interchangeable(const Graph& graph, OpId id, KernelCandidates& candidates,
                                                           LayoutFamily family, bool divide) {
  std::vector<const KernelCandidates::Item*> result;
  const Op& op = graph.op(id);
  if (op.type->is_view) return result;
  bool has_workspaces = false;
  for (const KernelCandidates::Item& item : candidates.of(id, family)) {
    if (!candidates.is_allowed(item, divide) || !has_layouts(graph, op, item.spec)) continue;
    has_workspaces = has_workspaces || item.spec.workspace.count > 0;
    result.push_back(&item);
  }
  if (!has_workspaces) result.clear();
  return result;
}

int choose_within(const Graph& graph, KernelCandidates& candidates, LayoutResult& layouts, bool divide,
                  const std::function<Bytes(OpId)>& room) {
  int changed = 0;
  for (OpId op{0}; op.index < known_ops(graph); ++op.index) {
    const auto items = interchangeable(graph, op, candidates, layouts.family, divide);
    const KernelCandidates::Item* now = find(items, layouts.kernels[op.index]);
    if (now == nullptr) continue;
    const Bytes limit = room(op);
    const KernelCandidates::Item* best = now->spec.workspace <= limit ? now : nullptr;
    for (const KernelCandidates::Item* item : items) {
      if (item->spec.workspace <= limit && (best == nullptr || item->time_ms < best->time_ms)) best = item;
    }
    if (best == nullptr || best == now) continue;
    take(layouts, op, *now, *best);
    ++changed;
  }
  return changed;
}

namespace {

// For each op of which something may be chosen: what it has now, and what it may have.
template <class Visit>
void for_each_choice(const Graph& graph, KernelCandidates& candidates, const LayoutResult& layouts, bool divide,
                     Bytes each, const Visit& visit) {
  for (OpId op{0}; op.index < known_ops(graph); ++op.index) {
    auto items = interchangeable(graph, op, candidates, layouts.family, divide);
    const KernelCandidates::Item* now = find(items, layouts.kernels[op.index]);
    if (now == nullptr) continue;
    std::erase_if(items, [&](const auto* item) { return item != now && item->spec.workspace > each; });
    visit(op, *now, items);
  }
}

double priced(const KernelCandidates::Item& item, double ms_of_byte) {
  return item.time_ms + ms_of_byte * static_cast<double>(item.spec.workspace.count);
}

}  // namespace

void choose_by_price(const Graph& graph, KernelCandidates& candidates, LayoutResult& layouts, bool divide,
                     double ms_of_byte, Bytes each) {
  for_each_choice(graph, candidates, layouts, divide, each, [&](OpId op, const auto& now, const auto& items) {
    const KernelCandidates::Item* best = &now;
    for (const KernelCandidates::Item* item : items) {
      if (priced(*item, ms_of_byte) < priced(*best, ms_of_byte)) best = item;
    }
    if (best != &now) take(layouts, op, now, *best);
  });
}

std::vector<double> workspace_prices(const Graph& graph, KernelCandidates& candidates, const LayoutResult& layouts,
                                     bool divide, Bytes each) {
  std::vector<double> prices;
  for_each_choice(graph, candidates, layouts, divide, each, [&](OpId, const auto&, auto items) {
    const KernelCandidates::Item* at = *std::ranges::min_element(
        items, {}, [](const auto* item) { return std::pair(item->time_ms, item->spec.workspace); });
    while (true) {  // along the lower left hull of times and workspaces
      const KernelCandidates::Item* next = nullptr;
      double least = 0;
      for (const KernelCandidates::Item* item : items) {
        if (item->spec.workspace >= at->spec.workspace) continue;
        const double price =
            (item->time_ms - at->time_ms) / static_cast<double>((at->spec.workspace - item->spec.workspace).count);
        if (next == nullptr || price < least || (price == least && item->spec.workspace < next->spec.workspace)) {
          next = item;
          least = price;
        }
      }
      if (next == nullptr) break;
      prices.push_back(least * kBeyond);
      at = next;
    }
  });
  std::ranges::sort(prices);
  prices.erase(std::unique(prices.begin(), prices.end()), prices.end());
  return prices;
}

std::vector<Bytes> workspaces_worth_having(const Graph& graph, KernelCandidates& candidates,
                                           const LayoutResult& layouts, bool divide, Bytes each) {
  std::vector<Bytes> sizes;
  Bytes most;
  for (const KernelChoice& kernel : layouts.kernels) most = std::max(most, kernel.workspace);
  for_each_choice(graph, candidates, layouts, divide, each, [&](OpId, const auto&, auto items) {
    std::ranges::sort(items, {}, [](const auto* item) { return std::pair(item->spec.workspace, item->time_ms); });
    double least_ms = INFINITY;
    for (const KernelCandidates::Item* item : items) {
      if (item->time_ms >= least_ms) continue;
      least_ms = item->time_ms;
      if (item->spec.workspace < most) sizes.push_back(item->spec.workspace);
    }
  });
  std::ranges::sort(sizes, std::greater());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

bool counts_in_total(const Op& op) {
  const LayerKind kind = layer_kind(op);
  return kind == LayerKind::convolution || kind == LayerKind::fully_connected;
}

Bytes share_of_total(const Graph& graph, Bytes total) {
  const auto ops = std::count_if(graph.ops().begin(), graph.ops().end(), counts_in_total);
  return {total.count / std::max<int64_t>(ops, 1)};
}

bool divide_total(const Graph& graph, KernelCandidates& candidates, LayoutResult& layouts, bool divide, Bytes total,
                  Bytes each) {
  std::vector<OpId> ops;
  std::vector<const KernelCandidates::Item*> before;
  std::vector<std::vector<const KernelCandidates::Item*>> choices;
  std::vector<std::vector<Configuration>> fronts;
  for (OpId op{0}; op.index < known_ops(graph); ++op.index) {
    if (!counts_in_total(graph.op(op))) continue;
    auto items = interchangeable(graph, op, candidates, layouts.family, divide);
    const KernelCandidates::Item* now = find(items, layouts.kernels[op.index]);
    if (now == nullptr) {
      total = total - layouts.kernels[op.index].workspace;
      continue;
    }
    before.push_back(now);
    Bytes least = now->spec.workspace;
    for (const KernelCandidates::Item* item : items) least = std::min(least, item->spec.workspace);
    std::erase_if(items, [&](const auto* item) { return item->spec.workspace > std::max(each, least); });
    std::vector<Configuration> front;
    for (const KernelCandidates::Item* item : items)
      front.push_back({.time_ms = item->time_ms, .workspace = item->spec.workspace});
    ops.push_back(op);
    choices.push_back(std::move(items));
    fronts.push_back(std::move(front));
  }
  if (total.count < 0) return false;
  const std::optional<WorkspaceDivision> division = divide_workspace(fronts, total);
  if (!division) return false;
  for (size_t i = 0; i < ops.size(); ++i) {
    take(layouts, ops[i], *before[i], *choices[i][division->chosen[i]]);
  }
  return true;
}

}  // namespace plimsoll
