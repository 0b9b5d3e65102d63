#include "device/cuda/nccl_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "device/cuda/bodies/bodies.h"
#include "plimsoll/error.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = Transmission::Kind;

constexpr std::string_view kLibraryKernel = "nccl";
constexpr int64_t kElement = sizeof(float);
constexpr std::chrono::microseconds kNap{20};
constexpr std::chrono::milliseconds kLooksAfter{50};   // for failures
constexpr std::chrono::milliseconds kToHearWhy{1000};  // NCCL fails where another rank ends, which says itself why

// What a rank tells the others of its GPU.
struct Gpu {
  std::array<char, 96> name{};
  std::array<char, 64> id{};
  std::array<char, 32> nccl{};
};

template <size_t size>
void put(std::array<char, size>& into, const std::string& text) {
  std::memcpy(into.data(), text.data(), std::min(text.size(), size - 1));
}

void check_gpus(const Communicator& ranks, const std::vector<Gpu>& gpus) {
  for (size_t b = 0; b < gpus.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (std::strcmp(gpus[a].id.data(), gpus[b].id.data()) != 0) continue;
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} and {} have the same GPU ({}), but each needs its own: start no more processes on a "
                              "machine than it has GPUs, with --device cuda, which gives each the next one",
                              ranks.name(static_cast<int>(a)), ranks.name(static_cast<int>(b)), gpus[a].name.data()));
    }
  }
  for (size_t r = 1; r < gpus.size(); ++r) {
    const auto differ = [&](const auto& mine, const auto& firsts, const char* what) {
      if (std::strcmp(mine.data(), firsts.data()) == 0) return;
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} has {} {}, but {} has {}: all ranks need the same", ranks.name(static_cast<int>(r)),
                              what, mine.data(), ranks.name(0), firsts.data()));
    };
    differ(gpus[r].name, gpus[0].name, "the GPU");
    differ(gpus[r].nccl, gpus[0].nccl, "NCCL");
  }
}

class NcclWire final : public Wire {
 public:
  NcclWire(std::shared_ptr<Door> door, std::shared_ptr<Communicator> communicator)
      : Wire(std::move(communicator)), door_(std::move(door)) {
    Gpu mine;
    const Facts facts = door_->facts();
    put(mine.name, facts.name);
    put(mine.id, facts.id);
    put(mine.nccl, door_->nccl_version());
    const std::vector<Gpu> gpus = this->communicator().all_gather(mine);
    check_gpus(this->communicator(), gpus);
    key_ = fmt::format("NCCL {}:", gpus[0].nccl.data());
    for (int r = 0; r < ranks(); ++r) {
      int first = 0;  // rank of its host
      while (this->communicator().host(first) != this->communicator().host(r)) ++first;
      key_ += fmt::format(" {} ({})", gpus[static_cast<size_t>(r)].name.data(), first);
    }
    GroupId id{};
    if (rank() == 0) id = door_->make_group_id();
    this->communicator().broadcast(std::as_writable_bytes(std::span(id)));
    for (Event& event : order_) event = door_->make_event(false);
    guarded([&] {
      group_ = door_->join(id, rank(), ranks());
      settle();
    });
  }
  ~NcclWire() override {
    group_.reset();  // before what it may still use
    for (Event event : order_) door_->drop_event(event);
    for (const auto* list : {&free_, &under_way_}) {
      for (const Span& span : *list) door_->drop_event(span.begun), door_->drop_event(span.done);
    }
    if (current_) door_->drop_event(current_->begun), door_->drop_event(current_->done);
  }
  NcclWire(const NcclWire&) = delete;
  NcclWire& operator=(const NcclWire&) = delete;

  std::string key() const override { return key_; }

  std::shared_ptr<float> take_buffer(int64_t elements) override {
    void* const memory = door_->allocate(static_cast<size_t>(std::max<int64_t>(elements, 1) * kElement));
    return {static_cast<float*>(memory), [door = door_](float* at) { door->release(at); }};
  }

