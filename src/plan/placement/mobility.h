// Group Tensors By Mobility (Dymem, Algorithm 3): which part of the unified pool a layer's tensor belongs to.
#pragma once

#include <span>
#include <vector>

#include "base/by_id.h"
#include "plan/placement/placement.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

struct LayerFacts {
  bool is_fc_softmax_dropout = false;  // small, and never offloaded
  int reference_count = 1;             // layers that read the result
  bool has_next = true;  // the next step of the route reads it; in the backward pass what waited for a join has one
};

inline Mobility classify_mobility(const LayerFacts& layer) {
  if (layer.is_fc_softmax_dropout) return Mobility::reclaimed;
  if (layer.reference_count > 1 || !layer.has_next) return Mobility::temporary;
  return Mobility::movable;
}

// For the plan's steps in their order. A forward tensor's layers are the forward ops that read it, through
// views; a gradient's are the forward ops whose backward steps read it. What comes from outside the step is movable.
ById<TensorId, Mobility> group_by_mobility(const Graph& graph, std::span<const Step> steps);

}  // namespace plimsoll
