#include "train/core_tuner.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/texts.h"
#include "device/cpu/machine.h"
#include "plimsoll/execute.h"

namespace plimsoll {

CoreTuner::CoreTuner(Session& session, const Graph& graph, const CheckedPlan& plan, const CoreOptions& options,
                     bool measure, Notice notice)
    : session_(session),
      input_{graph, *session.device, session.costs, options},
      notice_(std::move(notice)),
      plan_(plan) {
  const RelaxedPlan relaxed = relax(input_, plan);
  if (!relaxed.notice.empty()) notice_(relaxed.notice);
  plans_ = {plan, check_plan(graph, relaxed.plan)};
  if (measure && options.cores > 1) {
    const bool pinned = !cpu::processors_of_cores(options.cores).empty();
    climb_.emplace(graph, plan, *session.device, session.costs, options.climb_interval, pinned);
    if (climb_->done()) climb_.reset();
  }
  if (!climb_) {
    choose();
    return;
  }
  notice_(fmt::format(
      "--inter-op auto: measures {} kinds of ops with fewer threads in the first training steps, {} at most; then it "
      "chooses",
      climb_->open_kinds(), climb_->most_steps() + 1));
}

void CoreTuner::choose() {
  ChosenThreads chosen = choose_threads(input_, plans_.serial, plans_.relaxed);
  notice_(to_text(chosen));
  plan_ = check_plan(input_.graph, std::move(chosen.plan));
  monitor_.reset();
  trial_.reset();
  if (plan_->cores.inter_op > 1) {
    monitor_.emplace(input_, plans_, plan_);
  } else if (shares_cores(plan_)) {
    trial_.emplace(trial_of_plan());
  }
  busy_.restart();
}

AbTrial CoreTuner::trial_of_plan() const { return {plan_, check_plan(input_.graph, serial(input_, plans_.serial))}; }

bool CoreTuner::after_step(const Executor& executor) {
  if (climb_) return climb(executor);
  if (monitor_ && !monitor_->over()) return watch(executor);
  return trial_ && !trial_->over() && try_out(executor);
}

bool CoreTuner::climb(const Executor& executor) {
  if (!warm_) {
    warm_ = true;
  } else {
    if (!climb_->record(compute_times(plan_, executor), is_busy(busy_.load()))) return false;
    measured_ = true;
  }
  if (!climb_->done()) {
    plan_ = check_plan(input_.graph, climb_->next_plan());
    return true;
  }
  finish();
  climb_.reset();
  choose();
  return true;
}

bool CoreTuner::change_to(const PlanChange& change) {
  plan_ = change.plan;
  if (!change.notice.empty()) notice_(change.notice);
  return true;
}

bool CoreTuner::watch(const Executor& executor) {
  std::optional<PlanChange> change = monitor_->after_step(executor.records());
  if (!change) {
    if (monitor_->over() && shares_cores(plan_)) trial_.emplace(trial_of_plan());
    return false;
  }
  const auto pairs = monitor_->found();
  const bool fresh = std::any_of(pairs.begin(), pairs.end(), [&](const CostTable::OpPair& pair) {
    return !session_.costs.conflicts().contains(pair);
  });
  if (fresh && busy_.others() <= kTooBusy) {
    for (const auto& [a, b] : pairs) session_.costs.add_conflict(a, b);
    session_.database->save(session_.costs);
    change->notice += "; the next training avoids them too";
  }
  return change_to(*change);
}

bool CoreTuner::try_out(const Executor& executor) {
  double ms = 0;
  for (const StepRecord& record : executor.records()) ms = std::max(ms, record.end_ms);
  std::optional<PlanChange> change = trial_->after_step(ms);
  if (!change) return false;
  if (trial_->over() && trial_->second_won()) {
    change->notice = fmt::format(
        "--inter-op auto: as chosen a step took {}, one op after another with all threads {}: it goes on so",
        time_text(trial_->first_ms(), 4), time_text(trial_->second_ms(), 4));
  }
  return change_to(*change);
}

void CoreTuner::finish() {
  if (!measured_) return;
  measured_ = false;
  session_.database->save(session_.costs);
  const Load load = busy_.load();
  if (!is_busy(load)) return;
  notice_(fmt::format(
      "other processes kept the machine {:.0f} % busy while thread counts were measured, so they mislead: these times {}",
      100 * load.others, fate_of_busy_times(*session_.database)));
}

}  // namespace plimsoll
