// CUDA without a GPU: memory is the host's, our kernels' bodies run on the host, cuDNN's and cuBLAS's operations by
// plain loops. Nothing is done when it is asked for: operations wait in their queues until somebody waits for them, and
// then run in an order drawn from a seed among all that queues and events allow. And it keeps account: from what
// operations read and write, and from what must have come before what, it tells whether two of them could have met.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda/bodies/bodies.h"
#include "device/cuda/door.h"
#include "plimsoll/error.h"
#include "tests/cuda/fake_cublas.h"
#include "tests/cuda/fake_cudnn.h"
#include "tests/cuda/fake_nccl.h"

namespace plimsoll::testing {

class FakeDoor : public cuda::Door, private FakeQueue {
 public:
  using Queue = cuda::Queue;
  using Event = cuda::Event;
  using Touch = cuda::Touch;

  explicit FakeDoor(uint64_t seed = 1) : random_(seed) {}
  FakeCudnn& cudnn() { return cudnn_; }
  FakeCublas& cublas() { return cublas_; }
  ~FakeDoor() override {
    for (auto& [at, bytes] : allocated_) std::free(at);
    if (std::ofstream out; !calls_file_.empty()) {
      out.open(calls_file_, std::ios::app);
      for (const auto& [name, count] : calls_) out << name << " " << count << "\n";
      out << "bytes_unpinned " << bytes_unpinned_ << "\n";
    }
  }

  // The nth call (from 1) of this name fails; `for_good`: whatever is asked of the GPU after it fails, too.
  void fail(std::string call, int nth, bool for_good = false) {
    failing_ = std::move(call), remaining_ = nth, for_good_ = for_good;
  }
  // Convolutions that are offered with this algorithm refuse to run with it.
  void refuse(std::string algorithm) { cudnn_.answer("cudnnConvolution", 3000, std::move(algorithm)); }
  // What a convolution with this algorithm takes by the GPU's clock, and its first run in all before that.
  void takes(const std::string& algorithm, double ms) { takes_ms_[algorithm] = ms; }
  void loads_for(double ms) { loads_ms_ = ms; }
  // The GPU's memory that each algorithm takes from its first run on.
  void loads(Bytes bytes) { loads_bytes_ = bytes; }
  // Writes there how often each call was made, and how much was copied that is not pinned, when the door goes.
  void keep_calls(std::string file) { calls_file_ = std::move(file); }
  // The nth wait of a queue for an event, counted from now, is forgotten.
  void forget_wait(int nth) { forget_ = nth, waits_ = 0; }
  int waits() const { return waits_; }
  void forget_account() { log_.clear(), waits_ = 0; }
  // NCCL's part: where the other ranks' GPUs are met, and which this is. What is asked of it is kept, an operation a line.
  void meet_at(std::shared_ptr<FakeBoard> board) { board_ = std::move(board); }
  void set_nccl_version(std::string version) { nccl_ = std::move(version); }
  const std::vector<std::string>& transmissions() const { return transmissions_; }
  // The nth group of operations (from 1) is never done on this GPU.
  void hang_at(int64_t nth) { hangs_at_ = nth - 1; }
  // What NCCL says from now on when it is asked whether all is well.
  void set_nccl_failure(std::string why) {
    const std::lock_guard lock(mutex_);
    nccl_failure_ = std::move(why);
  }

  // Work of a test's own on the compute queue.
  void enqueue(std::function<void()> work) override {
    const std::lock_guard lock(mutex_);
    if (keep(Queue::compute, [=, this] { enqueue(work); })) return;
    ask(Queue::compute, std::move(work));
  }
  size_t allocations() const { return allocated_.size(); }
  Bytes copied() const { return {bytes_copied_}; }  // in any direction
  Bytes copied_unpinned() const {
    return {bytes_unpinned_};
  }  // of these, to or from memory of the host's that is not pinned
  const std::map<void*, size_t>& pinned() const { return pinned_; }
  const std::map<std::string, int>& calls() const { return calls_; }

