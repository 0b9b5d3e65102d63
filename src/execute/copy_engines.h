// The copy engines of a plan: which there are, what each copies, and what each step waits for. Between two steps first
// what must leave leaves, then what comes in may take its place (plan.h).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "plimsoll/execute.h"
#include "execute/copy_engine.h"

namespace plimsoll {

inline bool is_out(const Move& move) { return move.direction == Move::Direction::out; }
// The stay that a copy reads or fills.
const Stay& stay_of(const Graph& graph, const Plan& plan, const Move& move);

class CopyEngines {
 public:
  // `tiers` are the plan's, in its order. `records`: one a move, or empty. With `check_memory`, an arrival finds its
  // place full of NaN, and a slot is closed after its last copy in.
  // Where a tier has no engine beside compute, `threads` threads copy together between two steps.
  // With `made`, copies are started by submit() alone, in any order, and `made` is told of each that is done or given up.
  CopyEngines(const Graph& graph, const Plan& plan, std::span<const std::shared_ptr<Tier>> tiers, std::byte* arena,
              std::span<StepRecord> records, bool check_memory, int threads, std::function<void(int32_t move)> made = {});

  bool none() const { return engines_.empty(); }
  void begin(CopyEngine::Clock::time_point origin);
  // Between step - 1 and step: starts what leaves, and waits for what must have left.
  void send(size_t step) { pass(boundaries_[step].out); }
  // Then starts what comes in, and waits for what must be there. Both throw what stopped an engine, when all of them
  // are at rest.
  void fetch(size_t step) { pass(boundaries_[step].in); }
  void rest();

  void submit(int32_t move);
  std::exception_ptr failure() const;  // of any engine

 private:
  struct Signal {  // an engine and a number of its copies
    int32_t engine = 0;
    int32_t count = 0;
  };
  struct Pass {
    std::vector<Signal> releases, waits;
  };
  struct Boundary {
    Pass out, in;
  };
  void pass(const Pass& pass) {
    if (pass.releases.empty() && pass.waits.empty()) return;
    signal(pass);
  }
  void signal(const Pass& pass);

  std::vector<std::unique_ptr<CopyEngine>> engines_;
  std::vector<Boundary> boundaries_;  // by step, and one for the end
  std::vector<Signal> places_;        // by move: its engine, and its place in the engine's list
};

}  // namespace plimsoll
