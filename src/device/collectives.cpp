#include "device/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/clock.h"
#include "base/statistics.h"
#include "device/channel_collectives.h"
#include "device/tier/tier.h"
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
  explicit MessageBuffers(int64_t ranks)
      : most(message_elements(ranks)), sizes(ranks), packed(most), received((most + ranks - 1) / ranks * (ranks - 1)) {}
  const int64_t most;  // elements of a message
  std::vector<int64_t> sizes;
  std::vector<float> packed, received;

  // What other ranks sent of a piece, in their order.
  const float* of_rank(int64_t r, int64_t own, int64_t count) const {
    return received.data() + (r < own ? r : r - 1) * count;
  }
};

// out = mean of the ranks' pieces; `mine` may be `out`.
void add_in_order(const Communicator& ranks, const MessageBuffers& buffers, const float* mine, int64_t count,
                  float* out) {
  constexpr int64_t kBlock = 1024;
  std::array<float, kBlock> sums;
  const int64_t own = ranks.rank();
  const float mean = 1.0F / static_cast<float>(ranks.size());
  for (int64_t at = 0; at < count; at += kBlock) {
    const int64_t n = std::min(kBlock, count - at);
    const auto piece = [&](int64_t r) { return r == own ? mine + at : buffers.of_rank(r, own, count) + at; };
    std::copy_n(piece(0), n, sums.data());
    for (int64_t r = 1; r < ranks.size(); ++r) {
      const float* const x = piece(r);
      for (int64_t i = 0; i < n; ++i) sums[i] += x[i];
    }
    for (int64_t i = 0; i < n; ++i) out[at + i] = sums[i] * mean;
  }
}

bool is_scaled(const Op& op) { return op.attributes.integer("scaled", 0) != 0; }
// Of sums of gradients that are no update yet.
bool says_nothing_yet(const float* scale) { return scale != nullptr && *scale < 0; }

// The mean of each of some tensors over the ranks.
class OrderedAllReduce final : public Kernel {
 public:
  OrderedAllReduce(const Graph& graph, std::span<const OpId> ops, Communicator& communicator, MessageBuffers& buffers)
      : communicator_(communicator), buffers_(buffers), ranks_(communicator.size()) {
    size_t inputs = 0, outputs = 0;
    for (OpId id : ops) {
      const Op& op = graph.op(id);
      scaled_ = is_scaled(op);
      tensors_.push_back(
          {.in_at = inputs + 1, .out_at = outputs, .count = graph.tensor(op.outputs[0]).bytes().count / kFloat});
      inputs += op.inputs.size();
      outputs += op.outputs.size();
    }
  }

  Bytes workspace() const override { return {}; }

  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void*) override {
    for (Part& tensor : tensors_) {
      tensor.in = static_cast<float*>(inputs[tensor.in_at]);
      tensor.out = static_cast<float*>(outputs[tensor.out_at]);
    }
    scale_ = scaled_ ? static_cast<const float*>(inputs.back()) : nullptr;
  }

  // A tensor that fills messages of its own is sent from where it lies; others are packed together.
  void run() override {
    if (says_nothing_yet(scale_)) {  // nobody reads what comes out
      for (const Part& tensor : tensors_) std::fill_n(tensor.out, tensor.in == tensor.out ? 0 : tensor.count, 0.0F);
      return;
    }
    int64_t packed = 0;
    size_t first = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Part& tensor = tensors_[i];
      if (packed + tensor.count > buffers_.most) {
        reduce_packed(first, i, packed);
        packed = 0;
        first = i;
      }
      if (tensor.count < buffers_.most) {
        std::copy_n(tensor.in, tensor.count, buffers_.packed.data() + packed);
        packed += tensor.count;
        continue;
      }
      for (int64_t at = 0; at < tensor.count; at += buffers_.most)
        reduce(tensor.in + at, tensor.out + at, std::min(buffers_.most, tensor.count - at));
      first = i + 1;
    }
    reduce_packed(first, tensors_.size(), packed);
  }

 private:
  struct Part {
    size_t in_at = 0, out_at = 0;
    int64_t count = 0;
    float* in = nullptr;
    float* out = nullptr;
  };

  void reduce_packed(size_t first, size_t end, int64_t count) {
    if (count == 0) return;
    float* at = buffers_.packed.data();
    reduce(at, at, count);
    for (size_t i = first; i < end; ++i) {
      std::copy_n(at, tensors_[i].count, tensors_[i].out);
      at += tensors_[i].count;
    }
  }

  void reduce(const float* in, float* out, int64_t count) {
    divide(count, buffers_.sizes);
    const int64_t mine = buffers_.sizes[communicator_.rank()];
    int64_t before = 0;
    for (int r = 0; r < communicator_.rank(); ++r) before += buffers_.sizes[r];
    communicator_.exchange({in, static_cast<size_t>(count)}, buffers_.sizes,
                           std::span(buffers_.received).first(mine * (ranks_ - 1)));
    add_in_order(communicator_, buffers_, in + before, mine, out + before);
    communicator_.spread({out, static_cast<size_t>(count)}, buffers_.sizes);
  }

  Communicator& communicator_;
  MessageBuffers& buffers_;
  const int64_t ranks_;
  bool scaled_ = false;
  std::vector<Part> tensors_;
  const float* scale_ = nullptr;
};

