#include "execute/queued_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "device/tier/staged.h"
#include "execute/copy_engines.h"
#include "execute/run_kernel.h"

namespace plimsoll {
namespace {

constexpr int kNan = 0xff;  // four such bytes are a NaN
constexpr int kRunsBeforeCapture = 2;

// Moves of one queue or engine, in the order in which they may start.
using Route = std::pair<int, Move::Direction>;  // -1: the device's own queue; else the tier
std::map<Route, std::vector<int32_t>> routes_of(const Plan& plan, std::span<const std::shared_ptr<Tier>> tiers) {
  std::map<Route, std::vector<int32_t>> routes;
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    const Move& move = plan.moves[i];
    const bool addressed = !tiers[static_cast<size_t>(move.tier)]->memory().empty();
    routes[{addressed ? -1 : move.tier, move.direction}].push_back(static_cast<int32_t>(i));
  }
  for (auto& [route, moves] : routes) {
    std::stable_sort(moves.begin(), moves.end(), [&](int32_t a, int32_t b) {
      return plan.moves[static_cast<size_t>(a)].after < plan.moves[static_cast<size_t>(b)].after;
    });
  }
  return routes;
}

}  // namespace

QueuedSteps::QueuedSteps(const Graph& graph, const Plan& plan, const Device& device, std::unique_ptr<Queues> queues,
                         std::span<const std::shared_ptr<Tier>> tiers, std::byte* arena, std::vector<Kernel*> kernels,
                         std::vector<DyingBytes> dying, std::span<StepRecord> records,
                         std::span<StepRecord> copy_records, bool check_memory, bool capture)
    : graph_(graph),
      plan_(plan),
      queues_(std::move(queues)),
      kernels_(std::move(kernels)),
      dying_(plan.steps.size()),
      records_(records),
      copy_records_(copy_records),
      check_memory_(check_memory),
      may_capture_(capture),
      boundaries_(plan.steps.size() + 1) {
  for (const DyingBytes& bytes : dying) dying_[static_cast<size_t>(bytes.step)].push_back(bytes);
  auto describe = [&graph, &plan](int32_t i) {
    const Move& move = plan.moves[static_cast<size_t>(i)];
    return fmt::format("copying '{}' ({}) {} the {} tier", graph.tensor(move.tensor).name,
                       to_string(graph.tensor(move.tensor).bytes()), is_out(move) ? "to" : "from",
                       plan.tiers[static_cast<size_t>(move.tier)].tier.name);
  };
  const bool timed = !copy_records_.empty();
  for (const auto& [route, moves] : routes_of(plan, tiers)) {
    const bool out = route.second == Move::Direction::out, engine = route.first >= 0;
    std::vector<Copy> copies;
    std::map<StepIndex, int32_t> waits;  // how many of the route must be complete before a step
    std::vector<Queues::Mark> done;
    for (const int32_t i : moves) {
      const Move& move = plan.moves[static_cast<size_t>(i)];
      Tier& tier = *tiers[static_cast<size_t>(move.tier)];
      Slot& slot = tier.slot(move.slot, graph.tensor(move.tensor).bytes());
      std::byte* const at = arena + stay_of(graph, plan, move).offset.count;
      Boundary& boundary = boundaries_[static_cast<size_t>(move.after + 1)];
      Pass& start = out ? boundary.out : boundary.in;
      if (start.ready < 0) start.ready = queues_->make_mark(false);
      if (engine) {
        copies.push_back({.slot = &slot,
                          .at = at,
                          .out = out,
                          .move = i,
                          .record = timed ? &copy_records_[static_cast<size_t>(i)] : nullptr});
        if (start.releases.empty() || start.releases.back().engine != engines_.size())
          start.releases.push_back({engines_.size(), 0});
        start.releases.back().count = static_cast<int32_t>(copies.size());
      } else {
        start.transfers.push_back(transfers_.size());
        transfers_.push_back({.slot = &slot,
                              .host = tier.memory().data() + move.slot.count,
                              .at = at,
                              .out = out,
                              .move = i,
                              .begin = timed ? queues_->make_mark(true) : -1,
                              .done = queues_->make_mark(timed)});
        done.push_back(transfers_.back().done);
      }
      int32_t& wait = waits[move.before];
      wait = std::max(wait, static_cast<int32_t>(engine ? copies.size() : done.size()));
    }
    for (const auto& [step, count] : waits) {
      Boundary& boundary = boundaries_[static_cast<size_t>(step)];
      Pass& end = out ? boundary.out : boundary.in;
      if (engine) {
        end.engine_waits.push_back({engines_.size(), count});
      } else {
        end.waits.push_back(done[static_cast<size_t>(count) - 1]);
      }
    }
    if (engine) {
      staged_.push_back(stage(device, *tiers[static_cast<size_t>(route.first)]));
      engines_.push_back(std::make_unique<CopyEngine>(*staged_.back(), std::move(copies), describe));
    }
  }
  if (!records_.empty()) {
    for (size_t s = 0; s < kernels_.size(); ++s) {
      begins_.push_back(queues_->make_mark(true));
      ends_.push_back(queues_->make_mark(true));
    }
  }
  if (!records_.empty() || timed) start_ = queues_->make_mark(true);
  may_capture_ = may_capture_ && engines_.empty();
  if (may_capture_) {
    fork_ = queues_->make_mark(false);
    for (Queues::Mark& join : joins_) join = queues_->make_mark(false);
  }
}

