#include "tests/cuda/fake_door.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "plimsoll/error.h"
#include "tests/cuda/fake_kernels.h"

namespace plimsoll::testing {

// Calls are over when they were asked after once. What was asked of the queue goes on when all ranks have come to it.
class FakeDoor::FakeGroup final : public cuda::RankGroup {
 public:
  FakeGroup(FakeDoor& door, std::string group, int rank, int ranks)
      : door_(door), nccl_(std::make_shared<FakeNccl>(door.board_, std::move(group), rank, ranks)) {}
  ~FakeGroup() override { abort(); }
  bool is_ready() override {
    const std::lock_guard lock(door_.mutex_);
    door_.call("ncclCommGetAsyncError");
    if (!door_.nccl_failure_.empty()) throw Error(ErrorCode::device_failure, door_.nccl_failure_);
    if (*aborted_) throw Error(ErrorCode::device_failure, "ncclCommGetAsyncError: the communicator was aborted (fake)");
    return std::exchange(asked_, true);
  }
  void run(std::span<const cuda::Transmission> group) override {
    const std::lock_guard lock(door_.mutex_);
    if (!asked_) throw Error(ErrorCode::internal, "a call while the one before is under way");
    if (*aborted_) throw Error(ErrorCode::device_failure, "ncclGroupStart: the communicator was aborted (fake)");
    if (door_.capture_) throw door_.refusal("ncclGroupStart: not while capturing");
    for (const cuda::Transmission& t : group) {
      door_.call(FakeNccl::call_of(t.kind));
      door_.transmissions_.push_back(fmt::format("{} {}", FakeNccl::call_of(t.kind), t.count));
    }
    door_.call("ncclGroupEnd");
    asked_ = false;
    const int64_t number = nccl_->number_of_next();
    auto kept = std::make_shared<const std::vector<cuda::Transmission>>(group.begin(), group.end());
    auto arrived = std::make_shared<bool>(false);
    door_.ask(
        Queue::messages,
        [nccl = nccl_, aborted = aborted_, number, kept] {
          if (!*aborted) nccl->finish(number, *kept);
        },
        [nccl = nccl_, aborted = aborted_, number, kept, arrived, hangs = number == door_.hangs_at_] {
          if (*aborted) return true;
          if (hangs) return false;
          if (!std::exchange(*arrived, true)) nccl->arrive(number, *kept);
          return nccl->is_there(number);
        });
  }
  void abort() noexcept override {
    const std::lock_guard lock(door_.mutex_);
    if (std::exchange(*aborted_, true)) return;
    ++door_.calls_["ncclCommAbort"];
  }

