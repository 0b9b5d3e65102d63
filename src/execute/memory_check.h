// Memory checks, for tests: what the plan calls free is filled with NaN, and who touches what is not its own is found
// by name.
//
//   before a training step   everything in the plan's stays is filled, but what comes from outside
//   between two steps        what the last one was the last to use is filled
//   before a kernel          no input may hold such a NaN: somebody filled it, or nobody wrote it
//   after a kernel           no output may: the kernel read free bytes, or left some of its output out
//   after a kernel           every byte of the arena that is not the kernel's to write is what it was
//   after a training step    what is free then is still filled
//
// Of steps side by side one kernel runs at a time, in the order in which they started: else nobody could say which of
// them wrote a byte. On a device whose arena the host does not see, the drivers fill and look at what they can.
//
// The NaN has all bits set, which no arithmetic makes of numbers. So a training that diverges is not taken for a wrong
// plan.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "execute/bindings.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

inline constexpr int kPoison = 0xff;  // four such bytes are a NaN

class MemoryCheck {
 public:
  using Range = std::pair<int64_t, int64_t>;  // of bytes of the arena
  MemoryCheck(const Graph& graph, const Plan& plan, const Bindings& bindings);

  // What nobody uses after the step until somebody takes it anew; what nobody uses before the first step.
  std::span<const Range> dying(StepIndex step) const { return dying_[step]; }
  std::span<const Range> free_at_start() const { return free_at_start_; }

  // Of an arena that the host may read and write. All throw Error(internal) that names step, op, kernel, bytes and
  // whose they are.
  void begin();                               // before a training step
  void expect_inputs(StepIndex step) const;   // before a kernel
  void expect_outputs(StepIndex step) const;  // after it
  void expect_free_at_end() const;            // after a training step

  // Where one kernel runs at a time, the arena is compared with a copy of it.
  void remember();  // after begin()
  void fill_dying(StepIndex step);
  void fill_dying(const Range& bytes);  // some of a step's
  void arriving(int32_t move);          // a copy in begins: its bytes change at any time
  void arrived(int32_t move);
  void sending(StepIndex step);  // the same of messages: the outputs of a step are the wire's
  void received(StepIndex step);
  void expect_others_unchanged(StepIndex step);

 private:
  Range range(const Region& region) const;
  void fill(std::span<const Range> ranges) const;
  std::string who(StepIndex step) const;
  std::string whose(int64_t at, StepIndex step) const;
  // The first byte of an element that is such a NaN; -1: none.
  int64_t find_poison(const Region& region) const;
  [[noreturn]] void tell_stray_write(int64_t begin, int64_t end, StepIndex step) const;

  const Graph& graph_;
  const Plan& plan_;
  const Bindings& bindings_;
  ById<StepIndex, std::vector<Range>> dying_;
  std::vector<Range> free_at_start_, free_at_end_;
  std::vector<std::byte> copy_;  // of the arena as it should be
  std::vector<Range> arriving_;
};

}  // namespace plimsoll
