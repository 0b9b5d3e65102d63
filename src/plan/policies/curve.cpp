#include "plan/policies/curve.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/parallel.h"
#include "plan/assemble.h"
#include "plan/bounds.h"
#include "plan/make_plan.h"
#include "plan/policies/extremes.h"
#include "plan/policies/policies.h"
#include "plan/remat/search.h"
#include "plan/simulate.h"
#include "plan/tier_room.h"

namespace plimsoll {
namespace {

constexpr size_t kPlacedRoughly = 10;  // plans with little memory, to find those that waste least between offsets
constexpr size_t kPlacedWell = 4;      // of those, and of those only
constexpr int64_t kNearTheLeast = 16;  // what is above the least by no more than this part of it
constexpr double kLessForOffsets = 0.985;
constexpr double kPartsOfBudget[] = {0.94, 0.97, 1};  // offsets may need more than live bytes
constexpr int64_t kMostChanges = 110;                 // at random, at each limit
constexpr int64_t kChangedSteps = 15'000;             // that are scheduled for them
constexpr double kMostComputed = 3;  // times that of a step where nothing runs again, where a plan is known to fit

}  // namespace

class CurvePlanner::Search {
 public:
  explicit Search(const PolicyInput& input) : input_(input), timeline_(make_timeline(input)), scheduler_(timeline_) {}

  PlanOrInfeasible plan() {
    if (std::optional<Plan> plan = input_.first_that_fits ? plan_extreme() : std::nullopt) return *std::move(plan);
    if (!input_.first_that_fits || timeline_.steps.size() <= kManySteps || input_.device.tiers.empty()) {
      find_points();
    } else {  // a search would take minutes
      for (const Extreme& extreme : extremes(input_)) add_extreme(extreme);
    }
    // The curve supposes tiers without end; and what is planned where there is no tier: a tier more is never slower.
    std::vector<Ascent> ascents;
    const auto ascend = [&](const std::vector<TradeoffPoint>& points, const std::vector<TierInfo>& tiers,
                            bool within_room) {
      for (bool many_at_once : {false, true}) ascents.push_back({points, tiers, within_room, many_at_once});
    };
    ascend(points_, input_.device.tiers, false);
    if (may_be_faster(least_ms_in_place(), input_.faster_than_ms)) ascend(in_place_, {}, false);
    if (points_with_room().size() < points_.size()) {
      // What surely fits the tiers may be faster than the rest of the curve.
      if (!input_.first_that_fits) find_points_within_room();
      ascend(points_with_room(), input_.device.tiers, true);
    }
    if (std::optional<Plan> plan = fastest_of(ascents)) return *std::move(plan);
    return smallest(input_);
  }

  // The ways down, for whatever budget.
  Descents descents() {
    const size_t in_place = descend();
    Descents found;
    for (size_t i = 0; i < points_.size(); ++i)
      (i < in_place ? found.in_place : found.others).push_back(std::move(points_[i].decisions));
    return found;
  }

  // A bound of the time within the budget where no tier is used.
  double least_ms_in_place() const { return least_ms(timeline_, {}, input_.budget.count); }

  // Copies in place of some of what runs again where nothing is copied: within the budget, or within more by what all states take.
  std::optional<Plan> with_copies(const std::vector<int32_t>& sequence) {
    const std::vector<TierInfo>& tiers = input_.device.tiers;
    int64_t states = 0;
    for (const TimelineValue& value : timeline_.values)
      states += value.state >= 0 && value.producer < 0 ? value.bytes : 0;
    std::vector<Decisions> reruns;
    const auto add = [&](const std::vector<int32_t>& steps) {
      if (std::optional<Decisions> decisions = decisions_of(steps)) reruns.push_back(*std::move(decisions));
    };
    add(sequence);
    add(find_runs(timeline_, input_.budget.count + states, input_.run_effort / 2).sequence);
    std::vector<int64_t> within;
    for (const double part : kPartsOfBudget)
      within.push_back(static_cast<int64_t>(part * static_cast<double>(input_.budget.count)));
    std::vector<LimitedPoint> found = refine_tradeoff(timeline_, tiers, {}, within,
                                                      {.within_room = tiers.size() > 1,
                                                       .states_may_move = input_.state_homes.empty(),
                                                       .changes = changes(),
                                                       .reruns = std::move(reruns)});
    std::ranges::reverse(found);
    for (const LimitedPoint& point : found) {
      if (point.ms * kRounding >= input_.faster_than_ms) continue;
      Plan plan = make(point.decisions, point.limit);
      if (plan.arena <= input_.budget && fits_tiers(plan)) return plan;
    }
    return std::nullopt;
  }

