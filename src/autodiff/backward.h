// Reverse accumulation, op by op, so that a caller can act between two ops (create an update, for instance).
#pragma once

#include <map>
#include <span>
#include <vector>

#include "base/by_id.h"
#include "plimsoll/autodiff.h"

namespace plimsoll {

class Backward {
 public:
  // Finds the ops that lie between `wanted` and the seeded tensors. The graph must outlive this.
  Backward(Graph& graph, std::span<const TensorId> outputs, std::span<const TensorId> wanted);

  // The ops to differentiate, in the order of the forward pass. Visit them from the last to the first.
  std::span<const OpId> ops() const { return ops_; }

  // Adds `gradient` to what has come for `tensor` so far.
  void accumulate(TensorId tensor, TensorId gradient);
  // Appends the backward ops of `op`, whose outputs' gradients are complete by now.
  void visit(OpId op);
  // What has come so far; invalid where nothing has.
  TensorId gradient(TensorId tensor) const;

 private:
  Graph& graph_;
  ById<TensorId, bool> leads_to_wanted_;  // by tensor: its gradient is needed by that of a wanted one
  std::vector<OpId> ops_;
  std::map<TensorId, TensorId> gradients_;
};

// A Constant op of value 1 in the shape of `loss`. Throws Error(invalid_input) when that is no floating scalar.
TensorId append_seed(Graph& graph, TensorId loss);

}  // namespace plimsoll