// Tensors of which every rank has, or gets, a piece (Shard, graph.h). Of all of them together a rank's pieces lie one behind
// the other; of these, so many elements are in a message that those of all ranks fill it.
class ShardKernel : public Kernel {
 public:
  ShardKernel(const Graph& graph, std::span<const OpId> ops, Communicator& communicator, MessageBuffers& buffers)
      : communicator_(communicator), buffers_(buffers), ranks_(communicator.size()) {
    size_t inputs = 0, outputs = 0;
    for (OpId id : ops) {
      const Op& op = graph.op(id);
      scaled_ = is_scaled(op);
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

  Bytes workspace() const override { return {}; }

  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void*) override {
    for (Divided& tensor : tensors_) {
      tensor.in = static_cast<float*>(inputs[tensor.in_at]);
      tensor.out = static_cast<float*>(outputs[tensor.out_at]);
    }
    scale_ = scaled_ ? static_cast<const float*>(inputs.back()) : nullptr;
  }

  void run() override {
    if (says_nothing_yet(scale_)) return skip();
    const int64_t most = std::max<int64_t>(buffers_.most / ranks_, 1);
    for (int64_t at = 0; at < total_; at += most) {
      const int64_t count = std::min(most, total_ - at);
      std::fill(buffers_.sizes.begin(), buffers_.sizes.end(), count);
      exchange(at, count);
    }
  }

 protected:
  struct Divided {
    size_t in_at = 0, out_at = 0;
    int64_t whole = 0, piece = 0;  // elements of 4 bytes
    float* in = nullptr;
    float* out = nullptr;
    // How many of `count` elements from `at` in rank r's piece there are in the whole.
    int64_t known(int64_t r, int64_t at, int64_t count) const {
      return std::clamp<int64_t>(whole - (r * piece + at), 0, count);
    }
  };

  // `count` elements of every rank's pieces, from number `at`.
  virtual void exchange(int64_t at, int64_t count) = 0;
  virtual void skip() {}

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

  float* message_of(int64_t r, int64_t count) { return buffers_.packed.data() + r * count; }
  std::span<float> messages(int64_t count) { return std::span(buffers_.packed).first(ranks_ * count); }

  Communicator& communicator_;
  MessageBuffers& buffers_;
  const int64_t ranks_;
  std::vector<Divided> tensors_;

 private:
  static int64_t floats(const Tensor& tensor) { return tensor.bytes().count / kFloat; }
  int64_t total_ = 0;
  bool scaled_ = false;
  const float* scale_ = nullptr;
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
        std::copy_n(tensor.in + r * tensor.piece + first, known, message + place);
        std::fill_n(message + place + known, n - known, 0.0F);
      });
    }
    communicator_.exchange(messages(count), buffers_.sizes, std::span(buffers_.received).first(count * (ranks_ - 1)));
    float* const mine = message_of(communicator_.rank(), count);
    add_in_order(communicator_, buffers_, mine, count, mine);
    for_each_run(at, count, [&](const Divided& tensor, int64_t first, int64_t place, int64_t n) {
      std::copy_n(mine + place, n, tensor.out + first);
    });
  }

  void skip() override {
    for (const Divided& tensor : tensors_) std::fill_n(tensor.out, tensor.piece, 0.0F);
  }
};

