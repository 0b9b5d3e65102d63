// Dynamic Tensor Rematerialization (Kirisame et al., ICLR 2021), as its runtime would decide step after step; the plan is
// what it has done.
#include <algorithm>
#include <optional>

#include "plan/assemble.h"
#include "plan/bounds.h"
#include "plan/policies/policies.h"
#include "plan/remat/evict.h"

namespace plimsoll {
namespace {

constexpr double kMostDtrComputed = 10;  // times the step
constexpr int kHalvings = 10;

class RulePlanner {
 public:
  RulePlanner(const PolicyInput& input, EvictionRule rule, std::string_view policy)
      : input_(input), rule_(rule), policy_(policy), timeline_(make_timeline(input)), scheduler_(timeline_) {}

  PlanOrInfeasible plan() {
    if (std::optional<Plan> plan = plan_within(input_.budget)) return *std::move(plan);
    const Decisions decisions = keep_everything(timeline_);
    scheduler_.run(decisions, schedule_);
    PlanOrInfeasible kept = finish_plan(input_, timeline_, decisions, schedule_, policy_);
    if (!input_.explain || std::holds_alternative<Plan>(kept)) return kept;
    // The least memory that is found to do.
    Bytes low = std::max(input_.budget, Bytes{least_live(timeline_, false) - 1});
    Bytes high = std::get<Infeasible>(kept).minimum;
    std::optional<Plan> best;
    for (int i = 0; i < kHalvings && low + Bytes{1} < high; ++i) {
      const Bytes middle{low.count + (high.count - low.count) / 2};
      std::optional<Plan> plan = plan_within(middle);
      (plan ? high : low) = middle;
      if (plan) best = std::move(plan);
    }
    if (!best) return kept;
    best->budget = input_.budget;
    Infeasible why = explain_infeasible(input_, *best, false);
    why.minimum = high;
    return why;
  }

 private:
  // What lies between offsets is lost: then the rule is held to less.
  std::optional<Plan> plan_within(Bytes budget) {
    PolicyInput within = input_;
    within.budget = budget;
    within.explain = false;
    const Decisions decisions = keep_everything(timeline_);
    for (const int percent : {100, 99, 97, 94, 90}) {
      const int64_t limit = percent == 100 ? budget.count : budget.count / 100 * percent;
      const auto sequence = evict_as_it_runs(timeline_, limit, rule_, kMostDtrComputed * timeline_.compute_ms);
      if (!sequence) break;
      scheduler_.follow(decisions, *sequence, schedule_);
      PlanOrInfeasible answer = finish_plan(within, timeline_, decisions, schedule_, policy_);
      if (Plan* plan = std::get_if<Plan>(&answer)) return std::move(*plan);
      if (std::get<Infeasible>(answer).minimum <= budget) break;  // slower than what is asked for
    }
    return std::nullopt;
  }

  const PolicyInput& input_;
  const EvictionRule rule_;
  const std::string_view policy_;
  const ValueTimeline timeline_;
  Scheduler scheduler_;
  Schedule schedule_;
};

}  // namespace

PlanOrInfeasible plan_dtr(const PolicyInput& input) { return RulePlanner(input, EvictionRule::dtr, "dtr").plan(); }
PlanOrInfeasible plan_dtr_eq(const PolicyInput& input) {
  return RulePlanner(input, EvictionRule::dtr_eq, "dtr-eq").plan();
}

}  // namespace plimsoll