  // After plan(): the smallest, whether it fits or not.
  PlanOrInfeasible smallest(const PolicyInput& input) {
    const std::vector<TradeoffPoint> roomy = points_with_room();
    const std::vector<TradeoffPoint>& points = roomy.empty() ? points_ : roomy;
    const TradeoffPoint* least = &points.front();
    for (const TradeoffPoint& point : points) {
      if (point.peak < least->peak) least = &point;
    }
    scheduler_.run(least->decisions, schedule_);
    spread_in_turn(timeline_, input_.device.tiers, least->peak, schedule_);
    return finish_plan(input, timeline_, least->decisions, schedule_, "auto");
  }

  // The plan that needs the least arena of those that need less than `below`; nothing: there is none. The least peak is
  // not always it: what is cut into many short pieces leaves holes between them.
  std::optional<Plan> least(Bytes below) {
    if (below <= Bytes{least_live(timeline_, !input_.device.tiers.empty())}) return std::nullopt;
    for (const Extreme& extreme : extremes(input_)) add_extreme(extreme);
    std::vector<TradeoffPoint> some = points_with_room();
    points_.clear();
    for (const TradeoffPoint& point : some) {
      std::optional<Plan> plan = make_roughly(point, std::min(more_than(input_.budget), below));
      if (plan && plan->arena <= input_.budget) return plan;
    }
    find_points();
    std::vector<TradeoffPoint> points = points_with_room();
    if (points.size() < points_.size()) {
      find_points_within_room();
      points = points_with_room();
    }
    std::stable_sort(points.begin(), points.end(),
                     [](const TradeoffPoint& a, const TradeoffPoint& b) { return a.peak < b.peak; });
    if (points[0].peak / 4 * 3 >= below.count) return std::nullopt;
    std::optional<Plan> best = make_roughly(points[0], {INT64_MAX});
    if (best->arena > input_.budget) {
      const Bytes bound = best->arena;
      std::vector<TradeoffPoint> close =
          placed_roughly(std::move(some), std::move(points), bound, std::min(below, bound));
      if (std::optional<Plan> other = least_of(close, std::min(below, bound))) best = std::move(other);
    }
    return best->arena < below ? std::move(best) : std::nullopt;
  }

