// Threads that run the steps of a plan side by side. A worker is a thread that runs one step at a time; its team are
// the threads that this step's kernel forks (OpenMP keeps a pool for each thread that forks). Team sizes never change,
// so that no thread is made or ended during a step, and a team is pinned anew only when it is sent to other cores.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace plimsoll {

class Teams {
 public:
  struct Shape {
    int threads = 1;
    std::vector<int> cores;  // where it is at first: one a thread
  };

  // `processors`: of each core, to pin threads to; empty: they are not pinned. `run` is called by a worker with its
  // number and what it was given. Worker 0 is the caller of serve(), who is never pinned.
  Teams(std::span<const Shape> shapes, std::vector<int> processors, std::function<void(int worker, int32_t task)> run);
  ~Teams();
  Teams(const Teams&) = delete;
  Teams& operator=(const Teams&) = delete;

  int count() const { return static_cast<int>(workers_.size()); }
  int threads(int worker) const { return at(worker).threads; }
  const std::vector<int>& cores(int worker) const { return at(worker).cores; }

  // These two for a worker that has nothing to do, by one thread at a time.
  void send(int worker, std::span<const int> cores);  // from its next task on it is there
  void give(int worker, int32_t task);                // >= 0
  void serve();                                       // until dismissed; runs what it is given meanwhile
  void dismiss() { put(at(0), kLeave); }

 private:
  static constexpr int32_t kNothing = -1, kLeave = -2;
  struct Worker {
    int threads = 1;
    std::vector<int> cores;
    bool moved = false;
    std::vector<int> ids;  // of its threads, as the system numbers them
    std::atomic<int32_t> task{kNothing};
    std::thread thread;
  };
  Worker& at(int worker) { return *workers_[worker]; }
  const Worker& at(int worker) const { return *workers_[worker]; }

  static void put(Worker& worker, int32_t task);
  static int32_t take(Worker& worker);
  void gather(Worker& worker);
  void pin(const Worker& worker) const;
  void loop(int worker, std::latch& ready);
  void stop();

  std::vector<int> processors_;
  std::function<void(int, int32_t)> run_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace plimsoll
