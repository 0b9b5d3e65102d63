// The search behind choose_layouts: for one family, a kernel for every op and a layout for every tensor. Changes
// nothing; the rewriting is in layout.cpp.
//
//   data ──abcd──> conv1 ──aBcd16b──> bn1 ──aBcd16b──> flatten     wants abcd: a reorder stands between bn1 and flatten
//                   │ w: ABcd16b16a, as conv1 wants it; conv1's backward-data wants ABcd16a16b: a reorder in backward
//
// Ops are taken in order. Each takes the kernel that is cheapest together with the reorders that its inputs then need.
// A parameter is laid out by its first reader, which also counts what its choice costs the parameter's other readers
// and the gradient on its way to the update.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/by_id.h"
#include "kernels/layout.h"

namespace plimsoll {

// What a device offers for the ops of one graph, asked once per signature, and what it costs.
class KernelCandidates {
 public:
  struct Item {
    KernelSpec spec;  // the name is a configuration where the batch is divided
    double time_ms = 0;
    int layouts = 0;  // the same number: the same layouts, in one op and family
    bool divided = false;
  };

  // With `exact`, what may be chosen by rule alone: no parts, and is_allowed() tells which items.
  KernelCandidates(const Graph& graph, const Device& device, const CostTable& costs,
                   std::optional<BatchSizes> batch_sizes = {}, bool exact = false);
  // Never empty; empty for views. Throws Error(unsupported) as the device does.
  const std::vector<Item>& of(OpId op, LayoutFamily family);
  // The item of that name, which may be a configuration that `of` has not; none where the device has no such kernels.
  std::vector<const Item*> named(OpId op, LayoutFamily family, const std::string& kernel);
  bool is_allowed(const Item& item, bool divide) const;
  // Whether the first of kernels that estimates do not tell apart is taken, rather than the one with the least
  // workspace.
  bool is_in_order() const { return device_.info().lists_best_first; }
  size_t class_of(OpId op) const { return class_of_op_[op]; }
  size_t class_count() const { return items_[0].size(); }
  double reorder_ms(const Tensor& tensor, const Layout& from, const Layout& to);

 private:
  void add_divided(const Op& op, LayoutFamily family, std::vector<Item>& items);
  std::optional<Item> assemble(const Op& op, LayoutFamily family, const std::string& kernel) const;

  const Graph& graph_;
  const Device& device_;
  const CostTable& costs_;
  std::optional<BatchSizes> batch_sizes_;
  bool exact_ = false;
  std::deque<Item> assembled_;
  ById<OpId, int> class_of_op_;
  std::array<std::vector<std::optional<std::vector<Item>>>, 3> items_;  // by family, class
  std::map<std::string, double> reorder_ms_;
};

struct LayoutAssignment {
  LayoutFamily family = LayoutFamily::plain;
  ById<TensorId, Layout> made;     // by tensor: as its producer makes it, or as it comes from outside
  ById<OpId, KernelSpec> kernels;  // by op: the chosen kernel and the layouts that it will see; "" for views
  double time_ms = 0;              // kernels and reorders
};

// Throws Error(unsupported) where the family cannot do it: no kernel, no pinned kernel, or none that fits a mask's
// layout.
LayoutAssignment assign_layouts(const Graph& graph, std::span<const OpId> order, KernelCandidates& candidates,
                                LayoutFamily family, const LayoutOptions& options);

// The layouts that a tensor must have for the world outside the step: plain for outputs, the state's own for what a
// state becomes. None for the others.
ById<TensorId, std::optional<Layout>> outside_layouts(const Graph& graph, const ById<TensorId, Layout>& made);

bool same_layouts(const KernelSpec& a, const KernelSpec& b);
bool can_reorder(DType dtype);  // masks and indices stay as their producer makes them

}  // namespace plimsoll
