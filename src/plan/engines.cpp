#include "plan/engines.h"

#include <algorithm>

#include "plan/simulate.h"

namespace plimsoll {
namespace {

class Engines {
 public:
  Engines(std::span<const double> step_ms, std::span<const EngineMove> moves, std::span<const TierInfo> tiers,
          std::vector<EngineSpan>* timeline)
      : step_ms_(step_ms), moves_(moves), tiers_(tiers), timeline_(timeline), free_at_(2 * tiers.size(), 0) {}

  EngineTimes run() {
    order_moves();
    complete_before_.assign(step_ms_.size() + 1, 0);
    double now = 0;
    for (size_t s = 0; s <= step_ms_.size(); ++s) {
      start_moves(s, now, true);
      wait(s, now);
      start_moves(s, now, false);
      wait(s, now);  // for what comes in between the same two steps
      if (s == step_ms_.size()) break;
      const double start = now;
      now = finish_of(start, step_ms_[s]);
      if (timeline_ != nullptr) timeline_->push_back({0, static_cast<int32_t>(s), start, now});
    }
    result_.total_ms = now;
    return result_;
  }

 private:
  struct Copy {
    double start, end, share;
  };

  void order_moves() {
    first_.assign(step_ms_.size() + 2, 0);
    for (const EngineMove& move : moves_) ++first_[move.after + 2];
    for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
    order_.resize(moves_.size());
    std::vector<int32_t> next = first_;
    for (size_t i = 0; i < moves_.size(); ++i) {
      order_[next[moves_[i].after + 1]++] = static_cast<int32_t>(i);
    }
  }

  void wait(size_t step, double& now) {
    result_.stall_ms += std::max(0.0, complete_before_[step] - now);
    now = std::max(now, complete_before_[step]);
  }

  // When work that takes `ms` alone is done if it starts at `now`, slowed by the copies that run meanwhile.
  double finish_of(double now, double ms) {
    std::erase_if(copies_, [&](const Copy& copy) { return copy.end <= now; });
    while (!copies_.empty()) {
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
    return now + ms;
  }

  // An engine takes copies in the order in which they may start. Where there is none beside compute, `now` is when they
  // are done.
  void start_moves(size_t step, double& now, bool out) {
    for (int32_t k = first_[step]; k < first_[step + 1]; ++k) {
      const int32_t i = order_[k];
      const EngineMove& move = moves_[i];
      if (move.out != out) continue;
      const TierInfo& tier = tiers_[move.tier];
      const size_t engine = 2 * move.tier + (move.out ? 0 : 1);
      const double start = std::max(now, free_at_[engine]);
      const double ms = copy_ms(tier, move.out ? Move::Direction::out : Move::Direction::in, {move.bytes});
      free_at_[engine] = start + ms;
      result_.copy_ms += ms;
      if (timeline_ != nullptr) timeline_->push_back({static_cast<int>(engine) + 1, i, start, free_at_[engine]});
      if (!tier.beside_compute()) {
        now = free_at_[engine];
        result_.stall_ms += ms;
      } else if (tier.compute_share > 0 && ms > 0) {
        copies_.push_back({start, free_at_[engine], tier.compute_share});
      }
      double& complete = complete_before_[move.before];
      complete = std::max(complete, free_at_[engine]);
    }
  }

  std::span<const double> step_ms_;
  std::span<const EngineMove> moves_;
  std::span<const TierInfo> tiers_;
  std::vector<EngineSpan>* timeline_;
  std::vector<int32_t> first_, order_;   // moves by the step after which they start
  std::vector<double> complete_before_;  // by step: when the last move that it waits for is complete
  std::vector<double> free_at_;          // by engine
  std::vector<Copy> copies_;             // those that slow compute down and may still run
  EngineTimes result_;
};

}  // namespace

EngineTimes run_engines(std::span<const double> step_ms, std::span<const EngineMove> moves,
                        std::span<const TierInfo> tiers, std::vector<EngineSpan>* timeline) {
  return Engines(step_ms, moves, tiers, timeline).run();
}

}  // namespace plimsoll
