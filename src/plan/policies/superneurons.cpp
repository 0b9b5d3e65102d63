// SuperNeurons (PPoPP 2018): liveness (3.2), offload and prefetch of checkpoints with a tensor cache (3.3), cost-aware
// recomputation (3.4), each of which can be switched by an option of the policy:
//
//   offload=checkpoints | conv | none      which layers' outputs go to the outside
//   recompute=cost-aware | speed | memory | none
//   cache=on | lru | farthest | off        on: nothing moves while everything fits; lru, farthest: then only as much as
//                                          must; off: what may go goes
//   release=drop | keep                    a checkpoint goes as soon as it was used, or stays until its last reader
//   prefetch=spread | checkpoint | demand  as early as memory allows; at the previous checkpoint's backward step; right
//                                          before
#include <algorithm>
#include <numeric>

#include "plan/policies/policies.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

bool is_checkpoint(LayerKind kind) {
  switch (kind) {
    case LayerKind::convolution:
    case LayerKind::fully_connected:
    case LayerKind::join:
    case LayerKind::fork:
    case LayerKind::concat:
    case LayerKind::softmax: return true;
    default: return false;
  }
}

class SuperNeurons {
 public:
  explicit SuperNeurons(const PolicyInput& input)
      : input_(input),
        timeline_(make_timeline(input)),
        forward_(forward_values(input, timeline_)),
        scheduler_(timeline_) {
    offload_ = option(input, "offload", {"checkpoints", "conv", "none"});
    recompute_ = option(input, "recompute", {"cost-aware", "speed", "memory", "none"});
    cache_ = option(input, "cache", {"on", "lru", "farthest", "off"});
    release_ = option(input, "release", {"drop", "keep"});
    prefetch_ = option(input, "prefetch", {"spread", "checkpoint", "demand"});
    if (input.device.tiers.empty()) offload_ = "none";
  }

  PlanOrInfeasible plan() {
    if (cache_ == "off") return make(true);
    PlanOrInfeasible best = finish(keep_everything(timeline_), nullptr);
    if (std::holds_alternative<Plan>(best)) return best;
    // The cache alone, if that is enough; with recomputation besides.
    if (offload_ != "none") {
      const TensorCache lru{.limit = input_.budget.count, .farthest = false},
          farthest{.limit = input_.budget.count, .farthest = true};
      if (cache_ != "farthest") keep_better(input_, best, finish(keep_everything(timeline_), &lru));
      if (cache_ != "lru") keep_better(input_, best, finish(keep_everything(timeline_), &farthest));
    }
    if (recompute_ != "none" || cache_ == "on") keep_better(input_, best, make(true));
    if (recompute_ != "none" && offload_ != "none" && cache_ == "on") keep_better(input_, best, make(false));
    return best;
  }

 private:
  PlanOrInfeasible make(bool offload) {
    Decisions decisions = decide(offload, recompute_ == "speed" || recompute_ == "cost-aware");
    if (recompute_ == "cost-aware") decide_by_cost(decisions, offload);
    return finish(decisions, nullptr);
  }

  bool goes_out(LayerKind kind) const {
    if (offload_ == "none" || kind == LayerKind::softmax) return false;
    return offload_ == "conv" ? kind == LayerKind::convolution : is_checkpoint(kind);
  }

  Decisions decide(bool offload, bool speed_centric) const {
    Decisions decisions = keep_everything(timeline_);
    for (const ForwardValue& f : forward_) {
      const TimelineValue& value = timeline_.values[f.value];
      const int32_t tail = value.first_gap + value.gap_count() - 1;
      if (offload && goes_out(f.kind)) {
        decisions.gaps[f.turning_gap] = kOffload;
        decisions.retain[f.value] = release_ == "keep";
        if (release_ == "drop")
          std::fill(decisions.gaps.begin() + f.turning_gap + 1, decisions.gaps.begin() + tail + 1, kDrop);
      } else if (recompute_ != "none" && !is_checkpoint(f.kind) && value.recomputable) {
        decisions.gaps[f.turning_gap] = kDrop;
        decisions.retain[f.value] = speed_centric;
      }
    }
    return decisions;
  }

  // A segment is a run of layers between checkpoints: values that are rebuilt from one another. It is rebuilt once and
  // kept when that needs no more than the layer that needs most; else for every backward step anew.
  void decide_by_cost(Decisions& decisions, bool offload) {
    scheduler_.run(decide(offload, false), schedule_);
    if (schedule_.unrecoverable >= 0) return;
    const int64_t most = schedule_.peak;
    const std::vector<int32_t> segment = segments_of(decisions);
    const std::vector<int64_t> need = bytes_of_segments(segment);
    for (size_t v = 0; v < segment.size(); ++v) {
      if (segment[v] >= 0 && need[segment[v]] > most) decisions.retain[v] = false;
    }
  }

  // By value: one value of its segment, the same for all; -1 outside segments.
  std::vector<int32_t> segments_of(const Decisions& decisions) const {
    std::vector<int32_t> segment(timeline_.values.size(), -1);
    for (const ForwardValue& f : forward_) {
      if (decisions.gaps[f.turning_gap] == kDrop && !is_checkpoint(f.kind)) segment[f.value] = f.value;
    }
    auto root = [&](int32_t v) {
      while (segment[v] != v) v = segment[v];
      return v;
    };
    for (size_t v = 0; v < segment.size(); ++v) {
      if (segment[v] < 0) continue;
      for (int32_t w : timeline_.steps[timeline_.values[v].producer].recompute_inputs) {
        if (segment[w] >= 0) segment[root(static_cast<int32_t>(v))] = root(w);
      }
    }
    for (size_t v = 0; v < segment.size(); ++v) {
      if (segment[v] >= 0) segment[v] = root(static_cast<int32_t>(v));
    }
    return segment;
  }

