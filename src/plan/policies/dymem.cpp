// Dymem (HPDC 2020): feature maps that convolutions, pools and activations read are copied out on a stream of their
// own, without barriers (section 3.2.1); in the backward pass candidates are fetched ahead, no more than two
// convolutions' at a time, other layers' freely (Algorithm 2); what is not enough room waits. Placement "gtbm" is its
// pool (section 3.3).
#include <algorithm>

#include "plan/policies/policies.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

class Dymem {
 public:
  explicit Dymem(const PolicyInput& input)
      : input_(input),
        timeline_(make_timeline(input)),
        forward_(forward_values(input, timeline_)),
        scheduler_(timeline_) {}

  PlanOrInfeasible plan() {
    const int ahead = std::stoi(option(input_, "ahead", {"2", "1", "3", "4"}));
    Decisions decisions = keep_everything(timeline_);
    for (const ForwardValue& f : forward_) {
      if (!input_.device.tiers.empty() && f.has_backward_uses && is_candidate(timeline_.values[f.value])) {
        decisions.gaps[f.turning_gap] = kOffload;
      }
    }
    scheduler_.run(decisions, schedule_);
    if (schedule_.unrecoverable >= 0 || schedule_.moves.empty())
      return finish_plan(input_, timeline_, decisions, schedule_, "dymem");
    find_earliest(ahead);
    return finish_spread(input_, timeline_, decisions, schedule_, "dymem", &earliest_);
  }

 private:
  bool is_candidate(const TimelineValue& value) const {
    return std::any_of(value.uses.begin(), value.uses.end(), [&](int32_t s) {
      const Op& op = input_.graph.op(timeline_.steps[s].op);
      const LayerKind kind = layer_kind(op);
      return op.phase == Phase::forward &&
             (kind == LayerKind::convolution || kind == LayerKind::pool || kind == LayerKind::activation ||
              kind == LayerKind::batch_norm || kind == LayerKind::lrn);
    });
  }

  // A copy in may not start before the backward step of the convolution that is `ahead` convolutions before its reader.
  void find_earliest(int ahead) {
    std::vector<int32_t> convolutions;  // backward steps, one a layer
    OpId layer;
    for (int32_t d = 0; d < static_cast<int32_t>(schedule_.steps.size()); ++d) {
      const Op& op = input_.graph.op(timeline_.steps[schedule_.steps[d].step].op);
      if (op.phase != Phase::backward || layer_kind(op) != LayerKind::convolution ||
          (op.forward.valid() && op.forward == layer))
        continue;
      layer = op.forward;
      convolutions.push_back(d);
    }
    earliest_.assign(schedule_.moves.size(), 0);
    for (size_t m = 0; m < schedule_.moves.size(); ++m) {
      if (schedule_.moves[m].out) continue;
      const auto next = std::upper_bound(convolutions.begin(), convolutions.end(), schedule_.moves[m].before);
      const auto index = next - convolutions.begin() - 1 - ahead;
      earliest_[m] = index >= 0 ? convolutions[index] : 0;
    }
  }

  const PolicyInput& input_;
  ValueTimeline timeline_;
  std::vector<ForwardValue> forward_;
  Scheduler scheduler_;
  Schedule schedule_;
  std::vector<int32_t> earliest_;  // by move: the first step of the schedule that it may run beside
};

}  // namespace

PlanOrInfeasible plan_dymem(const PolicyInput& input) { return Dymem(input).plan(); }

}  // namespace plimsoll
