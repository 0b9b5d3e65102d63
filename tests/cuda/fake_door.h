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
#include "tests/cuda/fake_nccl.h"

namespace plimsoll::testing {

namespace fake {

using namespace cuda;

template <class Body>
struct HostLauncher {
  static void launch(const void* parameters, int64_t count) {
    Body body;
    std::memcpy(static_cast<void*>(&body), parameters, sizeof(Body));
    if constexpr (std::is_same_v<typename Body::Kind, EachElement>) {
      for (int64_t i = 0; i < count; ++i) body.run(i);
    } else {
      std::vector<typename Body::Value> values(kBlock);
      for (int64_t block = 0; block < count; ++block) {
        for (int thread = 0; thread < kBlock; ++thread)
          values[static_cast<size_t>(thread)] = body.partial(block, thread);
        for (int distance = kBlock / 2; distance > 0; distance /= 2) {
          for (int thread = 0; thread < distance; ++thread) {
            values[static_cast<size_t>(thread)].add(values[static_cast<size_t>(thread + distance)]);
          }
        }
        body.finish(block, values[0]);
      }
    }
  }
};

template <class Body>
struct SizeOf {
  static size_t launch() { return sizeof(Body); }
};

inline cuda::Image image(int64_t n, int64_t c, int64_t h, int64_t w, bool last) {
  return {.n = n,
          .c = c,
          .h = h,
          .w = w,
          .to_n = c * h * w,
          .to_c = last ? 1 : h * w,
          .to_h = last ? w * c : w,
          .to_w = last ? c : 1};
}

}  // namespace fake

class FakeDoor : public cuda::Door {
 public:
  using Queue = cuda::Queue;
  using Event = cuda::Event;
  using Touch = cuda::Touch;

  explicit FakeDoor(uint64_t seed = 1) : random_(seed) {}
  ~FakeDoor() override {
    for (auto& [at, bytes] : allocated_) std::free(at);
    if (std::ofstream out; !calls_file_.empty()) {
      out.open(calls_file_, std::ios::app);
      for (const auto& [name, count] : calls_) out << name << " " << count << "\n";
    }
  }

