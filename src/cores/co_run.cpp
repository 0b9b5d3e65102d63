// Event driven: between two events (an op starts, an op is complete) every op that runs makes progress at a constant
// rate.
#include <algorithm>
#include <numeric>

#include "cores/strategies.h"
#include "plan/simulate_cores.h"

namespace plimsoll {
namespace {

constexpr double kDone = 1e-9;                                        // ms left that are none
constexpr int kMostUniform = 8;                                       // of uniform settings
constexpr double kSlacks[] = {0.5, 0.7, 0.85, 1, 1.1, 1.25, 1.5, 2};  // of balanced counts

struct Running {
  int32_t task = 0;
  Candidate how;
  std::vector<int> cores;  // one a thread
  double left_ms = 0;      // alone
  double busy = 1;         // what a thread asks its core for
  double rate = 1;
  size_t span = 0;
};

class CoRunner {
 public:
  CoRunner(std::span<const CoTask> tasks, const CoMachine& machine, const CoPolicy& policy, const Interference* avoid,
           Interference* found)
      : tasks_(tasks), machine_(machine), policy_(policy), avoid_(avoid), found_(found) {
    cores_ = std::max(machine.cores.cores, 1);
    on_core_.assign(cores_, 0);
    most_ = policy.most_threads > 0 ? std::min(policy.most_threads, cores_) : cores_;
  }

  CoSchedule run() {
    prepare();
    while (!ready_.empty() || !running_.empty()) {
      start_ready();
      find_rates();
      advance();
    }
    result_.total_ms = now_;
    result_.mean_at_once = events_ > 0 ? at_once_sum_ / static_cast<double>(events_) : 0;
    return std::move(result_);
  }

 private:
  const CoTask& task(int32_t i) const { return tasks_[i]; }

  void prepare() {
    const size_t count = tasks_.size();
    waiting_.assign(count, 0);
    next_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      for (int32_t before : tasks_[i].after) next_[before].push_back(static_cast<int32_t>(i));
      waiting_[i] = static_cast<int>(tasks_[i].after.size());
      if (waiting_[i] == 0) ready_.push_back(static_cast<int32_t>(i));
    }
    if (policy_.inter_op > 0) return;
    if (!policy_.threads.empty()) {
      chosen_ = policy_.threads;
      chosen_.resize(count, 1);
      for (int& threads : chosen_) threads = std::clamp(threads, 1, cores_);
      find_ways();
      return;
    }
    if (policy_.by_type || policy_.each_op) {
      chosen_ = policy_.by_type ? threads_by_type(tasks_) : fastest_threads(tasks_);
    } else {
      chosen_.assign(count, cores_);
    }
    for (int& threads : chosen_) threads = std::clamp(threads, 1, most_);
    candidates_.resize(count);
  }

  // From the start of each to the end of all, were there cores for everybody.
  void find_ways() {
    way_ms_.assign(tasks_.size(), 0);
    for (size_t i = tasks_.size(); i-- > 0;) {
      for (int32_t after : next_[i]) way_ms_[i] = std::max(way_ms_[i], way_ms_[after]);
      way_ms_[i] += chosen(static_cast<int32_t>(i)).time_ms;
    }
  }

  Candidate chosen(int32_t i) const {
    const int threads = policy_.inter_op > 0 ? policy_.intra_op : chosen_[i];
    return {threads, task(i).curve.time_ms(threads)};
  }

  int idle_cores() const { return static_cast<int>(std::count(on_core_.begin(), on_core_.end(), 0)); }

  bool may_join(int32_t i) const {
    return avoid_ == nullptr || std::none_of(running_.begin(), running_.end(),
                                             [&](const Running& r) { return avoid_->conflict(r.task, i); });
  }

  // What is left of those that run, as the curves say; interference is not known beforehand.
  double remaining_ms() const {
    double most = 0;
    for (const Running& r : running_) most = std::max(most, r.left_ms);
    return most;
  }

  void start_ready() {
    while (!ready_.empty() && start_one()) {
    }
  }

  bool start_one() {
    if (policy_.inter_op > 0) {
      if (static_cast<int>(running_.size()) >= policy_.inter_op) return false;
      return start(0, chosen(ready_[0]), false);
    }
    if (!way_ms_.empty()) return start_first(idle_cores(), [this](int32_t i) { return way_ms_[i]; });
    if (running_.empty()) return policy_.co_run ? start_longest(cores_) : start(0, chosen(ready_[0]), false);
    const int idle = policy_.co_run ? idle_cores() : 0;
    if (idle > 0 && (start_beside(idle) || start_longest(idle))) return true;
    return policy_.smt && start_on_second_threads();
  }

