// What a recomputation neither writes nor needs: running statistics, new and old.
#pragma once

#include <algorithm>
#include <vector>

#include "plimsoll/graph.h"
#include "plimsoll/ops.h"

namespace plimsoll {

class RecomputeOperands {
 public:
  RecomputeOperands(const Graph& graph, const Op& op, bool recompute) {
    if (!recompute) return;
    outputs_ = state_outputs(op);
    if (outputs_.empty() || !op.type->in_place) return;
    for (const InPlace& pair : op.type->in_place(graph, op)) {
      if (pair.required && output(pair.output)) inputs_.push_back(pair.input);
    }
  }
  bool input(size_t i) const { return contains(inputs_, i); }
  bool output(size_t i) const { return contains(outputs_, i); }

 private:
  static bool contains(const std::vector<int>& list, size_t i) {
    return std::find(list.begin(), list.end(), static_cast<int>(i)) != list.end();
  }
  std::vector<int> inputs_, outputs_;
};

}  // namespace plimsoll
