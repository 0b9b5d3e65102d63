// How many threads each op gets, and which ops run side by side: the performance model and the strategies of "Runtime
// Concurrency Control and Operation Scheduling for High Performance Neural Network Training" (Liu et al., IPDPS 2019).
//
//   HillClimb     times an op with more and more threads until it gets slower     ->  ThreadCurve       (section III-C)
//   strategies    threads of each op (1, 2), and what runs beside what (3, 4)     pure functions over curves   (III-D)
//   co_run        a step on paper: C cores of H hardware threads, ops ready as their dependencies allow
//
//   cores 0 |  conv1/dw (18)   |  conv2/dx (16)                 an op of 18 threads holds 18 cores; beside it another
//   one
//         : +------------------+-----------+---------------+    may start on the cores that are left
//      20 |  conv1/dx (16)                 |  conv2/dw (20)
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/by_id.h"
#include "cores/thread_curve.h"
#include "plimsoll/cost.h"
#include "plimsoll/device.h"
#include "plimsoll/graph.h"
#include "plimsoll/plan.h"

namespace plimsoll {

struct ClimbOptions {
  int interval = 4;  // x: 1, 1 + x, 1 + 2x, ... threads are tried, and all cores
  CoreShape cores;
  double rise = 0;  // a time is longer than the one before when it is so by more than this share: noise is not
};

// Climbs to the shortest time of one op: more threads by steps of x until the time rises or the cores are all taken,
// spread (as long as there are caches for it) and close. Needs at most 2C/x tries when C is no less than 4x.
class HillClimb {
 public:
  explicit HillClimb(const ClimbOptions& options);
  std::optional<ThreadCase> next() const;  // what to try; nothing: the optimum is known
  void record(double ms);                  // the time of next()
  const ThreadCurve& curve() const { return curve_; }
  int tries() const { return tries_; }
  int most_tries() const { return static_cast<int>(cases_.size()); }

 private:
  void advance();
  ClimbOptions options_;
  ThreadCurve curve_;
  std::vector<ThreadCase> cases_;  // in order
  size_t at_ = 0;
  ById<Affinity, double> last_ms_{2, -1};
  ById<Affinity, char> over_{2, false};
  int tries_ = 0;
};

// The climbs of all ops of a training step, spread over the first training steps: in each, every op runs its next case,
// or, when its climb is over, its best.
class ProfilingSteps {
 public:
  ProfilingSteps(size_t ops, const ClimbOptions& options) : climbs_(ops, HillClimb(options)) {}
  // Takes the times of an op's next cases from `known` for as long as that knows them.
  void skip(size_t op, const std::function<std::optional<double>(ThreadCase)>& known);
  bool done() const;
  std::vector<ThreadCase> next() const;     // by op
  void record(std::span<const double> ms);  // by op
  int steps() const { return steps_; }
  const ThreadCurve& curve(size_t op) const { return climbs_[op].curve(); }

 private:
  std::vector<HillClimb> climbs_;
  int steps_ = 0;
};

// Mean of 1 - |predicted - actual| / actual over the thread counts from 1 to `most` that the climb did not try; 1 when
// it tried all. As in Table V.
double interpolation_accuracy(const ThreadCurve& curve, const std::function<double(int threads)>& actual, int most);

// An op as the scheduler sees it.
struct CoTask {
  int32_t type = 0;  // ops of one type have equal numbers
  ThreadCurve curve;
  double bytes = 0;            // that pass between cores and memory
  std::vector<int32_t> after;  // tasks that must be complete before it starts; each is listed before it
};

// Strategy 1: every op with the count that is fastest for it.
std::vector<int> fastest_threads(std::span<const CoTask> tasks);
// Strategy 2: one count for all ops of a type, that of its largest instance (in time).
std::vector<int> threads_by_type(std::span<const CoTask> tasks);

// Beyond the paper: threads with which neither the longest chain of ops nor all their work on the cores is long. From
// the count with the least work each, the ops of the longest chain that gain most for what they take more get the next
// count that is faster, until the chain takes no more than `slack` times the work on all cores (after CPA: Radulescu
// and van Gemund, ICPP 2001).
std::vector<int> balanced_threads(std::span<const CoTask> tasks, int cores, double slack);

struct Candidate {
  int threads = 1;
  double time_ms = 0;
};
// Strategy 3's candidates: the `count` thread counts with the shortest times, fastest first.
std::vector<Candidate> fastest_candidates(const ThreadCurve& curve, int most_threads, int count = 3);
// Of the candidates that fit into the idle cores and end no later than what runs does (`remaining_ms`), the one with
// the fewest threads. When that is farther than `deviation` from `chosen` (Strategy 2's count; 0: none), Strategy 2's
// count, if that fits and ends in time. Nothing when none does.
std::optional<Candidate> choose_co_running(std::span<const Candidate> candidates, int idle_cores, double remaining_ms,
                                           std::optional<Candidate> chosen = {}, int deviation = 2);
// Strategy 4: of the ready ops, the one whose time with one thread is the shortest.
std::optional<size_t> smallest_ready(std::span<const CoTask> tasks, std::span<const int32_t> ready);

// Pairs of ops that were slower together than predicted; they do not meet afterwards.
class Interference {
 public:
  explicit Interference(double tolerance = 0.25) : tolerance_(tolerance) {}
  void record(int32_t a, int32_t b, double predicted_ms, double actual_ms);
  bool conflict(int32_t a, int32_t b) const { return pairs_.contains(std::minmax(a, b)); }
  size_t count() const { return pairs_.size(); }

