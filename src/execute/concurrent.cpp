#include "execute/concurrent.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <numeric>

#include "device/cpu/machine.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr int32_t kNone = -1;

// Which worker the calling thread is; -1: none.
thread_local int this_worker = kNone;

}  // namespace

ConcurrentSteps::ConcurrentSteps(const Graph& graph, const Plan& plan, std::vector<Kernel*> kernels,
                                 std::span<const int> threads, std::byte* arena, std::span<StepRecord> records,
                                 ConcurrentSettings settings, std::span<const Erasure> erasures)
    : dependencies_(find_dependencies(graph, plan, erasures)),
      steps_(static_cast<int32_t>(plan.steps.size())),
      moves_(static_cast<int32_t>(plan.moves.size())),
      kernels_(std::move(kernels)),
      erasures_(erasures.begin(), erasures.end()),
      arena_(arena),
      records_(records),
      settings_(std::move(settings)),
      conflicts_(plan.steps.size()),
      core_map_(settings_.cores, settings_.cores_a_cache, settings_.second_threads),
      finished_(static_cast<size_t>(dependencies_.count())) {
  for (int k : threads) cores_of_.push_back(std::clamp(k, 1, settings_.cores));
  for (const Step& step : plan.steps) affinity_.push_back(step.affinity);
  for (const auto& [a, b] : settings_.conflicts) {
    conflicts_[static_cast<size_t>(a)].push_back(b);
    conflicts_[static_cast<size_t>(b)].push_back(a);
  }
  find_order(plan);
  find_residences(graph, plan);
  unmet_.resize(static_cast<size_t>(dependencies_.count()));
  users_.resize(residences_.size());
  in_use_.resize(residences_.size());
  ready_.resize((plan.steps.size() + 63) / 64);
  to_complete_.reserve(unmet_.size());
  make_teams();
}

ConcurrentSteps::~ConcurrentSteps() = default;

void ConcurrentSteps::find_order(const Plan& plan) {
  std::vector<double> start(plan.steps.size(), 0);
  if (settings_.priority.empty()) {
    for (const EngineSpan& span : plan.predicted.timeline) {
      if (span.engine == 0) start[static_cast<size_t>(span.index)] = span.start_ms;
    }
  } else {
    start.assign(settings_.priority.begin(), settings_.priority.end());
  }
  step_at_.resize(plan.steps.size());
  rank_.resize(plan.steps.size());
  std::iota(step_at_.begin(), step_at_.end(), 0);
  std::stable_sort(step_at_.begin(), step_at_.end(),
                   [&](int32_t a, int32_t b) { return start[static_cast<size_t>(a)] < start[static_cast<size_t>(b)]; });
  for (size_t r = 0; r < step_at_.size(); ++r) rank_[static_cast<size_t>(step_at_[r])] = static_cast<int32_t>(r);
  if (settings_.expected_ms.empty()) {
    settings_.expected_ms.assign(plan.steps.size(), 0);
    for (const EngineSpan& span : plan.predicted.timeline) {
      if (span.engine == 0) settings_.expected_ms[static_cast<size_t>(span.index)] = span.end_ms - span.start_ms;
    }
  }
}