  const std::vector<Candidate>& candidates(int32_t i) {
    std::vector<Candidate>& list = candidates_[i];
    if (list.empty()) list = fastest_candidates(task(i).curve, most_, policy_.candidates);
    return list;
  }

  bool start_beside(int idle) {
    const double remaining = remaining_ms();
    for (size_t k = 0; k < ready_.size(); ++k) {
      if (!may_join(ready_[k])) continue;
      const auto how = choose_co_running(candidates(ready_[k]), idle, remaining, chosen(ready_[k]), policy_.deviation);
      if (how) return start(k, *how, false);
    }
    return false;
  }

  // Of those that fit, the op that takes most time.
  bool start_longest(int idle) {
    return start_first(idle, [this](int32_t i) { return chosen(i).time_ms; });
  }

  // Of those that fit, the one that has the most of it.
  template <class Of>
  bool start_first(int idle, const Of& of) {
    std::optional<size_t> first;
    for (size_t k = 0; idle > 0 && k < ready_.size(); ++k) {
      if (chosen_[ready_[k]] > idle || !may_join(ready_[k])) continue;
      if (!first || of(ready_[k]) > of(ready_[*first])) first = k;
    }
    return first && start(*first, chosen(ready_[*first]), false);
  }

  bool start_on_second_threads() {
    const auto small = smallest_ready(tasks_, ready_);
    if (!small || !may_join(ready_[*small])) return false;
    Candidate how = chosen(ready_[*small]);
    const auto room = std::count(on_core_.begin(), on_core_.end(), 1);
    if (machine_.cores.hardware_threads < 2 || how.threads > room) return false;
    if (how.time_ms > remaining_ms()) return false;
    return start(*small, how, true);
  }

  // On the cores with the fewest threads, the first of them.
  std::vector<int> take_cores(int threads) {
    std::vector<int> order(cores_);
    std::iota(order.begin(), order.end(), 0);
    std::vector<int> taken;
    while (static_cast<int>(taken.size()) < threads) {
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return on_core_[a] < on_core_[b]; });
      for (int core : order) {
        if (static_cast<int>(taken.size()) == threads) break;
        taken.push_back(core);
        ++on_core_[core];
      }
    }
    return taken;
  }

  bool start(size_t position, Candidate how, bool second) {
    const int32_t i = ready_[position];
    ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(position));
    Running r{.task = i, .how = how, .cores = take_cores(how.threads), .left_ms = how.time_ms};
    const double alone = how.threads * how.time_ms;
    const double computing = alone > 0 ? std::min(1.0, task(i).curve.time_ms(1) / alone) : 0;
    r.busy = computing + machine_.waiting * (1 - computing);
    r.span = result_.spans.size();
    result_.spans.push_back({.task = i, .threads = how.threads, .start_ms = now_, .end_ms = now_, .second = second});
    running_.push_back(std::move(r));
    result_.most_at_once = std::max(result_.most_at_once, static_cast<int>(running_.size()));
    count_event();
    return true;
  }

  void count_event() {
    ++events_;
    at_once_sum_ += static_cast<double>(running_.size());
  }

  double core_capacity(int threads) const {
    const auto known = static_cast<int>(machine_.throughput.size());
    if (threads <= std::min(known, machine_.cores.hardware_threads)) return machine_.throughput[threads - 1];
    const double most = machine_.throughput[std::min(known, machine_.cores.hardware_threads) - 1];
    return most * machine_.turns;
  }

  void find_rates() {
    std::vector<double> demand(cores_, 0);
    for (const Running& r : running_) {
      for (int core : r.cores) demand[core] += r.busy;
    }
    for (Running& r : running_) {
      double speed = 0;
      for (int core : r.cores) {
        const size_t c = core;
        speed += on_core_[c] <= 1 || demand[c] <= 0 ? 1.0 : std::min(1.0, core_capacity(on_core_[c]) / demand[c]);
      }
      r.rate = speed / static_cast<double>(r.cores.size());
    }
    share_rates();
  }

  void share_rates() {
    std::vector<double> wanted, rates;  // bytes a ms
    for (const Running& r : running_) {
      wanted.push_back(r.how.time_ms > 0 ? task(r.task).bytes / r.how.time_ms : 0);
      rates.push_back(r.rate);
    }
    share_memory(wanted, machine_.memory_gb_per_s, rates);
    for (size_t i = 0; i < running_.size(); ++i) running_[i].rate = rates[i];
  }

  void advance() {
    double until = 1e300;
    for (const Running& r : running_) until = std::min(until, r.left_ms / r.rate);
    now_ += until;
    for (Running& r : running_) r.left_ms -= until * r.rate;
    for (size_t k = 0; k < running_.size();) {
      if (running_[k].left_ms > kDone) {
        ++k;
        continue;
      }
      count_event();
      const Running done = std::move(running_[k]);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(k));
      complete(done);
    }
  }

  void complete(const Running& done) {
    CoSpan& span = result_.spans[done.span];
    span.end_ms = now_;
    for (int core : done.cores) --on_core_[core];
    if (found_ != nullptr) {
      for (const Running& other : running_)
        found_->record(done.task, other.task, done.how.time_ms, span.end_ms - span.start_ms);
    }
    for (int32_t after : next_[done.task]) {
      if (--waiting_[after] == 0) ready_.push_back(after);
    }
  }

  std::span<const CoTask> tasks_;
  const CoMachine& machine_;
  const CoPolicy& policy_;
  const Interference* avoid_;
  Interference* found_;
  int cores_ = 1, most_ = 1;
  std::vector<int> on_core_;  // threads
  std::vector<int> chosen_;
  std::vector<double> way_ms_;  // by task; empty: whoever the strategies say goes first
  std::vector<std::vector<Candidate>> candidates_;
  std::vector<std::vector<int32_t>> next_;
  std::vector<int> waiting_;
  std::vector<int32_t> ready_;  // in the order in which they became so
  std::vector<Running> running_;
  double now_ = 0, at_once_sum_ = 0;
  int64_t events_ = 0;
  CoSchedule result_;
};

}  // namespace

