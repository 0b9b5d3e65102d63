// vDNN (MICRO 2016), as Dymem measures against it: the inputs of layers are copied out while the layer runs and come
// back while the layer behind it runs backward; compute and copies wait for each other after every layer.
//
//   layers=all    the input of every layer      layers=conv   of convolutions alone
//   layers=dyn    the fastest of: nothing, conv, all, that fits
#include <algorithm>

#include "plan/policies/policies.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

class Vdnn {
 public:
  explicit Vdnn(const PolicyInput& input)
      : input_(input),
        timeline_(make_timeline(input)),
        forward_(forward_values(input, timeline_)),
        scheduler_(timeline_) {}

  PlanOrInfeasible plan() {
    const std::string layers = option(input_, "layers", {"dyn", "all", "conv"});
    if (input_.device.tiers.empty() || layers == "all") return make(!input_.device.tiers.empty(), false);
    if (layers == "conv") return make(true, true);
    PlanOrInfeasible best = make(false, false);
    if (std::holds_alternative<Plan>(best)) return best;
    keep_better(input_, best, make(true, true));
    keep_better(input_, best, make(true, false));
    return best;
  }

 private:
  bool is_layer_input(const TimelineValue& value, bool conv_only) const {
    return std::any_of(value.uses.begin(), value.uses.end(), [&](int32_t s) {
      const Op& op = input_.graph.op(timeline_.steps[s].op);
      if (op.phase != Phase::forward) return false;
      const LayerKind kind = layer_kind(op);
      return conv_only ? kind == LayerKind::convolution : kind != LayerKind::other;
    });
  }

  PlanOrInfeasible make(bool offload, bool conv_only) {
    Decisions decisions = keep_everything(timeline_);
    for (const ForwardValue& f : forward_) {
      if (offload && f.has_backward_uses && is_layer_input(timeline_.values[f.value], conv_only))
        decisions.gaps[f.turning_gap] = kOffload;
    }
    scheduler_.run(decisions, schedule_);
    if (schedule_.unrecoverable < 0) set_barriers();
    return finish_plan(input_, timeline_, decisions, schedule_, "vdnn");
  }

  // Out: during the last layer that reads it forward, complete when that is. In: during the layer before the one that
  // reads it.
  void set_barriers() {
    for (ScheduledMove& move : schedule_.moves) {
      Residence& residence = schedule_.residences[move.residence];
      if (move.out) {
        move.after = std::max(residence.last - 1, residence.last_written);
        continue;
      }
      int32_t previous = residence.first - 1;
      while (previous > 0 && timeline_.steps[schedule_.steps[previous].step].ms <= 0) --previous;
      if (previous <= 0) continue;
      const int64_t bytes = timeline_.values[residence.value].bytes;
      while (residence.first > previous) schedule_.live[--residence.first] += bytes;
      move.after = previous - 1;
      move.before = previous + 1;
    }
  }

  const PolicyInput& input_;
  ValueTimeline timeline_;
  std::vector<ForwardValue> forward_;
  Scheduler scheduler_;
  Schedule schedule_;
};

}  // namespace

PlanOrInfeasible plan_vdnn(const PolicyInput& input) { return Vdnn(input).plan(); }

}  // namespace plimsoll