 private:
  // Of `some` points, of those with peaks below `bound`, and of what these improve to: what may need less than `below`, by
  // the arena that it needs when placed roughly, the least first.
  std::vector<TradeoffPoint> placed_roughly(std::vector<TradeoffPoint> some, std::vector<TradeoffPoint> points,
                                            Bytes bound, Bytes below) const {
    const bool within_room = points.size() < points_.size();
    points.erase(std::find_if(points.begin() + 1, points.end(),
                              [&](const TradeoffPoint& point) { return point.peak >= bound.count; }),
                 points.end());
    for (size_t i = 0, n = std::min(kPlacedRoughly, points.size()); i < n; ++i)
      some.push_back(points[i * (points.size() - 1) / std::max<size_t>(n - 1, 1)]);
    std::vector<int64_t> peaks;
    for (const TradeoffPoint& point : some) peaks.push_back(point.peak);
    std::sort(peaks.begin(), peaks.end());
    for (LimitedPoint& point :
         improve_tradeoff(timeline_, input_.device.tiers, points, peaks, tries(), within_room, false))
      some.push_back({std::move(point.decisions), point.limit, point.ms, true});
    return least_when_placed_roughly(std::move(some), below);
  }
  // The kPlacedWell points whose plans need the least, those near the least alone. A few at a time: how far above these
  // the next ones lie does not matter.
  std::vector<TradeoffPoint> least_when_placed_roughly(std::vector<TradeoffPoint> points, Bytes below) const {
    std::stable_sort(points.begin(), points.end(),
                     [](const TradeoffPoint& a, const TradeoffPoint& b) { return a.peak < b.peak; });
    const auto same = [](const TradeoffPoint& a, const TradeoffPoint& b) {
      return a.peak == b.peak && a.decisions == b.decisions;
    };
    for (size_t i = 0; i < points.size(); ++i)
      points.erase(std::remove_if(points.begin() + static_cast<std::ptrdiff_t>(i) + 1, points.end(),
                                  [&](const TradeoffPoint& other) { return same(points[i], other); }),
                   points.end());
    std::vector<std::pair<Bytes, size_t>> best;  // arena and point, the least first
    for (size_t begin = 0; begin < points.size(); begin += kPlacedWell) {
      Bytes useless{INT64_MAX};
      if (!best.empty()) useless = best[0].first + Bytes{best[0].first.count / kNearTheLeast} + Bytes{1};
      if (best.size() == kPlacedWell) useless = std::min(useless, best.back().first);
      const size_t count = std::min(kPlacedWell, points.size() - begin);
      std::vector<std::optional<Plan>> plans(count);
      for_each_in_parallel(
          count, [&](size_t i) { plans[i] = make_roughly(points[begin + i], std::min(below, useless), useless); });
      for (size_t i = 0; i < count; ++i) {
        if (plans[i]) best.emplace_back(plans[i]->arena, begin + i);
      }
      std::sort(best.begin(), best.end());
      best.resize(std::min(kPlacedWell, best.size()));
    }
    std::vector<TradeoffPoint> result;
    for (const auto& [arena, i] : best) {
      const Bytes least = best[0].first;
      if (arena - least <= Bytes{least.count / kNearTheLeast}) result.push_back(std::move(points[i]));
    }
    return result;
  }
  // Placed with more effort.
  std::optional<Plan> least_of(const std::vector<TradeoffPoint>& points, Bytes below) const {
    std::vector<std::optional<Plan>> plans(points.size());
    for_each_in_parallel(plans.size(), [&](size_t i) { plans[i] = make_below(points[i], below); });
    std::optional<Plan> best;
    for (std::optional<Plan>& plan : plans) {
      if (plan && (!best || plan->arena < best->arena)) best = std::move(plan);
    }
    return best;
  }

