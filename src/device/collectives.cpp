#include "device/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>

#include "device/channel_collectives.h"
#include "device/tier/tier.h"
#include "device/wire.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr std::string_view kOrdered = "ordered";
constexpr int64_t kFloat = sizeof(float);
int64_t message_elements(int64_t ranks) { return message_bytes(static_cast<int>(ranks)).count / kFloat; }

// Elements of each rank's piece of `count`.
void divide(int64_t count, std::span<int64_t> sizes) {
  const int64_t ranks = static_cast<int64_t>(sizes.size());
  for (int64_t r = 0; r < ranks; ++r) sizes[r] = count * (r + 1) / ranks - count * r / ranks;
}

// What collectives share, since one runs at a time.
struct MessageBuffers {
  explicit MessageBuffers(Wire& wire)
      : most(message_elements(wire.ranks())),
        sizes(wire.ranks()),
        packed_memory(wire.take_buffer(most)),
        received_memory(wire.take_buffer((most + wire.ranks() - 1) / wire.ranks() * (wire.ranks() - 1))),
        packed(packed_memory.get()),
        received(received_memory.get()) {}
  const int64_t most;  // elements of a message
  std::vector<int64_t> sizes;
  const std::shared_ptr<float> packed_memory, received_memory;
  float* const packed;
  float* const received;  // what other ranks sent of a piece, in their order
};

bool is_scaled(const Op& op) { return op.attributes.integer("scaled", 0) != 0; }

// A collective by messages, whose sums are in the order of the ranks.
class OrderedCollective : public Kernel {
 public:
  OrderedCollective(const Graph& graph, std::span<const OpId> ops, Wire& wire, MessageBuffers& buffers)
      : wire_(wire), buffers_(buffers), ranks_(wire.ranks()) {
    for (OpId id : ops) {
      const Op& op = graph.op(id);
      scaled_ = is_scaled(op);
      for (TensorId in : op.inputs) input_bytes_.push_back(graph.tensor(in).bytes().count);
      for (TensorId out : op.outputs) output_bytes_.push_back(graph.tensor(out).bytes().count);
    }
  }
  Bytes workspace() const final { return {}; }
  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void*) final {
    scale_ = scaled_ ? static_cast<const float*>(inputs.back()) : nullptr;
    reads_ = memory_of(inputs, input_bytes_);
    writes_ = memory_of(outputs, output_bytes_);
    bind_tensors(inputs, outputs);
  }
  void run() final {
    if (says_nothing_yet()) return skip();
    wire_.begin(reads_, writes_);
    send();
    wire_.end();
  }

 protected:
  virtual void bind_tensors(std::span<void* const> inputs, std::span<void* const> outputs) = 0;
  virtual void send() = 0;
  virtual void skip() = 0;  // nobody reads what comes out

  Wire& wire_;
  MessageBuffers& buffers_;
  const int64_t ranks_;

 private:
  static std::vector<Wire::Memory> memory_of(std::span<void* const> tensors, const std::vector<size_t>& bytes) {
    std::vector<Wire::Memory> result;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i] != nullptr) result.push_back({static_cast<const std::byte*>(tensors[i]), bytes[i]});
    }
    return result;
  }
  // Of sums of gradients that are no update yet. Where the host cannot look, they are sent all the same.
  bool says_nothing_yet() const { return scale_ != nullptr && wire_.value_at(scale_).value_or(0) < 0; }

  bool scaled_ = false;
  const float* scale_ = nullptr;
  std::vector<size_t> input_bytes_, output_bytes_;
  std::vector<Wire::Memory> reads_, writes_;
};

// The mean of each of some tensors over the ranks.
class OrderedAllReduce final : public OrderedCollective {
 public:
  OrderedAllReduce(const Graph& graph, std::span<const OpId> ops, Wire& wire, MessageBuffers& buffers)
      : OrderedCollective(graph, ops, wire, buffers) {
    size_t inputs = 0, outputs = 0;
    for (OpId id : ops) {
      const Op& op = graph.op(id);
      tensors_.push_back(
          {.in_at = inputs + 1, .out_at = outputs, .count = graph.tensor(op.outputs[0]).bytes().count / kFloat});
      inputs += op.inputs.size();
      outputs += op.outputs.size();
    }
  }

