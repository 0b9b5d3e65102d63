// Runs the steps and copies of a plan as soon as they are ready: what they depend on (dependencies.h) is done, and the
// cores that they need are free.
//
//   a worker finishes ──> its node goes into the list of completions ──> who finds nobody processing them does:
//                                                                        crosses it out of what others wait for,
//   a copy is made   ──> the same                                        starts what is ready, looks at the list again
//
// One thread at a time processes completions, and nobody waits for it: who comes meanwhile raises a count and goes on.
// So a step costs a few atomic operations, no lock, no allocation; and what starts next is decided with all in view.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "execute/copy_engines.h"
#include "execute/core_map.h"
#include "execute/driver.h"
#include "execute/memory_check.h"
#include "execute/teams.h"
#include "plan/dependencies.h"

namespace plimsoll {

class ConcurrentDriver final : public Driver {
 public:
  explicit ConcurrentDriver(ReadyPlan& ready);
  ~ConcurrentDriver() override;

  // Throws what a kernel or a copy threw, when everything else that had begun is over.
  void start(std::vector<KernelRefused>*) override;
  void rest() noexcept override { engines_->rest(); }

 private:
  void find_order();
  void find_conflicts();
  void make_teams();

  // What anybody may call.
  void finish(int32_t node);
  void process_completions();
  void run_step(int worker, int32_t step);
  void run_checked(int32_t step);
  void fail(std::exception_ptr why);

  // What only who processes completions calls.
  void begin();
  bool take_completions();  // true: the training step is over
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
  double now_ms() const { return std::chrono::duration<double, std::milli>(Clock::now() - start_).count(); }

  ReadyPlan& ready_;
  std::optional<MemoryCheck> check_;
  const std::vector<Erasure> erasures_;
  const Dependencies dependencies_;
  const int32_t steps_, moves_;
  const int cores_, at_once_;                          // at_once_: steps
  const bool smt_;                                     // cores have second hardware threads, for steps of that affinity
  ById<StepIndex, int> cores_of_;                      // how many cores a step needs
  ById<StepIndex, int32_t> rank_;                      // of the ready ones, that with the lowest starts
  std::vector<StepIndex> step_at_;                     // by rank
  ById<StepIndex, std::vector<StepIndex>> conflicts_;  // never at the same time

  // Of who processes completions.
  Clock::time_point start_;
  std::vector<int32_t> unmet_;         // by node
  std::vector<uint64_t> ready_steps_;  // a bit a rank
  std::vector<int32_t> to_complete_;
  CoreMap core_map_;
  struct Running {  // by worker
    int32_t step = -1;
    double ends_ms = 0;  // expected
    std::vector<int> places;
  };
  std::vector<Running> running_;
  int here_ = 0;  // the worker who does; -1: a copy engine's thread
  int running_count_ = 0, copying_ = 0;
  int32_t done_ = 0, taken_ = 0;
  bool over_ = true;

  // For all.
  std::vector<std::atomic<int32_t>> finished_;
  std::atomic<int32_t> finished_count_{0}, waiting_{0};  // waiting_: completions that nobody has looked for yet
  std::atomic<bool> failing_{false};
  std::exception_ptr failure_;
  std::mutex check_mutex_;  // of check_ and, with it, of the arena's bytes
  std::unique_ptr<Teams> teams_;
  std::optional<CopyEngines> engines_;  // the first to go, then the teams
};

}  // namespace plimsoll
