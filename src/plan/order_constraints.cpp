#include "plan/order_constraints.h"

#include <algorithm>

namespace plimsoll {

OrderConstraints::OrderConstraints(const Graph& graph, const ValueTimeline& timeline)
    : before_(timeline.steps.size()), after_(timeline.steps.size()) {
  for (int32_t s = 0; s < count(); ++s) {
    const TimelineStep& step = timeline.steps[s];
    for (const TensorId t : graph.op(step.op).inputs) {
      const OpId producer = graph.tensor(t).producer;
      if (producer.valid()) before_[s].push_back(timeline.step_of[producer]);
    }
    for (const TimelineInPlace& pair : step.in_place) {
      if (!pair.required) continue;
      for (const int32_t user : timeline.values[pair.input].uses) {
        if (user != s) before_[s].push_back(user);
      }
    }
  }
  for (int32_t s = 0; s < count(); ++s) {
    std::ranges::sort(before_[s]);
    before_[s].erase(std::ranges::unique(before_[s]).begin(), before_[s].end());
    for (const int32_t b : before_[s]) after_[b].push_back(s);
  }
}

bool OrderConstraints::waits(int32_t step, int32_t for_step) const {
  return std::ranges::binary_search(before_[step], for_step);
}

}  // namespace plimsoll