class OrderedAllGather final : public ShardKernel {
 public:
  using ShardKernel::ShardKernel;

 private:
  void exchange(int64_t at, int64_t count) override {
    float* const mine = message_of(communicator_.rank(), count);
    for_each_run(at, count, [&](const Divided& tensor, int64_t first, int64_t place, int64_t n) {
      std::copy_n(tensor.in + first, n, mine + place);
    });
    communicator_.spread(messages(count), buffers_.sizes);
    for (int64_t r = 0; r < ranks_; ++r) {
      const float* const message = message_of(r, count);
      for_each_run(at, count, [&](const Divided& tensor, int64_t first, int64_t place, int64_t n) {
        const int64_t known = tensor.known(r, first, n);
        if (known > 0) std::copy_n(message + place, known, tensor.out + r * tensor.piece + first);
      });
    }
  }
};

// This rank's piece, without a message.
class TakeShard final : public Kernel {
 public:
  TakeShard(const Graph& graph, const Op& op, int rank)
      : piece_(graph.tensor(op.outputs[0]).bytes().count),
        first_(rank * piece_),
        known_(std::clamp<int64_t>(graph.tensor(op.inputs[0]).bytes().count - first_, 0, piece_)) {}
  Bytes workspace() const override { return {}; }
  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void*) override {
    in_ = static_cast<const std::byte*>(inputs[0]);
    out_ = static_cast<std::byte*>(outputs[0]);
  }
  void run() override {
    std::copy_n(in_ + (known_ > 0 ? first_ : 0), known_, out_);
    std::fill_n(out_ + known_, piece_ - known_, std::byte{0});
  }

 private:
  const int64_t piece_, first_, known_;  // bytes
  const std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
};

class RankDevice final : public Device {
 public:
  RankDevice(std::unique_ptr<Device> device, const LinkInfo& link, std::shared_ptr<Communicator> communicator)
      : device_(std::move(device)), communicator_(std::move(communicator)), info_(device_->info()) {
    info_.link = link;
    if (communicator_) buffers_ = std::make_unique<MessageBuffers>(communicator_->size());
    if (communicator_ && !device_->host_addressable()) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("several ranks on device '{}' are not supported: train on cpu", info_.name));
    }
  }

  const DeviceInfo& info() const override { return info_; }

  std::vector<KernelSpec> kernels(const Graph& graph, const Op& op, LayoutFamily family) const override {
    if (!op.type->is_collective && !op.type->is_of_rank) return device_->kernels(graph, op, family);
    expect_ranks(op);
    if (is_of_channels(op)) return {channel_collective_spec(graph, op, info_.link)};
    for (TensorId id : op.outputs) {
      const DType dtype = graph.tensor(id).dtype;
      if (dtype == DType::f32 || (dtype == DType::f64 && op.type->name == "AllGather")) continue;
      throw Error(ErrorCode::unsupported, fmt::format("op '{}': tensors of {} are not sent to other ranks, only f32",
                                                      op.name, to_string(dtype)));
    }
    KernelSpec spec{.name = std::string(kOrdered)};
    spec.inputs.resize(op.inputs.size());
    spec.outputs.resize(op.outputs.size());
    if (op.type->name == "AllReduce") spec.inputs[0] = spec.inputs[1] = spec.outputs[0] = kAnyLayout;
    if (op.type->is_collective) spec.estimate.ms = collective_ms(info_.link, graph, ids_of(graph, op));
    return {std::move(spec)};
  }

  std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view kernel,
                                      int threads) const override {
    if (!op.type->is_collective && !op.type->is_of_rank) return device_->make_kernel(graph, op, kernel, threads);
    if (kernel != kernels(graph, op, LayoutFamily::plain)[0].name)
      throw Error(ErrorCode::unsupported, fmt::format("op '{}': no collective is called '{}'", op.name, kernel));
    return make_collective(graph, ids_of(graph, op));
  }

  std::unique_ptr<Kernel> make_collective(const Graph& graph, std::span<const OpId> ops) const override {
    for (OpId id : ops) expect_ranks(graph.op(id));
    const Op& first = graph.op(ops[0]);
    if (!communicator_)
      throw Error(ErrorCode::unsupported, fmt::format("op '{}': this device only plans for several ranks", first.name));
    if (is_of_channels(first)) return make_channel_collective(graph, ops, *communicator_, buffers_->packed);
    if (first.type->name == "TakeShard") return std::make_unique<TakeShard>(graph, first, communicator_->rank());
    if (first.type->name == "AllReduce")
      return std::make_unique<OrderedAllReduce>(graph, ops, *communicator_, *buffers_);
    if (first.type->name == "ReduceScatter")
      return std::make_unique<OrderedReduceScatter>(graph, ops, *communicator_, *buffers_);
    if (first.type->name == "AllGather" || first.type->name == "AllGatherParameter")
      return std::make_unique<OrderedAllGather>(graph, ops, *communicator_, *buffers_);
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}': device '{}' has no {}", first.name, info_.name, first.type->name));
  }

  Communicator* communicator() const override { return communicator_.get(); }

  int64_t row_alignment(const Op& op, std::string_view kernel) const override {
    return device_->row_alignment(op, kernel);
  }
  std::unique_ptr<Arena> take_arena(Bytes bytes) const override { return device_->take_arena(bytes); }
  std::optional<OwnMemory> memory_now() const override { return device_->memory_now(); }
  bool host_addressable() const override { return device_->host_addressable(); }
  void write(std::byte* to, std::span<const std::byte> from) const override { device_->write(to, from); }
  void read(std::span<std::byte> to, const std::byte* from) const override { device_->read(to, from); }
  std::unique_ptr<Queues> open_queues() const override { return device_->open_queues(); }
  std::shared_ptr<void> pin(std::span<std::byte> memory) const override { return device_->pin(memory); }
  std::shared_ptr<Tier> open_peer(std::string_view name, std::optional<Bytes> size) const override {
    return device_->open_peer(name, size);
  }

 private:
  // The op in its graph: the lone graph of a measurement may have another.
  static std::vector<OpId> ids_of(const Graph& graph, const Op& op) { return {graph.find_op(op.name)}; }

  void expect_ranks(const Op& op) const {
    if (op.attributes.integer("ranks") == info_.link.ranks) return;
    throw Error(ErrorCode::invalid_input, fmt::format("op '{}' is for {} ranks, but there are {} here", op.name,
                                                      op.attributes.integer("ranks"), info_.link.ranks));
  }

  const std::unique_ptr<Device> device_;
  const std::shared_ptr<Communicator> communicator_;
  std::unique_ptr<MessageBuffers> buffers_;
  DeviceInfo info_;
};