  // By the value that stands for a segment, what rebuilding and keeping it needs: its source, its layers' outputs, the
  // gradient of the last, and the largest gradient that is new.
  std::vector<int64_t> bytes_of_segments(const std::vector<int32_t>& segment) const {
    std::vector<int64_t> need(segment.size(), 0), last(segment.size(), -1), last_bytes(segment.size(), 0),
        gradient(segment.size(), 0);
    std::vector<std::vector<int32_t>> sources(segment.size());
    for (size_t v = 0; v < segment.size(); ++v) {
      if (segment[v] < 0) continue;
      const size_t r = segment[v];
      const TimelineValue& value = timeline_.values[v];
      need[r] += value.bytes;
      if (value.producer > last[r]) {
        last[r] = value.producer;
        last_bytes[r] = value.bytes;
      }
      for (int32_t w : timeline_.steps[value.producer].recompute_inputs) {
        if (segment[w] < 0 && timeline_.values[w].producer >= 0) sources[r].push_back(w);
      }
    }
    for (const TimelineStep& step : timeline_.steps) {
      const Op& op = input_.graph.op(step.op);
      if (op.phase == Phase::forward || !op.forward.valid()) continue;
      for (TensorId t : input_.graph.op(op.forward).outputs) {
        const int32_t v = timeline_.value_of[t];
        if (segment[v] < 0) continue;
        int64_t fresh = 0;
        for (int32_t o : step.outputs) {
          const bool in_place = std::any_of(step.in_place.begin(), step.in_place.end(),
                                            [&](const TimelineInPlace& p) { return p.output == o && p.required; });
          if (!in_place) fresh += timeline_.values[o].bytes;
        }
        gradient[segment[v]] = std::max(gradient[segment[v]], fresh);
      }
    }
    for (size_t r = 0; r < segment.size(); ++r) {
      if (need[r] == 0) continue;
      std::sort(sources[r].begin(), sources[r].end());
      sources[r].erase(std::unique(sources[r].begin(), sources[r].end()), sources[r].end());
      for (int32_t w : sources[r]) need[r] += timeline_.values[w].bytes;
      need[r] += last_bytes[r] + gradient[r];
    }
    return need;
  }

  PlanOrInfeasible finish(const Decisions& decisions, const TensorCache* cache) {
    scheduler_.run(decisions, schedule_, cache);
    if (schedule_.unrecoverable < 0) {
      if (prefetch_ == "checkpoint") prefetch_by_checkpoint();
      if (prefetch_ == "spread") return finish_spread(input_, timeline_, decisions, schedule_, "superneurons");
    }
    return finish_plan(input_, timeline_, decisions, schedule_, "superneurons");
  }

  // At the backward step of a checkpoint that was copied out, the one before it comes in; the last one, before the
  // first backward step.
  void prefetch_by_checkpoint() {
    std::vector<int32_t> backward_of(timeline_.steps.size(),
                                     -1);  // by forward step of the timeline: the schedule's first backward step
    int32_t first_backward = -1;
    for (int32_t d = 0; d < static_cast<int32_t>(schedule_.steps.size()); ++d) {
      const ScheduledStep& s = schedule_.steps[d];
      const Op& op = input_.graph.op(timeline_.steps[s.step].op);
      if (s.recompute || op.phase != Phase::backward) continue;
      if (first_backward < 0) first_backward = d;
      if (!op.forward.valid()) continue;
      for (TensorId t : input_.graph.op(op.forward).outputs) {
        const int32_t producer = timeline_.values[timeline_.value_of[t]].producer;
        if (producer >= 0 && backward_of[producer] < 0) backward_of[producer] = d;
      }
    }
    std::vector<std::pair<int32_t, int32_t>> copied;  // forward step, move
    for (int32_t m = 0; m < static_cast<int32_t>(schedule_.moves.size()); ++m) {
      if (schedule_.moves[m].out) continue;
      const int32_t v = schedule_.residences[schedule_.moves[m].residence].value;
      if (timeline_.values[v].producer >= 0) copied.emplace_back(timeline_.values[v].producer, m);
    }
    std::sort(copied.begin(), copied.end());
    for (size_t i = 0; i < copied.size(); ++i) {
      ScheduledMove& move = schedule_.moves[copied[i].second];
      Residence& residence = schedule_.residences[move.residence];
      size_t next = i + 1;
      while (next < copied.size() && copied[next].first == copied[i].first) ++next;
      int32_t first = next < copied.size() ? backward_of[copied[next].first] : first_backward;
      if (first < 0) continue;
      for (const Residence& other : schedule_.residences) {  // not before it has left
        if (other.value == residence.value && other.last < residence.first) first = std::max(first, other.last + 1);
      }
      const int64_t bytes = timeline_.values[residence.value].bytes;
      while (residence.first > first) schedule_.live[--residence.first] += bytes;
      move.after = residence.first - 1;
    }
    for (size_t d = 0; d < schedule_.live.size(); ++d) {
      if (schedule_.live[d] > schedule_.peak) {
        schedule_.peak = schedule_.live[d];
        schedule_.peak_step = static_cast<int32_t>(d);
      }
    }
  }

  const PolicyInput& input_;
  ValueTimeline timeline_;
  std::vector<ForwardValue> forward_;
  Scheduler scheduler_;
  Schedule schedule_;
  std::string offload_, recompute_, cache_, release_, prefetch_;
};

}  // namespace

PlanOrInfeasible plan_superneurons(const PolicyInput& input) { return SuperNeurons(input).plan(); }

}  // namespace plimsoll