// Stays at one offset that meet in time are one place in use.
void ConcurrentSteps::find_residences(const Graph& graph, const Plan& plan) {
  std::vector<int32_t> sorted(plan.stays.size()), residence_of(plan.stays.size(), kNone);
  std::iota(sorted.begin(), sorted.end(), 0);
  auto stay = [&](int32_t i) -> const Stay& { return plan.stays[static_cast<size_t>(i)]; };
  std::sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) {
    return std::pair(stay(a).offset, stay(a).first) < std::pair(stay(b).offset, stay(b).first);
  });
  Bytes offset{-1};
  StepIndex last = -1;
  std::vector<StepIndex> ends;
  auto comes_from_outside = [&](TensorId id) {
    return !graph.tensor(id).producer.valid() &&
           std::none_of(plan.homes.begin(), plan.homes.end(), [&](const Home& h) { return h.tensor == id; });
  };
  for (int32_t i : sorted) {
    const Stay& s = stay(i);
    if (s.bytes.count == 0) continue;
    if (s.offset != offset || s.first > last) {
      residences_.emplace_back();
      ends.push_back(-1);
      offset = s.offset;
      last = s.last;
    }
    last = std::max(last, s.last);
    ends.back() = last;
    residences_.back().bytes = std::max(residences_.back().bytes, s.bytes.count);
    residence_of[static_cast<size_t>(i)] = static_cast<int32_t>(residences_.size()) - 1;
    residences_.back().from_start |= s.first == 0 && !s.is_workspace() && comes_from_outside(s.tensor);
  }
  std::vector<int32_t> list;
  for (int32_t node = 0; node < dependencies_.count(); ++node) {
    list.clear();
    for (int32_t i : dependencies_.stays(node)) list.push_back(residence_of[static_cast<size_t>(i)]);
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    std::erase(list, kNone);
    first_residence_.push_back(static_cast<int32_t>(all_residences_.size()));
    all_residences_.insert(all_residences_.end(), list.begin(), list.end());
    for (int32_t r : list) ++residences_[static_cast<size_t>(r)].users;
  }
  first_residence_.push_back(static_cast<int32_t>(all_residences_.size()));
  for (size_t r = 0; r < residences_.size(); ++r) {
    residences_[r].users += ends[r] + 1 >= steps_;
    residences_[r].from_start &= residences_[r].users > 0;  // what nobody reads is nobody's
  }
}

void ConcurrentSteps::make_teams() {
  const int cores = settings_.cores;
  std::map<int, int> wanted;  // teams by size
  for (size_t s = 0; s < kernels_.size(); ++s) {
    if (kernels_[s] == nullptr) continue;
    const bool second = settings_.second_threads && affinity_[s] == Affinity::smt;
    int& count = wanted[cores_of_[s]];
    count = std::max(count, std::min(settings_.at_once, cores / cores_of_[s] * (second ? 2 : 1)));
  }
  std::vector<int> all(static_cast<size_t>(cores));
  std::iota(all.begin(), all.end(), 0);
  // Worker 0, the caller, runs what needs all cores, and what needs one: a thread alone forks nobody.
  std::vector<Teams::Shape> shapes{{.threads = cores, .cores = all}};
  for (const auto& [size, count] : wanted) {
    for (int i = size == 1 || size == cores ? 1 : 0; i < count; ++i) {
      const int first = i % (cores / size) * size;
      shapes.push_back({.threads = size, .cores = {all.begin() + first, all.begin() + first + size}});
    }
  }
  std::vector<int> processors =
      settings_.pin ? cpu::processors_of_cores(cores, settings_.second_threads) : std::vector<int>{};
  running_.resize(shapes.size());
  for (Running& r : running_) r.places.reserve(all.size());
  teams_ = std::make_unique<Teams>(shapes, std::move(processors),
                                   [this](int worker, int32_t step) { run_step(worker, step); });
}

void ConcurrentSteps::run(CopyEngines& engines, Clock::time_point start) {
  this_worker = 0;
  // Whoever finished the last training step may still be on the way out.
  for (int32_t none = 0; !notes_.compare_exchange_weak(none, 1, std::memory_order_acq_rel); none = 0)
    std::this_thread::yield();
  begin(engines, start);
  process_completions();
  teams_->serve();
  if (failing_) std::rethrow_exception(failure_);
}

// --- for all ---

void ConcurrentSteps::run_step(int worker, int32_t step) {
  this_worker = worker;
  const size_t s = static_cast<size_t>(step);
  if (!records_.empty()) {
    records_[s].start_ms = now_ms();
    records_[s].core = running_[static_cast<size_t>(worker)].places[0];
  }
  try {
    kernels_[s]->run();
  } catch (...) {
    fail(std::current_exception());
  }
  if (!records_.empty()) records_[s].end_ms = now_ms();
  finish(step);
}

void ConcurrentSteps::fail(std::exception_ptr why) {
  if (!failing_.exchange(true)) failure_ = std::move(why);
}