 private:
  FakeDoor& door_;
  const std::shared_ptr<FakeNccl> nccl_;
  const std::shared_ptr<bool> aborted_ = std::make_shared<bool>(false);
  bool asked_ = false;
};

FakeDoor::~FakeDoor() {
  for (auto& [at, bytes] : allocated_) std::free(at);
  if (std::ofstream out; !calls_file_.empty()) {
    out.open(calls_file_, std::ios::app);
    for (const auto& [name, count] : calls_) out << name << " " << count << "\n";
    out << "bytes_unpinned " << bytes_unpinned_ << "\n";
  }
}

void FakeDoor::fail(std::string call, int nth, bool for_good) {
  failing_ = std::move(call), remaining_ = nth, for_good_ = for_good;
}

void FakeDoor::set_nccl_failure(std::string why) {
  const std::lock_guard lock(mutex_);
  nccl_failure_ = std::move(why);
}

void FakeDoor::enqueue(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (keep(Queue::compute, [=, this] { enqueue(work); })) return;
  ask(Queue::compute, std::move(work));
}

std::vector<std::string> FakeDoor::conflicts() const {
  std::vector<std::string> result;
  auto meet = [](const std::vector<Touch>& a, const std::vector<Touch>& b) {
    for (const Touch& x : a) {
      for (const Touch& y : b) {
        const auto *p = static_cast<const std::byte*>(x.at), *q = static_cast<const std::byte*>(y.at);
        if (x.bytes > 0 && y.bytes > 0 && p != nullptr && q != nullptr && p < q + y.bytes && q < p + x.bytes)
          return true;
      }
    }
    return false;
  };
  for (size_t j = 0; j < log_.size(); ++j) {
    for (size_t i = 0; i < j; ++i) {
      const Entry &a = log_[i], &b = log_[j];
      if (b.clock[a.queue] >= a.index) continue;
      const char* what = meet(a.writes, b.reads)    ? "is read before it is written"
                         : meet(a.reads, b.writes)  ? "is overwritten while it is read"
                         : meet(a.writes, b.writes) ? "is written twice at once"
                                                    : nullptr;
      if (what == nullptr) continue;
      result.push_back("bytes of operation " + std::to_string(i) + " (queue " + std::to_string(a.queue) + "): " + what +
                       " by operation " + std::to_string(j) + " (queue " + std::to_string(b.queue) + ")");
    }
  }
  return result;
}

cuda::Facts FakeDoor::facts() {
  const std::lock_guard lock(mutex_);
  cuda::Facts facts = facts_;
  for (const auto& [at, bytes] : allocated_) facts.free -= Bytes{static_cast<int64_t>(bytes)};
  facts.free -= loads_bytes_ * static_cast<int64_t>(loaded_.size());
  return facts;
}

void* FakeDoor::allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  call("cudaMalloc");
  if (bytes > size_t{4} << 30) throw Error(ErrorCode::device_failure, "cudaMalloc: out of memory (fake)");
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(memory, 0x5a, bytes);
  allocated_[memory] = bytes;
  return memory;
}

void FakeDoor::release(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  while (std::any_of(pending_.begin(), pending_.end(), [](const auto& queue) { return !queue.empty(); })) step();
  allocated_.erase(memory);
  std::free(memory);
}

void* FakeDoor::allocate_in_order(size_t bytes) {
  const std::lock_guard lock(mutex_);
  call("cudaMallocAsync");
  void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  in_order_[memory] = bytes;
  return memory;
}

void FakeDoor::release_in_order(void* memory) {
  const std::lock_guard lock(mutex_);
  call("cudaFreeAsync");
  in_order_.erase(memory);
  ask(Queue::compute, [=] { std::free(memory); });
}

void FakeDoor::pin(void* memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  call("cudaHostRegister");
  for (const auto& [at, size] : pinned_) {
    const auto *a = static_cast<std::byte*>(at), *b = static_cast<std::byte*>(memory);
    if (a < b + bytes && b < a + size) throw Error(ErrorCode::device_failure, "cudaHostRegister: already registered");
  }
  pinned_[memory] = bytes;
}

void FakeDoor::unpin(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  pinned_.erase(memory);
}

FakeDoor& FakeDoor::as_device(int number) {
  device_ = number;
  facts_.id = "GPU-" + std::to_string(number);
  return *this;
}

void FakeDoor::copy(Queue queue, void* to, const void* from, size_t bytes, cuda::Direction direction) {
  const std::lock_guard lock(mutex_);
  call("cudaMemcpyAsync");
  if (keep(queue, [=, this] { copy(queue, to, from, bytes, direction); })) return;
  const void* host = direction == cuda::Direction::to_host     ? to
                     : direction == cuda::Direction::to_device ? from
                                                               : nullptr;
  if (queue != Queue::transfer && host != nullptr && !is_pinned(host, bytes) &&
      (peer_ == nullptr || !lies_in(peer_->allocated_, host, bytes))) {
    throw Error(ErrorCode::internal, "a copy beside the host is asked for, but the host's memory is not pinned");
  }
  expect_direction(to, from, bytes, direction);
  bytes_copied_ += static_cast<int64_t>(bytes);
  if (host != nullptr && !is_pinned(host, bytes)) bytes_unpinned_ += static_cast<int64_t>(bytes);
  ask(queue, [=] { std::memcpy(to, from, bytes); });
}

