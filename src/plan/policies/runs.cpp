#include "plan/policies/runs.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "plan/assemble.h"
#include "plan/bounds.h"
#include "plan/make_plan.h"
#include "plan/policies/policies.h"
#include "plan/remat/placed_search.h"
#include "plan/remat/search.h"
#include "plan/simulate.h"

namespace plimsoll {
namespace {

constexpr int64_t kEffortOfRuns = 500'000'000;  // of the offsets of each, by the number of steps
constexpr int kLeastRuns = 12;                  // budgets that are asked for the least
constexpr int64_t kEffortOfLeast = 20;          // each gets this part of the effort
constexpr double kFirstStep = 0.25,
                 kLastStep = 1.0 / 256;  // parts of what is known to be enough, by which the next is less
constexpr int kRunSearches = 4, kSomeRunSearches = 8,
              kManyRunSearches = 16;  // within less and less, where offsets need more than the budget
constexpr size_t kStepsPlacedWell = 1500;
constexpr int64_t kPlacedEffort = 16;  // times that of runs, within these
constexpr int64_t kPlacedEffortOfStep = 9'000'000, kMostPlacedEffort = 3'000'000'000, kSomePlacedEffort = 1'000'000'000;
constexpr int64_t kInVain = 8;  // part of these, where no runs were found that would fit if nothing lay between offsets
constexpr double kNearEnough = 0.03;  // of the step, above what it takes where nothing lies between offsets
constexpr int64_t kPercentWithRoom = 97;
constexpr size_t kStepsTriedWithLess = 150;  // where there are more, it takes too long to do both
constexpr double kMuchAgain = 0.1;           // of what all steps take once
constexpr double kWorthAnother = 0.02;       // the same, less of which runs again
constexpr size_t kStepsSearchedAgain = 500;
constexpr std::array kPercentsOfLess = {99, 97};
constexpr int64_t kFull = 32;  // what is below the budget by more than this part may become fuller
constexpr double kNearTheFirst = 2e-4;
constexpr int kMostInVain = 4;                         // of these that find nothing within the budget
constexpr int64_t kMuchRunEffort = 10'000'000;         // where many of them are worth it
constexpr int64_t kTighter = 8, kLeastTighter = 1000;  // parts of what lies above, and of the budget

// By a search over the runs of steps where states and inputs lie in the arena: nothing is copied.
//
// What lies between offsets is lost. So where a plan's stays end above the budget, the stages across which they lie are held
// to less and the search goes on from there; once there is a plan, what lies between these limits and the last is tried.
class RunPlanner {
 public:
  // `many`: it is worth much effort.
  RunPlanner(const PolicyInput& input, bool many)
      : input_(input),
        many_(many),
        quick_(input),
        timeline_(make_timeline(input)),
        decisions_(keep_everything(timeline_)),
        scheduler_(timeline_),
        limits_(timeline_.steps.size() + 1, input.budget.count) {
    quick_.explain = false;
    if (many) {
      quick_.placed_well = timeline_.steps.size() <= kStepsPlacedWell;
    } else {
      quick_.effort = std::min(input.effort, kEffortOfRuns / std::max<int64_t>(std::ssize(timeline_.steps), 1));
    }
    quick_.only_to_fit = !many;
  }

  PlanOrInfeasible plan(const Plan* known) {
    std::vector<Sequence> starts;
    if (known != nullptr) starts.push_back(sequence_of(*known));
    const FoundRuns found =
        find_runs(timeline_, input_.budget.count, input_.run_effort, starts, input_.enough_ms - timeline_.compute_ms);
    first_found_ = found.sequence;
    plan_from(found);
    const size_t steps = timeline_.steps.size();
    if (many_ && input_.search_least && found.again_ms > kMuchAgain * timeline_.compute_ms &&
        steps > kStepsTriedWithLess && steps <= kStepsSearchedAgain) {
      const FoundRuns other = search_from_less(found);
      if (other.fits && other.again_ms < found.again_ms - kWorthAnother * timeline_.compute_ms) {
        std::optional<Plan> first = std::exchange(best_, std::nullopt);
        once_more_ = true;
        limits_.assign(limits_.size(), input_.budget.count);
        plan_from(other);
        if (!best_ || (first && first->predicted.step_time_ms <= best_->predicted.step_time_ms))
          best_ = std::move(first);
      }
    }
    if (best_) return *std::move(best_);
    return Infeasible{.policy = "auto", .budget = input_.budget, .minimum = {INT64_MAX}};
  }

  // By offsets it may need more than the budget.
  const Sequence& first_found() const { return first_found_; }