 private:
  struct Part {
    size_t in_at = 0, out_at = 0;
    int64_t count = 0;
    const float* in = nullptr;
    float* out = nullptr;
  };

  void bind_tensors(std::span<void* const> inputs, std::span<void* const> outputs) override {
    for (Part& tensor : tensors_) {
      tensor.in = static_cast<const float*>(inputs[tensor.in_at]);
      tensor.out = static_cast<float*>(outputs[tensor.out_at]);
    }
  }

  void skip() override {
    for (const Part& tensor : tensors_) {
      if (tensor.in != tensor.out) wire_.clear(tensor.out, tensor.count);
    }
  }

  // What fits into a message together is packed; what is alone in its messages is sent from where it lies.
  void send() override {
    for (size_t first = 0, end = 0; first < tensors_.size(); first = end) {
      int64_t count = tensors_[first].count;
      for (end = first + 1; end < tensors_.size() && count + tensors_[end].count <= buffers_.most; ++end)
        count += tensors_[end].count;
      if (end == first + 1) {
        reduce_alone(tensors_[first]);
      } else {
        reduce_packed(first, end, count);
      }
    }
  }

  void reduce_alone(const Part& tensor) {
    for (int64_t at = 0; at < tensor.count; at += buffers_.most)
      reduce(tensor.in + at, tensor.out + at, std::min(buffers_.most, tensor.count - at));
  }

  void reduce_packed(size_t first, size_t end, int64_t count) {
    float* at = buffers_.packed;
    for (size_t i = first; i < end; at += tensors_[i++].count) wire_.copy(tensors_[i].in, tensors_[i].count, at);
    at = buffers_.packed;
    reduce(at, at, count);
    for (size_t i = first; i < end; at += tensors_[i++].count) wire_.copy(at, tensors_[i].count, tensors_[i].out);
  }

  void reduce(const float* in, float* out, int64_t count) {
    divide(count, buffers_.sizes);
    const int64_t mine = buffers_.sizes[wire_.rank()];
    int64_t before = 0;
    for (int r = 0; r < wire_.rank(); ++r) before += buffers_.sizes[r];
    wire_.exchange(in, buffers_.sizes, buffers_.received);
    wire_.take_mean(in + before, buffers_.received, mine, out + before);
    wire_.spread(out, buffers_.sizes);
  }

  std::vector<Part> tensors_;
};

// Tensors of which every rank has, or gets, a piece (Shard, graph.h). Of all of them together a rank's pieces lie one behind
// the other; of these, so many elements are in a message that those of all ranks fill it.
class ShardKernel : public OrderedCollective {
 public:
  ShardKernel(const Graph& graph, std::span<const OpId> ops, Wire& wire, MessageBuffers& buffers)
      : OrderedCollective(graph, ops, wire, buffers) {
    size_t inputs = 0, outputs = 0;
    for (OpId id : ops) {
      const Op& op = graph.op(id);
      const size_t from = op.type->name == "AllGatherParameter" ? 1 : 0;
      const int64_t in = floats(graph.tensor(op.inputs[from])), out = floats(graph.tensor(op.outputs[0]));
      const bool gathers = op.type->name != "ReduceScatter";
      tensors_.push_back(
          {.in_at = inputs + from, .out_at = outputs, .whole = gathers ? out : in, .piece = gathers ? in : out});
      total_ += tensors_.back().piece;
      inputs += op.inputs.size();
      outputs += op.outputs.size();
    }
  }

 protected:
  struct Divided {
    size_t in_at = 0, out_at = 0;
    int64_t whole = 0, piece = 0;  // elements of 4 bytes
    const float* in = nullptr;
    float* out = nullptr;
    // How many of `count` elements from `at` in rank r's piece there are in the whole.
    int64_t known(int64_t r, int64_t at, int64_t count) const {
      return std::clamp<int64_t>(whole - (r * piece + at), 0, count);
    }
  };

