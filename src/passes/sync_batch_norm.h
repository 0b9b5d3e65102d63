// Batch norms of a training that several ranks share, by the statistics of the whole batch (torch.nn.SyncBatchNorm):
//
//   x ──> BatchNormForward ──> y        becomes
//   x ──> BatchMoments ──> CombineMoments ──> SyncBatchNormForward ──> y
//   └──────────────────────────────────────────┘
//
// with what was fused into them. Those that take their running statistics stay as they are.
#pragma once

#include "plimsoll/autodiff.h"

namespace plimsoll {

// Of a forward network, before autodiff. Returns how many there were.
int synchronise_batch_norm(Network& network, int ranks);

}  // namespace plimsoll