// Milliseconds of an exchange of so many elements a rank: the median of some, of the slowest rank.
double exchange_ms(Communicator& communicator, int64_t elements, int runs) {
  const int64_t ranks = communicator.size();
  std::vector<int64_t> sizes(ranks);
  divide(elements, sizes);
  std::vector<float> pieces(elements), received(sizes[communicator.rank()] * (ranks - 1));
  std::vector<double> times;
  for (int run = 0; run <= runs; ++run) {
    communicator.barrier();
    const Stopwatch watch;
    communicator.exchange(pieces, sizes, received);
    if (run > 0) times.push_back(watch.ms());
  }
  const std::vector<double> all = communicator.all_gather(median(std::move(times)));
  return *std::max_element(all.begin(), all.end());
}

}  // namespace

std::unique_ptr<Device> with_ranks(std::unique_ptr<Device> device, const LinkInfo& link,
                                   std::shared_ptr<Communicator> communicator) {
  return std::make_unique<RankDevice>(std::move(device), link, std::move(communicator));
}

LinkInfo probe_link(Communicator& communicator) {
  constexpr int kRuns = 9;
  const int64_t ranks = communicator.size(), small = ranks * 16, large = message_elements(ranks);
  const double small_ms = exchange_ms(communicator, small, kRuns), large_ms = exchange_ms(communicator, large, kRuns);
  const double sent = static_cast<double>((large - small) * kFloat * (ranks - 1)) / static_cast<double>(ranks);
  return {.ranks = communicator.size(),
          .latency_us = small_ms * 1000,
          .gb_per_s = sent / 1e6 / std::max(large_ms - small_ms, 1e-3)};
}

Bytes message_buffers(int ranks) { return ranks < 2 ? Bytes{} : message_bytes(ranks) * 2 + Bytes{ranks * kFloat}; }

}  // namespace plimsoll