  // `count` elements of every rank's pieces, from number `at`.
  virtual void exchange(int64_t at, int64_t count) = 0;
  void skip() override {}

  // Calls body(tensor, first element in its piece, place in the message, elements) for all that is there of the elements
  // [at, at + count) of a rank's pieces.
  template <class Body>
  void for_each_run(int64_t at, int64_t count, const Body& body) const {
    int64_t begin = 0, place = 0;
    for (const Divided& tensor : tensors_) {
      const int64_t first = std::max(at, begin) - begin;
      const int64_t n = std::min(at + count, begin + tensor.piece) - begin - first;
      if (n > 0) {
        body(tensor, first, place, n);
        place += n;
      }
      begin += tensor.piece;
    }
  }

  float* message_of(int64_t r, int64_t count) { return buffers_.packed + r * count; }

  std::vector<Divided> tensors_;

 private:
  static int64_t floats(const Tensor& tensor) { return (tensor.bytes().count + kFloat - 1) / kFloat; }

  void bind_tensors(std::span<void* const> inputs, std::span<void* const> outputs) override {
    for (Divided& tensor : tensors_) {
      tensor.in = static_cast<const float*>(inputs[tensor.in_at]);
      tensor.out = static_cast<float*>(outputs[tensor.out_at]);
    }
  }

  void send() override {
    const int64_t most = std::max<int64_t>(buffers_.most / ranks_, 1);
    for (int64_t at = 0; at < total_; at += most) {
      const int64_t count = std::min(most, total_ - at);
      std::fill(buffers_.sizes.begin(), buffers_.sizes.end(), count);
      exchange(at, count);
    }
  }

  int64_t total_ = 0;
};

class OrderedReduceScatter final : public ShardKernel {
 public:
  using ShardKernel::ShardKernel;

 private:
  void exchange(int64_t at, int64_t count) override {
    for (int64_t r = 0; r < ranks_; ++r) {
      float* const message = message_of(r, count);
      for_each_run(at, count, [&](const Divided& tensor, int64_t first, int64_t place, int64_t n) {
        const int64_t known = tensor.known(r, first, n);
        if (known > 0) wire_.copy(tensor.in + r * tensor.piece + first, known, message + place);
        if (known < n) wire_.clear(message + place + known, n - known);
      });
    }
    wire_.exchange(buffers_.packed, buffers_.sizes, buffers_.received);
    float* const mine = message_of(wire_.rank(), count);
    wire_.take_mean(mine, buffers_.received, count, mine);
    for_each_run(at, count, [&](const Divided& tensor, int64_t first, int64_t place, int64_t n) {
      wire_.copy(mine + place, n, tensor.out + first);
    });
  }

  void skip() override {
    for (const Divided& tensor : tensors_) wire_.clear(tensor.out, tensor.piece);
  }
};

class OrderedAllGather final : public ShardKernel {
 public:
  using ShardKernel::ShardKernel;

 private:
  void exchange(int64_t at, int64_t count) override {
    float* const mine = message_of(wire_.rank(), count);
    for_each_run(at, count, [&](const Divided& tensor, int64_t first, int64_t place, int64_t n) {
      wire_.copy(tensor.in + first, n, mine + place);
    });
    wire_.spread(buffers_.packed, buffers_.sizes);
    for (int64_t r = 0; r < ranks_; ++r) {
      const float* const message = message_of(r, count);
      for_each_run(at, count, [&](const Divided& tensor, int64_t first, int64_t place, int64_t n) {
        const int64_t known = tensor.known(r, first, n);
        if (known > 0) wire_.copy(message + place, known, tensor.out + r * tensor.piece + first);
      });
    }
  }
};

// What rank 0 has is its piece, and the others have none. Tensors whose size is no multiple of a float's are sent with the
// bytes behind them: they begin at larger multiples.
class OrderedBroadcast final : public ShardKernel {
 public:
  using ShardKernel::ShardKernel;

