// auto: the fastest of what the trade-off curve, the search over runs and every other policy offer for the budget.
#include <algorithm>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "base/parallel.h"
#include "plan/assemble.h"
#include "plan/bounds.h"
#include "plan/make_plan.h"
#include "plan/policies/curve.h"
#include "plan/policies/policies.h"
#include "plan/policies/runs.h"
#include "plan/remat/time_bound.h"
#include "plan/tier_flag.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr size_t kStepsOfCurves =
    800;  // of a graph of costs: where there are more, the curve is found only if it must be
constexpr size_t kStepsOfRules = 2'000;  // of a network, whose least memory rules are asked for as well
constexpr int kRuleHalvings = 8;
constexpr size_t kStepsOfEarlyBound = 150;
constexpr int64_t kEffortOfEarlyBound = 30'000'000;
constexpr double kReached = 1 + 1e-8;

PolicyInput without_tiers(PolicyInput input) {
  input.device.tiers.clear();
  return input;
}

// Whether a state must lie outside the arena between steps, which only the curve heeds.
bool has_homes_elsewhere(const PolicyInput& input) {
  return std::ranges::any_of(input.state_homes, [](int8_t home) { return home >= 0; });
}

bool may_run_again(const PolicyInput& input) {
  return !has_homes_elsewhere(input) && !input.unplaced && input.route.order.size() <= kManySteps;
}

// A graph of costs with many steps: what the search over runs finds is not bettered by the curve, which takes long.
bool by_runs_first(const PolicyInput& input, const ValueTimeline& timeline) {
  return input.search_least && input.device.tiers.empty() && may_run_again(input) &&
         timeline.steps.size() > kStepsOfCurves;
}

// A rule takes the memory that it is given: what it makes of less and less, from what keeping everything takes to the bound, until
// that is `enough`. Which budgets it is given follows from the graph alone, so that the least that is named is found again by
// who asks for it.
std::optional<Plan> least_by_rule(const Policy& policy, PolicyInput input, Bytes bound) {
  const Bytes enough = input.budget;
  input.explain = input.only_to_fit = input.first_that_fits = false;
  input.budget = {INT64_MAX};
  std::optional<Plan> best;
  for (int i = 0; i <= kRuleHalvings && (!best || best->arena > enough); ++i) {
    PlanOrInfeasible answer = policy.plan(input);
    Plan* const plan = std::get_if<Plan>(&answer);
    if (plan == nullptr) {
      bound = input.budget;
    } else if (!best || plan->arena < best->arena) {
      best = std::move(*plan);
    }
    if (!best) break;
    input.budget = {bound.count + (best->arena.count - bound.count) / 2};
  }
  return best;
}

// With every value kept where that fits; else by the search, or by another policy that needs still less.
PlanOrInfeasible plan_least(const PolicyInput& input) {
  PolicyInput own = input, any = input;
  own.only_to_fit = any.only_to_fit = input.first_that_fits;
  any.explain = false;
  PlanOrInfeasible kept = plan_liveness(any);
  if (std::holds_alternative<Plan>(kept)) return kept;
  // Where the question is whether a plan fits, it is of no use that another needs less than this one.
  const Bytes below = input.first_that_fits ? std::min(input.less_than, more_than(input.budget)) : input.less_than;
  const Bytes bound{least_live(make_timeline(input), !input.device.tiers.empty())};
  if (input.first_that_fits && bound > input.budget)  // what would do was not asked
    return Infeasible{.policy = "auto", .budget = input.budget, .minimum = bound};
  std::optional<Plan> best;
  const bool runs_first = by_runs_first(input, make_timeline(input));
  any.budget = input.budget;
  if (runs_first) best = least_by_runs(any, below);
  if (!best) best = CurvePlanner(own).least(below);
  for (const Policy& policy : policies()) {
    if ((best && best->arena <= input.budget) || has_homes_elsewhere(input)) break;
    if (policy.plan == plan_auto || policy.plan == plan_baseline || policy.plan == plan_caffe) continue;
    if (!policy.uses_tiers && !input.search_least) {  // but for these rules they do not find less than the search
      const bool is_rule = policy.plan == plan_dtr || policy.plan == plan_dtr_eq;
      if (!is_rule || !input.device.tiers.empty() || !may_run_again(input) || input.route.order.size() > kStepsOfRules)
        continue;
      any.budget = input.budget;
      const Bytes least = best ? best->arena : below;
      if (auto plan = least_by_rule(policy, any, bound); plan && plan->arena < least) best = std::move(plan);
      continue;
    }
    any.budget = (best ? best->arena : below) - Bytes{1};
    PlanOrInfeasible other = policy.plan(any);
    if (Plan* plan = std::get_if<Plan>(&other)) best = std::move(*plan);
  }
  if (input.search_least && !runs_first && (!best || best->arena > input.budget) && may_run_again(input)) {
    any.budget = input.budget;
    if (std::optional<Plan> plan = least_by_runs(any, best ? best->arena : below)) best = std::move(plan);
  }
  if (best) return *std::move(best);
  return Infeasible{.policy = "auto", .budget = input.budget, .minimum = below};
}

}  // namespace