CoSchedule co_run(std::span<const CoTask> tasks, const CoMachine& machine, const CoPolicy& policy,
                  const Interference* avoid, Interference* found) {
  return CoRunner(tasks, machine, policy, avoid, found).run();
}

std::vector<UniformSetting> all_uniform_settings(std::span<const CoTask> tasks, const CoMachine& machine,
                                                 std::span<const int> inter_op, std::span<const int> intra_op) {
  std::vector<UniformSetting> all;
  for (int inter : inter_op) {
    for (int intra : intra_op) {
      all.push_back({inter, intra, co_run(tasks, machine, {.inter_op = inter, .intra_op = intra}).total_ms});
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const UniformSetting& a, const UniformSetting& b) { return a.total_ms < b.total_ms; });
  return all;
}

ChosenSchedule best_schedule(std::span<const CoTask> tasks, const CoMachine& machine, const CoPolicy& allowed,
                             const Interference* avoid) {
  CoPolicy serial = allowed;
  serial.co_run = serial.smt = false;
  ChosenSchedule best{serial, co_run(tasks, machine, serial)};
  auto consider = [&](const CoPolicy& policy) {
    CoSchedule schedule = co_run(tasks, machine, policy, avoid);
    if (schedule.total_ms < best.schedule.total_ms) best = {policy, std::move(schedule)};
  };
  if (serial.by_type && serial.each_op) {
    serial.by_type = false;
    consider(serial);
  }
  if (!allowed.co_run && !allowed.smt) return best;
  const int cores = std::max(machine.cores.cores, 1);
  for (bool by_type : {true, false}) {
    if (by_type ? !allowed.by_type : allowed.by_type && !allowed.each_op) continue;
    int last = 0;
    for (int parts = 1; parts <= cores; ++parts) {
      const int most = cores / parts;
      if (most == last) continue;
      last = most;
      for (bool second : {false, true}) {
        if (second ? !allowed.smt || machine.cores.hardware_threads < 2 : !allowed.co_run) continue;
        CoPolicy policy = allowed;
        policy.by_type = by_type;
        policy.most_threads = most;
        policy.smt = second;
        consider(policy);
      }
    }
  }
  if (allowed.co_run && allowed.each_op) {
    for (double slack : kSlacks) {
      CoPolicy policy = allowed;
      policy.threads = balanced_threads(tasks, cores, slack);
      consider(policy);
    }
  }
  // Equal counts for all, too: what a user would set by hand. They know no conflicts.
  if (!allowed.co_run || (avoid != nullptr && avoid->count() > 0)) return best;
  const bool second = allowed.smt && machine.cores.hardware_threads > 1;
  for (int inter = 2; inter <= std::min(kMostUniform, 2 * cores); ++inter) {
    for (int intra : {cores / inter, second ? cores : 0}) {
      if (intra < 1 || inter * intra > cores * (second ? machine.cores.hardware_threads : 1)) continue;
      CoPolicy policy = allowed;
      policy.inter_op = inter;
      policy.intra_op = policy.most_threads = intra;
      consider(policy);
    }
  }
  return best;
}

}  // namespace plimsoll
