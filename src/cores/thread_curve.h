// The time of one op by the number of its threads and where they run: what the performance model of the cores is made
// of.
#pragma once

#include <compare>
#include <span>
#include <utility>
#include <vector>

#include "plimsoll/plan.h"

namespace plimsoll {

// Neighbouring threads on cores that share a cache, or every thread with a cache to itself. Data that both read speaks
// for the former, data that neither shares for the latter, so both are tried.
struct ThreadCase {
  int threads = 1;
  Affinity affinity = Affinity::spread;
  friend auto operator<=>(const ThreadCase&, const ThreadCase&) = default;
};

// The time of one op by its threads, as measured, and between the measured counts on straight lines.
class ThreadCurve {
 public:
  ThreadCurve() = default;
  // ms[0] is the time with one thread, ms[1] with two, and so on.
  static ThreadCurve of(std::span<const double> ms);

  void put(ThreadCase at, double ms);
  bool empty() const { return spread_.empty() && close_.empty(); }
  // With the better affinity. Beyond the last count that was measured, along the last line, but not below the best time
  // known.
  double time_ms(int threads) const;
  double time_ms(ThreadCase at) const;
  // The measured case with the shortest time; of equal ones that with the fewest threads.
  ThreadCase best() const;
  double best_ms() const;
  bool has(int threads) const;  // whether it was measured, with either affinity
  int most_threads() const;     // the largest measured count

 private:
  using Points = std::vector<std::pair<int, double>>;
  Points spread_, close_;  // by threads
};

}  // namespace plimsoll