std::shared_ptr<const Descents> find_descents(const std::vector<PolicyInput>& inputs) {
  std::vector<Descents> found(inputs.size());
  for_each_in_parallel(inputs.size(), [&](size_t i) { found[i] = CurvePlanner(inputs[i]).descents(); });
  auto all = std::make_shared<Descents>();
  for (Descents& some : found) {
    std::ranges::move(some.in_place, std::back_inserter(all->in_place));
    std::ranges::move(some.others, std::back_inserter(all->others));
  }
  return all;
}

PlanOrInfeasible plan_auto(const PolicyInput& input) {
  if (input.least_memory) return plan_least(input);
  const Stopwatch watch;
  PolicyInput first = input;
  first.timeline = std::make_shared<const ValueTimeline>(make_timeline(input));
  first.only_to_fit = true;
  PolicyInput quick = first;
  quick.explain = false;
  // Not even where nothing waits, and no more runs twice than must.
  if (input.faster_than_ms < kAnyTime &&
      !may_be_faster(least_ms(*first.timeline, input.device.tiers, input.budget.count), input.faster_than_ms)) {
    return Infeasible{.policy = "auto", .budget = input.budget, .minimum = {INT64_MAX}};
  }
  // Where everything fits, nothing is faster.
  const bool elsewhere = has_homes_elsewhere(input);
  std::optional<CurvePlanner> search;
  auto plan_by_search = [&](const PolicyInput& i) { return search ? search->smallest(i) : search.emplace(i).plan(); };
  PlanOrInfeasible best = elsewhere ? plan_by_search(first) : plan_liveness(quick);
  if (!std::holds_alternative<Plan>(best) && !elsewhere) {
    using Planner = std::function<PlanOrInfeasible(const PolicyInput&)>;
    Planner least = plan_liveness;  // of those that do not fit
    bool tier_short = false;
    auto consider = [&](const Planner& planner) {
      if (const Plan* plan = std::get_if<Plan>(&best)) {
        if (plan->predicted.step_time_ms <= quick.enough_ms) return;
        quick.faster_than_ms = plan->predicted.step_time_ms;
      }
      PlanOrInfeasible other = planner(quick);
      const auto* mine = std::get_if<Infeasible>(&best);
      const auto* theirs = std::get_if<Infeasible>(&other);
      if (mine != nullptr && theirs != nullptr && needs_less(*theirs, *mine)) least = planner;
      tier_short |= theirs != nullptr && !theirs->tier.empty() && theirs->minimum <= input.budget;
      keep_better(quick, best, std::move(other));
    };
    const bool runs_first = by_runs_first(input, *first.timeline);
    std::vector<int32_t> sequence;  // that it would have run, whatever its offsets need
    const auto by_runs = [&](const PolicyInput& i) {
      const Plan* known = std::get_if<Plan>(&best);
      return plan_by_runs(i, known != nullptr && known->moves.empty() ? known : input.start, &sequence);
    };
    if (runs_first) consider(by_runs);
    if (!runs_first || !std::holds_alternative<Plan>(best)) consider(plan_by_search);
    // Of a few costs a bound is known at once, and what reaches it ends the search.
    const Plan* const found = std::get_if<Plan>(&best);
    const bool reached = found != nullptr && found->predicted.step_time_ms <= quick.enough_ms;
    if (!reached && input.search_least && may_run_again(input) && first.timeline->steps.size() <= kStepsOfEarlyBound) {
      const double bound_ms = bound_time(*first.timeline, input.device.tiers, input.budget.count, kEffortOfEarlyBound,
                                         found != nullptr ? found->predicted.step_time_ms : kAnyTime);
      if (bound_ms < kAnyTime) quick.enough_ms = std::max(quick.enough_ms, bound_ms * kReached);
      if (found == nullptr && input.faster_than_ms < kAnyTime && bound_ms >= input.faster_than_ms) return best;
    }
    const double in_place_ms = least_ms(*first.timeline, {}, input.budget.count);
    if (!runs_first && may_run_again(input)) {
      consider(by_runs);
      const Plan* const known = std::get_if<Plan>(&best);
      const bool by_reruns = known != nullptr && known->predicted.recompute_ms > known->predicted.stall_ms;
      if (by_reruns && !input.first_that_fits && std::ranges::any_of(input.device.tiers, &TierInfo::beside_compute)) {
        consider([&](const PolicyInput& i) -> PlanOrInfeasible {
          std::optional<Plan> plan = CurvePlanner(i).with_copies(sequence);
          if (plan) return *std::move(plan);
          return Infeasible{.policy = "auto", .budget = input.budget, .minimum = {INT64_MAX}};
        });
      }
    }
    const auto fastest_so_far = [&] {
      const Plan* plan = std::get_if<Plan>(&best);
      return plan != nullptr ? plan->predicted.step_time_ms : input.faster_than_ms;
    };
    int64_t states = 0;  // which the others keep in the arena
    for (const State& state : input.graph.states)
      states += align_up(input.graph.tensor(state.before).bytes(), kStayAlignment).count;
    const auto consider_others = [&] {
      for (const Policy& policy : policies()) {
        if (states > input.budget.count || elsewhere) return;
        if (input.first_that_fits && (std::holds_alternative<Plan>(best) || input.route.order.size() > kManySteps))
          return;
        if (policy.plan == plan_auto || policy.plan == plan_liveness || policy.plan == plan_baseline ||
            policy.plan == plan_caffe)
          continue;
        consider(policy.plan);
        if (policy.uses_tiers && !input.device.tiers.empty() &&
            (input.explain || may_be_faster(in_place_ms, fastest_so_far())))
          consider([plan = policy.plan](const PolicyInput& i) { return plan(without_tiers(i)); });
      }
    };
    consider_others();
    if (input.search_least && !input.first_that_fits && std::holds_alternative<Infeasible>(best)) {
      // By itself a policy is placed with more effort.
      quick.only_to_fit = false;
      consider_others();
      quick.only_to_fit = true;
    }
    const Plan* const plan = std::get_if<Plan>(&best);
    if (plan != nullptr && plan->policy != "auto" && input.search_least && may_run_again(input)) consider(by_runs);
    if (input.explain && std::holds_alternative<Infeasible>(best)) best = least(input);
    if (Infeasible* infeasible = std::get_if<Infeasible>(&best); infeasible != nullptr && tier_short) {
      infeasible->suggestion += more_of_tiers(input.device.tiers);
    }
  }
  if (Plan* plan = std::get_if<Plan>(&best)) {
    if (!input.only_to_fit) place_again(input, *plan);
    plan->plan_time_ms = watch.ms();
  }
  return best;
}

}  // namespace plimsoll