 private:
  void exchange(int64_t at, int64_t count) override {
    std::fill(buffers_.sizes.begin() + 1, buffers_.sizes.end(), 0);
    if (wire_.rank() == 0) {
      for_each_run(at, count, [&](const Divided& tensor, int64_t first, int64_t place, int64_t n) {
        wire_.copy(tensor.in + first, n, buffers_.packed + place);
      });
    }
    wire_.spread(buffers_.packed, buffers_.sizes);
    for_each_run(at, count, [&](const Divided& tensor, int64_t first, int64_t place, int64_t n) {
      if (wire_.rank() > 0 || tensor.in != tensor.out) wire_.copy(buffers_.packed + place, n, tensor.out + first);
    });
  }
};

// This rank's piece, without a message.
class TakeShard final : public Kernel {
 public:
  TakeShard(const Graph& graph, const Op& op, Wire& wire)
      : wire_(wire),
        piece_(graph.tensor(op.outputs[0]).bytes().count),
        first_(wire.rank() * piece_),
        known_(std::clamp<int64_t>(graph.tensor(op.inputs[0]).bytes().count - first_, 0, piece_)) {}
  Bytes workspace() const override { return {}; }
  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void*) override {
    in_ = static_cast<const std::byte*>(inputs[0]);
    out_ = static_cast<std::byte*>(outputs[0]);
  }
  void run() override {
    wire_.copy_in_step({in_ + (known_ > 0 ? first_ : 0), static_cast<size_t>(known_)},
                       {out_, static_cast<size_t>(piece_)});
  }

 private:
  Wire& wire_;
  const int64_t piece_, first_, known_;  // bytes
  const std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
};

// A collective that is a step of its own, and not one of the plan's beside compute.
class CollectiveStep final : public Kernel {
 public:
  CollectiveStep(Wire& wire, std::unique_ptr<Kernel> kernel) : wire_(wire), kernel_(std::move(kernel)) {}
  Bytes workspace() const override { return kernel_->workspace(); }
  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void* workspace) override {
    kernel_->bind(inputs, outputs, workspace);
  }
  void run() override {
    wire_.follow_steps();
    kernel_->run();
    wire_.precede_steps();
  }

 private:
  Wire& wire_;
  const std::unique_ptr<Kernel> kernel_;
};

// Waits for the device by asking, so that a rank that has ended is found meanwhile.
class WatchedQueues final : public Queues {
 public:
  WatchedQueues(std::unique_ptr<Queues> queues, std::shared_ptr<Wire> wire)
      : queues_(std::move(queues)), wire_(std::move(wire)) {
    for (Mark& end : ends_) end = queues_->make_mark(false);
  }
  Mark make_mark(bool timed) override { return queues_->make_mark(timed); }
  void copy_out(std::byte* to_host, const std::byte* from, size_t bytes) override {
    queues_->copy_out(to_host, from, bytes);
  }
  void copy_in(std::byte* to, const std::byte* from_host, size_t bytes) override {
    queues_->copy_in(to, from_host, bytes);
  }
  void fill(Queue queue, std::byte* at, int byte, size_t bytes) override { queues_->fill(queue, at, byte, bytes); }
  void copy_within(std::byte* to, const std::byte* from, size_t bytes) override {
    queues_->copy_within(to, from, bytes);
  }
  void mark(Queue queue, Mark mark) override { queues_->mark(queue, mark); }
  void wait(Queue queue, Mark mark) override { queues_->wait(queue, mark); }
  bool is_reached(Mark mark) override { return queues_->is_reached(mark); }
  void synchronize(Mark mark) override {
    watch(mark);
    queues_->synchronize(mark);
  }
  void synchronize() override {
    constexpr Queue kAll[] = {Queue::compute, Queue::messages};  // copies wait for nobody but compute
    for (size_t i = 0; i < std::size(kAll); ++i) queues_->mark(kAll[i], ends_[i]);
    for (const Mark end : ends_) watch(end);
    queues_->synchronize();
  }
  double ms_between(Mark from, Mark to) override { return queues_->ms_between(from, to); }

 private:
  void watch(Mark mark) {
    constexpr std::chrono::microseconds kNap{20};
    while (!queues_->is_reached(mark)) {
      wire_->look();
      std::this_thread::sleep_for(kNap);
    }
  }