void ConcurrentSteps::finish(int32_t node) {
  const int32_t number = finished_count_.fetch_add(1, std::memory_order_relaxed);
  finished_[static_cast<size_t>(number)].store(node, std::memory_order_release);
  if (notes_.fetch_add(1, std::memory_order_acq_rel) == 0) process_completions();
}

void ConcurrentSteps::process_completions() {
  bool over = false;
  int32_t notes = 1;
  do {
    over |= work();
  } while (!notes_.compare_exchange_strong(notes, 0, std::memory_order_acq_rel));
  if (over) teams_->dismiss();
}

// --- at the desk ---

void ConcurrentSteps::begin(CopyEngines& engines, Clock::time_point start) {
  engines_ = &engines;
  start_ = start;
  for (std::atomic<int32_t>& node : finished_) node.store(kNone, std::memory_order_relaxed);
  finished_count_.store(0, std::memory_order_relaxed);
  done_ = taken_ = 0;
  std::fill(ready_.begin(), ready_.end(), 0);
  core_map_.clear();
  running_count_ = copying_ = 0;
  bytes_ = 0;
  for (size_t r = 0; r < residences_.size(); ++r) {
    users_[r] = residences_[r].users;
    in_use_[r] = residences_[r].from_start;
    if (residences_[r].from_start) bytes_ += residences_[r].bytes;
  }
  peak_ = std::max(peak_, bytes_);
  over_ = false;
  for (int32_t n = 0; n < dependencies_.count(); ++n) {
    unmet_[static_cast<size_t>(n)] = static_cast<int32_t>(dependencies_.before(n).size());
  }
  for (int32_t n = 0; n < dependencies_.count(); ++n) {
    if (dependencies_.before(n).empty()) make_ready(n);
  }
  complete_all();
}

