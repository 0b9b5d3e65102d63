#include "execute/concurrent.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>

#include "device/cpu/machine.h"
#include "execute/run_kernel.h"

namespace plimsoll {
namespace {

constexpr int32_t kNone = -1;

// Which worker the calling thread is; -1: none.
thread_local int this_worker = kNone;

// With memory checks: what is filled when the steps that used it are done.
std::vector<Erasure> erasures_of(const std::optional<MemoryCheck>& check, size_t steps) {
  std::vector<Erasure> erasures;
  for (StepIndex s = 0; check && s < static_cast<StepIndex>(steps); ++s) {
    for (const auto& [begin, end] : check->dying(s)) erasures.push_back({s, {begin}, {end - begin}});
  }
  return erasures;
}

std::optional<MemoryCheck> check_of(const ReadyPlan& ready) {
  if (!ready.options.check_memory) return std::nullopt;
  return MemoryCheck(ready.graph, ready.plan, ready.bindings);
}

int cores_for(const ReadyPlan& ready) {
  return ready.plan.cores.cores > 0 ? ready.plan.cores.cores : std::max(ready.device.info().threads, 1);
}

int cores_a_cache(const ReadyPlan& ready) {
  return ready.plan.cores.cores_a_cache > 0 ? ready.plan.cores.cores_a_cache : ready.device.info().cores.cores_a_cache;
}

}  // namespace

ConcurrentDriver::ConcurrentDriver(ReadyPlan& ready)
    : Driver(ready),
      ready_(ready),
      check_(check_of(ready)),
      erasures_(erasures_of(check_, ready.steps())),
      dependencies_(find_dependencies(ready.graph, ready.plan, erasures_)),
      steps_(static_cast<int32_t>(ready.steps())),
      moves_(static_cast<int32_t>(ready.plan.moves.size())),
      cores_(cores_for(ready)),
      at_once_(ready.plan.cores.inter_op),
      smt_(ready.plan.cores.hardware_threads > 1),
      rank_(ready.steps()),
      conflicts_(ready.steps()),
      unmet_(dependencies_.count()),
      ready_steps_((ready.steps() + 63) / 64),
      core_map_(cores_, cores_a_cache(ready), smt_),
      finished_(dependencies_.count()) {
  const int all = std::max(ready.device.info().threads, 1);
  for (const Step& step : ready.plan.steps)
    cores_of_.push_back(std::clamp(step.threads > 0 ? step.threads : all, 1, cores_));
  to_complete_.reserve(unmet_.size());
  find_order();
  find_conflicts();
  make_teams();
  engines_.emplace(ready, [this](int32_t move) { finish(steps_ + move); });
}

ConcurrentDriver::~ConcurrentDriver() = default;

// The plan's own, where it says no other.
void ConcurrentDriver::find_order() {
  ById<StepIndex, bool> seen(steps_, false);
  auto add = [&](StepIndex step) {
    if (seen[step]) return;
    seen[step] = true;
    rank_[step] = static_cast<int32_t>(step_at_.size());
    step_at_.push_back(step);
  };
  for (const StepIndex step : ready_.plan.cores.order) add(step);
  for (StepIndex step = 0; step < steps_; ++step) add(step);
}

void ConcurrentDriver::find_conflicts() {
  ById<OpId, std::vector<StepIndex>> steps_of(ready_.graph.op_count());
  for (StepIndex step = 0; step < steps_; ++step) steps_of[ready_.plan.steps[step].op].push_back(step);
  for (const auto& [a, b] : ready_.plan.cores.conflicts) {
    for (const StepIndex one : steps_of[a]) {
      for (const StepIndex other : steps_of[b]) {
        conflicts_[one].push_back(other);
        conflicts_[other].push_back(one);
      }
    }
  }
}

void ConcurrentDriver::make_teams() {
  std::map<int, int> wanted;  // teams by size
  for (StepIndex s = 0; s < steps_; ++s) {
    if (!ready_.kernels[s]) continue;
    const bool second = smt_ && ready_.plan.steps[s].affinity == Affinity::smt;
    int& count = wanted[cores_of_[s]];
    count = std::max(count, std::min(at_once_, cores_ / cores_of_[s] * (second ? 2 : 1)));
  }
  std::vector<int> all(cores_);
  std::iota(all.begin(), all.end(), 0);
  // Worker 0, the caller, runs what needs all cores, and what needs one: a thread alone forks nobody.
  std::vector<Teams::Shape> shapes{{.threads = cores_, .cores = all}};
  for (const auto& [size, count] : wanted) {
    for (int i = size == 1 || size == cores_ ? 1 : 0; i < count; ++i) {
      const int first = i % (cores_ / size) * size;
      shapes.push_back({.threads = size, .cores = {all.begin() + first, all.begin() + first + size}});
    }
  }
  std::vector<int> processors = ready_.options.pin ? cpu::processors_of_cores(cores_, smt_) : std::vector<int>{};
  running_.resize(shapes.size());
  for (Running& r : running_) r.places.reserve(all.size());
  teams_ = std::make_unique<Teams>(shapes, std::move(processors),
                                   [this](int worker, int32_t step) { run_step(worker, step); });
}

void ConcurrentDriver::start(std::vector<KernelRefused>*) {
  this_worker = 0;
  // Whoever finished the last training step may still be on the way out.
  for (int32_t none = 0; !waiting_.compare_exchange_weak(none, 1, std::memory_order_acq_rel); none = 0)
    std::this_thread::yield();
  start_ = Clock::now();
  engines_->begin(start_);
  if (check_) {
    check_->begin();
    check_->remember();
  }
  begin();
  process_completions();
  teams_->serve();
  if (failing_) std::rethrow_exception(failure_);
  if (check_) check_->expect_free_at_end();
}

// --- for all ---

void ConcurrentDriver::run_step(int worker, StepIndex step) {
  this_worker = worker;
  StepRecord* const record = ready_.records.empty() ? nullptr : &ready_.records[step];
  if (record != nullptr) {
    record->start_ms = now_ms();
    record->core = running_[worker].places[0];
  }
  try {
    if (check_) {
      run_checked(step);
    } else {
      run_kernel(ready_.graph, ready_.plan.steps[step], *ready_.kernels[step]);
    }
  } catch (...) {
    fail(std::current_exception());
  }
  if (record != nullptr) record->end_ms = now_ms();
  finish(step);
}

void ConcurrentDriver::run_checked(StepIndex step) {
  const std::lock_guard alone(check_mutex_);
  if (failing_) return;  // after a stray write nobody's bytes are as they should be
  try {
    check_->expect_inputs(step);
    run_kernel(ready_.graph, ready_.plan.steps[step], *ready_.kernels[step]);
    check_->expect_others_unchanged(step);
    check_->expect_outputs(step);
  } catch (...) {
    fail(std::current_exception());
  }
}

void ConcurrentDriver::fail(std::exception_ptr why) {
  if (!failing_.exchange(true)) failure_ = std::move(why);
}

void ConcurrentDriver::finish(int32_t node) {
  const int32_t number = finished_count_.fetch_add(1, std::memory_order_relaxed);
  finished_[number].store(node, std::memory_order_release);
  if (waiting_.fetch_add(1, std::memory_order_acq_rel) == 0) process_completions();
}

void ConcurrentDriver::process_completions() {
  bool over = false;
  int32_t seen = 1;
  do {
    over |= take_completions();
  } while (!waiting_.compare_exchange_strong(seen, 0, std::memory_order_acq_rel));
  if (over) teams_->dismiss();
}

// --- for who processes completions ---

void ConcurrentDriver::begin() {
  for (std::atomic<int32_t>& node : finished_) node.store(kNone, std::memory_order_relaxed);
  finished_count_.store(0, std::memory_order_relaxed);
  done_ = taken_ = 0;
  std::fill(ready_steps_.begin(), ready_steps_.end(), 0);
  core_map_.clear();
  running_count_ = copying_ = 0;
  meter_.begin();
  over_ = false;
  for (int32_t n = 0; n < dependencies_.count(); ++n) {
    unmet_[n] = static_cast<int32_t>(dependencies_.before(n).size());
  }
  for (int32_t n = 0; n < dependencies_.count(); ++n) {
    if (dependencies_.before(n).empty()) make_ready(n);
  }
  complete_all();
}

bool ConcurrentDriver::take_completions() {
  if (over_) return false;
  here_ = this_worker;
  for (; taken_ < dependencies_.count(); ++taken_) {
    const int32_t node = finished_[taken_].load(std::memory_order_acquire);
    if (node == kNone) break;
    retire(node);
  }
  start_ready();
  if (running_count_ > 0 || copying_ > 0) return false;
  if (done_ < dependencies_.count() && !failing_) {
    fail(std::make_exception_ptr(Error(ErrorCode::internal, "the steps of the plan wait for each other")));
  }
  over_ = true;
  return true;
}

void ConcurrentDriver::retire(int32_t node) {
  if (node < steps_) {
    const auto worker =
        std::find_if(running_.begin(), running_.end(), [&](const Running& r) { return r.step == node; });
    core_map_.leave(worker->places);
    worker->step = kNone;
    --running_count_;
  } else {
    --copying_;
    if (check_ && !is_out(ready_.plan.moves[node - steps_])) {
      const std::lock_guard alone(check_mutex_);
      check_->arrived(node - steps_);
    }
    if (std::exception_ptr failure = engines_->failure()) fail(std::move(failure));
  }
  complete(node);
}

// And what is over with it: views, and erasures.
void ConcurrentDriver::complete(int32_t node) {
  to_complete_.push_back(node);
  complete_all();
}

void ConcurrentDriver::complete_all() {
  while (!to_complete_.empty()) {
    const int32_t next = to_complete_.back();
    to_complete_.pop_back();
    ++done_;
    if (next < steps_ + moves_) meter_.end(next);
    for (int32_t other : dependencies_.after(next)) {
      if (--unmet_[other] == 0) make_ready(other);
    }
  }
}

void ConcurrentDriver::make_ready(int32_t node) {
  if (node < steps_ && ready_.kernels[node]) {
    const size_t rank = rank_[node];
    ready_steps_[rank / 64] |= uint64_t{1} << rank % 64;
  } else if (node < steps_) {
    to_complete_.push_back(node);
  } else if (node < steps_ + moves_) {
    if (failing_) return;
    meter_.start(node);
    if (check_ && !is_out(ready_.plan.moves[node - steps_])) {
      const std::lock_guard alone(check_mutex_);
      check_->arriving(node - steps_);
    }
    ++copying_;
    engines_->submit(node - steps_);
  } else {
    const Erasure& e = erasures_[node - steps_ - moves_];
    const std::lock_guard alone(check_mutex_);
    check_->fill_dying({e.offset.count, (e.offset + e.bytes).count});
    to_complete_.push_back(node);
  }
}

void ConcurrentDriver::start_ready() {
  bool others_wait = false;  // someone before it in the order, for more cores
  for (size_t word = 0; word < ready_steps_.size(); ++word) {
    for (uint64_t bits = ready_steps_[word]; bits != 0; bits &= bits - 1) {
      if (failing_ || running_count_ >= at_once_) return;
      if (core_map_.free_cores() == 0 && !core_map_.has_smt(1)) return;
      const int32_t step = step_at_[word * 64 + std::countr_zero(bits)];
      if (!may_start(step, others_wait)) {
        others_wait = true;
        continue;
      }
      ready_steps_[word] &= ~(bits & (~bits + 1));
      start(step);
    }
  }
}

// Who overtakes must end no later than what runs now: then nobody waits for cores any longer than without it.
bool ConcurrentDriver::may_start(StepIndex step, bool others_wait) const {
  const Step& planned = ready_.plan.steps[step];
  const bool beside = !core_map_.has_own(cores_of_[step]);
  if (beside && (planned.affinity != Affinity::smt || !core_map_.has_smt(cores_of_[step]))) return false;
  for (StepIndex other : conflicts_[step]) {
    if (std::any_of(running_.begin(), running_.end(), [&](const Running& r) { return r.step == other; })) return false;
  }
  return !(others_wait || beside) || planned.time_ms <= remaining_ms();
}

double ConcurrentDriver::remaining_ms() const {
  double last = 0;
  for (const Running& r : running_) {
    if (r.step != kNone) last = std::max(last, r.ends_ms);
  }
  return std::max(0.0, last - now_ms());
}

bool ConcurrentDriver::can_run(int worker, int threads) const {
  if (running_[worker].step != kNone) return false;
  return teams_->threads(worker) == threads || (worker == 0 && threads == 1);
}

bool ConcurrentDriver::is_home_free(int worker, int threads, Affinity affinity) const {
  return core_map_.suits(std::span(teams_->cores(worker)).first(threads), affinity);
}

// Rather the one who is here, awake; rather one who need not go to other cores.
int ConcurrentDriver::choose_worker(int threads, Affinity affinity) const {
  if (here_ >= 0 && can_run(here_, threads) && is_home_free(here_, threads, affinity)) return here_;
  int any = kNone;
  for (int w = 0; w < teams_->count(); ++w) {
    if (!can_run(w, threads)) continue;
    if (is_home_free(w, threads, affinity)) return w;
    any = w;
  }
  return any;
}

void ConcurrentDriver::take_places(int worker, int threads, Affinity affinity) {
  std::vector<int>& places = running_[worker].places;
  if (is_home_free(worker, threads, affinity)) {
    const std::vector<int>& home = teams_->cores(worker);
    places.assign(home.begin(), home.begin() + threads);
  } else {
    core_map_.find(threads, affinity, places);
    if (worker != 0) teams_->send(worker, places);
  }
  core_map_.take(places);
}

// Where it would start now: beside others only where there is no core of its own.
Affinity ConcurrentDriver::affinity_now(StepIndex step) const {
  const Affinity planned = ready_.plan.steps[step].affinity;
  return planned == Affinity::smt && core_map_.has_own(cores_of_[step]) ? Affinity::close : planned;
}

void ConcurrentDriver::start(StepIndex step) {
  const Affinity affinity = affinity_now(step);
  const int worker = choose_worker(cores_of_[step], affinity);
  take_places(worker, cores_of_[step], affinity);
  Running& running = running_[worker];
  running.step = step;
  if (const double ms = ready_.plan.steps[step].time_ms; ms > 0) running.ends_ms = now_ms() + ms;
  ++running_count_;
  meter_.start(step);
  teams_->give(worker, step);
}

std::unique_ptr<Driver> make_concurrent_driver(ReadyPlan& ready) { return std::make_unique<ConcurrentDriver>(ready); }

}  // namespace plimsoll
