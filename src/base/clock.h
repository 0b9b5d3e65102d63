// Times of this process: one clock, which never goes back.
#pragma once

#include <chrono>

namespace plimsoll {

using Clock = std::chrono::steady_clock;

// Runs from when it is made.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  double ms() const { return std::chrono::duration<double, std::milli>(Clock::now() - start_).count(); }

 private:
  Clock::time_point start_ = Clock::now();
};

}  // namespace plimsoll
