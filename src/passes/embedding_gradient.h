// The gradient of an embedding's table stays what it is made of, the gradient of the rows that were looked up, until somebody
// reads it (ops/embedding_gradient.cpp):
//
//   before   dy, indices ──> EmbeddingBackward ──> gradient ──> SgdUpdate
//   after    dy, indices ──> EmbeddingSgdUpdate
#pragma once

#include "plimsoll/autodiff.h"

namespace plimsoll {

// Of a training step: where the gradient is read by the parameter's update, with or without clipping by the norm, by its sum
// over batches, or added to another (of an output layer with the same weights, or of another lookup). Not where ranks
// exchange the very gradient, and not where the rows that were looked up, with room to sort them, take as much memory as the
// table. Returns how many gradients no longer lie whole.
int keep_embedding_gradients_sparse(Network& training);

// Whether an op is one of those that the pass makes.
bool reads_lookups(const Op& op);

}  // namespace plimsoll
