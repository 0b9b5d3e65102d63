// auto: the whole trade-off curve between memory and time is found first, without regard to the budget; the budget then
// chooses the fastest point that fits. So more memory is never predicted slower. What any other policy offers for this budget
// is judged beside it.
#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <set>

#include "plan/assemble.h"
#include "plan/draft.h"
#include "plan/policies/policies.h"
#include "plan/tradeoff.h"
#include "plimsoll/simulate.h"

namespace plimsoll {
namespace {

class AutoPlanner {
 public:
  explicit AutoPlanner(const PolicyInput& input) : input_(input), frame_(make_frame(input)), scheduler_(frame_) {}

  PlanOrInfeasible plan() {
    find_points();
    const std::vector<LimitedPoint> found = improve_tradeoff(frame_, input_.device.tiers, points_, limits(), tries());
    // The fastest last; one that does not fit in the end (its offsets need more than its bytes) gives way to the one before.
    for (size_t i = found.size(); i-- > 0;) {
      Plan plan = make(found[i].decisions, found[i].limit);
      if (plan.arena <= input_.budget && fits_tiers(plan)) return plan;
    }
    return smallest(input_);
  }

  // After plan(): the smallest, whether it fits or not.
  PlanOrInfeasible smallest(const PolicyInput& input) {
    const TradeoffPoint* least = &points_.front();
    for (const TradeoffPoint& point : points_) {
      if (point.peak < least->peak) least = &point;
    }
    scheduler_.run(least->decisions, schedule_);
    spread_copies(frame_, input_.device.tiers, least->peak, schedule_);
    return finish_plan(input, frame_, least->decisions, schedule_, "auto");
  }

 private:
  void find_points() {
    const Decisions start = where_states_are();
    const std::vector<TierInfo>& tiers = input_.device.tiers;
    add(find_tradeoff(frame_, tiers, start, {.recompute = true, .tiers = std::vector<bool>(tiers.size(), false), .states_may_move = input_.state_homes.empty()}));
    if (tiers.empty()) return;
    add(find_tradeoff(frame_, tiers, start, {.recompute = true, .tiers = {}, .states_may_move = input_.state_homes.empty()}));
    add(find_tradeoff(frame_, tiers, start, {.recompute = false, .tiers = {}, .states_may_move = input_.state_homes.empty()}));
  }
  // Everything kept, but for states that must lie elsewhere: those come in for each use.
  Decisions where_states_are() const {
    Decisions decisions = keep_everything(frame_);
    for (size_t s = 0; s < input_.state_homes.size(); ++s) {
      if (input_.state_homes[s] < 0) continue;
      const int32_t v = frame_.value_of[static_cast<size_t>(input_.graph.states[s].before.index)];
      const FrameValue& value = frame_.values[static_cast<size_t>(v)];
      decisions.home[static_cast<size_t>(v)] = input_.state_homes[s];
      std::fill_n(decisions.gaps.begin() + value.first_gap, value.gap_count(), kDrop);
    }
    return decisions;
  }
  void add(std::vector<TradeoffPoint> points) {
    points_.insert(points_.end(), std::make_move_iterator(points.begin()), std::make_move_iterator(points.end()));
  }

  // A fixed ladder and the peaks of the points on it, the same for every budget; it ends at the budget.
  std::vector<int64_t> limits() const {
    std::set<int64_t> limits;
    int64_t least = INT64_MAX, most = 0;
    for (const TradeoffPoint& point : points_) {
      least = std::min(least, point.peak);
      most = std::max(most, point.peak);
    }
    const double ratio = frame_.steps.size() > 4000 ? 1.25 : frame_.steps.size() > 1500 ? 1.06 : 1.025;
    for (double limit = static_cast<double>(least); limit < static_cast<double>(most) * ratio; limit *= ratio) {
      limits.insert(static_cast<int64_t>(limit));
    }
    limits.erase(limits.upper_bound(input_.budget.count), limits.end());
    return {limits.begin(), limits.end()};
  }
  int tries() const { return static_cast<int>(std::clamp<size_t>(30000 / (1 + frame_.steps.size()), 2, 60)); }

  Plan make(const Decisions& decisions, int64_t limit) {
    scheduler_.run(decisions, schedule_);
    spread_copies(frame_, input_.device.tiers, limit, schedule_);
    return make_plan(input_, frame_, decisions, schedule_, "auto");
  }

  static bool fits_tiers(const Plan& plan) {
    return std::all_of(plan.tiers.begin(), plan.tiers.end(), [](const TierUse& t) { return t.used <= t.tier.capacity; });
  }

  const PolicyInput& input_;
  Frame frame_;
  Scheduler scheduler_;
  Schedule schedule_;
  std::vector<TradeoffPoint> points_;
};

}  // namespace

PlanOrInfeasible plan_auto(const PolicyInput& input) {
  const auto started = std::chrono::steady_clock::now();
  PolicyInput quick = input;
  quick.explain = false;
  // Where everything fits, nothing is faster.
  const bool elsewhere = std::any_of(input.state_homes.begin(), input.state_homes.end(), [](int8_t home) { return home >= 0; });
  std::optional<AutoPlanner> search;
  auto plan_by_search = [&](const PolicyInput& i) { return search ? search->smallest(i) : search.emplace(i).plan(); };
  PlanOrInfeasible best = elsewhere ? plan_by_search(input) : plan_liveness(quick);
  if (!std::holds_alternative<Plan>(best) && !elsewhere) {
    using Planner = std::function<PlanOrInfeasible(const PolicyInput&)>;
    Planner least = plan_liveness;  // of those that do not fit
    auto consider = [&](const Planner& planner) {
      if (const Plan* plan = std::get_if<Plan>(&best)) quick.faster_than_ms = plan->predicted.step_time_ms;
      PlanOrInfeasible other = planner(quick);
      const auto* mine = std::get_if<Infeasible>(&best);
      const auto* theirs = std::get_if<Infeasible>(&other);
      if (mine != nullptr && theirs != nullptr && theirs->minimum < mine->minimum) least = planner;
      keep_better(input, best, std::move(other));
    };
    consider(plan_by_search);
    for (const Policy& policy : policies()) {
      if (!input.state_homes.empty()) break;
      if (policy.plan != plan_auto && policy.plan != plan_liveness && policy.plan != plan_baseline && policy.plan != plan_caffe) consider(policy.plan);
    }
    if (input.explain && std::holds_alternative<Infeasible>(best)) best = least(input);
  }
  if (Plan* plan = std::get_if<Plan>(&best)) {
    plan->plan_time_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
  }
  return best;
}

}  // namespace plimsoll