void FakeDoor::fill(Queue queue, void* at, int byte, size_t bytes) {
  const std::lock_guard lock(mutex_);
  call("cudaMemsetAsync");
  if (keep(queue, [=, this] { fill(queue, at, byte, bytes); })) return;
  ask(queue, [=] { std::memset(at, byte, bytes); });
}

void FakeDoor::launch(Queue queue, int body, const void* parameters, int64_t count) {
  const std::lock_guard lock(mutex_);
  call("cudaLaunchKernel");
  const size_t size = fake::size_of_body(body);
  std::vector<double> kept((size + sizeof(double) - 1) / sizeof(double));
  std::memcpy(kept.data(), parameters, size);
  if (keep(queue, [=, this] { launch(queue, body, kept.data(), count); })) return;
  ask(queue, [=, kept = std::move(kept)] { fake::launch(body, kept.data(), count); });
}

std::vector<cuda::ConvolutionAlgorithm> FakeDoor::algorithms(const cuda::Convolution& c, bool tf32) {
  return cuda::list_algorithms(cudnn_, c, tf32);
}

std::unique_ptr<cuda::Prepared> FakeDoor::prepare(const cuda::Convolution& c,
                                                  const cuda::ConvolutionAlgorithm& algorithm) {
  return cuda::prepare_convolution(cudnn_, c, algorithm);
}

std::unique_ptr<cuda::Prepared> FakeDoor::prepare(const cuda::Product& product, Bytes workspace) {
  return std::make_unique<FakeProduct>(static_cast<FakeQueue&>(*this), product, std::min(workspace, Bytes{4096}),
                                       most_terms_);
}

std::vector<cuda::ProductAlgorithm> FakeDoor::product_algorithms(const cuda::Product& product, Bytes workspace) {
  return cuda::list_algorithms(cublas_, product, workspace);
}

std::unique_ptr<cuda::Prepared> FakeDoor::prepare(const cuda::Product& product,
                                                  const cuda::ProductAlgorithm& algorithm) {
  return cuda::prepare_algorithm(cublas_, product, algorithm);
}

FakeDoor::Event FakeDoor::make_event(bool timed) {
  const std::lock_guard lock(mutex_);
  call("cudaEventCreateWithFlags");
  const auto state = std::make_shared<EventState>();
  state->timed = timed;
  events_.emplace(state.get(), state);
  return state.get();
}

void FakeDoor::drop_event(Event event) noexcept {
  const std::lock_guard lock(mutex_);
  events_.erase(event);
}

void FakeDoor::record(Queue queue, Event event) {
  const std::lock_guard lock(mutex_);
  call("cudaEventRecord");
  auto* state = static_cast<EventState*>(event);
  if (capture_ && capture_->within[at(queue)]) {
    if (!state->timed) capture_->events[state] = capture_->clocks[at(queue)];
    capture_->asked.push_back([=, this] { record(queue, event); });
    return;
  }
  const int64_t version = ++state->asked;
  meet_host(queue);
  state->clock = clocks_[at(queue)];
  pending_[at(queue)].push_back(
      {.work = [=, this, state = events_.at(event)] { state->reached = version, state->at_ms = ++ticks_; },
       .event = nullptr});
}

void FakeDoor::wait(Queue queue, Event event) {
  const std::lock_guard lock(mutex_);
  call("cudaStreamWaitEvent");
  auto* state = static_cast<EventState*>(event);
  if (capture_) {
    const auto known = capture_->events.find(state);
    if (known == capture_->events.end()) throw refusal("cudaStreamWaitEvent: the event is not of this capture");
    capture_->within[at(queue)] = true;
    merge(capture_->clocks[at(queue)], known->second);
    capture_->asked.push_back([=, this] { wait(queue, event); });
    return;
  }
  if (++waits_ == forget_) return;
  merge(clocks_[at(queue)], state->clock);
  pending_[at(queue)].push_back({.work = [] {}, .event = events_.at(event), .version = state->asked});
}

