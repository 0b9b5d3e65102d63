#include "plan/engines.h"

#include <algorithm>
#include <utility>

#include "plan/simulate.h"

namespace plimsoll {
namespace {

class Engines {
 public:
  Engines(std::span<const double> step_ms, std::span<const EngineMove> moves, std::span<const TierInfo> tiers,
          std::vector<EngineSpan>* timeline, std::span<const EngineCollective> collectives, double share)
      : step_ms_(step_ms),
        moves_(moves),
        tiers_(tiers),
        timeline_(timeline),
        collectives_(collectives),
        message_share_(share),
        free_at_(2 * tiers.size(), 0) {}

  EngineTimes run() {
    order_moves();
    complete_before_.assign(step_ms_.size() + 1, 0);
    if (!collectives_.empty()) received_before_.assign(step_ms_.size() + 1, 0);
    double now = 0;
    for (size_t s = 0; s <= step_ms_.size(); ++s) {
      wait_for_messages(s, now);  // copies may be of what they bring
      start_moves(s, now, true);
      wait(s, now);
      start_moves(s, now, false);
      wait(s, now);  // for what comes in between the same two steps
      if (s == step_ms_.size()) break;
      const double start = now;
      now = finish_of(start, step_ms_[s]);
      if (timeline_ != nullptr) timeline_->push_back({0, static_cast<int32_t>(s), start, now});
      start_collectives(s, now);
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

  void wait_for_messages(size_t step, double& now) {
    if (collectives_.empty() || received_before_[step] <= now) return;
    result_.stall_ms += received_before_[step] - now;
    result_.communication_stall_ms += received_before_[step] - now;
    now = received_before_[step];
  }

  // One after another, in their order.
  void start_collectives(size_t step, double now) {
    for (; next_ < collectives_.size() && std::cmp_equal(collectives_[next_].last, step); ++next_) {
      const EngineCollective& collective = collectives_[next_];
      const double start = std::max(now, wire_free_at_);
      wire_free_at_ = start + collective.ms;
      result_.communication_ms += collective.ms;
      if (timeline_ != nullptr) {
        const int engine = 1 + 2 * static_cast<int>(tiers_.size());
        timeline_->push_back({engine, static_cast<int32_t>(next_), start, wire_free_at_});
      }
      if (message_share_ > 0 && collective.ms > 0) copies_.push_back({start, wire_free_at_, message_share_});
      double& received = received_before_[collective.before];
      received = std::max(received, wire_free_at_);
    }
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
  std::span<const EngineCollective> collectives_;
  double message_share_;
  std::vector<double> received_before_;  // by step: when the last collective that it waits for is complete
  size_t next_ = 0;                      // of collectives_
  double wire_free_at_ = 0;
  std::vector<int32_t> first_, order_;   // moves by the step after which they start
  std::vector<double> complete_before_;  // by step: when the last move that it waits for is complete
  std::vector<double> free_at_;          // by engine
  std::vector<Copy> copies_;             // those that slow compute down and may still run
  EngineTimes result_;
};

}  // namespace

EngineTimes run_engines(std::span<const double> step_ms, std::span<const EngineMove> moves,
                        std::span<const TierInfo> tiers, std::vector<EngineSpan>* timeline,
                        std::span<const EngineCollective> collectives, double share) {
  return Engines(step_ms, moves, tiers, timeline, collectives, share).run();
}

}  // namespace plimsoll