 private:
  double tolerance_;
  std::set<std::pair<int32_t, int32_t>> pairs_;
};

// What ops that run side by side share.
// Memory: when together they ask for more bytes a second than there are, each gets an equal share, or what it asks for
// if that is less, and is slowed down accordingly. Cores: a thread computes for T(1) / (p T(p)) of its time and waits
// for the rest. k hardware threads of a core compute no more than `throughput[k - 1]` of what one can; software threads
// beyond that take turns, at `turns` of it.
struct CoMachine {
  CoreShape cores;
  double memory_gb_per_s = 0;            // 0: never short
  std::vector<double> throughput = {1};  // by hardware threads in use
  double turns = 0.5;
  double waiting = 0;
};

struct CoPolicy {
  bool by_type = true;  // Strategy 2
  bool each_op = true;  // Strategy 1, without 2; without both, all cores for every op. best_schedule tries both
  bool co_run = false;  // Strategy 3; else one op after the other
  bool smt = false;     // Strategy 4
  int candidates = 3;   // the paper's two empirical numbers
  int deviation = 2;
  int most_threads = 0;  // of an op; 0: all cores. Fewer leave cores for others
  int inter_op = 0;      // not 0: uniform settings instead, so many ops at once,
  int intra_op = 0;      // each with so many threads, on the cores that have the fewest
  // Threads of each op, where not empty, instead of what 1 to 4 say. Of the ops that fit, the one with the longest way
  // to the end starts.
  std::vector<int> threads = {};
};

struct CoSpan {
  int32_t task = 0;
  int threads = 1;
  double start_ms = 0, end_ms = 0;
  bool second = false;  // on cores that another op holds
};
struct CoSchedule {
  double total_ms = 0;
  int most_at_once = 0;
  double mean_at_once = 0;    // over the moments at which an op starts or ends, as in the paper's Figure 4
  std::vector<CoSpan> spans;  // by start
};
// A step on paper. Tasks are listed so that each comes after those that it waits for. `avoid`: pairs that do not run
// together; `found`: pairs that turned out slower than the curves say.
CoSchedule co_run(std::span<const CoTask> tasks, const CoMachine& machine, const CoPolicy& policy,
                  const Interference* avoid = nullptr, Interference* found = nullptr);

// The four strategies, with each of several limits on the threads of an op, balanced counts, and equal counts for all
// ops: the schedule that is predicted to be the shortest, and how it came about. Never longer than one op after the
// other.
struct ChosenSchedule {
  CoPolicy policy;
  CoSchedule schedule;
};
ChosenSchedule best_schedule(std::span<const CoTask> tasks, const CoMachine& machine, const CoPolicy& allowed,
                             const Interference* avoid = nullptr);

struct UniformSetting {
  int inter_op = 1, intra_op = 1;
  double total_ms = 0;
};
// Every pair of counts tried, the fastest first.
std::vector<UniformSetting> all_uniform_settings(std::span<const CoTask> tasks, const CoMachine& machine,
                                                 std::span<const int> inter_op, std::span<const int> intra_op);

}  // namespace plimsoll
