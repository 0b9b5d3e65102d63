// Messages beside compute: which collectives of a plan run as one, and until when each may take.
//
//   backward   dw9 ] dw8 ] dw7 ] dw6 ] ...                  gradients in the order in which they come
//   messages         [ dw9 + dw8      ][ dw7 + dw6     ]    buckets: few, since each waits for the link's latency; but not
//   updates                             w9, w8 ...          too few, since the last gradients are waited for
//
// Buckets are those of PyTorch's DistributedDataParallel (Li et al., VLDB 2020); here their size follows from the simulated
// step. How long an update waits is the route's: the longer, the more is hidden, and the more gradients are alive.
#pragma once

#include "plan/route.h"
#include "plimsoll/plan.h"

namespace plimsoll {

// Moves every update whose gradient comes from other ranks back, until `in_flight` bytes of gradients that came after it
// are on their way. What takes a piece of a parameter for the update, and what gathers the pieces after it, goes with it. 0:
// the route as it is.
Route delay_updates(const Graph& graph, Route route, Bytes in_flight);

// Moves what gathers a divided parameter forward, so that it comes while ops before its reader run: as long as no more than
// `in_flight` bytes (and no more than a few layers have) are there ahead. 0: the route as it is.
Route advance_gathers(const Graph& graph, Route route, Bytes in_flight);

// The same steps with their collectives beside compute, in the buckets that make the step shortest; each is complete before
// the first step or copy that needs it or its bytes. The plan itself where nothing is gained, or steps run at once.
// `plan`: valid, with its times, and without collectives.
Plan overlap_messages(const Graph& graph, const Plan& plan);

}  // namespace plimsoll