  // A way up from these points.
  struct Ascent {
    std::vector<TradeoffPoint> points;
    std::vector<TierInfo> tiers;
    bool within_room;
    bool many_at_once;
  };
  // The fastest plan that they lead to.
  std::optional<Plan> fastest_of(const std::vector<Ascent>& ascents) const {
    const size_t count = ascents.size();
    std::vector<std::vector<LimitedPoint>> found(2 * count);  // of each ascent, and of each refined
    for_each_in_parallel(count, [&](size_t i) {
      const Ascent& a = ascents[i];
      if (a.points.empty()) return;
      const std::vector<int64_t> within = limits(a.points);
      found[i] = improve_tradeoff(timeline_, a.tiers, a.points, within, tries(), a.within_room, a.many_at_once);
      if (std::ranges::none_of(a.tiers, &TierInfo::beside_compute) || input_.first_that_fits) return;
      found[count + i] = refine_tradeoff(timeline_, a.tiers, found[i], within,
                                         {.within_room = a.within_room || a.tiers.size() > 1,
                                          .states_may_move = input_.state_homes.empty(),
                                          .changes = changes()});
    });
    std::vector<std::pair<const LimitedPoint*, size_t>> points;  // and of which of these
    for (size_t a = 0; a < found.size(); ++a) {
      for (const LimitedPoint& point : found[a]) points.emplace_back(&point, a);
    }
    std::ranges::stable_sort(points, [](const auto& a, const auto& b) { return a.first->ms < b.first->ms; });
    // One that does not fit in the end (its offsets need more than its bytes) gives way to the next. The more it lacked,
    // the more room the next of its ascent must leave.
    const double budget = static_cast<double>(input_.budget.count);
    std::vector<double> most(found.size(), budget);
    const LimitedPoint* last = nullptr;
    for (size_t next = 0, at_once = 1; next < points.size(); at_once = 2) {
      std::vector<std::pair<const LimitedPoint*, size_t>> tried;
      for (; next < points.size() && tried.size() < at_once; ++next) {
        const auto& [point, ascent] = points[next];
        if (point->ms * kRounding >= input_.faster_than_ms) break;
        if (static_cast<double>(bytes_of(*point)) > most[ascent]) continue;
        if (last != nullptr && *last == *point) continue;  // of another ascent
        tried.push_back(points[next]);
        last = point;
      }
      if (tried.empty()) break;
      std::vector<std::optional<Plan>> plans(tried.size());
      for_each_in_parallel(plans.size(),
                           [&](size_t i) { plans[i] = make(tried[i].first->decisions, tried[i].first->limit); });
      for (size_t i = 0; i < plans.size(); ++i) {
        const Bytes arena = plans[i]->arena;
        if (arena > input_.budget) {
          if (tried[i].first->limit > input_.budget.count) continue;  // it was never meant for this budget
          most[tried[i].second] *= std::min(kLessForOffsets, std::pow(budget / static_cast<double>(arena.count), 0.25));
        } else if (fits_tiers(*plans[i])) {
          return std::move(plans[i]);
        }
      }
    }
    return std::nullopt;
  }

  // Its limit, or what it takes where that is above the budget.
  int64_t bytes_of(const LimitedPoint& point) const {
    if (point.limit <= input_.budget.count) return point.limit;
    Schedule schedule;
    Scheduler(timeline_).run(point.decisions, schedule);
    spread_in_turn(timeline_, input_.device.tiers, point.limit, schedule);
    return schedule.peak;
  }

  std::vector<TradeoffPoint> points_with_room() const {
    std::vector<TradeoffPoint> points;
    std::copy_if(points_.begin(), points_.end(), std::back_inserter(points), [&](const TradeoffPoint& point) {
      return !point.copies || !TierRoom(timeline_, input_.device.tiers, point.decisions).overfull();
    });
    return points;
  }

