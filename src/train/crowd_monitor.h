// Looks on while a training runs on processors that others want, too. Threads of an op wait for each other; where one of
// them waits for a processor, all do, and fewer threads may be faster. That is tried out, by the steps themselves:
//
//   all threads ── crowded for 3 looks ──> trial ── fewer are faster ──> fewer threads ── quiet for 6 looks ──> all threads
//        ^                                  │  ^                               │
//        └───────────── not faster ─────────┘  └──────── after a pause ────────┘
//
// The pause between two trials doubles, so that a load that comes and goes costs little. Where the number of threads is
// to stay, it only tells, once.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "cost/load.h"
#include "train/ab_trial.h"
#include "train/plan_change.h"

namespace plimsoll {

// Whether others, or the control group's CPU quota, take the processors that the threads of this process want.
bool is_crowded(const Load& load);

struct CrowdOptions {
  int threads = 1;  // of an op, by the training's plan
  // Makes the plan for so many. Empty: the number of threads stays.
  std::function<CheckedPlan(int threads)> fewer;
  std::string stays;  // then, why: "--exact"
};

class CrowdMonitor {
 public:
  // The training runs by `plan` now. Looks at `meter` at times of its own.
  CrowdMonitor(CheckedPlan plan, CrowdOptions options, LoadMeter meter = LoadMeter());

  // After a step, with its time: the plan to go on with, where that is another, or there is something to say.
  std::optional<PlanChange> after_step(double step_ms);

 private:
  std::optional<PlanChange> look(const Load& load);
  std::optional<PlanChange> try_out(double step_ms);
  std::optional<PlanChange> tell(const Load& load);
  void begin_trial(const Load& load);
  PlanChange go_back();
  std::string trial_text(double all_ms, double fewer_ms) const;
  void restart();

  const CheckedPlan all_;
  const CrowdOptions options_;
  LoadMeter meter_;
  CheckedPlan fewer_;
  int fewer_threads_ = 0;
  Load load_;  // when the last trial began
  std::optional<AbTrial> trial_;
  bool runs_fewer_ = false, told_ = false, told_back_ = false;
  double ms_ = 0;  // since the last look
  int crowded_looks_ = 0, quiet_looks_ = 0, looks_ = 0, pause_ = 0;
};

}  // namespace plimsoll