  // The nth call (from 1) of this name fails; `for_good`: whatever is asked of the GPU after it fails, too.
  void fail(std::string call, int nth, bool for_good = false) {
    failing_ = std::move(call), remaining_ = nth, for_good_ = for_good;
  }
  // Convolutions that are offered with this algorithm refuse to run with it.
  void refuse(std::string algorithm) { refused_.insert(std::move(algorithm)); }
  // What a convolution with this algorithm takes by the GPU's clock, and its first run in all before that.
  void takes(const std::string& algorithm, double ms) { takes_ms_[algorithm] = ms; }
  void loads_for(double ms) { loads_ms_ = ms; }
  // The GPU's memory that each algorithm takes from its first run on.
  void loads(Bytes bytes) { loads_bytes_ = bytes; }
  // No algorithm is offered where a tensor has more elements.
  void limit_elements(int64_t most) { most_elements_ = most; }
  // Writes there how often each call was made, when the door goes.
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
  void enqueue(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (keep(Queue::compute, [=, this] { enqueue(work); })) return;
    ask(Queue::compute, std::move(work));
  }
  size_t allocations() const { return allocated_.size(); }
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
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  }
  void release_in_order(void* memory) override {
    const std::lock_guard lock(mutex_);
    call("cudaFreeAsync");
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

  // The first is one that no rule should take for the best because it stands there.
  std::vector<cuda::ConvolutionAlgorithm> algorithms(const cuda::Convolution& c, bool tf32) override {
    if (c.top != c.bottom || c.left != c.right) return {};
    if (std::max(c.n * c.c * c.h * c.w, c.n * c.k * c.oh * c.ow) > most_elements_) return {};
    std::vector<cuda::ConvolutionAlgorithm> list = {
        {.name = "fft", .number = 4, .tf32 = false, .deterministic = true, .workspace = {c.n * 3000}},
        {.name = "implicit_precomp_gemm", .number = 1, .tf32 = false, .deterministic = true, .workspace = {c.n * 1000}},
        {.name = "implicit_gemm", .number = 0, .tf32 = false, .deterministic = true, .workspace = {}}};
    if (c.pass != cuda::Convolution::Pass::forward) {
      list.push_back({.name = "algo_0", .number = 3, .tf32 = false, .deterministic = false, .workspace = {}});
    }
    if (tf32)
      list.push_back({.name = "implicit_precomp_gemm",
                      .number = 1,
                      .tf32 = true,
                      .deterministic = true,
                      .workspace = {c.n * 500}});
    return list;
  }
  std::unique_ptr<cuda::Prepared> prepare(const cuda::Convolution& c,
                                          const cuda::ConvolutionAlgorithm& algorithm) override {
    return std::make_unique<FakeConvolution>(*this, c, algorithm);
  }
  std::unique_ptr<cuda::Prepared> prepare(const cuda::Product& product, Bytes workspace) override {
    return std::make_unique<FakeProduct>(*this, product, std::min(workspace, Bytes{4096}));
  }

  Event make_event(bool) override {
    const std::lock_guard lock(mutex_);
    call("cudaEventCreateWithFlags");
    const auto state = std::make_shared<EventState>();
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
      capture_->events[state] = capture_->clocks[at(queue)];
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

  class FakeConvolution final : public cuda::Prepared {
   public:
    FakeConvolution(FakeDoor& door, const cuda::Convolution& c, cuda::ConvolutionAlgorithm algorithm)
        : door_(door), c_(c), algorithm_(std::move(algorithm)) {}
    Bytes workspace() const override { return algorithm_.workspace; }
    void run(const void* a, const void* b, const void*, void* out, void* workspace) override {
      using namespace cuda;
      const char* const name = c_.pass == cuda::Convolution::Pass::forward         ? "cudnnConvolutionForward"
                               : c_.pass == cuda::Convolution::Pass::backward_data ? "cudnnConvolutionBackwardData"
                                                                                   : "cudnnConvolutionBackwardFilter";
      door_.count(name);
      if (door_.refused_.contains(algorithm_.name)) {
        throw Error(ErrorCode::unsupported,
                    std::string(name) + " refuses the algorithm " + algorithm_.name + " after all (fake)");
      }
      const int64_t group_c = c_.c / c_.groups;
      const bool last = c_.channels_last;
      const DirectShape shape{.x = fake::image(c_.n, c_.c, c_.h, c_.w, last),
                              .y = fake::image(c_.n, c_.k, c_.oh, c_.ow, last),
                              .groups = c_.groups,
                              .group_c = group_c,
                              .group_k = c_.k / c_.groups,
                              .h = {.in = c_.h,
                                    .out = c_.oh,
                                    .kernel = c_.r,
                                    .stride = c_.stride_h,
                                    .dilation = c_.dilation_h,
                                    .before = c_.top,
                                    .after = c_.bottom},
                              .w = {.in = c_.w,
                                    .out = c_.ow,
                                    .kernel = c_.s,
                                    .stride = c_.stride_w,
                                    .dilation = c_.dilation_w,
                                    .before = c_.left,
                                    .after = c_.right},
                              .to_k = group_c * c_.r * c_.s,
                              .to_c = last ? 1 : c_.r * c_.s,
                              .to_r = last ? c_.s * group_c : c_.s,
                              .to_s = last ? group_c : 1};
      auto* y = static_cast<float*>(out);
      const auto *p = static_cast<const float*>(a), *q = static_cast<const float*>(b);
      door_.enqueue_part([=, &door = door_, bytes = static_cast<size_t>(algorithm_.workspace.count), c = c_,
                          algorithm = algorithm_] {
        if (bytes > 0) std::memset(workspace, 0xff, bytes);
        door.spend(algorithm.name);
        switch (c.pass) {
          case cuda::Convolution::Pass::forward:
            all(DirectForward{.y = y, .x = p, .weights = q, .bias = nullptr, .d = shape, .relu = false},
                c.n * c.k * c.oh * c.ow);
            break;
          case cuda::Convolution::Pass::backward_data:
            all(DirectBackwardData{.dx = y, .dy = p, .weights = q, .bias = nullptr, .d = shape}, c.n * c.c * c.h * c.w);
            break;
          case cuda::Convolution::Pass::backward_weights:
            all(DirectBackwardWeights{.dw = y, .x = p, .dy = q, .d = shape}, c.k * shape.group_c * c.r * c.s);
            break;
        }
        if (!algorithm.deterministic) *y = std::nextafter(*y, door.random_() % 2 == 0 ? 1e9F : -1e9F);
      });
    }

   private:
    template <class Body>
    static void all(const Body& body, int64_t count) {
      fake::HostLauncher<Body>::launch(&body, count);
    }
    FakeDoor& door_;
    cuda::Convolution c_;
    cuda::ConvolutionAlgorithm algorithm_;
  };

  class FakeProduct final : public cuda::Prepared {
   public:
    FakeProduct(FakeDoor& door, const cuda::Product& product, Bytes workspace)
        : door_(door), p_(product), workspace_(workspace) {}
    Bytes workspace() const override { return workspace_; }
    void run(const void* a, const void* b, const void* bias, void* out, void* workspace) override {
      door_.count("cublasLtMatmul");
      door_.enqueue_part([p = p_, left = static_cast<const float*>(a), right = static_cast<const float*>(b),
                          offset = static_cast<const float*>(p_.bias ? bias : nullptr), y = static_cast<float*>(out),
                          workspace, bytes = static_cast<size_t>(workspace_.count), most = door_.most_terms_] {
        if (bytes > 0) std::memset(workspace, 0xff, bytes);
        for (int64_t i = 0; i < p.batch; ++i) {
          const float *a_i = left + i * p.to_a, *b_i = right + i * p.to_b;
          float* const y_i = y + i * p.to_out;
          if (p.m * p.n * p.k > most) {
            std::fill(y_i, y_i + p.m * p.n, 0.0F);
            continue;
          }
          for (int64_t m = 0; m < p.m; ++m) {
            for (int64_t n = 0; n < p.n; ++n) {
              double sum = (offset != nullptr ? offset[n] : 0.0F) + (p.adds ? y_i[m * p.n + n] : 0.0F);
              for (int64_t k = 0; k < p.k; ++k) {
                sum += static_cast<double>(a_i[p.transpose_a ? k * p.m + m : m * p.k + k]) *
                       b_i[p.transpose_b ? n * p.k + k : k * p.n + n];
              }
              y_i[m * p.n + n] = p.relu && !(sum > 0) ? 0 : static_cast<float>(sum);
            }
          }
        }
      });
    }

   private:
    FakeDoor& door_;
    cuda::Product p_;
    Bytes workspace_;
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
  void count(const char* name) {
    const std::lock_guard lock(mutex_);
    call(name);
  }
  // Runs while the queue's work is done.
  void spend(const std::string& algorithm) {
    if (loaded_.insert(algorithm).second) ticks_ += 1000 * loads_ms_;
    if (const auto known = takes_ms_.find(algorithm); known != takes_ms_.end()) ticks_ += 1000 * known->second;
  }
  bool is_pinned(const void* memory, size_t bytes) const { return lies_in(pinned_, memory, bytes); }
  static bool lies_in(const std::map<void*, size_t>& regions, const void* memory, size_t bytes) {
    const auto* p = static_cast<const std::byte*>(memory);
    return std::any_of(regions.begin(), regions.end(), [&](const auto& region) {
      const auto* q = static_cast<const std::byte*>(region.first);
      return q <= p && p + bytes <= q + region.second;
    });
  }

  void enqueue_part(std::function<void()> work) { enqueue(std::move(work)); }

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
                     .cache = 16_KiB};
  std::set<std::string> refused_, loaded_;
  std::map<std::string, double> takes_ms_;
  double loads_ms_ = 0;
  Bytes loads_bytes_;
  int64_t most_elements_ = INT64_MAX;
  int remaining_ = 0, forget_ = 0, waits_ = 0;
  bool records_ = true;
  int64_t most_terms_ = INT64_MAX;
  int captures_ = 0, device_ = 0;
  FakeDoor* peer_ = nullptr;
  std::unique_ptr<Capture> capture_;
  double ticks_ = 0;
  std::map<void*, size_t> allocated_, pinned_;
  std::map<std::string, int> calls_;
  std::array<std::deque<Pending>, cuda::kQueues> pending_;
  std::map<Event, std::shared_ptr<EventState>> events_;
  std::array<Clock, cuda::kQueues> clocks_{};
  Clock host_{};
  std::vector<Entry> log_;
  inline static thread_local std::vector<Touch> reads_, writes_;
};

}  // namespace plimsoll::testing