 private:
  void plan_from(const FoundRuns& found) {
    const bool with_places = many_ && has_plain_places(timeline_) && !has_room_for(found);
    const bool both = timeline_.steps.size() <= kStepsTriedWithLess;
    if (with_places && !both) {
      const Sequence below = plan_below_a_limit(found);
      const double near_ms = (1 + kNearEnough) * timeline_.compute_ms + found.again_ms;
      if (!best_) {
        plan_with_places({found.sequence, below}, once_more_ ? kSomePlacedEffort : kMostPlacedEffort,
                         found.peak <= input_.budget.count ? 1 : kInVain);
      } else if (quick_.faster_than_ms > near_ms) {
        plan_with_places({below}, kSomePlacedEffort);
      }
    }
    if (!best_) {
      limits_.assign(limits_.size(), input_.budget.count);
      plan_within_less(found, found.again_ms);
    }
    if (with_places && both) {
      const int64_t less = input_.budget.count / 100 * kPercentWithRoom;
      plan_with_places({found.sequence, find_runs(timeline_, less, input_.run_effort / 2).sequence}, kMostPlacedEffort,
                       found.peak <= input_.budget.count ? 1 : kInVain);
    }
  }

  // A search for less may find what one for the budget has missed, and another goes on from there.
  FoundRuns search_from_less(const FoundRuns& found) const {
    std::vector<Sequence> starts{found.sequence};
    for (const int percent : kPercentsOfLess) {
      FoundRuns less = find_runs(timeline_, input_.budget.count / 100 * percent, input_.run_effort / 2);
      if (less.fits) starts.push_back(std::move(less.sequence));
    }
    return find_runs(timeline_, input_.budget.count, input_.run_effort / 2, starts);
  }

  Sequence sequence_of(const Plan& plan) const {
    Sequence sequence;
    for (const Step& step : plan.steps) sequence.push_back(timeline_.step_of[step.op]);
    return sequence;
  }

  // From these runs; `least_again_ms`: what runs again where nothing lies between offsets.
  void plan_within_less(FoundRuns found, double least_again_ms) {
    const int rounds = !many_                                                    ? kRunSearches
                       : once_more_ || timeline_.steps.size() > kStepsPlacedWell ? kSomeRunSearches
                                                                                 : kManyRunSearches;
    const double near_ms = timeline_.compute_ms * (1 + kNearTheFirst) + least_again_ms;
    for (int i = 0, in_vain = 0; in_vain < kMostInVain; ++i) {
      scheduler_.follow(decisions_, found.sequence, schedule_);
      if (found.peak > input_.budget.count) {
        if (!many_) break;
        ++in_vain;
      } else if (time_of(timeline_, {}, schedule_).total_ms >= quick_.faster_than_ms) {
        if (!best_) break;  // held to less, it would be slower still
        good_ = limits_;
      } else {
        Plan plan = make_plan(quick_, timeline_, decisions_, schedule_, "auto");
        if (plan.arena <= input_.budget) {
          predict(quick_, plan);
          quick_.faster_than_ms = plan.predicted.step_time_ms;
          best_ = std::move(plan);
          if (!many_ || best_->predicted.step_time_ms <= near_ms) break;
          good_ = limits_;
        } else {
          failed_ = limits_;
          if (!best_) tighten(plan, found.sequence);
        }
      }
      if (i + 1 >= rounds) break;
      if (best_) {
        for (size_t t = 0; t < limits_.size(); ++t) limits_[t] = failed_[t] + (good_[t] - failed_[t]) / 2;
      }
      found = improve_runs(timeline_, limits_, found.sequence, input_.run_effort / 4);
    }
    for (const int percent : {98, 95, 91, 86}) {  // all stages held to less, where that did not lead to a plan
      if (best_ || !many_) break;
      found = find_runs(timeline_, input_.budget.count / 100 * percent, input_.run_effort / 2);
      if (!found.fits) break;
      scheduler_.follow(decisions_, found.sequence, schedule_);
      PlanOrInfeasible answer = finish_plan(quick_, timeline_, decisions_, schedule_, "auto");
      if (Plan* plan = std::get_if<Plan>(&answer)) best_ = std::move(*plan);
      if (!best_) continue;
      predict(quick_, *best_);
      quick_.faster_than_ms = best_->predicted.step_time_ms;
    }
  }

  // Whether the offsets of these runs need no more than the budget.
  bool has_room_for(const FoundRuns& found) {
    if (found.peak > input_.budget.count) return false;
    return place(found).arena <= input_.budget;
  }
  Plan place(const FoundRuns& found) {
    scheduler_.follow(decisions_, found.sequence, schedule_);
    return make_plan(quick_, timeline_, decisions_, schedule_, "auto");
  }

  // All stages are held to as much less as offsets take, at first.
  // The runs that it began with.
  Sequence plan_below_a_limit(const FoundRuns& found) {
    const double less = static_cast<double>(input_.budget.count) / static_cast<double>(place(found).arena.count);
    const auto limit = static_cast<int64_t>(less * static_cast<double>(input_.budget.count));
    const FoundRuns below = find_runs(timeline_, limit, input_.run_effort / 2, {&found.sequence, 1});
    if (!below.fits) return below.sequence;
    failed_ = limits_;
    limits_.assign(limits_.size(), limit);
    plan_within_less(below, found.again_ms);
    return below.sequence;
  }