  void find_points() {
    const size_t in_place = input_.descents ? take_points(*input_.descents()) : descend();
    if (input_.device.tiers.empty()) return;
    if (input_.state_homes.empty())
      in_place_.assign(points_.begin(), points_.begin() + static_cast<std::ptrdiff_t>(in_place));
    for (const Extreme& extreme : extremes(input_)) add_extreme(extreme);
  }
  // Adds the points of ways down, those in place first; returns their number.
  size_t descend() {
    TradeoffOptions options{.tiers = std::vector<bool>(input_.device.tiers.size(), false),
                            .states_may_move = input_.state_homes.empty()};
    if (input_.first_that_fits) options.effort = 3'000'000;
    if (!input_.least_memory && !input_.first_that_fits) options.most_ms = kMostComputed * timeline_.compute_ms;
    std::vector<TradeoffOptions> descents{options};  // without tiers first
    if (!input_.device.tiers.empty()) {
      options.tiers.clear();
      descents.push_back(options);
      options.recompute = false;
      descents.push_back(options);
    }
    return add_descents(descents, where_states_are(input_, timeline_));
  }
  // The same, of ways that are known.
  size_t take_points(const Descents& descents) {
    const std::array<const std::vector<Decisions>*, 2> lists{&descents.in_place, &descents.others};
    std::array<std::vector<TradeoffPoint>, 2> points;
    for_each_in_parallel(lists.size(), [&](size_t i) {
      Scheduler scheduler(timeline_);
      Schedule schedule;
      for (const Decisions& decisions : *lists[i]) {
        if (std::optional<TradeoffPoint> point = point_of(decisions, scheduler, schedule))
          points[i].push_back(*std::move(point));
      }
    });
    for (const std::vector<TradeoffPoint>& some : points) points_.insert(points_.end(), some.begin(), some.end());
    return points[0].size();
  }
  // Nothing where something cannot be had again.
  std::optional<TradeoffPoint> point_of(const Decisions& decisions, Scheduler& scheduler, Schedule& schedule) const {
    scheduler.run(decisions, schedule);
    if (schedule.unrecoverable >= 0) return std::nullopt;
    const int64_t peak = schedule.peak;
    const double ms = spread_in_turn(timeline_, input_.device.tiers, peak, schedule);
    return TradeoffPoint{decisions, peak, ms, !schedule.moves.empty()};
  }
  void find_points_within_room() {
    TradeoffOptions options{.tiers = {}, .within_room = true, .states_may_move = input_.state_homes.empty()};
    std::vector<TradeoffOptions> descents(2, options);
    descents[1].recompute = false;
    add_descents(descents, where_states_are(input_, timeline_));
    // What is cheap to compute again leaves the room to what is not.
    if (in_place_.size() < 2) return;
    add_descents({options}, in_place_[in_place_.size() / 2].decisions);
    if (points_.back().peak > least_live(timeline_, true)) add_descents({options}, in_place_.back().decisions);
  }
  // How many points the first of them gave.
  size_t add_descents(const std::vector<TradeoffOptions>& descents, const Decisions& start) {
    std::vector<std::vector<TradeoffPoint>> found(descents.size());
    for_each_in_parallel(descents.size(), [&](size_t i) {
      found[i] = find_tradeoff(timeline_, input_.device.tiers, start, descents[i]);
    });
    for (std::vector<TradeoffPoint>& points : found) {
      points_.insert(points_.end(), points.begin(), points.end());
    }
    return found[0].size();
  }
  // What a sequence of steps without copies keeps from one use to the next; all else is let go.
  std::optional<Decisions> decisions_of(const std::vector<int32_t>& sequence) {
    scheduler_.follow(keep_everything(timeline_), sequence, schedule_);
    if (schedule_.unrecoverable >= 0) return std::nullopt;
    std::vector<int32_t> first_run(timeline_.steps.size(), 0);
    for (int32_t d = 0; d < static_cast<int32_t>(schedule_.steps.size()); ++d) {
      if (!schedule_.steps[d].recompute) first_run[schedule_.steps[d].step] = d;
    }
    Decisions decisions = keep_everything(timeline_);
    for (size_t v = 0; v < timeline_.values.size(); ++v) {
      const TimelineValue& value = timeline_.values[v];
      if (value.recomputable && !value.at_end)
        std::fill_n(decisions.gaps.begin() + value.first_gap, value.gap_count(), kDrop);
    }
    for (const Residence& residence : schedule_.residences) {
      const TimelineValue& value = timeline_.values[residence.value];
      for (int32_t g = 0; value.producer >= 0 && g < static_cast<int32_t>(value.uses.size()); ++g) {
        const int32_t from = first_run[g == 0 ? value.producer : value.uses[g - 1]];
        if (residence.first <= from && first_run[value.uses[g]] <= residence.last)
          decisions.gaps[value.first_gap + g] = kKeep;
      }
    }
    return decisions;
  }

  std::optional<Plan> plan_extreme() {
    for (const Extreme& extreme : extremes(input_)) {
      const Decisions decisions = everything_out(input_, timeline_, extreme);
      scheduler_.run(decisions, schedule_);
      if (schedule_.unrecoverable >= 0 || schedule_.peak > input_.budget.count) continue;
      Plan plan = make(decisions, schedule_.peak);
      if (plan.arena <= input_.budget && fits_tiers(plan)) return plan;
    }
    return std::nullopt;
  }

  void add_extreme(const Extreme& extreme) {
    if (std::optional<TradeoffPoint> point =
            point_of(everything_out(input_, timeline_, extreme), scheduler_, schedule_))
      points_.push_back(*std::move(point));
  }

