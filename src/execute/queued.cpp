// Runs a plan on a device that computes beside the host: a training step is asked for at once, kernels and copies in
// three queues that marks order as the plan says, and the host waits at its end. Between two steps the compute queue
// waits where a thread would (boundaries.h).
//
// A step is the same every time, so from the third on it is captured: kept by the device and asked for as a whole,
// which spares the host hundreds of calls. The first loads what kernels need, the second tells the times; each captured one
// does where that is asked for (ExecuteOptions::time_captured). Where the host itself copies, a step cannot be kept, nor where ranks meet in it: all of them would have to keep it, or none.
//
// Collectives are asked of a queue of their own, in the plan's order, which is that of all ranks. It waits for the last of
// their steps, and compute for them where the plan says so.
//
// The next batch comes to its second buffer beside the step, by the host's own copies. Compute takes it from there before
// the next step, outside of what is captured: so a step finds its inputs where it always does, and there is one capture.
//
//   tiers in host memory, pinned: the device copies by itself
//   other tiers (disk): threads copy piece by piece through pinned buffers, and the host waits for them at boundaries
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "device/joinable.h"
#include "device/tier/staged.h"
#include "execute/copy_engine.h"
#include "execute/driver.h"
#include "execute/memory_check.h"
#include "execute/run_kernel.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

class QueuedDriver final : public Driver {
 public:
  QueuedDriver(ReadyPlan& ready, std::unique_ptr<Queues> queues);
  ~QueuedDriver() override { rest(); }

  void start(std::vector<KernelRefused>* refused) override;
  void finish() override;
  void take_next() override;
  void await_taken() override;
  void rest() noexcept override;
  bool is_captured() const override { return captured_; }
  std::optional<double> device_ms() const override { return device_ms_; }

 private:
  using Queue = Queues::Queue;
  struct Transfer {  // a move that the device makes by itself
    Slot* slot = nullptr;
    std::byte* host = nullptr;
    Queues::Mark begin = -1, done = -1;
    Queues::Mark end =
        -1;  // as `done`, where times are taken: a captured mark that tells a time can be waited for by nobody
  };
  // The copies of a route: an engine on the host makes them, or the device does.
  struct Lane {
    std::shared_ptr<Tier> staged;
    std::unique_ptr<CopyEngine> engine;
    std::vector<Transfer> transfers;  // in the route's order
  };
  struct Message {                     // of a collective
    const std::byte* scale = nullptr;  // of sums of gradients: below 0, nothing is sent; null: all is
    Queues::Mark ready = -1, begin = -1, done = -1;
    bool is_sent = false;  // in this step
  };
  struct Together {  // steps that are one launch, asked for where the first of them stands
    std::unique_ptr<Kernel> kernel;
    std::vector<double> ends;  // of each, as a share of all their bytes
  };
  struct Ready {  // what copies that start at a boundary start from, -1 where none do
    Queues::Mark out = -1, in = -1;
  };

  bool may_join(size_t step) const;
  void join_steps();
  void make_lane(const CopyRoute& route);
  void make_marks();
  const std::byte* scale_of(const Collective& collective) const;
  void make_messages();

  void ask_one_by_one(std::vector<KernelRefused>* refused);
  void ask(bool timed, std::vector<KernelRefused>* refused = nullptr);
  void ask_step(size_t step, bool timed, std::vector<KernelRefused>* refused);
  void ask_together(size_t first, bool timed);
  void pass(const Pass& pass, Queue queue, Queues::Mark ready, bool timed);
  void transfer(const CopyRange& range, Queue queue, bool timed);
  void wait(const CopyRange& range);
  void send(size_t step, bool timed);
  void receive(size_t step);
  void choose_messages(bool rehearses);
  bool is_collective(size_t step) const { return ready_.graph.op(ready_.plan.steps[step].op).type->is_collective; }
  void measure(const CopyRange& range, bool starts);
  void fill(std::span<const MemoryCheck::Range> ranges);
  bool capture();
  void forget_sums();
  void keep_times();
  int32_t move_of(const CopyRange& range, int32_t k) const { return ready_.boundaries.routes[range.route].moves[k]; }