QueuedSteps::~QueuedSteps() { rest(); }

void QueuedSteps::rest() noexcept {
  for (const auto& engine : engines_) engine->wait_for_released();
  // Nothing that the queues use may go before they are empty: where waiting failed, it is tried once more.
  for (int tries = 0; tries < 2; ++tries) {
    try {
      queues_->synchronize();
      return;
    } catch (const Error&) {
    }
  }
}

void QueuedSteps::run(std::vector<KernelRefused>* refused) {
  if (!captured_ && may_capture_ && runs_ >= kRunsBeforeCapture) may_capture_ = captured_ = capture();
  ++runs_;
  if (captured_) {
    forget_sums();
    queues_->replay();
    queues_->synchronize();
    return;
  }
  const CopyEngine::Clock::time_point now = CopyEngine::Clock::now();
  for (const auto& engine : engines_) engine->begin_round(now);
  forget_sums();
  if (start_ >= 0) {
    queues_->mark(Queue::compute, start_);
    queues_->wait(Queue::out, start_);
    queues_->wait(Queue::in, start_);
  }
  ask(true, refused);
  queues_->synchronize();
  keep_times();
}

// Where anything goes wrong nothing has been done, and steps go on as before.
bool QueuedSteps::capture() {
  bool begun = false;
  try {
    begun = queues_->begin_capture();
    if (!begun) return false;
    queues_->mark(Queue::compute, fork_);
    for (const Queue queue : {Queue::out, Queue::in}) queues_->wait(queue, fork_);
    ask(false);
    for (const Queue queue : {Queue::out, Queue::in}) {
      const Queues::Mark join = joins_[queue == Queue::out ? 0 : 1];
      queues_->mark(queue, join);
      queues_->wait(Queue::compute, join);
    }
  } catch (const Error&) {
    if (begun) queues_->end_capture();
    return false;
  }
  return queues_->end_capture();
}

// The device keeps no checksums of what it copies out.
void QueuedSteps::forget_sums() {
  for (const Transfer& t : transfers_) {
    if (t.out) std::fill(t.slot->known.begin(), t.slot->known.end(), Slot::kWithoutSum);
  }
}

void QueuedSteps::run_kernel(size_t step, std::vector<KernelRefused>* refused) {
  try {
    plimsoll::run_kernel(graph_, plan_.steps[step], *kernels_[step]);
  } catch (const KernelRefused& refusal) {
    if (refused == nullptr) throw;
    refused->push_back(refusal);
  }
}

void QueuedSteps::ask(bool timed, std::vector<KernelRefused>* refused) {
  for (size_t s = 0; s < kernels_.size(); ++s) {
    pass(boundaries_[s].out, Queue::out, timed);
    if (s > 0) fill(s - 1);
    pass(boundaries_[s].in, Queue::in, timed);
    if (timed && !begins_.empty()) queues_->mark(Queue::compute, begins_[s]);
    if (kernels_[s] != nullptr) run_kernel(s, refused);
    if (timed && !ends_.empty()) queues_->mark(Queue::compute, ends_[s]);
  }
  pass(boundaries_.back().out, Queue::out, timed);
  pass(boundaries_.back().in, Queue::in, timed);
}

void QueuedSteps::pass(const Pass& pass, Queue queue, bool timed) {
  if (pass.ready >= 0) {
    queues_->mark(Queue::compute, pass.ready);
    if (!pass.transfers.empty()) queues_->wait(queue, pass.ready);
  }
  for (const size_t i : pass.transfers) {
    const Transfer& t = transfers_[i];
    const size_t bytes = static_cast<size_t>(t.slot->bytes);
    if (timed && t.begin >= 0) queues_->mark(queue, t.begin);
    if (t.out) {
      queues_->copy_out(t.host, t.at, bytes);
    } else {
      if (check_memory_) queues_->fill(queue, t.at, kNan, bytes);
      queues_->copy_in(t.at, t.host, bytes);
    }
    queues_->mark(queue, t.done);
  }
  if (!pass.releases.empty()) queues_->synchronize(pass.ready);  // the host copies what the device has computed
  for (const Signal& release : pass.releases) engines_[release.engine]->release(release.count);
  for (const Queues::Mark wait : pass.waits) queues_->wait(Queue::compute, wait);
  for (const Signal& wait : pass.engine_waits) {
    engines_[wait.engine]->wait(wait.count);
    if (const std::exception_ptr failure = engines_[wait.engine]->failure()) std::rethrow_exception(failure);
  }
}

void QueuedSteps::fill(size_t step) {
  for (const DyingBytes& d : dying_[step]) queues_->fill(Queue::compute, d.at, kNan, d.bytes);
}

void QueuedSteps::keep_times() {
  for (size_t s = 0; s < begins_.size(); ++s) {
    if (kernels_[s] != nullptr)
      records_[s] = {queues_->ms_between(start_, begins_[s]), queues_->ms_between(start_, ends_[s])};
  }
  if (copy_records_.empty()) return;
  for (const Transfer& t : transfers_) {
    copy_records_[static_cast<size_t>(t.move)] = {queues_->ms_between(start_, t.begin),
                                                  queues_->ms_between(start_, t.done)};
  }
}

}  // namespace plimsoll
