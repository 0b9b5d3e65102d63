// Threads by the whole step rather than op by op. On all cores every op is at its fastest and the step need not be: a
// chain of ops that each gain little from the last cores leaves work undone that could have run beside it.
//
//   threads   16 | dx3 |dw3| dx2 |dw2| dx1 |dw1|       each op as fast as it can be, one after another
//             12 | dx3  | dx2  | dx1  |
//              4 |  dw3   | dw2   | dw1   |            the chain a little slower, what hangs on it beside it
#include <algorithm>
#include <limits>

#include "cores/strategies.h"

namespace plimsoll {
namespace {

constexpr size_t kRoundsOfAChain = 16;  // of a long one that share of the ops gets more threads at a time

// An op with so many threads, and the next count with which it is faster.
struct Width {
  int threads = 1;
  double ms = 0;
  int wider = 0;  // none
  double wider_ms = 0;
  double worth = -1;  // of that: milliseconds gained for each millisecond of a core that it takes more

  double work() const { return threads * ms; }
};

void find_wider(Width& width, const ThreadCurve& curve, int cores) {
  width.wider = 0;
  width.worth = -1;
  for (int wider = width.threads + 1; wider <= cores && width.wider == 0; ++wider) {
    const double ms = curve.time_ms(wider);
    if (ms >= width.ms) continue;
    const double more = wider * ms - width.work();
    width.wider = wider;
    width.wider_ms = ms;
    width.worth = more > 0 ? (width.ms - ms) / more : std::numeric_limits<double>::infinity();
  }
}

// The least work: with one thread, where that is measured and none is wasted.
Width narrowest(const ThreadCurve& curve, int cores) {
  Width best{1, curve.time_ms(1)};
  for (int threads = 2; threads <= cores; ++threads) {
    const Width width{threads, curve.time_ms(threads)};
    if (width.work() < best.work()) best = width;
  }
  find_wider(best, curve, cores);
  return best;
}

}  // namespace

std::vector<int> balanced_threads(std::span<const CoTask> tasks, int cores, double slack) {
  std::vector<Width> widths;
  std::vector<double> end(tasks.size(), 0);
  double work = 0;
  for (const CoTask& task : tasks) work += widths.emplace_back(narrowest(task.curve, cores)).work();
  std::vector<size_t> chain;  // those of its ops that can be faster
  while (!tasks.empty()) {
    size_t last = 0;
    for (size_t i = 0; i < tasks.size(); ++i) {
      end[i] = 0;
      for (int32_t before : tasks[i].after) end[i] = std::max(end[i], end[before]);
      end[i] += widths[i].ms;
      if (end[i] > end[last]) last = i;
    }
    if (end[last] <= slack * work / cores) break;
    chain.clear();
    for (size_t i = last;;) {
      if (widths[i].wider > 0) chain.push_back(i);
      const std::vector<int32_t>& before = tasks[i].after;
      if (before.empty()) break;
      i = *std::max_element(before.begin(), before.end(), [&](int32_t a, int32_t b) { return end[a] < end[b]; });
    }
    if (chain.empty()) break;
    const size_t many = std::min(chain.size() / kRoundsOfAChain + 1, chain.size());
    std::partial_sort(chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(many), chain.end(),
                      [&](size_t a, size_t b) { return widths[a].worth > widths[b].worth; });
    for (size_t k = 0; k < many; ++k) {
      Width& width = widths[chain[k]];
      work -= width.work();
      width = {width.wider, width.wider_ms};
      work += width.work();
      find_wider(width, tasks[chain[k]].curve, cores);
    }
  }
  std::vector<int> threads;
  for (const Width& width : widths) threads.push_back(width.threads);
  return threads;
}

}  // namespace plimsoll
