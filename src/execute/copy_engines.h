// The copy engines of a plan: one for each route of its table of boundaries (boundaries.h), with the same number.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "execute/copy_engine.h"
#include "execute/driver.h"

namespace plimsoll {

class CopyEngines {
 public:
  // With memory checks, an arrival finds its place full of NaN, and a slot is closed after its last copy in. Where a
  // tier has no engine beside compute, all threads of the device copy together when a copy is started. With `made`,
  // copies are started by submit() alone, in any order, and `made` is told of each that is done or given up.
  explicit CopyEngines(ReadyPlan& ready, std::function<void(int32_t move)> made = {});

  void begin(Clock::time_point origin);
  // Starts copies, and waits for some. Waiting throws what stopped an engine, when all of them are at rest.
  void start(const CopyRange& range) { engines_[range.route]->release(range.end); }
  void wait(const CopyRange& range);
  void rest();

  void submit(int32_t move);
  std::exception_ptr failure() const;  // of any engine

 private:
  struct Ticket {
    int32_t engine = 0, number = 0;  // in the engine's list
  };
  std::vector<std::unique_ptr<CopyEngine>> engines_;
  std::vector<Ticket> tickets_;  // by move
};

}  // namespace plimsoll