  // A fixed ladder and the peaks of the points on it, the same for every budget; it ends with the first above the budget, below which
  // what is found for that limit may stay all the same.
  std::vector<int64_t> limits(const std::vector<TradeoffPoint>& points) const {
    std::set<int64_t> limits;
    int64_t least = INT64_MAX, most = 0;
    for (const TradeoffPoint& point : points) {
      least = std::min(least, point.peak);
      most = std::max(most, point.peak);
    }
    const double ratio = timeline_.steps.size() > 4000   ? 1.25
                         : timeline_.steps.size() > 1500 ? 1.06
                         : timeline_.steps.size() > 1000 ? 1.035
                                                         : 1.025;
    for (double limit = static_cast<double>(least); limit < static_cast<double>(most) * ratio; limit *= ratio) {
      limits.insert(static_cast<int64_t>(limit));
    }
    const auto above = limits.upper_bound(input_.budget.count);
    if (above != limits.end()) limits.erase(std::next(above), limits.end());
    return {limits.begin(), limits.end()};
  }
  int changes() const {
    return static_cast<int>(std::min(kMostChanges, kChangedSteps / (1 + std::ssize(timeline_.steps))));
  }
  int tries() const { return static_cast<int>(std::clamp<size_t>(30000 / (1 + timeline_.steps.size()), 2, 60)); }

  Plan make(const Decisions& decisions, int64_t limit) const {
    Schedule schedule;
    Scheduler(timeline_).run(decisions, schedule);
    spread_in_turn(timeline_, input_.device.tiers, limit, schedule);
    return make_plan(input_, timeline_, decisions, schedule, "auto");
  }

  // Nothing where it needs at least `below`; one that surely does is not placed.
  std::optional<Plan> make_below(const TradeoffPoint& point, Bytes below) const {
    const std::optional<Schedule> schedule = schedule_below(point, below);
    if (!schedule) return std::nullopt;
    Plan plan = make_plan(input_, timeline_, point.decisions, *schedule, "auto");
    return plan.arena < below ? std::optional(std::move(plan)) : std::nullopt;
  }
  // Nothing where its live bytes are at least `below`; placed well, it may need less. What is not below `useless` may be
  // said to need still more.
  std::optional<Plan> make_roughly(const TradeoffPoint& point, Bytes below, Bytes useless = {INT64_MAX}) const {
    const std::optional<Schedule> schedule = schedule_below(point, below);
    if (!schedule) return std::nullopt;
    return make_plan(input_, timeline_, point.decisions, *schedule, "auto", useless);
  }
  std::optional<Schedule> schedule_below(const TradeoffPoint& point, Bytes below) const {
    Schedule schedule;
    Scheduler(timeline_).run(point.decisions, schedule);
    if (schedule.peak >= below.count) return std::nullopt;
    spread_in_turn(timeline_, input_.device.tiers, point.peak, schedule);
    if (schedule.peak >= below.count) return std::nullopt;
    return schedule;
  }

  static bool fits_tiers(const Plan& plan) {
    return std::all_of(plan.tiers.begin(), plan.tiers.end(),
                       [](const TierUse& t) { return t.used <= t.tier.capacity; });
  }

  const PolicyInput& input_;
  ValueTimeline timeline_;
  Scheduler scheduler_;
  Schedule schedule_;
  std::vector<TradeoffPoint> points_, in_place_;  // in_place_: of those, what uses no tier
};

CurvePlanner::CurvePlanner(const PolicyInput& input) : search_(std::make_unique<Search>(input)) {}
CurvePlanner::~CurvePlanner() = default;
PlanOrInfeasible CurvePlanner::plan() { return search_->plan(); }
PlanOrInfeasible CurvePlanner::smallest(const PolicyInput& input) { return search_->smallest(input); }
std::optional<Plan> CurvePlanner::least(Bytes below) { return search_->least(below); }
std::optional<Plan> CurvePlanner::with_copies(const std::vector<int32_t>& sequence) {
  return search_->with_copies(sequence);
}
Descents CurvePlanner::descents() { return search_->descents(); }

}  // namespace plimsoll