  const std::unique_ptr<Queues> queues_;
  const std::shared_ptr<Wire> wire_;
  Mark ends_[2] = {-1, -1};
};

class RankDevice final : public Device {
 public:
  RankDevice(std::unique_ptr<Device> device, const LinkInfo& link, std::shared_ptr<Wire> wire)
      : device_(std::move(device)), wire_(std::move(wire)), info_(device_->info()) {
    info_.link = link;
    if (wire_) buffers_ = std::make_unique<MessageBuffers>(*wire_);
    if (const auto now = device_->memory_now()) info_.memory_available = now->available;  // without what the wire took
  }

  const DeviceInfo& info() const override { return info_; }

  std::vector<KernelSpec> kernels(const Graph& graph, const Op& op, LayoutFamily family) const override {
    if (!op.type->is_collective && !op.type->is_of_rank) return device_->kernels(graph, op, family);
    expect_ranks(op);
    if (is_of_channels(op)) return {channel_collective_spec(graph, op, info_.link)};
    for (TensorId id : op.outputs) {
      const DType dtype = graph.tensor(id).dtype;
      if (op.type->name == "Broadcast") continue;  // bytes
      if (dtype == DType::f32 || (dtype == DType::f64 && op.type->name == "AllGather")) continue;
      throw Error(ErrorCode::unsupported, fmt::format("op '{}': tensors of {} are not sent to other ranks, only f32",
                                                      op.name, to_string(dtype)));
    }
    KernelSpec spec{.name = std::string(kOrdered)};
    spec.inputs.resize(op.inputs.size());
    spec.outputs.resize(op.outputs.size());
    if (op.type->name == "AllReduce") spec.inputs[0] = spec.inputs[1] = spec.outputs[0] = kAnyLayout;
    if (op.type->is_collective) spec.estimate.ms = collective_ms(info_.link, graph, ids_of(graph, op));
    if (!op.type->is_collective || library_kernel().empty()) return {std::move(spec)};
    KernelSpec library = spec;  // of the same time, and so the one that is taken where its order of sums may be
    library.name = library_kernel();
    library.exact = op.type->name != "AllReduce" && op.type->name != "ReduceScatter";
    return {std::move(library), std::move(spec)};
  }

