// Looks after how a training's steps share the cores, from step to step: measures thread counts, chooses by them, and
// corrects what was chosen.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "plimsoll/training_step.h"
#include "train/session.h"
#include "train/ab_trial.h"
#include "cores/side_by_side.h"
#include "train/thread_climb.h"

namespace plimsoll {

class CoreTuner {
 public:
  using Notice = std::function<void(const std::string&)>;
  // Makes the first choice, or, where `measure` and something is not known, leaves it until it is. All must outlive it.
  CoreTuner(Session& session, Program& program, const Sharing& sharing, bool measure, Notice notice);

  // After every training step, which may go on with another plan.
  void after_step(TrainingStep& step);
  // The program's thread counts are those to go on with, not ones that are being tried.
  bool settled() const { return !climb_ && (!watch_ || watch_->over()) && (!trial_ || trial_->over()); }
  // Keeps what was measured.
  void finish();

 private:
  void climb(TrainingStep& step);
  void watch(TrainingStep& step);
  void try_out(TrainingStep& step);
  void choose();

  Session& session_;
  Program& program_;
  const Sharing sharing_;
  const Notice notice_;
  BusyMeter busy_;
  std::optional<ThreadClimb> climb_;
  std::optional<InterferenceMonitor> watch_;
  std::optional<AbTrial> trial_;
  bool warm_ = false, measured_ = false;
};

}  // namespace plimsoll