bool FakeDoor::is_reached(Event event) {
  const std::lock_guard lock(mutex_);
  call("cudaEventQuery");
  auto* state = static_cast<EventState*>(event);
  while (state->reached < state->asked && try_step()) {
  }
  if (state->reached < state->asked) return false;
  merge(host_, state->clock);
  return true;
}

void FakeDoor::synchronize(Event event) {
  const std::lock_guard lock(mutex_);
  call("cudaEventSynchronize");
  if (capture_) throw refusal("cudaEventSynchronize: not while capturing");
  auto* state = static_cast<EventState*>(event);
  const int64_t version = state->asked;
  while (state->reached < version) step();
  merge(host_, state->clock);
}

void FakeDoor::synchronize(Queue queue) {
  const std::lock_guard lock(mutex_);
  call("cudaStreamSynchronize");
  if (capture_ && capture_->within[at(queue)]) throw refusal("cudaStreamSynchronize: not while capturing");
  while (!pending_[at(queue)].empty()) step();
  merge(host_, clocks_[at(queue)]);
}

double FakeDoor::elapsed_ms(Event from, Event to) {
  const std::lock_guard lock(mutex_);
  return 1e-3 * (static_cast<EventState*>(to)->at_ms - static_cast<EventState*>(from)->at_ms);
}

std::string FakeDoor::nccl_version() {
  if (!board_) throw Error(ErrorCode::unsupported, "several ranks on GPUs need NCCL, which is not there (fake)");
  return nccl_;
}

cuda::GroupId FakeDoor::make_group_id() {
  cuda::GroupId id{};
  const std::string text = fmt::format("fake{:08x}", std::random_device{}());
  std::copy(text.begin(), text.end(), id.begin());
  return id;
}

std::unique_ptr<cuda::RankGroup> FakeDoor::join(const cuda::GroupId& id, int rank, int ranks) {
  count("ncclCommInitRankConfig");
  const std::string group = id.data();
  if (!group.starts_with("fake")) throw Error(ErrorCode::internal, "an id that nobody made");
  return std::make_unique<FakeGroup>(*this, group, rank, ranks);
}

void FakeDoor::begin_capture() {
  const std::lock_guard lock(mutex_);
  call("cudaStreamBeginCapture");
  capture_ = std::make_unique<Capture>();
  capture_->within[at(Queue::compute)] = true;
}

cuda::Captured FakeDoor::end_capture() noexcept {
  const std::lock_guard lock(mutex_);
  const std::unique_ptr<Capture> capture = std::move(capture_);
  if (!capture || capture->spoilt) return nullptr;
  for (size_t q = 0; q < capture->clocks.size(); ++q) {
    if (capture->clocks[at(Queue::compute)][q] < capture->clocks[q][q]) return nullptr;  // not joined
  }
  ++captures_;
  return new std::vector<std::function<void()>>(capture->asked);
}

void FakeDoor::launch_captured(cuda::Captured captured) {
  {
    const std::lock_guard lock(mutex_);
    call("cudaGraphLaunch");
  }
  for (const auto& ask : *static_cast<std::vector<std::function<void()>>*>(captured)) ask();
}

void FakeDoor::drop_captured(cuda::Captured captured) noexcept {
  delete static_cast<std::vector<std::function<void()>>*>(captured);
}

void FakeDoor::touches(std::span<const Touch> reads, std::span<const Touch> writes) {
  reads_.assign(reads.begin(), reads.end());
  writes_.assign(writes.begin(), writes.end());
}

void FakeDoor::merge(Clock& into, const Clock& from) {
  for (size_t q = 0; q < into.size(); ++q) into[q] = std::max(into[q], from[q]);
}

