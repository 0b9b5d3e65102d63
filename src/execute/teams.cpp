#include "execute/teams.h"

#include <fmt/format.h>
#include <omp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <numeric>
#include <system_error>

#include "base/no_signals.h"
#include "base/parallel.h"
#include "device/tier/fault.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr int kLooks = 200;  // some microseconds, before who has nothing to do sleeps

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Advice: where the system does not take it, threads run anywhere.
void pin_thread(int id, std::span<const int> processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int processor : processors) CPU_SET(processor, &set);
  sched_setaffinity(id, sizeof(set), &set);
}

int own_id() { return static_cast<int>(syscall(SYS_gettid)); }

}  // namespace

Teams::Teams(std::span<const Shape> shapes, std::vector<int> processors, std::function<void(int, int32_t)> run)
    : processors_(std::move(processors)), run_(std::move(run)) {
  for (const Shape& shape : shapes) {
    auto worker = std::make_unique<Worker>();
    worker->threads = shape.threads;
    worker->cores = shape.cores;
    worker->ids.resize(shape.threads);
    workers_.push_back(std::move(worker));
  }
  const int needed =
      std::accumulate(shapes.begin(), shapes.end(), 0, [](int sum, const Shape& s) { return sum + s.threads; });
  if (const int startable = 1 + startable_threads(needed - 1); startable < needed) {
    throw Error(ErrorCode::device_failure,
                fmt::format("steps side by side need {} threads, but the system lets this process start only {}; lower "
                            "--threads or --inter-op, or raise the limit (ulimit -u)",
                            needed, startable));
  }
  std::latch ready(std::max<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(workers_.size()) - 1, 0));
  const NoSignals quiet;
  int begun = 1;
  try {
    for (; begun < count(); ++begun) {
      if (const int error = injected(TierOperation::thread)) throw std::system_error(error, std::generic_category());
      at(begun).thread = std::thread([this, &ready, worker = begun] { loop(worker, ready); });
    }
  } catch (const std::system_error& error) {
    ready.count_down(count() - begun);
    ready.wait();
    stop();
    throw Error(ErrorCode::device_failure, fmt::format("cannot start thread {} of {} that run steps side by side: {}",
                                                       begun + 1, count(), error.what()));
  }
  ready.wait();
}

Teams::~Teams() { stop(); }

void Teams::stop() {
  for (const auto& worker : workers_) {
    if (!worker->thread.joinable()) continue;
    put(*worker, kLeave);
    worker->thread.join();
  }
}

void Teams::put(Worker& worker, int32_t task) {
  worker.task.store(task, std::memory_order_release);
  worker.task.notify_one();
}

int32_t Teams::take(Worker& worker) {
  for (int look = 0;; ++look) {
    const int32_t task = worker.task.load(std::memory_order_acquire);
    if (task != kNothing) {
      worker.task.store(kNothing, std::memory_order_relaxed);
      return task;
    }
    if (look < kLooks) {
      pause();
    } else {
      worker.task.wait(kNothing, std::memory_order_acquire);
    }
  }
}

void Teams::send(int worker, std::span<const int> cores) {
  Worker& w = at(worker);
  w.cores.assign(cores.begin(), cores.end());
  w.moved = true;
}

void Teams::give(int worker, int32_t task) { put(at(worker), task); }

// Makes the team's threads.
void Teams::gather(Worker& worker) {
  worker.ids[0] = own_id();
  if (worker.threads > 1) {
    omp_set_num_threads(worker.threads);
#pragma omp parallel num_threads(worker.threads)
    if (omp_get_thread_num() < worker.threads) worker.ids[omp_get_thread_num()] = own_id();
  }
  pin(worker);
}

// Each thread to its core; the worker itself to all of them, because a thread that joins its pool later begins there.
void Teams::pin(const Worker& worker) const {
  if (processors_.empty()) return;
  std::vector<int> all;
  for (int core : worker.cores) all.push_back(processors_[core]);
  pin_thread(worker.ids[0], all);
  for (size_t i = 1; i < all.size() && i < worker.ids.size(); ++i) {
    if (worker.ids[i] != 0) pin_thread(worker.ids[i], {&all[i], 1});
  }
}

void Teams::loop(int number, std::latch& ready) {
  Worker& worker = at(number);
  gather(worker);
  ready.count_down();
  for (int32_t task = take(worker); task != kLeave; task = take(worker)) {
    if (worker.moved) pin(worker);
    worker.moved = false;
    run_(number, task);
  }
}

void Teams::serve() {
  Worker& worker = at(0);
  for (int32_t task = take(worker); task != kLeave; task = take(worker)) run_(0, task);
}

}  // namespace plimsoll