  void begin(std::span<const Memory> reads, std::span<const Memory> writes) override {
    retire();
    if (door_->records()) touch(reads, writes);
    if (free_.empty()) free_.push_back({door_->make_event(false), door_->make_event(false)});
    current_ = free_.back();
    free_.pop_back();
    door_->record(Queue::messages, current_->begun);
  }
  void end() override {
    door_->record(Queue::messages, current_->done);
    under_way_.push_back(*current_);
    current_.reset();
  }

  void copy(const float* from, int64_t count, float* to) override {
    if (from != to) door_->copy(Queue::messages, to, from, bytes_of(count), Direction::on_device);
  }
  void clear(float* at, int64_t count) override { door_->fill(Queue::messages, at, 0, bytes_of(count)); }

  void exchange(const float* pieces, std::span<const int64_t> sizes, float* received) override {
    transmissions_.clear();
    const int64_t mine = sizes[static_cast<size_t>(rank())];
    int64_t first = 0, place = 0;
    for (int r = 0; r < ranks(); ++r) {
      const int64_t size = sizes[static_cast<size_t>(r)];
      if (r != rank() && size > 0)
        transmissions_.push_back({.kind = Kind::send, .from = pieces + first, .count = size, .rank = r});
      if (r != rank() && mine > 0)
        transmissions_.push_back({.kind = Kind::receive, .to = received + mine * place++, .count = mine, .rank = r});
      first += size;
    }
    transmit(transmissions_);
  }
  void spread(float* pieces, std::span<const int64_t> sizes) override {
    transmissions_.clear();
    if (std::ranges::all_of(sizes, [&](int64_t size) { return size == sizes[0]; })) {
      transmissions_.push_back(
          {.kind = Kind::gather, .from = pieces + rank() * sizes[0], .to = pieces, .count = sizes[0]});
    } else {
      int64_t first = 0;
      for (int r = 0; r < ranks(); ++r) {
        const int64_t size = sizes[static_cast<size_t>(r)];
        if (size > 0)
          transmissions_.push_back(
              {.kind = Kind::broadcast, .from = pieces + first, .to = pieces + first, .count = size, .rank = r});
        first += size;
      }
    }
    transmit(transmissions_);
  }

  void take_mean(const float* mine, const float* received, int64_t count, float* out) override {
    launch(
        MeanInOrder{.out = out, .mine = mine, .received = received, .count = count, .rank = rank(), .ranks = ranks()},
        count);
  }
  void combine(const float* gathered, int64_t channels, std::optional<double> count, float* first,
               float* second) override {
    launch(CombineChannels{.first = first,
                           .second = second,
                           .gathered = gathered,
                           .channels = channels,
                           .ranks = ranks(),
                           .count = count.value_or(0)},
           channels);
  }

  void copy_in_step(Memory from, std::span<std::byte> to) override {
    const Memory written = to;
    if (door_->records()) touch({&from, 1}, {&written, 1});
    if (!from.empty()) door_->copy(Queue::compute, to.data(), from.data(), from.size(), Direction::on_device);
    if (from.size() < to.size()) door_->fill(Queue::compute, to.data() + from.size(), 0, to.size() - from.size());
  }
  void follow_steps() override { order(Queue::compute, Queue::messages, order_[0]); }
  void precede_steps() override { order(Queue::messages, Queue::compute, order_[1]); }

  std::optional<float> value_at(const float*) const override { return std::nullopt; }  // it is not there yet

  std::string_view library_kernel() const override { return kLibraryKernel; }
  std::unique_ptr<Kernel> make_library_kernel(const Graph& graph, std::span<const OpId> ops) override;

  void transmit(std::span<const Transmission> group) {
    if (group.empty()) return;
    guarded([&] {
      group_->run(group);
      settle();
    });
  }

  void finish() override {
    while (!under_way_.empty() && !door_->is_reached(under_way_.back().done)) {
      look();
      std::this_thread::sleep_for(kNap);
    }
    door_->synchronize(Queue::messages);
    for (const Span& span : under_way_) free_.push_back(span);
    under_way_.clear();
  }

