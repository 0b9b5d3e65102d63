// Looks after how a training's steps share the cores, from step to step: measures thread counts, chooses by them, and
// corrects what was chosen. It holds plans and orders one of them; the training swaps to it between two steps.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "train/ab_trial.h"
#include "train/interference_monitor.h"
#include "train/session.h"
#include "train/thread_climb.h"

namespace plimsoll {

class CoreTuner {
 public:
  using Notice = std::function<void(const std::string&)>;
  // `plan`: one step after another. Makes the first choice, or, where `measure` and something is not known, leaves it
  // until it is. The session and the graph must outlive it.
  CoreTuner(Session& session, const Graph& graph, const CheckedPlan& plan, const CoreOptions& options, bool measure,
            Notice notice);

  const CheckedPlan& plan() const { return plan_; }  // that the training is to run by
  Bytes arena() const {
    return std::max(plans_.serial->arena, plans_.relaxed->arena);
  }  // enough for any plan that may come
  // After every training step that the executor has run by plan(). True: there is another plan() now.
  bool after_step(const Executor& executor);
  // The plan is the one to go on with, not one that is being tried.
  bool has_chosen() const { return !climb_ && (!monitor_ || monitor_->over()) && (!trial_ || trial_->over()); }
  // Keeps what was measured.
  void finish();

 private:
  bool climb(const Executor& executor);
  bool watch(const Executor& executor);
  bool try_out(const Executor& executor);
  void choose();
  bool change_to(const PlanChange& change);
  AbTrial trial_of_plan() const;

  Session& session_;
  const CoreInput input_;
  const Notice notice_;
  CorePlans plans_;
  CheckedPlan plan_;
  LoadMeter busy_;
  std::optional<ThreadClimb> climb_;
  std::optional<InterferenceMonitor> monitor_;
  std::optional<AbTrial> trial_;
  bool warm_ = false, measured_ = false;
};

}  // namespace plimsoll