  ReadyPlan& ready_;
  std::optional<MemoryCheck> check_;
  std::unique_ptr<Queues> queues_;
  bool measuring_ = true, rehearsed_ = false;  // rehearsed_: the last step was asked for kernel by kernel
  bool may_capture_, captured_ = false;
  int runs_ = 0;
  std::vector<Ready> starts_;           // by boundary
  Queues::Mark begin_ = -1, end_ = -1;  // of a step, around what is captured
  Queues::Mark taken_ = -1;             // the second buffers are free again
  std::optional<double> device_ms_;
  Queues::Mark start_ = -1;
  Queues::Mark fork_ = -1, joins_[2] = {-1, -1};  // of what is captured
  std::vector<Queues::Mark> begins_, ends_;       // of steps, where times are taken
  std::map<size_t, Together> together_;           // by the first of their steps
  std::vector<Message> messages_;                 // by collective
  std::vector<int32_t> sends_;                    // by step: the collective that it completes; -1: none
  std::vector<std::vector<int32_t>> receives_;    // by step, and the end: those that are complete before it
  std::vector<Lane> lanes_;                       // by route; the first to go
};

QueuedDriver::QueuedDriver(ReadyPlan& ready, std::unique_ptr<Queues> queues)
    : Driver(ready), ready_(ready), queues_(std::move(queues)), may_capture_(ready.options.capture) {
  if (ready.options.check_memory) check_.emplace(ready.graph, ready.plan, ready.bindings);
  for (const CopyRoute& route : ready.boundaries.routes) make_lane(route);
  make_messages();
  make_marks();
  join_steps();
}

// Nothing is started or waited for between this step and the one before it, and what it writes lies where it reads: then it
// may as well be done when the first of its like is.
bool QueuedDriver::may_join(size_t step) const {
  const Boundary& boundary = ready_.boundaries.before[step];
  if (!boundary.out.empty() || !boundary.in.empty() || !receives_[step].empty()) return false;
  const KernelBinding& binding = ready_.bindings.steps[static_cast<StepIndex>(step)];
  return std::ranges::all_of(binding.outputs, [&](const Region& output) {
    return output.at == nullptr ||
           std::ranges::any_of(binding.inputs, [&](const Region& input) { return input.at == output.at; });
  });
}

void QueuedDriver::join_steps() {
  for (size_t first = 0; first < ready_.steps();) {
    std::vector<Kernel*> kernels;
    std::set<const std::byte*> written;
    for (size_t s = first; s < ready_.steps(); ++s) {
      if (dynamic_cast<Joinable*>(ready_.kernels[s].get()) == nullptr || (s > first && !may_join(s))) break;
      const KernelBinding& binding = ready_.bindings.steps[static_cast<StepIndex>(s)];
      if (std::ranges::any_of(binding.inputs, [&](const Region& input) { return written.contains(input.at); })) break;
      for (const Region& output : binding.outputs) {
        if (output.at != nullptr) written.insert(output.at);
      }
      kernels.push_back(ready_.kernels[s].get());
    }
    JoinedKernel joined;
    if (kernels.size() > 1) joined = dynamic_cast<Joinable&>(*kernels.front()).join(kernels);
    if (joined.count < 2) {
      ++first;
      continue;
    }
    Together& together = together_[first];
    together.kernel = std::move(joined.kernel);
    double bytes = 0;
    for (size_t s = first; s < first + joined.count; ++s) {
      for (const Region& input : ready_.bindings.steps[static_cast<StepIndex>(s)].inputs)
        bytes += static_cast<double>(input.bytes.count);
      together.ends.push_back(bytes);
    }
    for (double& end : together.ends) end /= std::max(bytes, 1.0);
    first += joined.count;
  }
}

