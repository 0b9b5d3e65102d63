#include "kernels/selection.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/workspace_limits.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr LayoutFamily kFamilies[] = {LayoutFamily::blocked, LayoutFamily::channels_last, LayoutFamily::plain};

constexpr Bytes kSmallestLimit = 4_KiB;  // of those that are tried where a total is divided

std::vector<LayoutFamily> families(std::optional<LayoutFamily> forced) {
  if (forced) return {*forced};
  return {std::begin(kFamilies), std::end(kFamilies)};
}

Bytes largest(const LaidOut& laid) {
  Bytes most;
  for (const KernelChoice& kernel : laid.layouts.kernels) most = std::max(most, kernel.workspace);
  return most;
}

}  // namespace

KernelSelection::KernelSelection(const Network& network, const Device& device, const CostTable& costs,
                                 const CompileOptions& options)
    : network_(network),
      device_(device),
      fixed_costs_(costs.unmeasured()),
      costs_(options.exact ? fixed_costs_ : costs),
      options_(options),
      each_(options.kernels.empty() ? options.workspace : Bytes{INT64_MAX}),
      total_(options.kernels.empty() ? options.workspace_total : std::nullopt),
      candidates_(network.graph, device, costs_, options.batch_sizes, options.exact) {}

// With no kernel above `asked` where there is another.
LaidOut KernelSelection::lay_out(const Choice& choice, Bytes asked) {
  LaidOut result{network_.graph, {}};
  LayoutOptions options{.family = choice.family,
                        .pinned = options_.state_layouts,
                        .fed = device_.host_addressable() ? TensorId{} : network_.data,
                        .pinned_kernels = options_.kernels,
                        .workspace_limit = std::min(choice.limit, asked),
                        .asked_limit = options_.exact ? std::min(choice.limit, asked) : asked,
                        .batch_sizes = options_.batch_sizes,
                        .exact = options_.exact,
                        .candidates = &candidates_};
  if (!choice.divide) options.batch_sizes = BatchSizes::undivided;
  result.layouts = choose_layouts(result.graph, device_, costs_, options);
  return result;
}

// Divides the total, where there is one.
bool KernelSelection::keep_limits(LaidOut& laid, const Choice& choice) {
  if (largest(laid) > each_) return false;
  return !total_ ||
         divide_total(laid.graph, candidates_, laid.layouts, choice.divide, *total_, std::min(choice.limit, each_));
}

std::optional<LaidOut> KernelSelection::choose(const Choice& choice) {
  std::optional<LaidOut> best;
  Bytes widest;
  auto consider = [&](const Choice& how, Bytes asked) {
    LaidOut laid = lay_out(how, asked);
    widest = std::max(widest, largest(laid));
    if (keep_limits(laid, choice) && (!best || laid.layouts.estimated_ms < best->layouts.estimated_ms))
      best = std::move(laid);
  };
  consider(choice, each_);
  if (total_) {  // layouts that suit the fastest kernels, those that an equal share gives every op, and the smallest
    const Bytes part = share_of_total(network_.graph, *total_);
    if (part < std::min(choice.limit, each_)) consider({choice.family, part, choice.divide}, each_);
    // The total is divided among kernels of the same layouts, so those that suit every smaller limit are tried.
    const Bytes most = std::min({choice.limit, each_, *total_, widest});
    for (Bytes limit = kSmallestLimit; limit < most; limit = {limit.count * 2})
      consider({choice.family, limit, choice.divide}, each_);
    consider({choice.family, 0_B, choice.divide}, each_);
  }
  // The cheapest family may need too much for its reorders, or for its smallest kernels.
  for (const bool least : {false, true}) {
    if (best) break;
    for (LayoutFamily family : families(choice.family)) {
      try {
        consider({family, least ? 0_B : choice.limit, choice.divide}, least ? 0_B : each_);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
      }
    }
  }
  if (best && choice.ms_of_byte > 0 && !total_)
    choose_by_price(best->graph, candidates_, best->layouts, choice.divide, choice.ms_of_byte,
                    std::min(choice.limit, each_));
  return best;
}

std::vector<double> KernelSelection::prices(const LaidOut& laid, const Choice& choice) {
  return workspace_prices(laid.graph, candidates_, laid.layouts, choice.divide, std::min(choice.limit, each_));
}

std::vector<Bytes> KernelSelection::workspaces(const LaidOut& laid, const Choice& choice) {
  return workspaces_worth_having(laid.graph, candidates_, laid.layouts, choice.divide, std::min(choice.limit, each_));
}

std::optional<LaidOut> KernelSelection::upgrade(const LaidOut& laid, bool divide,
                                                const std::function<Bytes(OpId)>& room) {
  LaidOut next = laid;
  const int changed =
      choose_within(next.graph, candidates_, next.layouts, divide, [&](OpId op) { return std::min(room(op), each_); });
  if (changed == 0) return std::nullopt;
  return next;
}

std::vector<LaidOut> KernelSelection::smallest(bool divide) {
  std::vector<LaidOut> result;
  for (LayoutFamily family : families(options_.family)) {
    try {
      result.push_back(lay_out({family, 0_B, divide}, 0_B));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
    }
  }
  return result;
}

Infeasible KernelSelection::over_limit(bool divide) {
  std::vector<LaidOut> all = smallest(divide);
  auto total_of = [](const LaidOut& laid) {
    Bytes sum;
    for (OpId op{0}; op.index < laid.graph.op_count(); ++op.index) {
      if (counts_in_total(laid.graph.op(op))) sum += laid.layouts.kernels[op.index].workspace;
    }
    return sum;
  };
  auto least_by = [&](auto measure) {
    return *std::min_element(all.begin(), all.end(),
                             [&](const LaidOut& a, const LaidOut& b) { return measure(a) < measure(b); });
  };
  LaidOut least = least_by(largest);
  Infeasible result{.policy = options_.policy, .flag = "--workspace", .budget = each_, .minimum = largest(least)};
  if (result.minimum <= each_) {
    std::erase_if(all, [&](const LaidOut& laid) { return largest(laid) > each_; });
    least = least_by(total_of);
    result.flag = "--workspace-total";
    result.budget = *total_;
    result.minimum = total_of(least);
  }
  const bool total = result.flag == "--workspace-total";
  for (OpId id{0}; id.index < least.graph.op_count(); ++id.index) {
    const Op& op = least.graph.op(id);
    const Bytes workspace = least.layouts.kernels[id.index].workspace;
    if (total ? workspace.count == 0 || !counts_in_total(op) : workspace <= each_) continue;
    result.needs.push_back({.tensor = op.name, .bytes = workspace, .workspace = true});
  }
  std::stable_sort(result.needs.begin(), result.needs.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  if (!result.needs.empty()) {
    const Op& op = least.graph.op(least.graph.find_op(result.needs[0].tensor));
    result.op = op.name;
    result.layer = op.layer;
  }
  result.suggestion = fmt::format("raise {} to {}", result.flag, result.minimum.count);
  if (!options_.exact && options_.batch_sizes == BatchSizes::undivided)
    result.suggestion += ", or let --batch-sizes divide the batch";
  return result;
}

}  // namespace plimsoll