  void look() override {
    const Clock::time_point now = Clock::now();
    if (now - looked_ < kLooksAfter || is_over_) return;
    looked_ = now;
    guarded([&] {
      retire();
      if (!since_ && !under_way_.empty() && door_->is_reached(under_way_.front().begun)) since_ = now;
      group_->is_ready();  // whether anything has failed
      communicator().look(since_, "a collective");
    });
  }

 private:
  // A collective under way.
  struct Span {
    Event begun = nullptr, done = nullptr;
  };

  // Forgets those that are done.
  void retire() {
    while (!under_way_.empty() && door_->is_reached(under_way_.front().done)) {
      free_.push_back(under_way_.front());
      under_way_.pop_front();
      since_.reset();
    }
  }

  static size_t bytes_of(int64_t count) { return static_cast<size_t>(count * kElement); }

  template <class Body>
  void launch(const Body& body, int64_t count) const {
    door_->launch(Queue::messages, Bodies::number<Body>(), &body, count);
  }

  void order(Queue before, Queue after, Event event) {
    door_->record(before, event);
    door_->wait(after, event);
  }

  void touch(std::span<const Memory> reads, std::span<const Memory> writes) const {
    std::vector<Touch> read, written;
    for (const Memory memory : reads) read.push_back({memory.data(), memory.size()});
    for (const Memory memory : writes) written.push_back({memory.data(), memory.size()});
    door_->touches(read, written);
  }

  // Until NCCL's last call is over. It waits for other ranks where it connects to them.
  void settle() {
    const Clock::time_point begin = Clock::now();
    for (Clock::time_point looked = begin; !group_->is_ready();) {
      std::this_thread::sleep_for(kNap);
      const Clock::time_point now = Clock::now();
      if (now - looked < kLooksAfter) continue;
      looked = now;
      communicator().look(begin, "connecting the ranks' GPUs");
    }
  }

  // Where something fails, nothing is under way any more, and the others hear of it.
  template <class Action>
  void guarded(const Action& action) {
    try {
      action();
    } catch (const RankFailed&) {
      give_up();
      throw;
    } catch (const Error& error) {
      give_up();
      for (const Clock::time_point begin = Clock::now(); Clock::now() - begin < kToHearWhy;) {
        communicator().look({}, {});
        std::this_thread::sleep_for(kLooksAfter);
      }
      communicator().fail(error.code(), error.what());
      throw RankFailed(error.code(), error.what());
    }
  }

  void give_up() noexcept {
    is_over_ = true;
    if (group_) group_->abort();
  }

  const std::shared_ptr<Door> door_;
  std::string key_;
  std::unique_ptr<RankGroup> group_;
  Event order_[2] = {};
  std::vector<Transmission> transmissions_;
  std::deque<Span> free_, under_way_;
  std::optional<Span> current_;
  Clock::time_point looked_{};
  std::optional<Clock::time_point> since_;  // the first of those under way has been at work, as far as was seen
  bool is_over_ = false;
};

// An op of NCCL's for each of ours, from where tensors lie. Where pieces do not add up to the whole, an op a rank.
class NcclCollective final : public Kernel {
 public:
  NcclCollective(const Graph& graph, std::span<const OpId> ops, NcclWire& wire) : wire_(wire) {
    size_t inputs = 0, outputs = 0;
    for (const OpId id : ops) {
      const Op& op = graph.op(id);
      const std::string& type = op.type->name;
      const size_t from = type == "AllReduce" || type == "AllGatherParameter" ? 1 : 0;
      const Tensor &in = graph.tensor(op.inputs[from]), &out = graph.tensor(op.outputs[0]);
      tensors_.push_back({.type = type == "AllReduce"       ? Type::reduce
                                  : type == "ReduceScatter" ? Type::scatter
                                  : type == "Broadcast"     ? Type::broadcast
                                                            : Type::gather,
                          .in_at = inputs + from,
                          .out_at = outputs,
                          .in_elements = (in.bytes().count + kElement - 1) / kElement,
                          .out_elements = (out.bytes().count + kElement - 1) / kElement});
      inputs += op.inputs.size();
      outputs += op.outputs.size();
    }
  }

