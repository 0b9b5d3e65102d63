// How much of the machine others take while something is measured or trained. Times that were taken on a busy machine
// mislead: what is measured is kept apart then, and threads that wait for processors are better fewer.
#pragma once

#include <functional>

#include "device/cpu/machine.h"

namespace plimsoll {

struct Load {
  double seconds = 0;
  double others = 0;      // of the time of the processors that the process may run on: what others took, 0..1
  double waited = 0;      // of the time that its threads wanted to run: what they waited for a processor, 0..1
  double throttled = 0;   // the same, for what the control group's CPU quota kept them waiting
  double processors = 0;  // that the process had on average
};

// With more of others, times that were measured meanwhile are those of a busy machine.
inline constexpr double kTooBusy = 0.15;
inline bool is_busy(const Load& load) { return load.others > kTooBusy; }

// The load since it was made, or restarted. A look takes some 0.1 ms, and says little of less than half a second, since
// the system counts in hundredths.
class LoadMeter {
 public:
  using Source = std::function<cpu::ProcessorTimes()>;
  explicit LoadMeter(Source source = [] { return cpu::processor_times(); });
  Load load() const;
  double others() const { return load().others; }
  void restart() { since_ = source_(); }

 private:
  Source source_;  // tests tell their own
  cpu::ProcessorTimes since_;
};

// Whether others kept the machine busy since it was last called.
std::function<bool()> asks_whether_busy(LoadMeter meter = LoadMeter());

}  // namespace plimsoll
