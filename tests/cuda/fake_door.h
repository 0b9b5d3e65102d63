// CUDA without a GPU: memory is the host's, our kernels' bodies run on the host, cuDNN's and cuBLAS's operations by
// plain loops. Nothing is done when it is asked for: operations wait in their queues until somebody waits for them, and
// then run in an order drawn from a seed among all that queues and events allow. And it keeps account: from what
// operations read and write, and from what must have come before what, it tells whether two of them could have met.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "device/cuda/door.h"
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
  ~FakeDoor() override;

  // The nth call (from 1) of this name fails; `for_good`: whatever is asked of the GPU after it fails, too.
  void fail(std::string call, int nth, bool for_good = false);
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
  void set_nccl_failure(std::string why);

  // Work of a test's own on the compute queue.
  void enqueue(std::function<void()> work) override;
  size_t allocations() const { return allocated_.size(); }
  Bytes copied() const { return {bytes_copied_}; }  // in any direction
  // Of these, to or from memory of the host's that is not pinned.
  Bytes copied_unpinned() const { return {bytes_unpinned_}; }
  const std::map<void*, size_t>& pinned() const { return pinned_; }
  const std::map<std::string, int>& calls() const { return calls_; }

  // Operations on the same bytes, one of which writes, that nothing orders.
  std::vector<std::string> conflicts() const;

  // The door.
  cuda::Facts facts() override;
  void* allocate(size_t bytes) override;
  void release(void* memory) noexcept override;
  void* allocate_in_order(size_t bytes) override;
  void release_in_order(void* memory) override;
  void trim() noexcept override {}
  void pin(void* memory, size_t bytes) override;
  void unpin(void* memory) noexcept override;

  void reach(cuda::Door& peer) override { peer_ = static_cast<FakeDoor*>(&peer); }
  int device() const override { return device_; }
  // Memory of a block's threads, of a device that is opened after this.
  void share(Bytes of_block) { facts_.shared = of_block; }
  void be_of_capability(int major, int minor) { facts_.major = major, facts_.minor = minor; }
  FakeDoor& as_device(int number);
  FakeDoor& as_number(int number) {  // of a process that sees only some of the machine's GPUs
    device_ = number;
    return *this;
  }

  void copy(Queue queue, void* to, const void* from, size_t bytes, cuda::Direction direction) override;
  void fill(Queue queue, void* at, int byte, size_t bytes) override;
  void launch(Queue queue, int body, const void* parameters, int64_t count) override;

  std::vector<cuda::ConvolutionAlgorithm> algorithms(const cuda::Convolution& c, bool tf32) override;
  std::unique_ptr<cuda::Prepared> prepare(const cuda::Convolution& c,
                                          const cuda::ConvolutionAlgorithm& algorithm) override;
  std::unique_ptr<cuda::Prepared> prepare(const cuda::Product& product, Bytes workspace) override;
  std::vector<cuda::ProductAlgorithm> product_algorithms(const cuda::Product& product, Bytes workspace) override;
  std::unique_ptr<cuda::Prepared> prepare(const cuda::Product& product,
                                          const cuda::ProductAlgorithm& algorithm) override;

  Event make_event(bool timed) override;
  // As CUDA does it: what was asked of the event before is still done.
  void drop_event(Event event) noexcept override;
  void record(Queue queue, Event event) override;
  void wait(Queue queue, Event event) override;
  // The GPU goes on meanwhile.
  bool is_reached(Event event) override;
  void synchronize(Event event) override;
  void synchronize(Queue queue) override;
  double elapsed_ms(Event from, Event to) override;

  std::string nccl_version() override;
  cuda::GroupId make_group_id() override;
  std::unique_ptr<cuda::RankGroup> join(const cuda::GroupId& id, int rank, int ranks) override;

  // As CUDA does it: a queue is within a capture from when it waits for an event of it, compute must wait for all of
  // them at the end, and whatever breaks these rules spoils the capture. Launched, everything is asked for anew.
  void begin_capture() override;
  cuda::Captured end_capture() noexcept override;
  void launch_captured(cuda::Captured captured) override;
  void drop_captured(cuda::Captured captured) noexcept override;
  int captures() const { return captures_; }

  // For whole programs: no account is kept, and large products, which probe a machine's speed, give zeros.
  void without_account() { records_ = false, most_terms_ = int64_t{1} << 22; }
  bool records() const override { return records_; }
  void touches(std::span<const Touch> reads, std::span<const Touch> writes) override;

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

  class FakeGroup;

  static size_t at(Queue queue) { return static_cast<size_t>(queue); }
  static void merge(Clock& into, const Clock& from);
  void meet_host(Queue queue) { merge(clocks_[at(queue)], host_); }

  // Whether a capture keeps what is asked of the queue.
  bool keep(Queue queue, std::function<void()> again);
  Error refusal(const char* what);

  void call(const char* name);
  void count(const char* name) override;
  // Runs while the queue's work is done.
  void spend(const std::string& algorithm) override;
  // As CUDA says it where the direction that is told is not the addresses'. Tests may have tensors of a device elsewhere.
  void expect_direction(const void* to, const void* from, size_t bytes, cuda::Direction direction) const;
  bool is_pinned(const void* memory, size_t bytes) const { return lies_in(pinned_, memory, bytes); }
  static bool lies_in(const std::map<void*, size_t>& regions, const void* memory, size_t bytes);

  bool works() noexcept override;

  // Every operation of a kernel is taken to touch all that the kernel does.
  void ask(Queue queue, std::function<void()> work, std::function<bool()> may_begin = {});

  // Where only other ranks can help, they are given time.
  void step();

  // False where nothing can go on but what other ranks do.
  bool try_step();

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