  std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view kernel,
                                      int threads) const override {
    if (!op.type->is_collective && !op.type->is_of_rank) return device_->make_kernel(graph, op, kernel, threads);
    const std::vector<KernelSpec> offered = kernels(graph, op, LayoutFamily::plain);
    if (std::ranges::none_of(offered, [&](const KernelSpec& spec) { return spec.name == kernel; }))
      throw Error(ErrorCode::unsupported, fmt::format("op '{}': no collective is called '{}'", op.name, kernel));
    std::unique_ptr<Kernel> made = make_collective(graph, ids_of(graph, op), kernel);
    return op.type->is_collective ? std::make_unique<CollectiveStep>(*wire_, std::move(made)) : std::move(made);
  }

  std::unique_ptr<Kernel> make_collective(const Graph& graph, std::span<const OpId> ops,
                                          std::string_view kernel) const override {
    for (OpId id : ops) expect_ranks(graph.op(id));
    const Op& first = graph.op(ops[0]);
    const std::string& type = first.type->name;
    if (!wire_)
      throw Error(ErrorCode::unsupported, fmt::format("op '{}': this device only plans for several ranks", first.name));
    if (is_of_channels(first)) return make_channel_collective(graph, ops, *wire_, buffers_->packed, buffers_->most);
    if (type == "TakeShard") return std::make_unique<TakeShard>(graph, first, *wire_);
    if (!kernel.empty() && kernel == library_kernel()) return wire_->make_library_kernel(graph, ops);
    if (type == "AllReduce") return std::make_unique<OrderedAllReduce>(graph, ops, *wire_, *buffers_);
    if (type == "ReduceScatter") return std::make_unique<OrderedReduceScatter>(graph, ops, *wire_, *buffers_);
    if (type == "AllGather" || type == "AllGatherParameter")
      return std::make_unique<OrderedAllGather>(graph, ops, *wire_, *buffers_);
    if (type == "Broadcast") return std::make_unique<OrderedBroadcast>(graph, ops, *wire_, *buffers_);
    throw Error(ErrorCode::unsupported, fmt::format("op '{}': device '{}' has no {}", first.name, info_.name, type));
  }

  Communicator* communicator() const override { return wire_ ? &wire_->communicator() : nullptr; }

  int64_t row_alignment(const Op& op, std::string_view kernel) const override {
    return device_->row_alignment(op, kernel);
  }
  std::unique_ptr<Arena> take_arena(Bytes bytes) const override { return device_->take_arena(bytes); }
  std::optional<OwnMemory> memory_now() const override { return device_->memory_now(); }
  bool host_addressable() const override { return device_->host_addressable(); }
  void write(std::byte* to, std::span<const std::byte> from) const override { device_->write(to, from); }
  void read(std::span<std::byte> to, const std::byte* from) const override { device_->read(to, from); }
  std::unique_ptr<Queues> open_queues() const override {
    std::unique_ptr<Queues> queues = device_->open_queues();
    if (!queues || !wire_) return queues;
    return std::make_unique<WatchedQueues>(std::move(queues), wire_);
  }
  std::shared_ptr<void> pin(std::span<std::byte> memory) const override { return device_->pin(memory); }
  std::shared_ptr<Tier> open_peer(std::string_view name, std::optional<Bytes> size) const override {
    return device_->open_peer(name, size);
  }

 private:
  // The op in its graph: the lone graph of a measurement may have another.
  static std::vector<OpId> ids_of(const Graph& graph, const Op& op) { return {graph.find_op(op.name)}; }

  std::string_view library_kernel() const { return wire_ ? wire_->library_kernel() : std::string_view(); }

  void expect_ranks(const Op& op) const {
    if (op.attributes.integer("ranks") == info_.link.ranks) return;
    throw Error(ErrorCode::invalid_input, fmt::format("op '{}' is for {} ranks, but there are {} here", op.name,
                                                      op.attributes.integer("ranks"), info_.link.ranks));
  }

  const std::unique_ptr<Device> device_;
  const std::shared_ptr<Wire> wire_;
  std::unique_ptr<MessageBuffers> buffers_;
  DeviceInfo info_;
};

}  // namespace

std::unique_ptr<Device> with_wire(std::unique_ptr<Device> device, const LinkInfo& link, std::shared_ptr<Wire> wire) {
  return std::make_unique<RankDevice>(std::move(device), link, std::move(wire));
}

std::unique_ptr<Device> with_ranks(std::unique_ptr<Device> device, const LinkInfo& link,
                                   std::shared_ptr<Communicator> communicator) {
  std::shared_ptr<Wire> wire = communicator ? open_wire(*device, std::move(communicator)) : nullptr;
  return with_wire(std::move(device), link, std::move(wire));
}

std::function<void()> mean_over_ranks(Wire& wire, int64_t elements) {
  Graph graph;
  const TensorId parameter = graph.add_source("parameter", {elements}, DType::f32, Role::parameter);
  const TensorId gradient = graph.add_source("gradient", {elements}, DType::f32, Role::gradient);
  const OpId op = graph.add_op("AllReduce", "mean", "mean", {parameter, gradient}, {{"ranks", int64_t{wire.ranks()}}});
  const auto buffers = std::make_shared<MessageBuffers>(wire);
  const auto kernel = std::make_shared<OrderedAllReduce>(graph, std::span(&op, 1), wire, *buffers);
  const std::shared_ptr<float> memory = wire.take_buffer(elements);
  void* const inputs[] = {nullptr, memory.get()};
  void* const outputs[] = {memory.get()};
  kernel->bind(inputs, outputs, nullptr);
  return [&wire, buffers, kernel, memory] {
    kernel->run();
    wire.finish();
  };
}

Bytes message_buffers(int ranks) { return ranks < 2 ? Bytes{} : message_bytes(ranks) * 2 + Bytes{ranks * kFloat}; }

}  // namespace plimsoll