// It comes from outside the step. Where it does not lie where the step found it, nobody can look before.
const std::byte* QueuedDriver::scale_of(const Collective& collective) const {
  const StepIndex last = collective.steps.back();
  if (ready_.graph.op(ready_.plan.steps[last].op).attributes.integer("scaled", 0) == 0) return nullptr;
  const Region& scale = ready_.bindings.steps[last].inputs.back();
  const bool found = std::ranges::any_of(ready_.bindings.found, [&](const Region& region) {
    return region.tensor == scale.tensor && region.at == scale.at;
  });
  return found ? scale.at : nullptr;
}

void QueuedDriver::make_messages() {
  const Plan& plan = ready_.plan;
  const bool timed = !ready_.message_records.empty();
  sends_.assign(ready_.steps(), -1);
  receives_.resize(ready_.steps() + 1);
  for (size_t c = 0; c < plan.collectives.size(); ++c) {
    const Collective& collective = plan.collectives[c];
    sends_[collective.steps.back()] = static_cast<int32_t>(c);
    receives_[collective.before].push_back(static_cast<int32_t>(c));
    messages_.push_back({.scale = scale_of(collective),
                         .ready = queues_->make_mark(false),
                         .begin = timed ? queues_->make_mark(true) : -1,
                         .done = queues_->make_mark(timed)});
  }
  for (size_t s = 0; s < ready_.steps(); ++s) may_capture_ = may_capture_ && !is_collective(s);
}

// Sums of gradients that are no update yet are not sent: all ranks have the same scale. Nothing is, where this rank tries a
// step alone.
void QueuedDriver::choose_messages(bool rehearses) {
  const std::byte* known = nullptr;
  float scale = 0;
  for (size_t c = 0; c < messages_.size(); ++c) {
    Message& message = messages_[c];
    message.is_sent = !rehearses && ready_.collectives[c] != nullptr;
    if (!message.is_sent || message.scale == nullptr) continue;
    if (message.scale != known) ready_.device.read(std::as_writable_bytes(std::span(&scale, 1)), message.scale);
    known = message.scale;
    message.is_sent = !(scale < 0);
  }
}

// From here on what its steps read and write is the wire's.
void QueuedDriver::send(size_t step, bool timed) {
  const int32_t c = sends_[step];
  if (c < 0) return;
  Message& message = messages_[c];
  if (!message.is_sent) return;
  queues_->mark(Queue::compute, message.ready);
  queues_->wait(Queue::messages, message.ready);
  if (timed && message.begin >= 0) queues_->mark(Queue::messages, message.begin);
  ready_.collectives[c]->run();
  queues_->mark(Queue::messages, message.done);
}

void QueuedDriver::receive(size_t step) {
  for (const int32_t c : receives_[step]) {
    if (messages_[c].is_sent) queues_->wait(Queue::compute, messages_[c].done);
    if (!measuring_) continue;
    for (const StepIndex s : ready_.plan.collectives[c].steps) meter_.end(s);
  }
}

void QueuedDriver::make_lane(const CopyRoute& route) {
  const Plan& plan = ready_.plan;
  const bool timed = !ready_.copy_records.empty();
  const std::shared_ptr<Tier>& tier = ready_.tiers[route.tier];
  const std::span<std::byte> memory = tier->memory();
  Lane lane;
  std::vector<Copy> copies;
  for (const int32_t i : route.moves) {
    const Region& region = ready_.bindings.copies[i];
    Slot& slot = tier->slot(plan.moves[i].slot, region.bytes);
    if (memory.empty()) {
      copies.push_back({.slot = &slot,
                        .at = region.at,
                        .out = is_out(plan.moves[i]),
                        .move = i,
                        .record = timed ? &ready_.copy_records[i] : nullptr});
    } else {
      lane.transfers.push_back({.slot = &slot,
                                .host = memory.data() + slot.offset,
                                .begin = timed ? queues_->make_mark(true) : -1,
                                .done = queues_->make_mark(false),
                                .end = timed ? queues_->make_mark(true) : -1});
    }
  }
  if (memory.empty()) {
    lane.staged = stage(ready_.device, *tier);
    lane.engine = std::make_unique<CopyEngine>(
        *lane.staged, std::move(copies),
        [&graph = ready_.graph, &plan](int32_t move) { return describe_copy(graph, plan, move); });
    may_capture_ = false;
  }
  lanes_.push_back(std::move(lane));
}

