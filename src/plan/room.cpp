#include "plan/room.h"

#include "base/by_id.h"
#include "plimsoll/plan.h"

namespace plimsoll {

std::vector<Bytes> room_of_ops(const Graph& graph, const Plan& plan, Bytes budget) {
  const ById<StepIndex, Bytes> live(live_bytes(plan));
  ById<StepIndex, Bytes> own(plan.steps.size());
  for (const Stay& stay : plan.stays) {
    if (stay.is_workspace()) own[stay.first] = stay.bytes;
  }
  ById<OpId, Bytes> room(graph.op_count(), budget);
  for (StepIndex s = 0; s < static_cast<StepIndex>(plan.steps.size()); ++s) {
    Bytes& least = room[plan.steps[s].op];
    const Bytes here = budget - live[s] + own[s];
    least = std::min(least, Bytes{here.count / kStayAlignment * kStayAlignment});
  }
  return room;
}

}  // namespace plimsoll
