// auto: the whole trade-off curve between memory and time is found first, without regard to the budget; the budget then
// chooses the fastest point that fits. So more memory is never predicted slower. What any other policy offers for this budget
// is judged beside it.
#include <algorithm>
#include <chrono>
#include <optional>
#include <set>

#include "plan/assemble.h"
#include "plan/draft.h"
#include "plan/policies/policies.h"
#include "plan/tradeoff.h"
#include "plimsoll/simulate.h"

namespace plimsoll {
namespace {

// A point of the curve with the memory that copies may spread over.
struct Candidate {
  const TradeoffPoint* point = nullptr;
  int64_t limit = 0;
  double ms = 0;
};

class AutoPlanner {
 public:
  explicit AutoPlanner(const PolicyInput& input) : input_(input), frame_(make_frame(input)), scheduler_(frame_) {}

  PlanOrInfeasible plan() {
    find_points();
    std::optional<Plan> best;
    for (const Candidate& candidate : list_candidates()) {
      Plan plan = make(candidate);
      if (plan.arena > input_.budget || !fits_tiers(plan)) continue;
      best = std::move(plan);
      break;
    }
    if (best) return std::move(*best);
    return explain();
  }

 private:
  void find_points() {
    const Decisions start = keep_everything(frame_);
    const std::vector<TierInfo>& tiers = input_.device.tiers;
    add(find_tradeoff(frame_, tiers, start, {.recompute = true, .tiers = std::vector<bool>(tiers.size(), false)}));
    if (tiers.empty() || (!points_.empty() && points_[0].peak <= input_.budget.count)) return;
    add(find_tradeoff(frame_, tiers, start, {.recompute = true, .tiers = {}}));
    add(find_tradeoff(frame_, tiers, start, {.recompute = false, .tiers = {}}));
  }
  void add(std::vector<TradeoffPoint> points) {
    points_.insert(points_.end(), std::make_move_iterator(points.begin()), std::make_move_iterator(points.end()));
  }

  // All that could fit, the fastest first. What a limit offers does not depend on the budget; the budget only says which limits
  // count.
  std::vector<Candidate> list_candidates() {
    std::vector<Candidate> list;
    std::set<int64_t> limits;
    int64_t least = INT64_MAX, most = 0;
    for (const TradeoffPoint& point : points_) {
      list.push_back({&point, point.peak, point.ms});
      least = std::min(least, point.peak);
      most = std::max(most, point.peak);
    }
    const double ratio = frame_.steps.size() > 4000 ? 1.25 : 1.06;
    for (double limit = static_cast<double>(least); limit < static_cast<double>(most) * ratio; limit *= ratio) {
      limits.insert(static_cast<int64_t>(limit));
    }
    for (int64_t limit : limits) {
      if (limit > input_.budget.count) break;
      // The fastest of those below it that copy: with more room they may wait less.
      std::vector<const TradeoffPoint*> below;
      for (const TradeoffPoint& point : points_) {
        if (point.peak < limit && point.copies) below.push_back(&point);
      }
      const size_t n = std::min<size_t>(below.size(), 5);
      std::partial_sort(below.begin(), below.begin() + static_cast<std::ptrdiff_t>(n), below.end(),
                        [](const TradeoffPoint* a, const TradeoffPoint* b) { return a->ms < b->ms; });
      for (size_t i = 0; i < n; ++i) {
        scheduler_.run(below[i]->decisions, schedule_);
        spread_copies(frame_, input_.device.tiers, limit, schedule_);
        list.push_back({below[i], limit, time_of(frame_, input_.device.tiers, schedule_).total_ms});
      }
    }
    std::erase_if(list, [&](const Candidate& c) { return c.limit > input_.budget.count; });
    std::stable_sort(list.begin(), list.end(), [](const Candidate& a, const Candidate& b) {
      return a.ms != b.ms ? a.ms < b.ms : a.limit < b.limit;
    });
    return list;
  }

  Plan make(const Candidate& candidate) {
    scheduler_.run(candidate.point->decisions, schedule_);
    spread_copies(frame_, input_.device.tiers, candidate.limit, schedule_);
    return make_plan(input_, frame_, candidate.point->decisions, schedule_, "auto");
  }

  static bool fits_tiers(const Plan& plan) {
    return std::all_of(plan.tiers.begin(), plan.tiers.end(), [](const TierUse& t) { return t.used <= t.tier.capacity; });
  }

  Infeasible explain() {
    const TradeoffPoint* least = nullptr;
    for (const TradeoffPoint& point : points_) {
      if (least == nullptr || point.peak < least->peak) least = &point;
    }
    const Plan plan = make({least, least->peak, least->ms});
    return explain_infeasible(input_, plan, false);
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
  // Where everything fits, nothing is faster.
  PlanOrInfeasible best = plan_liveness(input);
  if (!std::holds_alternative<Plan>(best)) {
    keep_better(input, best, AutoPlanner(input).plan());
    for (const Policy& policy : policies()) {
      if (policy.plan == plan_auto || policy.plan == plan_liveness || policy.plan == plan_baseline || policy.plan == plan_caffe) continue;
      keep_better(input, best, policy.plan(input));
    }
  }
  if (Plan* plan = std::get_if<Plan>(&best)) {
    plan->plan_time_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - started).count();
  }
  return best;
}

}  // namespace plimsoll
