#include "plimsoll/simulate.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr double kLeastComputeSpeed = 0.05;  // however many copies run beside it

class Simulation {
 public:
  Simulation(const Graph& graph, const Plan& plan, const CostTable& costs)
      : graph_(graph), plan_(plan), costs_(costs), free_at_(2 * plan.tiers.size(), 0) {
    const size_t steps = plan.steps.size();
    starting_after_.resize(steps + 1);
    complete_before_.assign(steps + 1, 0);
    for (size_t i = 0; i < plan.moves.size(); ++i) {
      starting_after_[static_cast<size_t>(plan.moves[i].after + 1)].push_back(static_cast<int32_t>(i));
    }
  }

  Prediction run() {
    const Peak peak = live_peak(plan_);
    result_.peak = peak.bytes;
    result_.peak_step = peak.step;
    double now = 0, compute = 0, estimated = 0;
    for (size_t s = 0; s <= plan_.steps.size(); ++s) {
      result_.stall_ms += std::max(0.0, complete_before_[s] - now);
      now = std::max(now, complete_before_[s]);
      start_moves(s, now);
      // A copy that starts here and must be complete here: between two steps.
      result_.stall_ms += std::max(0.0, complete_before_[s] - now);
      now = std::max(now, complete_before_[s]);
      if (s == plan_.steps.size()) break;
      const Cost cost = step_cost(plan_.steps[s]);
      const double start = now;
      now = finish_of(start, cost.time_ms);
      compute += cost.time_ms;
      if (cost.source == Cost::Source::estimated) estimated += cost.time_ms;
      if (plan_.steps[s].recompute && !plan_.steps[s].kernel.empty()) {
        ++result_.recompute_steps;
        result_.recompute_ms += cost.time_ms;
      }
      result_.timeline.push_back({0, static_cast<int32_t>(s), start, now});
    }
    result_.step_time_ms = now;
    result_.estimated_share = compute > 0 ? estimated / compute : 0;
    result_.lower_bound_ms = compute - result_.recompute_ms;
    return std::move(result_);
  }

 private:
  struct Copy {
    double start, end, share;
  };

  Cost step_cost(const Step& step) const {
    if (step.kernel.empty()) return {};  // a view moves nothing
    return costs_.predict(graph_, graph_.op(step.op), step.kernel, step.threads);
  }

  // When work that takes `ms` alone is done if it starts at `now`, slowed by the copies that run meanwhile.
  double finish_of(double now, double ms) {
    std::erase_if(copies_, [&](const Copy& copy) { return copy.end <= now; });
    while (ms > 0) {
      double speed = 1, until = now + 1e300;
      for (const Copy& copy : copies_) {
        if (copy.end <= now) continue;
        if (copy.start <= now) speed -= copy.share;
        until = std::min(until, copy.start > now ? copy.start : copy.end);
      }
      speed = std::max(speed, kLeastComputeSpeed);
      if (now + ms / speed <= until) return now + ms / speed;
      ms -= (until - now) * speed;
      now = until;
    }
    return now;
  }

  // Each tier has an engine for each direction, which takes copies in the order in which they may start.
  void start_moves(size_t slot, double now) {
    for (int32_t i : starting_after_[slot]) {
      const Move& move = plan_.moves[static_cast<size_t>(i)];
      const TierInfo& tier = plan_.tiers[static_cast<size_t>(move.tier)].tier;
      const bool out = move.direction == Move::Direction::out;
      const size_t engine = 2 * static_cast<size_t>(move.tier) + (out ? 0 : 1);
      const Bytes bytes = graph_.tensor(move.tensor).bytes();
      const double start = std::max(now, free_at_[engine]);
      free_at_[engine] = start + copy_ms(tier, move.direction, bytes);
      (out ? result_.offload : result_.prefetch) += bytes;
      result_.copy_ms += free_at_[engine] - start;
      result_.timeline.push_back({static_cast<int>(engine) + 1, i, start, free_at_[engine]});
      if (tier.compute_share > 0) copies_.push_back({start, free_at_[engine], tier.compute_share});
      double& complete = complete_before_[static_cast<size_t>(move.before)];
      complete = std::max(complete, free_at_[engine]);
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const CostTable& costs_;
  std::vector<std::vector<int32_t>> starting_after_;  // by step + 1: moves
  std::vector<double> complete_before_;               // by step: when the last move that it waits for is complete
  std::vector<double> free_at_;                       // by engine
  std::vector<Copy> copies_;                          // those that slow compute down and may still run
  Prediction result_;
};

}  // namespace

double copy_ms(const TierInfo& tier, Move::Direction direction, Bytes bytes) {
  const double gb_per_s = direction == Move::Direction::out ? tier.out_gb_per_s : tier.in_gb_per_s;
  return tier.latency_us / 1e3 + (gb_per_s > 0 ? static_cast<double>(bytes.count) / (gb_per_s * 1e6) : 0);
}

Prediction simulate(const Graph& graph, const Plan& plan, const CostTable& costs) {
  return Simulation(graph, plan, costs).run();
}

}  // namespace plimsoll
