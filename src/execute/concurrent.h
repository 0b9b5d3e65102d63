// Runs the steps and copies of a plan as soon as they are ready: what they depend on (dependencies.h) is done, and the
// cores that they need are free.
//
//   a worker finishes ──> its node goes into the list of the finished ──> whoever finds nobody at the desk sits down:
//                                                                         crosses it out of what others wait for,
//   a copy is made   ──> the same                                         starts what is ready, looks at the list again
//
// One thread at a time is at the desk, and nobody waits for it: who comes meanwhile leaves a note (a count) and goes
// on. So a step costs a few atomic operations, no lock, no allocation; and what starts next is decided with all in
// view.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "plan/dependencies.h"
#include "plimsoll/device.h"
#include "plimsoll/execute.h"
#include "plimsoll/plan.h"
#include "execute/copy_engines.h"
#include "execute/core_map.h"
#include "execute/teams.h"

namespace plimsoll {

struct ConcurrentSettings {
  int cores = 1;
  int at_once = 2;  // steps
  bool pin = true;  // threads to cores, where the process has no more than these
  int cores_a_cache = 1;
  bool second_threads = false;  // of cores, for steps whose affinity they are
  std::vector<int32_t>
      priority;  // by step: of the ready ones that with the lowest number starts; empty: the plan's order
  std::vector<double> expected_ms;  // by step; empty: not known
  std::vector<std::pair<StepIndex, StepIndex>> conflicts;  // never at the same time
};

class ConcurrentSteps {
 public:
  using Clock = std::chrono::steady_clock;

  // `kernels`: one a step, null for a view; `threads`: what each step's kernel was made for. `records`: one a step, or
  // empty. Everything given must outlive it, and `engines` must not.
  ConcurrentSteps(const Graph& graph, const Plan& plan, std::vector<Kernel*> kernels, std::span<const int> threads,
                  std::byte* arena, std::span<StepRecord> records, ConcurrentSettings settings,
                  std::span<const Erasure> erasures);
  ~ConcurrentSteps();

  // Told of every copy that is made: the engines' `made`.
  void finish_copy(int32_t move) { finish(steps_ + move); }
  // One training step. Throws what a kernel or a copy threw, when everything else that had begun is over.
  void run(CopyEngines& engines, Clock::time_point start);

  // The largest sum of bytes in use at once: from the start of the first that uses a place to the end of the last.
  Bytes peak() const { return {peak_}; }

 private:
  struct Residence {  // stays that take over each other's bytes
    int64_t bytes = 0;
    int32_t users = 0;  // nodes; one more where it lasts to the end
    bool from_start = false;
  };
  void find_residences(const Graph& graph, const Plan& plan);
  void find_order(const Plan& plan);
  void make_teams();

  // What anybody may call.
  void finish(int32_t node);
  void process_completions();
  void run_step(int worker, int32_t step);
  void fail(std::exception_ptr why);

  // What only who is at the desk calls.
  void begin(CopyEngines& engines, Clock::time_point start);
  bool work();  // true: the training step is over
  void retire(int32_t node);
  void complete(int32_t node);
  void complete_all();
  void make_ready(int32_t node);
  void start_ready();
  bool may_start(int32_t step, bool others_wait) const;
  double remaining_ms() const;
  bool can_run(int worker, int threads) const;
  bool is_home_free(int worker, int threads, Affinity affinity) const;
  int choose_worker(int threads, Affinity affinity) const;
  void take_places(int worker, int threads, Affinity affinity);
  void start(int32_t step);
  Affinity affinity_now(int32_t step) const;
  void use(int32_t node);
  void leave(int32_t node);
  std::span<const int32_t> residences_of(int32_t node) const;
  double now_ms() const { return std::chrono::duration<double, std::milli>(Clock::now() - start_).count(); }

  const Dependencies dependencies_;
  const int32_t steps_, moves_;
  std::vector<Kernel*> kernels_;
  std::vector<Erasure> erasures_;
  std::vector<int> cores_of_;  // by step: how many it needs
  std::vector<Affinity> affinity_;   // by step
  std::byte* arena_;
  std::span<StepRecord> records_;
  ConcurrentSettings settings_;
  std::vector<int32_t> rank_, step_at_;                    // by step; by rank
  std::vector<std::vector<int32_t>> conflicts_;                // by step
  std::vector<int32_t> first_residence_, all_residences_;  // of nodes
  std::vector<Residence> residences_;

  // At the desk.
  CopyEngines* engines_ = nullptr;
  Clock::time_point start_;
  std::vector<int32_t> unmet_, users_;  // by node; by residence
  std::vector<uint8_t> in_use_;         // by residence
  std::vector<uint64_t> ready_;         // a bit a rank
  std::vector<int32_t> to_complete_;
  CoreMap core_map_;
  struct Running {             // by worker
    int32_t step = -1;
    double ends_ms = 0;  // expected
    std::vector<int> places;
  };
  std::vector<Running> running_;
  int here_ = 0;  // the worker who sits there; -1: a copy engine's thread
  int running_count_ = 0, copying_ = 0;
  int32_t done_ = 0, taken_ = 0;
  int64_t bytes_ = 0, peak_ = 0;
  bool over_ = true;

  // For all.
  std::vector<std::atomic<int32_t>> finished_;
  std::atomic<int32_t> finished_count_{0}, notes_{0};
  std::atomic<bool> failing_{false};
  std::exception_ptr failure_;
  std::unique_ptr<Teams> teams_;  // the first to go
};

}  // namespace plimsoll
