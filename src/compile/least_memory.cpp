#include "compile/least_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/assemble.h"
#include "plan/route.h"
#include "plan/simulate.h"
#include "plan/tier_flag.h"

namespace plimsoll {
namespace {

MachineRates stated_rates(const Device& device) {
  return device.info().simulated ? probe_rates(device) : MachineRates{};
}

// The tiers in an order, and with rates, that were not measured; of each, where it stands in `tiers`.
std::pair<std::vector<TierInfo>, std::vector<size_t>> stated_tiers(const std::vector<TierInfo>& tiers, bool simulated) {
  std::vector<size_t> places(tiers.size());
  std::iota(places.begin(), places.end(), size_t{0});
  if (simulated) return {tiers, places};
  std::stable_sort(places.begin(), places.end(), [&](size_t a, size_t b) { return tiers[a].name < tiers[b].name; });
  std::vector<TierInfo> stated;
  for (size_t place : places) {
    TierInfo tier = tiers[place];
    const bool is_far = tier.name == "disk" || tier.name == "remote";
    tier.out_gb_per_s = tier.in_gb_per_s = is_far ? 1 : 10;
    tier.latency_us = is_far ? 100 : 10;
    tier.compute_share = tier.beside_compute() ? 0 : 1;
    stated.push_back(std::move(tier));
  }
  return {std::move(stated), std::move(places)};
}

void put_tiers(Plan& plan, const std::vector<TierInfo>& tiers, const std::vector<size_t>& places) {
  if (plan.tiers.empty()) return;
  std::vector<TierUse> uses(tiers.size());
  for (size_t t = 0; t < places.size(); ++t) uses[places[t]] = {tiers[places[t]], plan.tiers[t].used};
  plan.tiers = std::move(uses);
  for (Move& move : plan.moves) move.tier = static_cast<int>(places[static_cast<size_t>(move.tier)]);
  for (Home& home : plan.homes) home.tier = static_cast<int>(places[static_cast<size_t>(home.tier)]);
}

// Of what there is for one choice of kernels.
class LeastSearch {
 public:
  LeastSearch(const Device& device, const CostTable& costs, const CompileOptions& options)
      : device_(device), asked_(options), costs_(costs.unmeasured(stated_rates(device))), options_(options) {
    const std::vector<TierInfo>& tiers = options.tiers.empty() ? device.info().tiers : options.tiers;
    std::tie(options_.tiers, places_) = stated_tiers(tiers, device.info().simulated);
    for (int8_t& home : options_.state_homes) {
      if (home >= 0)
        home = static_cast<int8_t>(std::ranges::find(places_, static_cast<size_t>(home)) - places_.begin());
    }
    tiers_ = tiers;
    auto_ = find_policy(options.policy).name == "auto";
  }
  const CostTable& costs() const { return costs_; }
  const CompileOptions& options() const { return options_; }