  Bytes workspace() const override { return {}; }

  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void*) override {
    group_.clear();
    tails_.clear();
    reads_.clear();
    writes_.clear();
    for (const Part& tensor : tensors_) {
      const auto* in = static_cast<const float*>(inputs[tensor.in_at]);
      auto* out = static_cast<float*>(outputs[tensor.out_at]);
      reads_.push_back(std::as_bytes(std::span(in, static_cast<size_t>(tensor.in_elements))));
      writes_.push_back(std::as_bytes(std::span(out, static_cast<size_t>(tensor.out_elements))));
      switch (tensor.type) {
        case Type::reduce:
          group_.push_back({.kind = Kind::mean, .from = in, .to = out, .count = tensor.in_elements});
          break;
        case Type::scatter: scatter(in, tensor.in_elements, out, tensor.out_elements); break;
        case Type::broadcast:
          group_.push_back({.kind = Kind::broadcast, .from = in, .to = out, .count = tensor.in_elements, .rank = 0});
          break;
        case Type::gather: gather(in, tensor.in_elements, out, tensor.out_elements); break;
      }
    }
  }

  void run() override {
    wire_.begin(reads_, writes_);
    for (const Tail& tail : tails_) wire_.clear(tail.at, tail.count);
    wire_.transmit(group_);
    wire_.end();
  }

 private:
  enum class Type : uint8_t { reduce, scatter, broadcast, gather };
  struct Part {
    Type type = Type::reduce;
    size_t in_at = 0, out_at = 0;
    int64_t in_elements = 0, out_elements = 0;
  };
  struct Tail {  // of the last pieces, which nobody has
    float* at = nullptr;
    int64_t count = 0;
  };

  void scatter(const float* in, int64_t whole, float* out, int64_t piece) {
    if (whole == piece * wire_.ranks()) {
      group_.push_back({.kind = Kind::mean_scatter, .from = in, .to = out, .count = piece});
      return;
    }
    for (int r = 0; r < wire_.ranks(); ++r) {
      const int64_t known = std::clamp<int64_t>(whole - r * piece, 0, piece);
      const bool mine = r == wire_.rank();
      if (known > 0)
        group_.push_back({.kind = Kind::mean_to_root,
                          .from = in + r * piece,
                          .to = mine ? out : nullptr,
                          .count = known,
                          .rank = r});
      if (mine && known < piece) tails_.push_back({out + known, piece - known});
    }
  }

  void gather(const float* in, int64_t piece, float* out, int64_t whole) {
    if (whole == piece * wire_.ranks()) {
      group_.push_back({.kind = Kind::gather, .from = in, .to = out, .count = piece});
      return;
    }
    for (int r = 0; r < wire_.ranks(); ++r) {
      const int64_t known = std::clamp<int64_t>(whole - r * piece, 0, piece);
      if (known > 0)
        group_.push_back({.kind = Kind::broadcast,
                          .from = r == wire_.rank() ? in : nullptr,
                          .to = out + r * piece,
                          .count = known,
                          .rank = r});
    }
  }

  NcclWire& wire_;
  std::vector<Part> tensors_;
  std::vector<Transmission> group_;
  std::vector<Tail> tails_;
  std::vector<Wire::Memory> reads_, writes_;
};

std::unique_ptr<Kernel> NcclWire::make_library_kernel(const Graph& graph, std::span<const OpId> ops) {
  return std::make_unique<NcclCollective>(graph, ops, *this);
}

}  // namespace

std::shared_ptr<Wire> open_nccl_wire(std::shared_ptr<Door> door, std::shared_ptr<Communicator> communicator) {
  return std::make_shared<NcclWire>(std::move(door), std::move(communicator));
}

}  // namespace plimsoll::cuda