void QueuedDriver::make_marks() {
  for (Queues::Mark* mark : {&begin_, &end_}) *mark = queues_->make_mark(true);
  if (!ready_.bindings.next.empty()) taken_ = queues_->make_mark(false);
  for (const Boundary& boundary : ready_.boundaries.before) {
    auto mark = [&](const Pass& pass) { return pass.starts.empty() ? -1 : queues_->make_mark(false); };
    const Queues::Mark out = mark(boundary.out);
    starts_.push_back({out, mark(boundary.in)});
  }
  if (!ready_.records.empty()) {
    for (size_t s = 0; s < ready_.steps(); ++s) {
      begins_.push_back(queues_->make_mark(true));
      ends_.push_back(queues_->make_mark(true));
    }
  }
  if (!ready_.records.empty() || !ready_.copy_records.empty()) start_ = queues_->make_mark(true);
  if (may_capture_) {
    fork_ = queues_->make_mark(false);
    for (Queues::Mark& join : joins_) join = queues_->make_mark(false);
  }
}

void QueuedDriver::rest() noexcept {
  for (const Lane& lane : lanes_) {
    if (lane.engine) lane.engine->wait_for_released();
  }
  // Nothing that the queues use may go before they are empty: where waiting failed, it is tried once more.
  for (int tries = 0; tries < 2; ++tries) {
    try {
      queues_->synchronize();
      return;
    } catch (const Error&) {
    }
  }
}

void QueuedDriver::start(std::vector<KernelRefused>* refused) {
  if (!captured_ && may_capture_ && runs_ >= kRunsBeforeCapture) may_capture_ = captured_ = capture();
  ++runs_;
  forget_sums();
  rehearsed_ = refused != nullptr;
  if (!captured_) choose_messages(rehearsed_);
  queues_->mark(Queue::compute, begin_);
  captured_ ? queues_->replay() : ask_one_by_one(refused);
  queues_->mark(Queue::compute, end_);
}

void QueuedDriver::finish() {
  queues_->synchronize();
  device_ms_ = queues_->ms_between(begin_, end_);
  if (!captured_ || ready_.options.time_captured) keep_times();
}

// Outside of what is captured, whose marks nobody could wait for.
void QueuedDriver::take_next() {
  for (const Bindings::Next& next : ready_.bindings.next)
    queues_->copy_within(next.place.at, next.buffer.at, next.place.bytes.count);
  queues_->mark(Queue::compute, taken_);
}

void QueuedDriver::await_taken() { queues_->synchronize(taken_); }

void QueuedDriver::ask_one_by_one(std::vector<KernelRefused>* refused) {
  const Clock::time_point now = Clock::now();
  for (const Lane& lane : lanes_) {
    if (lane.engine) lane.engine->begin_round(now);
  }
  if (start_ >= 0) {
    queues_->mark(Queue::compute, start_);
    queues_->wait(Queue::out, start_);
    queues_->wait(Queue::in, start_);
  }
  if (measuring_) meter_.begin();
  ask(true, refused);
  measuring_ = false;  // every training step is the same
}

