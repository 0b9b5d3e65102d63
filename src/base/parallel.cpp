#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <latch>
#include <system_error>
#include <thread>
#include <vector>

#include "base/no_signals.h"

namespace plimsoll {
namespace {

constexpr int kMostThreads = 16;  // each holds memory of its own

std::atomic<int>& all_threads() {
  static std::atomic<int> all = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostThreads);
  return all;
}

// Threads that may still be started.
std::atomic<int>& spare_threads() {
  static std::atomic<int> spare = all_threads() - 1;
  return spare;
}

bool take_thread() {
  int left = spare_threads().load();
  while (left > 0) {
    if (spare_threads().compare_exchange_weak(left, left - 1)) return true;
  }
  return false;
}

}  // namespace

void for_each_in_parallel(size_t count, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::vector<std::exception_ptr> thrown(count);
  auto run = [&](const std::function<void()>& before_each) {
    for (size_t i = next++; i < count; i = next++) {
      before_each();
      try {
        work(i);
      } catch (...) {
        thrown[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> helpers;
  helpers.reserve(std::min<size_t>(count, kMostThreads));
  // As many as there are now; others may have ended their work since the last piece.
  auto start_helpers = [&] {
    while (next < count && helpers.size() + 1 < std::min<size_t>(count, kMostThreads) && take_thread()) {
      try {
        const NoSignals no_signals;
        helpers.emplace_back([&run] {
          run([] {});
          ++spare_threads();
        });
      } catch (const std::system_error&) {  // no more threads for this process: those that there are do it
        ++spare_threads();
        return;
      }
    }
  };
  run(start_helpers);
  const int waiting = helpers.empty() ? 0 : 1;  // this one only waits
  spare_threads() += waiting;
  for (std::thread& helper : helpers) helper.join();
  spare_threads() -= waiting;
  for (const std::exception_ptr& exception : thrown) {
    if (exception) std::rethrow_exception(exception);
  }
}

void limit_parallel_work(int threads) {
  int now = all_threads();
  while (threads < now && !all_threads().compare_exchange_weak(now, threads)) continue;
  if (threads < now) spare_threads() -= now - threads;
}

int threads_in_parallel(size_t count) {
  return static_cast<int>(std::min<size_t>(count, static_cast<size_t>(all_threads())));
}

int startable_threads(int wanted) {
  static std::atomic<int> started = 0;  // so many could be, and live on in a library's pool perhaps
  if (wanted <= started) return wanted;
  std::latch end(1);
  std::vector<std::thread> threads;
  try {
    const NoSignals no_signals;
    while (static_cast<int>(threads.size()) < wanted) threads.emplace_back([&end] { end.wait(); });
  } catch (const std::exception&) {  // of the system, or for want of memory: those that there are count
  }
  end.count_down();
  for (std::thread& thread : threads) thread.join();
  const int count = static_cast<int>(threads.size());
  for (int before = started; before < count && !started.compare_exchange_weak(before, count);) continue;
  return count;
}

}  // namespace plimsoll
