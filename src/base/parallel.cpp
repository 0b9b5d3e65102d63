#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <latch>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
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

class Loop;
thread_local Loop* running_loop = nullptr;  // of which this thread does a piece

// A loop whose pieces are done side by side. Who has none of its own left, and waits for those of others, helps with loops that
// begin within these: so nobody waits for what is locked here.
class Loop {
 public:
  Loop(size_t count, const std::function<void(size_t)>& work, const Loop* within)
      : count_(count), work_(work), within_(within), thrown_(count) {
    const std::lock_guard lock(mutex());
    all().push_back(this);
    changed().notify_all();
  }
  ~Loop() {
    const std::lock_guard lock(mutex());
    std::erase(all(), this);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  bool has_pieces() const { return next_ < count_; }

  // False: there is none left.
  bool run_piece() {
    const size_t i = next_++;
    if (i >= count_) return false;
    Loop* const before = std::exchange(running_loop, this);
    try {
      work_(i);
    } catch (...) {
      thrown_[i] = std::current_exception();
    }
    running_loop = before;
    return true;
  }

  // Of those who do pieces beside the thread that began the loop.
  void enter() {
    const std::lock_guard lock(mutex());
    ++others_;
  }
  void leave() {
    const std::lock_guard lock(mutex());
    if (--others_ == 0) changed().notify_all();
  }

  // A piece of a loop within this one; false: there is none now.
  bool help() {
    std::unique_lock lock(mutex());
    return help(lock);
  }
  // Until nobody does a piece any more.
  void wait() {
    std::unique_lock lock(mutex());
    while (others_ > 0) {
      if (!help(lock)) changed().wait(lock);
    }
  }
  // The exception of the least piece.
  void rethrow() const {
    for (const std::exception_ptr& exception : thrown_) {
      if (exception) std::rethrow_exception(exception);
    }
  }

 private:
  static std::mutex& mutex() {
    static std::mutex all;
    return all;
  }
  static std::condition_variable& changed() {
    static std::condition_variable one;
    return one;
  }
  static std::vector<Loop*>& all() {
    static std::vector<Loop*> loops;
    return loops;
  }

  bool is_within(const Loop* other) const {
    for (const Loop* loop = within_; loop != nullptr; loop = loop->within_) {
      if (loop == other) return true;
    }
    return false;
  }
  bool help(std::unique_lock<std::mutex>& lock) {
    const auto found =
        std::ranges::find_if(all(), [&](const Loop* l) { return l->has_pieces() && l->is_within(this); });
    if (found == all().end()) return false;
    Loop* const loop = *found;
    ++loop->others_;
    lock.unlock();
    loop->run_piece();
    lock.lock();
    if (--loop->others_ == 0) changed().notify_all();
    return true;
  }

  const size_t count_;
  const std::function<void(size_t)>& work_;
  const Loop* const within_;
  std::atomic<size_t> next_ = 0;
  int others_ = 0;
  std::vector<std::exception_ptr> thrown_;
};

}  // namespace

void for_each_in_parallel(size_t count, const std::function<void(size_t)>& work) {
  if (count == 0) return;
  if (count == 1) {
    work(0);
    return;
  }
  Loop loop(count, work, running_loop);
  std::vector<std::thread> helpers;
  helpers.reserve(std::min<size_t>(count, kMostThreads));
  // As many as there are now; others may have ended their work since the last piece.
  auto start_helpers = [&] {
    while (loop.has_pieces() && helpers.size() + 1 < std::min<size_t>(count, kMostThreads) && take_thread()) {
      loop.enter();
      try {
        const NoSignals no_signals;
        helpers.emplace_back([&loop] {
          while (loop.run_piece()) continue;
          while (loop.help()) continue;
          ++spare_threads();
          loop.leave();
        });
      } catch (const std::system_error&) {  // no more threads for this process: those that there are do it
        ++spare_threads();
        loop.leave();
        return;
      }
    }
  };
  do {
    start_helpers();
  } while (loop.run_piece());
  loop.wait();
  for (std::thread& helper : helpers) helper.join();
  loop.rethrow();
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