// Where anything goes wrong nothing has been done, and steps go on as before.
bool QueuedDriver::capture() {
  bool begun = false;
  try {
    begun = queues_->begin_capture();
    if (!begun) return false;
    queues_->mark(Queue::compute, fork_);
    for (const Queue queue : {Queue::out, Queue::in}) queues_->wait(queue, fork_);
    const bool timed = ready_.options.time_captured && start_ >= 0;
    if (timed) queues_->mark(Queue::compute, start_);
    ask(timed);
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
void QueuedDriver::forget_sums() {
  for (size_t r = 0; r < lanes_.size(); ++r) {
    if (ready_.boundaries.routes[r].direction == Move::Direction::in) continue;
    for (const Transfer& t : lanes_[r].transfers)
      std::fill(t.slot->known.begin(), t.slot->known.end(), Slot::kWithoutSum);
  }
}

void QueuedDriver::ask(bool timed, std::vector<KernelRefused>* refused) {
  if (check_) fill(check_->free_at_start());
  const std::vector<Boundary>& boundaries = ready_.boundaries.before;
  for (size_t s = 0; s < ready_.steps(); ++s) {
    receive(s);
    pass(boundaries[s].out, Queue::out, starts_[s].out, timed);
    if (check_ && s > 0) fill(check_->dying(static_cast<StepIndex>(s) - 1));
    pass(boundaries[s].in, Queue::in, starts_[s].in, timed);
    // Where refusals are wanted, each kernel is asked for by itself.
    const auto together = refused == nullptr ? together_.find(s) : together_.end();
    if (together == together_.end()) {
      ask_step(s, timed, refused);
    } else {
      ask_together(s, timed);
      s += together->second.ends.size() - 1;
    }
  }
  receive(ready_.steps());
  pass(boundaries.back().out, Queue::out, starts_.back().out, timed);
  pass(boundaries.back().in, Queue::in, starts_.back().in, timed);
}

void QueuedDriver::ask_step(size_t step, bool timed, std::vector<KernelRefused>* refused) {
  const int32_t node = static_cast<int32_t>(step);
  if (timed && !begins_.empty()) queues_->mark(Queue::compute, begins_[step]);
  const bool tries_alone = refused != nullptr && is_collective(step);
  if (ready_.kernels[step] && !tries_alone) {
    if (measuring_) meter_.start(node);
    try {
      run_kernel(ready_.graph, ready_.plan.steps[step], *ready_.kernels[step]);
    } catch (const KernelRefused& refusal) {
      if (refused == nullptr) throw;
      refused->push_back(refusal);
    }
    if (measuring_) meter_.end(node);
  } else if (!messages_.empty() && is_collective(step)) {
    if (measuring_) meter_.start(node);  // until it is received
    send(step, timed);
  }
  if (timed && !ends_.empty()) queues_->mark(Queue::compute, ends_[step]);
}

void QueuedDriver::ask_together(size_t first, bool timed) {
  const Together& together = together_.at(first);
  const size_t last = first + together.ends.size() - 1;
  if (timed && !begins_.empty()) queues_->mark(Queue::compute, begins_[first]);
  run_kernel(ready_.graph, ready_.plan.steps[first], *together.kernel);
  for (size_t s = first; s <= last && measuring_; ++s) {
    meter_.start(static_cast<int32_t>(s));
    meter_.end(static_cast<int32_t>(s));
  }
  if (timed && !ends_.empty()) queues_->mark(Queue::compute, ends_[first]);
  if (!check_) return;
  for (size_t s = first; s < last; ++s) fill(check_->dying(static_cast<StepIndex>(s)));
}

void QueuedDriver::pass(const Pass& pass, Queue queue, Queues::Mark ready, bool timed) {
  if (!pass.starts.empty()) {
    queues_->mark(Queue::compute, ready);
    const auto is_engine = [&](const CopyRange& range) { return lanes_[range.route].engine != nullptr; };
    const bool engines = std::any_of(pass.starts.begin(), pass.starts.end(), is_engine);
    if (!std::all_of(pass.starts.begin(), pass.starts.end(), is_engine)) queues_->wait(queue, ready);
    for (const CopyRange& range : pass.starts) {
      measure(range, true);
      if (!is_engine(range)) transfer(range, queue, timed);
    }
    if (engines) queues_->synchronize(ready);  // the host copies what the device has computed
    for (const CopyRange& range : pass.starts) {
      if (is_engine(range)) lanes_[range.route].engine->release(range.end);
    }
  }
  for (const CopyRange& range : pass.waits) wait(range);
}

void QueuedDriver::transfer(const CopyRange& range, Queue queue, bool timed) {
  for (int32_t k = range.first; k < range.end; ++k) {
    const Transfer& t = lanes_[range.route].transfers[k];
    const Region& region = ready_.bindings.copies[move_of(range, k)];
    const size_t bytes = region.bytes.count;
    if (timed && t.begin >= 0) queues_->mark(queue, t.begin);
    if (queue == Queue::out) {
      queues_->copy_out(t.host, region.at, bytes);
    } else {
      if (check_) queues_->fill(queue, region.at, kPoison, bytes);
      queues_->copy_in(region.at, t.host, bytes);
    }
    if (timed && t.end >= 0) queues_->mark(queue, t.end);
    queues_->mark(queue, t.done);
  }
}

void QueuedDriver::wait(const CopyRange& range) {
  const Lane& lane = lanes_[range.route];
  if (!lane.engine) {
    queues_->wait(Queue::compute, lane.transfers[range.end - 1].done);
  } else {
    lane.engine->wait(range.end);
    if (const std::exception_ptr failure = lane.engine->failure()) std::rethrow_exception(failure);
  }
  measure(range, false);
}

void QueuedDriver::measure(const CopyRange& range, bool starts) {
  if (!measuring_) return;
  for (int32_t k = range.first; k < range.end; ++k) {
    const int32_t node = static_cast<int32_t>(ready_.steps()) + move_of(range, k);
    starts ? meter_.start(node) : meter_.end(node);
  }
}

void QueuedDriver::fill(std::span<const MemoryCheck::Range> ranges) {
  for (const auto& [begin, end] : ranges)
    queues_->fill(Queue::compute, ready_.bindings.arena + begin, kPoison, end - begin);
}

void QueuedDriver::keep_times() {
  for (size_t s = 0; s < begins_.size(); ++s) {
    if (const auto together = together_.find(s); together != together_.end() && !rehearsed_) {
      const double begin = queues_->ms_between(start_, begins_[s]), end = queues_->ms_between(start_, ends_[s]);
      double at = begin;
      for (const double share : together->second.ends) {
        ready_.records[s] = {at, begin + share * (end - begin), 0, true};
        at = ready_.records[s++].end_ms;
      }
      --s;
      continue;
    }
    if (!ready_.kernels[s] && !is_collective(s)) continue;
    const double begin = queues_->ms_between(start_, begins_[s]);
    ready_.records[s] = {begin, ready_.kernels[s] ? queues_->ms_between(start_, ends_[s]) : begin};
  }
  for (size_t c = 0; c < ready_.message_records.size(); ++c) {
    const Message& message = messages_[c];
    ready_.message_records[c] = {};
    if (message.is_sent)
      ready_.message_records[c] = {queues_->ms_between(start_, message.begin),
                                   queues_->ms_between(start_, message.done)};
  }
  if (ready_.copy_records.empty()) return;
  for (size_t r = 0; r < lanes_.size(); ++r) {
    for (size_t k = 0; k < lanes_[r].transfers.size(); ++k) {
      const Transfer& t = lanes_[r].transfers[k];
      ready_.copy_records[ready_.boundaries.routes[r].moves[k]] = {queues_->ms_between(start_, t.begin),
                                                                   queues_->ms_between(start_, t.end)};
    }
  }
}

}  // namespace

std::unique_ptr<Driver> make_queued_driver(ReadyPlan& ready, std::unique_ptr<Queues> queues) {
  return std::make_unique<QueuedDriver>(ready, std::move(queues));
}

}  // namespace plimsoll