  // Operations on the same bytes, one of which writes, that nothing orders.
  std::vector<std::string> conflicts() const {
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
        result.push_back("bytes of operation " + std::to_string(i) + " (queue " + std::to_string(a.queue) + "): " +
                         what + " by operation " + std::to_string(j) + " (queue " + std::to_string(b.queue) + ")");
      }
    }
    return result;
  }

  // The door.
  cuda::Facts facts() override {
    const std::lock_guard lock(mutex_);
    cuda::Facts facts = facts_;
    for (const auto& [at, bytes] : allocated_) facts.free -= Bytes{static_cast<int64_t>(bytes)};
    facts.free -= loads_bytes_ * static_cast<int64_t>(loaded_.size());
    return facts;
  }
  void* allocate(size_t bytes) override {
    const std::lock_guard lock(mutex_);
    call("cudaMalloc");
    if (bytes > size_t{4} << 30) throw Error(ErrorCode::device_failure, "cudaMalloc: out of memory (fake)");
    void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    std::memset(memory, 0x5a, bytes);
    allocated_[memory] = bytes;
    return memory;
  }
  void release(void* memory) noexcept override {
    const std::lock_guard lock(mutex_);
    while (std::any_of(pending_.begin(), pending_.end(), [](const auto& queue) { return !queue.empty(); })) step();
    allocated_.erase(memory);
    std::free(memory);
  }
  void* allocate_in_order(size_t bytes) override {
    const std::lock_guard lock(mutex_);
    call("cudaMallocAsync");
    void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    in_order_[memory] = bytes;
    return memory;
  }
  void release_in_order(void* memory) override {
    const std::lock_guard lock(mutex_);
    call("cudaFreeAsync");
    in_order_.erase(memory);
    ask(Queue::compute, [=] { std::free(memory); });
  }
  void trim() noexcept override {}
  void pin(void* memory, size_t bytes) override {
    const std::lock_guard lock(mutex_);
    call("cudaHostRegister");
    for (const auto& [at, size] : pinned_) {
      const auto *a = static_cast<std::byte*>(at), *b = static_cast<std::byte*>(memory);
      if (a < b + bytes && b < a + size) throw Error(ErrorCode::device_failure, "cudaHostRegister: already registered");
    }
    pinned_[memory] = bytes;
  }
  void unpin(void* memory) noexcept override {
    const std::lock_guard lock(mutex_);
    pinned_.erase(memory);
  }

  void reach(cuda::Door& peer) override { peer_ = static_cast<FakeDoor*>(&peer); }
  int device() const override { return device_; }
  // Memory of a block's threads, of a device that is opened after this.
  void share(Bytes of_block) { facts_.shared = of_block; }
  void be_of_capability(int major, int minor) { facts_.major = major, facts_.minor = minor; }
  FakeDoor& as_device(int number) {
    device_ = number;
    facts_.id = "GPU-" + std::to_string(number);
    return *this;
  }
  FakeDoor& as_number(int number) {  // of a process that sees only some of the machine's GPUs
    device_ = number;
    return *this;
  }

  void copy(Queue queue, void* to, const void* from, size_t bytes, cuda::Direction direction) override {
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
  void fill(Queue queue, void* at, int byte, size_t bytes) override {
    const std::lock_guard lock(mutex_);
    call("cudaMemsetAsync");
    if (keep(queue, [=, this] { fill(queue, at, byte, bytes); })) return;
    ask(queue, [=] { std::memset(at, byte, bytes); });
  }
  void launch(Queue queue, int body, const void* parameters, int64_t count) override {
    static constexpr auto kLaunchers = cuda::Bodies::table<fake::HostLauncher>();
    static constexpr auto kSizes = cuda::Bodies::table<fake::SizeOf>();
    const std::lock_guard lock(mutex_);
    call("cudaLaunchKernel");
    const size_t size = kSizes[static_cast<size_t>(body)]();
    std::vector<double> kept((size + sizeof(double) - 1) / sizeof(double));
    std::memcpy(kept.data(), parameters, size);
    if (keep(queue, [=, this] { launch(queue, body, kept.data(), count); })) return;
    ask(queue, [=, kept = std::move(kept)] { kLaunchers[static_cast<size_t>(body)](kept.data(), count); });
  }

  std::vector<cuda::ConvolutionAlgorithm> algorithms(const cuda::Convolution& c, bool tf32) override {
    return cuda::list_algorithms(cudnn_, c, tf32);
  }
  std::unique_ptr<cuda::Prepared> prepare(const cuda::Convolution& c,
                                          const cuda::ConvolutionAlgorithm& algorithm) override {
    return cuda::prepare_convolution(cudnn_, c, algorithm);
  }
  std::unique_ptr<cuda::Prepared> prepare(const cuda::Product& product, Bytes workspace) override {
    return std::make_unique<FakeProduct>(static_cast<FakeQueue&>(*this), product, std::min(workspace, Bytes{4096}),
                                         most_terms_);
  }
  std::vector<cuda::ProductAlgorithm> product_algorithms(const cuda::Product& product, Bytes workspace) override {
    return cuda::list_algorithms(cublas_, product, workspace);
  }
  std::unique_ptr<cuda::Prepared> prepare(const cuda::Product& product,
                                          const cuda::ProductAlgorithm& algorithm) override {
    return cuda::prepare_algorithm(cublas_, product, algorithm);
  }

  Event make_event(bool timed) override {
    const std::lock_guard lock(mutex_);
    call("cudaEventCreateWithFlags");
    const auto state = std::make_shared<EventState>();
    state->timed = timed;
    events_.emplace(state.get(), state);
    return state.get();
  }
  // As CUDA does it: what was asked of the event before is still done.
  void drop_event(Event event) noexcept override {
    const std::lock_guard lock(mutex_);
    events_.erase(event);
  }
  void record(Queue queue, Event event) override {
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
  void wait(Queue queue, Event event) override {
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
  // The GPU goes on meanwhile.
  bool is_reached(Event event) override {
    const std::lock_guard lock(mutex_);
    call("cudaEventQuery");
    auto* state = static_cast<EventState*>(event);
    while (state->reached < state->asked && try_step()) {
    }
    if (state->reached < state->asked) return false;
    merge(host_, state->clock);
    return true;
  }
  void synchronize(Event event) override {
    const std::lock_guard lock(mutex_);
    call("cudaEventSynchronize");
    if (capture_) throw refusal("cudaEventSynchronize: not while capturing");
    auto* state = static_cast<EventState*>(event);
    const int64_t version = state->asked;
    while (state->reached < version) step();
    merge(host_, state->clock);
  }
  void synchronize(Queue queue) override {
    const std::lock_guard lock(mutex_);
    call("cudaStreamSynchronize");
    if (capture_ && capture_->within[at(queue)]) throw refusal("cudaStreamSynchronize: not while capturing");
    while (!pending_[at(queue)].empty()) step();
    merge(host_, clocks_[at(queue)]);
  }
  double elapsed_ms(Event from, Event to) override {
    const std::lock_guard lock(mutex_);
    return 1e-3 * (static_cast<EventState*>(to)->at_ms - static_cast<EventState*>(from)->at_ms);
  }

  std::string nccl_version() override {
    if (!board_) throw Error(ErrorCode::unsupported, "several ranks on GPUs need NCCL, which is not there (fake)");
    return nccl_;
  }
  cuda::GroupId make_group_id() override {
    cuda::GroupId id{};
    const std::string text = fmt::format("fake{:08x}", std::random_device{}());
    std::copy(text.begin(), text.end(), id.begin());
    return id;
  }
  std::unique_ptr<cuda::RankGroup> join(const cuda::GroupId& id, int rank, int ranks) override {
    count("ncclCommInitRankConfig");
    const std::string group = id.data();
    if (!group.starts_with("fake")) throw Error(ErrorCode::internal, "an id that nobody made");
    return std::make_unique<FakeGroup>(*this, group, rank, ranks);
  }

  // As CUDA does it: a queue is within a capture from when it waits for an event of it, compute must wait for all of
  // them at the end, and whatever breaks these rules spoils the capture. Launched, everything is asked for anew.
  void begin_capture() override {
    const std::lock_guard lock(mutex_);
    call("cudaStreamBeginCapture");
    capture_ = std::make_unique<Capture>();
    capture_->within[at(Queue::compute)] = true;
  }
  cuda::Captured end_capture() noexcept override {
    const std::lock_guard lock(mutex_);
    const std::unique_ptr<Capture> capture = std::move(capture_);
    if (!capture || capture->spoilt) return nullptr;
    for (size_t q = 0; q < capture->clocks.size(); ++q) {
      if (capture->clocks[at(Queue::compute)][q] < capture->clocks[q][q]) return nullptr;  // not joined
    }
    ++captures_;
    return new std::vector<std::function<void()>>(capture->asked);
  }
  void launch_captured(cuda::Captured captured) override {
    {
      const std::lock_guard lock(mutex_);
      call("cudaGraphLaunch");
    }
    for (const auto& ask : *static_cast<std::vector<std::function<void()>>*>(captured)) ask();
  }
  void drop_captured(cuda::Captured captured) noexcept override {
    delete static_cast<std::vector<std::function<void()>>*>(captured);
  }
  int captures() const { return captures_; }

  // For whole programs: no account is kept, and large products, which probe a machine's speed, give zeros.
  void without_account() { records_ = false, most_terms_ = int64_t{1} << 22; }
  bool records() const override { return records_; }
  void touches(std::span<const Touch> reads, std::span<const Touch> writes) override {
    reads_.assign(reads.begin(), reads.end());
    writes_.assign(writes.begin(), writes.end());
  }

 private:
  using Clock = std::array<int64_t, cuda::kQueues>;
  struct EventState {
    bool timed = false;
    int64_t asked = 0, reached = 0;
    double at_ms = 0;
    Clock clock{};
  };
  struct Pending {
    std::function<void()> work;
    std::shared_ptr<EventState> event;  // to be reached first
    int64_t version = 0;
    std::function<bool()> may_begin = {};  // what waits for other ranks asks here
  };
  struct Entry {
    size_t queue = 0;
    int64_t index = 0;
    Clock clock{};
    std::vector<Touch> reads, writes;
  };

  struct Capture {
    std::vector<std::function<void()>> asked;
    std::array<bool, cuda::kQueues> within{};
    std::array<Clock, cuda::kQueues> clocks{};  // operations, by queue
    std::map<const EventState*, Clock> events;
    bool spoilt = false;
  };

  // Calls are over when they were asked after once. What was asked of the queue goes on when all ranks have come to it.
  class FakeGroup final : public cuda::RankGroup {
   public:
    FakeGroup(FakeDoor& door, std::string group, int rank, int ranks)
        : door_(door), nccl_(std::make_shared<FakeNccl>(door.board_, std::move(group), rank, ranks)) {}
    ~FakeGroup() override { abort(); }
    bool is_ready() override {
      const std::lock_guard lock(door_.mutex_);
      door_.call("ncclCommGetAsyncError");
      if (!door_.nccl_failure_.empty()) throw Error(ErrorCode::device_failure, door_.nccl_failure_);
      if (*aborted_)
        throw Error(ErrorCode::device_failure, "ncclCommGetAsyncError: the communicator was aborted (fake)");
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

  static size_t at(Queue queue) { return static_cast<size_t>(queue); }
  static void merge(Clock& into, const Clock& from) {
    for (size_t q = 0; q < into.size(); ++q) into[q] = std::max(into[q], from[q]);
  }
  void meet_host(Queue queue) { merge(clocks_[at(queue)], host_); }

  // Whether a capture keeps what is asked of the queue.
  bool keep(Queue queue, std::function<void()> again) {
    if (!capture_ || !capture_->within[at(queue)]) return false;
    ++capture_->clocks[at(queue)][at(queue)];
    capture_->asked.push_back([this, again = std::move(again), reads = reads_, writes = writes_] {
      touches(reads, writes);
      again();
    });
    return true;
  }
  Error refusal(const char* what) {
    capture_->spoilt = true;
    return Error(ErrorCode::device_failure, what);
  }

  void call(const char* name) {
    ++calls_[name];
    if (failing_ == name && --remaining_ == 0) {
      if (capture_) capture_->spoilt = true;
      broken_ = for_good_;
      throw Error(ErrorCode::device_failure, std::string(name) + ": out of order (fake)");
    }
    if (broken_) throw Error(ErrorCode::device_failure, std::string(name) + ": an earlier call failed (fake)");
  }
  void count(const char* name) override {
    const std::lock_guard lock(mutex_);
    call(name);
  }
  // Runs while the queue's work is done.
  void spend(const std::string& algorithm) override {
    if (loaded_.insert(algorithm).second) ticks_ += 1000 * loads_ms_;
    if (const auto known = takes_ms_.find(algorithm); known != takes_ms_.end()) ticks_ += 1000 * known->second;
  }
  // As CUDA says it where the direction that is told is not the addresses'. Tests may have tensors of a device elsewhere.
  void expect_direction(const void* to, const void* from, size_t bytes, cuda::Direction direction) const {
    const auto is_here = [&](const void* at) {
      return lies_in(allocated_, at, bytes) || lies_in(in_order_, at, bytes);
    };
    const bool right = direction == cuda::Direction::to_device ? is_here(to) && !is_here(from)
                       : direction == cuda::Direction::to_host ? is_here(from) && !is_here(to)
                                                               : !is_pinned(to, bytes) && !is_pinned(from, bytes);
    if (!right) throw Error(ErrorCode::device_failure, "cudaMemcpyAsync: invalid argument (fake)");
  }
  bool is_pinned(const void* memory, size_t bytes) const { return lies_in(pinned_, memory, bytes); }
  static bool lies_in(const std::map<void*, size_t>& regions, const void* memory, size_t bytes) {
    const auto* p = static_cast<const std::byte*>(memory);
    return std::any_of(regions.begin(), regions.end(), [&](const auto& region) {
      const auto* q = static_cast<const std::byte*>(region.first);
      return q <= p && p + bytes <= q + region.second;
    });
  }

  bool works() noexcept override {
    const std::lock_guard lock(mutex_);
    return !broken_ && !capture_;
  }

  // Every operation of a kernel is taken to touch all that the kernel does.
  void ask(Queue queue, std::function<void()> work, std::function<bool()> may_begin = {}) {
    meet_host(queue);
    Clock& clock = clocks_[at(queue)];
    Entry entry{.queue = at(queue), .index = clock[at(queue)] + 1, .clock = clock, .reads = reads_, .writes = writes_};
    clock[at(queue)] = entry.index;
    if (records_) log_.push_back(std::move(entry));
    pending_[at(queue)].push_back({.work = std::move(work), .event = nullptr, .may_begin = std::move(may_begin)});
  }

  // Where only other ranks can help, they are given time.
  void step() {
    if (!try_step()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  // False where nothing can go on but what other ranks do.
  bool try_step() {
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
    if (count == 0 && (meets_others ||
                       std::all_of(pending_.begin(), pending_.end(), [](const auto& queue) { return queue.empty(); })))
      return false;
    if (count == 0) throw Error(ErrorCode::internal, "every queue waits for another");
    std::deque<Pending>& queue = pending_[ready[random_() % count]];
    const std::function<void()> work = std::move(queue.front().work);
    queue.pop_front();
    work();
    return true;
  }

  mutable std::mutex mutex_;
  std::mt19937_64 random_;
  std::string failing_, calls_file_;
  bool for_good_ = false, broken_ = false;
  std::shared_ptr<FakeBoard> board_;
  std::string nccl_ = "2.28.9", nccl_failure_;
  std::vector<std::string> transmissions_;
  int64_t hangs_at_ = -1;
  cuda::Facts facts_{.name = "Fake GPU",
                     .id = "GPU-0",
                     .major = 9,
                     .minor = 0,
                     .processors = 132,
                     .driver = "0",
                     .runtime = "0",
                     .cudnn = "0",
                     .cublas = "0",
                     .total = 8_GiB,
                     .free = 3_GiB,
                     .cache = 16_KiB,
                     .shared = 227_KiB};
  std::set<std::string> loaded_;
  std::map<std::string, double> takes_ms_;
  double loads_ms_ = 0;
  Bytes loads_bytes_;
  int remaining_ = 0, forget_ = 0, waits_ = 0;
  bool records_ = true;
  int64_t most_terms_ = INT64_MAX;
  int captures_ = 0, device_ = 0;
  int64_t bytes_copied_ = 0, bytes_unpinned_ = 0;
  FakeDoor* peer_ = nullptr;
  std::unique_ptr<Capture> capture_;
  double ticks_ = 0;
  std::map<void*, size_t> allocated_, in_order_, pinned_;
  std::map<std::string, int> calls_;
  std::array<std::deque<Pending>, cuda::kQueues> pending_;
  std::map<Event, std::shared_ptr<EventState>> events_;
  std::array<Clock, cuda::kQueues> clocks_{};
  Clock host_{};
  std::vector<Entry> log_;
  FakeCudnn cudnn_{*this, facts_.total, 1};
  FakeCublas cublas_{*this, most_terms_, facts_.processors};
  inline static thread_local std::vector<Touch> reads_, writes_;
};

}  // namespace plimsoll::testing