bool FakeDoor::keep(Queue queue, std::function<void()> again) {
  if (!capture_ || !capture_->within[at(queue)]) return false;
  ++capture_->clocks[at(queue)][at(queue)];
  capture_->asked.push_back([this, again = std::move(again), reads = reads_, writes = writes_] {
    touches(reads, writes);
    again();
  });
  return true;
}

Error FakeDoor::refusal(const char* what) {
  capture_->spoilt = true;
  return Error(ErrorCode::device_failure, what);
}

void FakeDoor::call(const char* name) {
  ++calls_[name];
  if (failing_ == name && --remaining_ == 0) {
    if (capture_) capture_->spoilt = true;
    broken_ = for_good_;
    throw Error(ErrorCode::device_failure, std::string(name) + ": out of order (fake)");
  }
  if (broken_) throw Error(ErrorCode::device_failure, std::string(name) + ": an earlier call failed (fake)");
}

void FakeDoor::count(const char* name) {
  const std::lock_guard lock(mutex_);
  call(name);
}

void FakeDoor::spend(const std::string& algorithm) {
  if (loaded_.insert(algorithm).second) ticks_ += 1000 * loads_ms_;
  if (const auto known = takes_ms_.find(algorithm); known != takes_ms_.end()) ticks_ += 1000 * known->second;
}

void FakeDoor::expect_direction(const void* to, const void* from, size_t bytes, cuda::Direction direction) const {
  const auto is_here = [&](const void* at) { return lies_in(allocated_, at, bytes) || lies_in(in_order_, at, bytes); };
  const bool right = direction == cuda::Direction::to_device ? is_here(to) && !is_here(from)
                     : direction == cuda::Direction::to_host ? is_here(from) && !is_here(to)
                                                             : !is_pinned(to, bytes) && !is_pinned(from, bytes);
  if (!right) throw Error(ErrorCode::device_failure, "cudaMemcpyAsync: invalid argument (fake)");
}

bool FakeDoor::lies_in(const std::map<void*, size_t>& regions, const void* memory, size_t bytes) {
  const auto* p = static_cast<const std::byte*>(memory);
  return std::any_of(regions.begin(), regions.end(), [&](const auto& region) {
    const auto* q = static_cast<const std::byte*>(region.first);
    return q <= p && p + bytes <= q + region.second;
  });
}

bool FakeDoor::works() noexcept {
  const std::lock_guard lock(mutex_);
  return !broken_ && !capture_;
}

void FakeDoor::ask(Queue queue, std::function<void()> work, std::function<bool()> may_begin) {
  meet_host(queue);
  Clock& clock = clocks_[at(queue)];
  Entry entry{.queue = at(queue), .index = clock[at(queue)] + 1, .clock = clock, .reads = reads_, .writes = writes_};
  clock[at(queue)] = entry.index;
  if (records_) log_.push_back(std::move(entry));
  pending_[at(queue)].push_back({.work = std::move(work), .event = nullptr, .may_begin = std::move(may_begin)});
}

void FakeDoor::step() {
  if (!try_step()) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

bool FakeDoor::try_step() {
  std::array<size_t, cuda::kQueues> ready{};
  size_t count = 0;
  bool meets_others = false;
  for (size_t q = 0; q < pending_.size(); ++q) {
    if (pending_[q].empty()) continue;
    const Pending& next = pending_[q].front();
    if (next.event != nullptr && next.event->reached < next.version) continue;
    if (next.may_begin && !next.may_begin()) {
      meets_others = true;
      continue;
    }
    ready[count++] = q;
  }
  if (count == 0 &&
      (meets_others || std::all_of(pending_.begin(), pending_.end(), [](const auto& queue) { return queue.empty(); })))
    return false;
  if (count == 0) throw Error(ErrorCode::internal, "every queue waits for another");
  std::deque<Pending>& queue = pending_[ready[random_() % count]];
  const std::function<void()> work = std::move(queue.front().work);
  queue.pop_front();
  work();
  return true;
}

}  // namespace plimsoll::testing