  void consider(const LaidOut& laid, Bytes enough) {
    if (!seen_.insert(identity(laid)).second) return;
    if (auto_) {
      take(attempt(laid, enough));
      return;
    }
    // Another policy is asked with what it says that it needs, and then for less.
    bool found = false;
    if (enough.count < INT64_MAX) take(attempt(laid, enough));
    if (fits(enough)) return;
    Bytes memory{1};
    for (int i = 0; i < kAnswers; ++i) {
      Attempt answer = attempt(laid, memory);
      if (answer.feasible()) {
        memory = answer.plan().arena - Bytes{1};
        found = true;
      } else {
        const Infeasible& why = std::get<Infeasible>(answer.result);
        if (found || why.minimum.count == INT64_MAX || memory.count == INT64_MAX) i = kAnswers;
        memory = why.tier.empty() && why.minimum > memory ? why.minimum : Bytes{INT64_MAX};
      }
      take(std::move(answer));
      if (fits(enough)) return;
    }
  }
  // The same in another order of its steps, which follows from the graph and not from who asks.
  void consider_reordered(const LaidOut& laid, Bytes enough) {
    if (!auto_ || fits(enough) || !reordered_.insert(identity(laid)).second) return;
    options_.memory = enough;
    std::optional<Attempt> other =
        reordered({laid.graph, laid.layouts, Infeasible{}}, least_live_of(laid, device_, costs_, options_), device_,
                  costs_, options_, wanted());
    if (other) take(*std::move(other));
  }
  // Asks for plans within less than `known`, as somebody would who is told of that: a search for a budget finds what one for the
  // least does not. Which budgets these are follows from the graph, so what is named is found again by who asks for it. With many ops,
  // of which a search takes long, they are fewer, with less effort.
  void descend(const LaidOut& laid, Bytes low, Bytes known, Bytes enough) {
    if (!auto_) return;
    options_.search_effort = asked_.search_effort / kEffortOfDescent;
    const bool many = laid.graph.op_count() > kManyOpsOfDescent;
    if (many) options_.run_effort = asked_.run_effort / static_cast<int64_t>(kEffortOfDescent);
    const Bytes close{std::max(known.count / (many ? kCloseToOfMany : kCloseTo), kStayAlignment)};
    const auto middle = [&] { return Bytes{low.count + (known - low).count / 2}; };
    for (Bytes budget = many ? middle() : low; low < known && !fits(enough); budget = middle()) {
      if (fits_within(laid, budget)) {
        known = best_->plan().arena;
      } else {
        low = budget;
      }
      if (known - low <= close) return;
    }
  }
  bool fits(Bytes memory) const { return best_ && best_->plan().arena <= memory; }

  Least result(const Device& device, const CostTable& costs) {
    Least least{.attempt = std::move(best_), .why = std::move(why_)};
    if (!least.attempt) return least;
    Plan& plan = std::get<Plan>(least.attempt->result);
    if (auto_) least.why = explain(*least.attempt, device);
    if (least.why.suggestion.starts_with(raise_memory_to(least.why.minimum)))
      least.why.suggestion.replace(0, raise_memory_to(least.why.minimum).size(), raise_memory_to(plan.arena));
    least.why.minimum = plan.arena;
    least.why.budget = asked_.memory;
    put_tiers(plan, tiers_, places_);
    plan.budget = asked_.memory;
    predict_by(*least.attempt, costs);
    return least;
  }

 private:
  static constexpr int kAnswers = 6;

  static constexpr double kEffortOfDescent = 8;
  static constexpr int64_t kCloseTo = 1000, kCloseToOfMany = 25;
  static constexpr int32_t kManyOpsOfDescent = 400;

  bool fits_within(const LaidOut& laid, Bytes budget) {
    options_.memory = budget;
    const Wanted wanted{.policy = options_.policy};
    std::optional<Attempt> answer =
        reordered({laid.graph, laid.layouts, Infeasible{}}, budget, device_, costs_, options_, wanted);
    if (!answer || !answer->feasible()) answer = make_attempt(laid, device_, costs_, options_, wanted);
    if (!answer->feasible()) {
      auto other =
          in_fastest_order({laid.graph, laid.layouts, Infeasible{}}, budget, device_, costs_, options_, wanted);
      if (other) answer = std::move(other);
    }
    const bool fits = answer->feasible();
    if (fits) take(*std::move(answer));
    return fits;
  }
  Attempt attempt(const LaidOut& laid, Bytes memory) {
    options_.memory = memory;
    return make_attempt(laid, device_, costs_, options_, wanted());
  }
  Wanted wanted() const {
    return {.policy = options_.policy,
            .explain = true,
            .least_memory = true,
            .less_than = best_ ? best_->plan().arena : Bytes{INT64_MAX}};
  }
  void take(Attempt answer) {
    if (answer.feasible()) {
      if (!best_ || answer.plan().arena < best_->plan().arena) best_ = std::move(answer);
      return;
    }
    // Where memory was enough, a tier was not: that is what to say.
    Infeasible& why = std::get<Infeasible>(answer.result);
    const bool says_more = why_.policy.empty() || why.tier.empty() < why_.tier.empty();
    const bool needs_less = why.tier.empty() == why_.tier.empty() && why.minimum < why_.minimum;
    if (says_more || needs_less) why_ = std::move(why);
  }
  Infeasible explain(const Attempt& attempt, const Device& device) const {
    const Route route = route_of(attempt.plan());
    const PolicyInput input{.graph = attempt.graph,
                            .route = route,
                            .kernels = attempt.layouts.kernels,
                            .costs = costs_,
                            .device = device.info()};
    Infeasible why = explain_infeasible(input, attempt.plan(), false);
    const std::vector<TierUse>& uses = attempt.plan().tiers;
    const bool full = std::any_of(uses.begin(), uses.end(),
                                  [](const TierUse& use) { return use.used.count > use.tier.capacity.count / 10 * 9; });
    if (full) {
      std::vector<TierInfo> tiers;
      for (const TierUse& use : uses) tiers.push_back(use.tier);
      why.suggestion += more_of_tiers(tiers);
    }
    return why;
  }

