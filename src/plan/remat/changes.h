// Changes of a RunSet, drawn at random: what the searches over runs have in common.
//
//   begin -> drop, remove, shift ... -> apply -> accept, or take_back
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/random.h"
#include "plan/remat/run_set.h"

namespace plimsoll {

// Draws that are the same on every machine.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15U + 0x632be59bd9b4e019U) {}
  int32_t below(int64_t n) { return n <= 1 ? 0 : static_cast<int32_t>(next_bits(state_) % static_cast<uint64_t>(n)); }
  double share() { return static_cast<double>(next_bits(state_) >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

struct Rerun {
  int32_t step, stage;
};

class RunChanges {
 public:
  RunChanges(const ValueTimeline& timeline, RunSet& set);

  void draw_from(uint64_t seed) { draws_ = Draws(seed); }
  Draws& draws() { return draws_; }
  bool has_candidates() const { return !candidates_.empty(); }

  // A new change; what adds more than `most_ms` need not be looked at.
  void begin(double most_ms);
  bool none() const { return changes_.empty(); }
  bool pending() const { return applied_ < changes_.size(); }
  bool too_dear() const { return more_ms_ > most_ms_; }
  const std::vector<Rerun>& list() const { return changes_; }

  // Lets a value go in a gap; `near`: across that stage, -1: anywhere, where too much is there first of all.
  void propose_drop(int32_t near);
  // Lets this value go in one of its gaps, across the stage where one is given.
  void drop(int32_t value, int32_t stage);
  // Takes a rerun back, and those that only served it. Its stage, -1: there is none.
  int32_t propose_removal();
  void propose_removal_near(int32_t stage);
  // Moves a rerun to another stage.
  void propose_shift();
  // Takes reruns back, and lets other values go where there is too much then.
  void propose_exchange();

  void apply();
  void take_back();
  void accept();

  const std::vector<Rerun>& reruns() const { return reruns_; }
  void list_reruns();                       // as the set has them
  void restore(std::vector<Rerun> reruns);  // the set is made so
  int64_t work() const { return proposed_; }

 private:
  int32_t fullest(int32_t near);
  bool changed(int32_t step, int32_t stage) const;
  void change(int32_t step, int32_t stage);
  int32_t idle_across(int32_t stage);
  bool idles_across(int32_t v, int32_t stage) const;
  void add(int32_t step, int32_t stage, int depth);
  void remove(int32_t step, int32_t stage, int depth);
  bool serves_only(int32_t step, int32_t stage, RunSet::Run reader);

  const ValueTimeline& timeline_;
  RunSet& set_;
  Draws draws_{0};
  std::vector<int32_t> candidates_;  // values that may be let go
  std::vector<Rerun> reruns_, changes_, chosen_;
  size_t applied_ = 0;                // of the changes
  double more_ms_ = 0, most_ms_ = 0;  // of the changes; what may be of use
  int64_t proposed_ = 0;
  std::vector<std::pair<RunSet::Run, RunSet::Run>> gaps_;
};

}  // namespace plimsoll
