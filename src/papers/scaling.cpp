#include "papers/scaling.h"

#include <algorithm>
#include <vector>

namespace plimsoll {
namespace {

double seconds_to_ms(double work, double giga_a_second) { return giga_a_second > 0 ? work / (giga_a_second * 1e6) : 0; }

}  // namespace

ThreadCurve scaled_curve(const Work& work, const ScalingLaw& law, int most) {
  const double one_ms =
      std::max(seconds_to_ms(work.flops, law.gflops_a_core), seconds_to_ms(work.bytes, law.gb_per_s_a_core));
  const double memory_ms = seconds_to_ms(work.bytes, law.memory_gb_per_s);
  std::vector<double> ms;
  ms.reserve(most);
  for (int p = 1; p <= most; ++p) {
    ms.push_back(law.start_ms + law.serial_share * one_ms + std::max((1 - law.serial_share) * one_ms / p, memory_ms) +
                 (p - 1) * law.thread_ms);
  }
  return ThreadCurve::of(ms);
}

ThreadCurve extended_curve(double one_thread_ms, double two_threads_ms, double bytes, double measured_gb_per_s,
                           const ScalingLaw& law, int most) {
  constexpr double kBusy = 0.9;  // of the time, the memory: then it is what two threads wait for
  const double moving_ms = seconds_to_ms(bytes, measured_gb_per_s);
  const double waited_ms = moving_ms > kBusy * two_threads_ms ? std::max(0.0, two_threads_ms - one_thread_ms / 2) : 0;
  const double parallel =
      std::clamp(2 * (one_thread_ms - two_threads_ms + waited_ms + law.thread_ms), 0.0, one_thread_ms);
  const double serial = one_thread_ms - parallel;
  const double memory_ms = std::min(seconds_to_ms(bytes, law.memory_gb_per_s), two_threads_ms);
  std::vector<double> ms;
  for (int p = 1; p <= most; ++p) ms.push_back(std::max(serial + parallel / p, memory_ms) + (p - 1) * law.thread_ms);
  if (most >= 1) ms[0] = one_thread_ms;
  if (most >= 2) ms[1] = two_threads_ms;
  return ThreadCurve::of(ms);
}

ThreadCurve curve_with_optimum(int best_threads, double best_ms, double thread_ms, int most) {
  const double work = thread_ms * best_threads * best_threads;
  const double serial = std::max(best_ms - 2 * thread_ms * best_threads, 0.0);
  std::vector<double> ms;
  for (int p = 1; p <= most; ++p) ms.push_back(serial + work / p + thread_ms * p);
  return ThreadCurve::of(ms);
}

}  // namespace plimsoll