bool ConcurrentSteps::work() {
  if (over_) return false;
  here_ = this_worker;
  for (; taken_ < dependencies_.count(); ++taken_) {
    const int32_t node = finished_[static_cast<size_t>(taken_)].load(std::memory_order_acquire);
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

void ConcurrentSteps::retire(int32_t node) {
  if (node < steps_) {
    const auto worker =
        std::find_if(running_.begin(), running_.end(), [&](const Running& r) { return r.step == node; });
    core_map_.leave(worker->places);
    worker->step = kNone;
    --running_count_;
  } else {
    --copying_;
    if (std::exception_ptr failure = engines_->failure()) fail(std::move(failure));
  }
  complete(node);
}

// And what is over with it: views, and erasures.
void ConcurrentSteps::complete(int32_t node) {
  to_complete_.push_back(node);
  complete_all();
}

void ConcurrentSteps::complete_all() {
  while (!to_complete_.empty()) {
    const int32_t next = to_complete_.back();
    to_complete_.pop_back();
    ++done_;
    leave(next);
    for (int32_t other : dependencies_.after(next)) {
      if (--unmet_[static_cast<size_t>(other)] == 0) make_ready(other);
    }
  }
}

void ConcurrentSteps::make_ready(int32_t node) {
  if (node < steps_ && kernels_[static_cast<size_t>(node)] != nullptr) {
    const size_t rank = static_cast<size_t>(rank_[static_cast<size_t>(node)]);
    ready_[rank / 64] |= uint64_t{1} << rank % 64;
  } else if (node < steps_) {
    to_complete_.push_back(node);
  } else if (node < steps_ + moves_) {
    if (failing_) return;
    use(node);
    ++copying_;
    engines_->submit(node - steps_);
  } else {
    const Erasure& e = erasures_[static_cast<size_t>(node - steps_ - moves_)];
    std::memset(arena_ + e.offset.count, 0xff, static_cast<size_t>(e.bytes.count));  // 0xffffffff is a NaN
    to_complete_.push_back(node);
  }
}

void ConcurrentSteps::start_ready() {
  bool others_wait = false;  // someone before it in the order, for more cores
  for (size_t word = 0; word < ready_.size(); ++word) {
    for (uint64_t bits = ready_[word]; bits != 0; bits &= bits - 1) {
      if (failing_ || running_count_ >= settings_.at_once) return;
      if (core_map_.free_cores() == 0 && !core_map_.has_second(1)) return;
      const int32_t step = step_at_[word * 64 + static_cast<size_t>(std::countr_zero(bits))];
      if (!may_start(step, others_wait)) {
        others_wait = true;
        continue;
      }
      ready_[word] &= ~(bits & (~bits + 1));
      start(step);
    }
  }
}

// Who overtakes must end no later than what runs now: then nobody waits for cores any longer than without it.
bool ConcurrentSteps::may_start(int32_t step, bool others_wait) const {
  const size_t s = static_cast<size_t>(step);
  const bool beside = !core_map_.has_own(cores_of_[s]);
  if (beside && (affinity_[s] != Affinity::smt || !core_map_.has_second(cores_of_[s]))) return false;
  for (int32_t other : conflicts_[s]) {
    if (std::any_of(running_.begin(), running_.end(), [&](const Running& r) { return r.step == other; })) return false;
  }
  return !(others_wait || beside) || settings_.expected_ms[s] <= remaining_ms();
}

double ConcurrentSteps::remaining_ms() const {
  double last = 0;
  for (const Running& r : running_) {
    if (r.step != kNone) last = std::max(last, r.ends_ms);
  }
  return std::max(0.0, last - now_ms());
}

bool ConcurrentSteps::can_run(int worker, int threads) const {
  if (running_[static_cast<size_t>(worker)].step != kNone) return false;
  return teams_->threads(worker) == threads || (worker == 0 && threads == 1);
}

bool ConcurrentSteps::is_home_free(int worker, int threads, Affinity affinity) const {
  return core_map_.suits(std::span(teams_->cores(worker)).first(static_cast<size_t>(threads)), affinity);
}

// Rather the one who is here, awake; rather one who need not go to other cores.
int ConcurrentSteps::choose_worker(int threads, Affinity affinity) const {
  if (here_ >= 0 && can_run(here_, threads) && is_home_free(here_, threads, affinity)) return here_;
  int any = kNone;
  for (int w = 0; w < teams_->count(); ++w) {
    if (!can_run(w, threads)) continue;
    if (is_home_free(w, threads, affinity)) return w;
    any = w;
  }
  return any;
}

void ConcurrentSteps::take_places(int worker, int threads, Affinity affinity) {
  std::vector<int>& places = running_[static_cast<size_t>(worker)].places;
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
Affinity ConcurrentSteps::affinity_now(int32_t step) const {
  const size_t s = static_cast<size_t>(step);
  if (affinity_[s] == Affinity::smt && core_map_.has_own(cores_of_[s])) return Affinity::close;
  return affinity_[s];
}

void ConcurrentSteps::start(int32_t step) {
  const size_t s = static_cast<size_t>(step);
  const Affinity affinity = affinity_now(step);
  const int worker = choose_worker(cores_of_[s], affinity);
  take_places(worker, cores_of_[s], affinity);
  Running& running = running_[static_cast<size_t>(worker)];
  running.step = step;
  if (const double ms = settings_.expected_ms[s]; ms > 0) running.ends_ms = now_ms() + ms;
  ++running_count_;
  use(step);
  teams_->give(worker, step);
}

std::span<const int32_t> ConcurrentSteps::residences_of(int32_t node) const {
  const size_t n = static_cast<size_t>(node), first = static_cast<size_t>(first_residence_[n]);
  return std::span(all_residences_).subspan(first, static_cast<size_t>(first_residence_[n + 1]) - first);
}

void ConcurrentSteps::use(int32_t node) {
  for (int32_t r : residences_of(node)) {
    const size_t i = static_cast<size_t>(r);
    if (in_use_[i] != 0) continue;
    in_use_[i] = 1;
    bytes_ += residences_[i].bytes;
  }
  peak_ = std::max(peak_, bytes_);
}

void ConcurrentSteps::leave(int32_t node) {
  for (int32_t r : residences_of(node)) {
    const size_t i = static_cast<size_t>(r);
    if (--users_[i] == 0) bytes_ -= residences_[i].bytes;
  }
}

}  // namespace plimsoll
