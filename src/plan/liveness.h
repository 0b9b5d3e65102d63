// Which tensors are alive when, and which of them lie in the same bytes one after the other.
//
//   step      0     1     2     3     4          x, y and z share one buffer: y = Relu(x) at step 1 takes the place of
//   x, x         ######                             which nobody reads later; z is a view of y. y ############ z
//   ############           buffer {x, y, z} = steps 0..4
//
// SuperNeurons, section 3.2: a tensor is in a step's `in` set when it is alive before it, in the `out` set when alive
// after.
#pragma once

#include <vector>

#include "base/by_id.h"
#include "plan/route.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

struct LiveRange {
  StepIndex first = 0;  // written there; 0 for what comes from outside
  StepIndex last = 0;   // the last reader; the last step for states and outputs of the graph
  friend bool operator==(const LiveRange&, const LiveRange&) = default;
};

// Tensors that take each other's place: one region of the arena from `first` to `last`.
struct SharedBuffer {
  std::vector<TensorId> tensors;  // in the order in which they are written
  Bytes bytes;                    // of the largest, a multiple of kStayAlignment
  LiveRange range;
  bool is_state = false;  // parameters, optimizer states, statistics: there during the whole step
};

struct Liveness {
  ById<TensorId, LiveRange> tensors;
  ById<TensorId, int32_t> buffer_of;         // a place in `buffers`
  std::vector<SharedBuffer> buffers;         // those of the states first, in the order of graph.states
  ById<TensorId, StepIndex> overwritten_at;  // the step that takes its bytes; -1: none
  StepIndex steps = 0;
};

struct LivenessOptions {
  bool in_place = true;  // outputs take a dying input's bytes where the op allows it; false: only where it demands it
};

// Throws Error(invalid_input) when an op reads what another has overwritten by necessity, or when a state's new value
// is not written in place.
Liveness find_liveness(const Graph& graph, const Route& route, const LivenessOptions& options = {});

std::vector<TensorId> live_before(const Graph& graph, const Liveness& liveness, StepIndex step);  // the `in` set
std::vector<TensorId> live_after(const Liveness& liveness, StepIndex step);                       // the `out` set

}  // namespace plimsoll