  // By offsets that are looked for together with the runs.
  // With a part of the effort only, where it is unlikely to find any.
  void plan_with_places(const std::vector<Sequence>& starts, int64_t most_effort, int64_t part = 1) {
    Bytes states;
    for (const TimelineValue& value : timeline_.values) states += Bytes{value.state >= 0 ? value.bytes : 0};
    const PlacedRuns placed = place_runs(
        timeline_, (input_.budget - states).count, starts,
        std::min({kPlacedEffort * input_.run_effort, most_effort, kPlacedEffortOfStep * std::ssize(timeline_.steps)}) /
            part);
    if (!placed.fits) return;
    scheduler_.follow(decisions_, placed.sequence, schedule_);
    if (time_of(timeline_, {}, schedule_).total_ms >= quick_.faster_than_ms) return;
    std::map<std::pair<int32_t, RunSet::Run>, Bytes> offset_of;
    for (const PlacedRuns::Item& item : placed.items) offset_of[{item.value, item.first}] = {item.offset};
    KnownOffsets known;
    for (const Residence& r : schedule_.residences)
      known.residences.push_back(offset_of[{r.value, r.written < 0 ? -1 : placed.runs[r.written]}]);
    for (const RunSet::Run run : placed.runs) known.workspaces.push_back(offset_of[{-1, run}]);
    Plan plan = make_plan(quick_, timeline_, decisions_, schedule_, "auto", {}, &known);
    predict(quick_, plan);
    quick_.faster_than_ms = plan.predicted.step_time_ms;
    best_ = std::move(plan);
  }

  void tighten(const Plan& plan, const Sequence& sequence) {
    std::vector<int32_t> stage_of;  // by step of the plan
    std::vector<bool> ran(timeline_.steps.size(), false);
    int32_t stage = 0;
    for (const int32_t step : sequence) {
      stage_of.push_back(stage);
      stage += ran[step] ? 0 : 1;
      ran[step] = true;
    }
    RunSet runs(timeline_, input_.budget.count);
    runs.take(sequence);
    std::vector<int64_t> over(limits_.size(), 0);
    for (const Stay& stay : plan.stays) {
      const int64_t above = (stay.offset + stay.bytes - input_.budget).count;
      if (above <= 0) continue;
      for (int32_t t = stage_of[stay.first]; t <= stage_of[stay.last]; ++t) over[t] = std::max(over[t], above);
    }
    for (size_t t = 0; t < limits_.size(); ++t) {
      if (over[t] == 0) continue;
      const int64_t less = std::max(over[t] / kTighter, input_.budget.count / kLeastTighter);
      const int64_t most = std::max(runs.most(static_cast<int32_t>(t)), limits_[t] - input_.budget.count / kFull);
      limits_[t] = std::min(limits_[t], most) - less;
    }
  }

  const PolicyInput& input_;
  const bool many_;
  PolicyInput quick_;
  const ValueTimeline timeline_;
  const Decisions decisions_;
  Scheduler scheduler_;
  Schedule schedule_;
  std::vector<int64_t> limits_, good_,
      failed_;  // by stage: of the next search, the last that led to a plan, the last that did not
  Sequence first_found_;
  bool once_more_ = false;  // what is tried beside a plan that is known
  std::optional<Plan> best_;
};

}  // namespace

PlanOrInfeasible plan_by_runs(const PolicyInput& input, const Plan* known, std::vector<int32_t>* sequence) {
  RunPlanner planner(input, input.run_effort >= kMuchRunEffort);
  PlanOrInfeasible answer = planner.plan(known);
  if (sequence != nullptr) *sequence = planner.first_found();
  return answer;
}

std::optional<Plan> least_by_runs(const PolicyInput& input, Bytes below) {
  PolicyInput within = input;
  within.timeline = std::make_shared<const ValueTimeline>(make_timeline(input));
  within.least_memory = false;
  within.only_to_fit = true;
  within.run_effort = input.run_effort / kEffortOfLeast;
  std::optional<Plan> best;
  const Bytes least{least_live(*within.timeline, false)};
  if (below.count == INT64_MAX) below = {RunSet(*within.timeline, INT64_MAX).peak()};
  // A search for much less than is known to be enough may find nothing where one that comes from there does.
  double step = kFirstStep;
  for (int i = 0; i < kLeastRuns && step >= kLastStep; ++i) {
    const Bytes high = best ? best->arena : below;
    if (high - least <= Bytes{static_cast<int64_t>(kLastStep * static_cast<double>(high.count))}) break;
    within.budget = std::max(least, Bytes{static_cast<int64_t>((1 - step) * static_cast<double>(high.count))});
    PlanOrInfeasible answer = RunPlanner(within, false).plan(best ? &*best : nullptr);
    if (Plan* plan = std::get_if<Plan>(&answer)) {
      best = std::move(*plan);
      best->budget = input.budget;
    } else {
      step /= 2;
    }
  }
  return best;
}

}  // namespace plimsoll