  const Device& device_;
  const CompileOptions& asked_;
  const CostTable costs_;
  CompileOptions options_;
  std::vector<TierInfo> tiers_;
  std::vector<size_t> places_;
  std::set<std::string> seen_, reordered_;
  std::optional<Attempt> best_;
  Infeasible why_;
  bool auto_ = false;
};

bool keeps_any_otherwise(const LaidOut& laid) {
  return std::ranges::any_of(laid.graph.states,
                             [&](const State& s) { return !laid.graph.tensor(s.before).layout.is_plain(); });
}

// All states as they lie in files.
CompileOptions with_plain_states(CompileOptions options, const Graph& graph) {
  for (const State& state : graph.states) options.state_layouts.try_emplace(graph.tensor(state.before).name);
  return options;
}

}  // namespace

Least find_least(const Network& network, const Device& device, const CostTable& costs, const CompileOptions& options,
                 Bytes enough) {
  LeastSearch search(device, costs, options);
  Flow flow(network, device, search.costs(), search.options());
  const bool pinned = options.exact || !options.kernels.empty();
  std::vector<Choice> choices{{.family = options.family, .limit = {pinned ? INT64_MAX : 0}}};
  if (!pinned && !options.family && network.graph.op_count() <= kManyOps) {
    for (LayoutFamily family : {LayoutFamily::blocked, LayoutFamily::channels_last, LayoutFamily::plain})
      choices.push_back({.family = family, .limit = {0}});
  }
  bool any = false, any_otherwise = false;
  for (const Choice& choice : choices) {
    const LaidOut* laid = flow.lay_out(choice);
    if (laid == nullptr) continue;
    any = true;
    any_otherwise = any_otherwise || keeps_any_otherwise(*laid);
    search.consider(*laid, enough);
    if (search.fits(enough)) break;
  }
  // Where a parameter lies as its kernels like it, its gradient may be there twice, once for the update.
  if (!pinned && any_otherwise && !search.fits(enough)) {
    const CompileOptions plain = with_plain_states(search.options(), network.graph);
    Flow other(network, device, search.costs(), plain);
    const LaidOut* laid = other.lay_out(choices.front());
    if (laid != nullptr) search.consider(*laid, enough);
  }
  for (const Choice& choice : choices) {
    const LaidOut* laid = flow.lay_out(choice);
    if (laid != nullptr) search.consider_reordered(*laid, enough);
  }
  if (!any) return {.attempt = {}, .why = std::get<Infeasible>(flow.over_limit(true).result)};
  Least least = search.result(device, costs);
  if (!pinned) least.why.proven = false;  // not over all choices of kernels
  return least;
}

Least find_least(const LaidOut& laid, const Device& device, const CostTable& costs, const CompileOptions& options,
                 Bytes enough) {
  LeastSearch search(device, costs, options);
  search.consider_reordered(laid, enough);  // the listed order was chosen by nobody for its memory
  if (!search.fits(enough)) search.consider(laid, enough);
  return search.result(device, costs);
}

Least find_less(Least known, const LaidOut& laid, const Device& device, const CostTable& costs,
                const CompileOptions& options, Bytes lower_bound, Bytes enough) {
  constexpr int32_t kOps = 8000;
  if (!known.attempt || laid.graph.op_count() > kOps) return known;
  LeastSearch search(device, costs, options);
  search.descend(laid, lower_bound, known.attempt->plan().arena, enough);
  Least less = search.result(device, costs);
  return less.attempt ? less : known;
}

}  // namespace plimsoll
