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
constexpr int64_t kMessageElements = kMessageBytes.count / kFloat;

// Elements of each rank's piece of `count`.
void divide(int64_t count, std::span<int64_t> sizes) {
  const int64_t ranks = static_cast<int64_t>(sizes.size());
  for (int64_t r = 0; r < ranks; ++r) sizes[r] = count * (r + 1) / ranks - count * r / ranks;
}

// What collectives share, since one runs at a time.
struct MessageBuffers {
  explicit MessageBuffers(int64_t ranks)
      : sizes(ranks), packed(kMessageElements), received((kMessageElements + ranks - 1) / ranks * (ranks - 1)) {}
  std::vector<int64_t> sizes;
  std::vector<float> packed, received;
};

// The mean of each of some tensors over the ranks.
class OrderedAllReduce final : public Kernel {
 public:
  OrderedAllReduce(const Graph& graph, std::span<const OpId> ops, Communicator& communicator, MessageBuffers& buffers)
      : communicator_(communicator),
        buffers_(buffers),
        ranks_(communicator.size()),
        mean_(1.0F / static_cast<float>(ranks_)) {
    size_t inputs = 0, outputs = 0;
    for (OpId id : ops) {
      const Op& op = graph.op(id);
      scaled_ = op.attributes.integer("scaled", 0) != 0;
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
    if (scale_ != nullptr && *scale_ < 0) {  // no update yet: nobody reads what comes out
      for (const Part& tensor : tensors_) std::fill_n(tensor.out, tensor.in == tensor.out ? 0 : tensor.count, 0.0F);
      return;
    }
    int64_t packed = 0;
    size_t first = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Part& tensor = tensors_[i];
      if (packed + tensor.count > kMessageElements) {
        reduce_packed(first, i, packed);
        packed = 0;
        first = i;
      }
      if (tensor.count < kMessageElements) {
        std::copy_n(tensor.in, tensor.count, buffers_.packed.data() + packed);
        packed += tensor.count;
        continue;
      }
      for (int64_t at = 0; at < tensor.count; at += kMessageElements)
        reduce(tensor.in + at, tensor.out + at, std::min(kMessageElements, tensor.count - at));
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
    add_in_order(in + before, mine, out + before);
    communicator_.spread({out, static_cast<size_t>(count)}, buffers_.sizes);
  }

  // out = mean of the ranks' pieces; `own` may be `out`.
  void add_in_order(const float* own, int64_t count, float* out) const {
    constexpr int64_t kBlock = 1024;
    std::array<float, kBlock> sums;
    const int64_t rank = communicator_.rank();
    for (int64_t at = 0; at < count; at += kBlock) {
      const int64_t n = std::min(kBlock, count - at);
      const auto piece = [&](int64_t r) {
        return r == rank ? own + at : buffers_.received.data() + (r < rank ? r : r - 1) * count + at;
      };
      std::copy_n(piece(0), n, sums.data());
      for (int64_t r = 1; r < ranks_; ++r) {
        const float* const x = piece(r);
        for (int64_t i = 0; i < n; ++i) sums[i] += x[i];
      }
      for (int64_t i = 0; i < n; ++i) out[at + i] = sums[i] * mean_;
    }
  }

  Communicator& communicator_;
  MessageBuffers& buffers_;
  const int64_t ranks_;
  const float mean_;
  bool scaled_ = false;
  std::vector<Part> tensors_;
  const float* scale_ = nullptr;
};

class RankDevice final : public Device {
 public:
  RankDevice(std::unique_ptr<Device> device, const LinkInfo& link, std::shared_ptr<Communicator> communicator)
      : device_(std::move(device)), communicator_(std::move(communicator)), info_(device_->info()) {
    info_.link = link;
    if (communicator_) buffers_ = std::make_unique<MessageBuffers>(communicator_->size());
    if (!device_->host_addressable()) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("several ranks on device '{}' are not supported: train on cpu", info_.name));
    }
  }

  const DeviceInfo& info() const override { return info_; }

  std::vector<KernelSpec> kernels(const Graph& graph, const Op& op, LayoutFamily family) const override {
    if (!op.type->is_collective) return device_->kernels(graph, op, family);
    expect_ranks(op);
    if (is_of_channels(op)) return {channel_collective_spec(graph, op, info_.link)};
    const Tensor& gradient = graph.tensor(op.inputs[1]);
    if (gradient.dtype != DType::f32)
      throw Error(ErrorCode::unsupported, fmt::format("op '{}': gradients of {} are not reduced, only f32", op.name,
                                                      to_string(gradient.dtype)));
    std::vector<Layout> inputs(op.inputs.size());
    inputs[0] = inputs[1] = kAnyLayout;
    const Bytes bytes = storage_bytes(gradient.shape, gradient.dtype, {});
    return {{.name = std::string(kOrdered),
             .inputs = std::move(inputs),
             .outputs = {kAnyLayout},
             .estimate = {.ms = all_reduce_ms(info_.link, bytes)}}};
  }

  std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view kernel,
                                      int threads) const override {
    if (!op.type->is_collective) return device_->make_kernel(graph, op, kernel, threads);
    if (kernel != kernels(graph, op, LayoutFamily::plain)[0].name)
      throw Error(ErrorCode::unsupported, fmt::format("op '{}': no collective is called '{}'", op.name, kernel));
    const OpId id = graph.find_op(op.name);
    return make_collective(graph, {&id, 1});
  }

  std::unique_ptr<Kernel> make_collective(const Graph& graph, std::span<const OpId> ops) const override {
    for (OpId id : ops) expect_ranks(graph.op(id));
    if (!communicator_)
      throw Error(ErrorCode::unsupported,
                  fmt::format("op '{}': this device only plans for several ranks", graph.op(ops[0]).name));
    if (is_of_channels(graph.op(ops[0]))) return make_channel_collective(graph, ops, *communicator_, buffers_->packed);
    return std::make_unique<OrderedAllReduce>(graph, ops, *communicator_, *buffers_);
  }

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
  const int64_t ranks = communicator.size(), small = ranks * 16, large = kMessageElements;
  const double small_ms = exchange_ms(communicator, small, kRuns), large_ms = exchange_ms(communicator, large, kRuns);
  const double sent = static_cast<double>((large - small) * kFloat * (ranks - 1)) / static_cast<double>(ranks);
  return {.ranks = communicator.size(),
          .latency_us = small_ms * 1000,
          .gb_per_s = sent / 1e6 / std::max(large_ms - small_ms, 1e-3)};
}

Bytes message_buffers(int ranks) { return ranks < 2 ? Bytes{} : Bytes{2 * kMessageBytes.count + ranks * kFloat}; }

}  // namespace plimsoll
