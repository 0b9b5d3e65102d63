#include "train/core_tuner.h"

#include <fmt/format.h>

#include <algorithm>

#include "device/cpu/machine.h"
#include "plimsoll/execute.h"
#include "train/sharing_in_plan.h"

namespace plimsoll {
namespace {

// Whether it runs otherwise than one op after another with all threads.
bool is_chosen(const Plan& plan) {
  return plan.cores.inter_op > 1 || std::any_of(plan.steps.begin(), plan.steps.end(), [](const Step& step) { return step.threads != 0; });
}

}  // namespace

CoreTuner::CoreTuner(Session& session, Program& program, const Sharing& sharing, bool measure, Notice notice)
    : session_(session), program_(program), sharing_(sharing), notice_(std::move(notice)) {
  if (measure && sharing.cores > 1) {
    const bool pinned = !cpu::processors_of_cores(sharing.cores).empty();
    climb_.emplace(program, *session.device, session.costs, sharing.climb_interval, pinned);
    if (climb_->done()) climb_.reset();
  }
  if (!climb_) {
    choose();
    return;
  }
  notice_(fmt::format(
      "--inter-op auto: measures {} kinds of ops with fewer threads in the first training steps, {} at most; then it chooses",
      climb_->open_kinds(), climb_->most_steps() + 1));
}

void CoreTuner::choose() {
  if (const std::string text = share_program(program_, sharing_, *session_.device, session_.costs); !text.empty()) notice_(text);
  watch_.reset();
  trial_.reset();
  if (program_.plan.cores.inter_op > 1) {
    watch_.emplace(program_, *session_.device, session_.costs, sharing_);
  } else if (is_chosen(program_.plan)) {
    trial_.emplace(program_, session_.costs);
  }
  busy_ = BusyMeter();
}

void CoreTuner::after_step(TrainingStep& step) {
  if (climb_) {
    climb(step);
  } else if (watch_ && !watch_->over()) {
    watch(step);
  } else if (trial_ && !trial_->over()) {
    try_out(step);
  }
}

void CoreTuner::climb(TrainingStep& step) {
  if (!warm_) {
    warm_ = true;
    climb_->prepare();
    return step.swap(program_);
  }
  if (!climb_->record(compute_times(program_.plan, step.executor()))) return;
  measured_ = true;
  if (!climb_->done()) {
    climb_->prepare();
    return step.swap(program_);
  }
  finish();
  climb_.reset();
  choose();
  step.swap(program_);
}

void CoreTuner::watch(TrainingStep& step) {
  if (!watch_->sees(step.executor().records())) {
    if (watch_->over() && is_chosen(program_.plan)) trial_.emplace(program_, session_.costs);
    return;
  }
  std::string text = watch_->correct();
  program_.plan.cores.conflicts = conflicting_ops(program_, session_.costs, watch_->conflicts());
  step.swap(program_);
  const auto pairs = watch_->found();
  const bool fresh = std::any_of(pairs.begin(), pairs.end(),
                                 [&](const CostTable::OpPair& pair) { return !session_.costs.conflicts().contains(pair); });
  if (fresh && busy_.others() <= kTooBusy) {
    for (const auto& [a, b] : pairs) session_.costs.add_conflict(a, b);
    session_.database->save(session_.costs);
    text += "; the next training avoids them too";
  }
  if (!text.empty()) notice_(text);
}

void CoreTuner::try_out(TrainingStep& step) {
  double ms = 0;
  for (const StepRecord& record : step.executor().records()) ms = std::max(ms, record.end_ms);
  if (!trial_->sees(ms)) return;
  const std::string text = trial_->turn();
  step.swap(program_);
  if (!text.empty()) notice_(text);
}

void CoreTuner::finish() {
  if (!measured_) return;
  measured_ = false;
  session_.database->save(session_.costs);
  if (busy_.others() <= kTooBusy) return;
  notice_(fmt::format("other processes kept the machine {:.0f} % busy while thread counts were measured, so these times mislead; when it "
                      "is quiet, `plimsoll profile MODEL --again` forgets them",
                      100 * busy_.others()));
}

}  // namespace plimsoll
