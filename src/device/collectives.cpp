#include "device/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/clock.h"
#include "base/statistics.h"
#include "device/tier/tier.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr std::string_view kOrdered = "ordered:";
constexpr Bytes kChunks[] = {4_MiB, 512_KiB, 64_KiB};
constexpr int64_t kFloat = sizeof(float);

// Elements of each rank's piece of `count`.
void divide(int64_t count, std::span<int64_t> sizes) {
  const int64_t ranks = static_cast<int64_t>(sizes.size());
  for (int64_t r = 0; r < ranks; ++r) sizes[r] = count * (r + 1) / ranks - count * r / ranks;
}

int64_t largest_piece(int64_t count, int64_t ranks) { return (count + ranks - 1) / ranks; }

// Elements that are reduced at a time. What a layout adds to a tensor comes as one more time.
int64_t elements_at_a_time(const Tensor& tensor, Bytes chunk) {
  return std::max<int64_t>(std::min(element_count(tensor.shape), chunk.count / kFloat), 1);
}

Bytes workspace_of(const Tensor& tensor, Bytes chunk, int64_t ranks) {
  return {largest_piece(elements_at_a_time(tensor, chunk), ranks) * (ranks - 1) * kFloat};
}

class OrderedAllReduce final : public Kernel {
 public:
  OrderedAllReduce(const Graph& graph, const Op& op, Bytes chunk, Communicator& communicator)
      : communicator_(communicator),
        count_(graph.tensor(op.outputs[0]).bytes().count / kFloat),
        chunk_(elements_at_a_time(graph.tensor(op.outputs[0]), chunk)),
        ranks_(communicator.size()),
        mean_(1.0F / static_cast<float>(ranks_)),
        scaled_(op.attributes.integer("scaled", 0) != 0),
        workspace_bytes_(workspace_of(graph.tensor(op.outputs[0]), chunk, ranks_)),
        sizes_(ranks_) {}

  Bytes workspace() const override { return workspace_bytes_; }

  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void* workspace) override {
    in_ = static_cast<float*>(inputs[1]);
    scale_ = scaled_ ? static_cast<const float*>(inputs.back()) : nullptr;
    out_ = static_cast<float*>(outputs[0]);
    received_ = static_cast<float*>(workspace);
  }

  void run() override {
    if (scale_ != nullptr && *scale_ < 0) return;  // no update yet
    for (int64_t first = 0; first < count_; first += chunk_) reduce(first, std::min(chunk_, count_ - first));
  }

 private:
  void reduce(int64_t first, int64_t count) {
    divide(count, sizes_);
    const int64_t mine = sizes_[communicator_.rank()];
    int64_t before = 0;
    for (int r = 0; r < communicator_.rank(); ++r) before += sizes_[r];
    communicator_.exchange({in_ + first, static_cast<size_t>(count)}, sizes_,
                           {received_, static_cast<size_t>(mine * (ranks_ - 1))});
    add_in_order(in_ + first + before, mine, out_ + first + before);
    communicator_.spread({out_ + first, static_cast<size_t>(count)}, sizes_);
  }

  // out = mean of the ranks' pieces; `own` may be `out`.
  void add_in_order(const float* own, int64_t count, float* out) {
    constexpr int64_t kBlock = 1024;
    std::array<float, kBlock> sums;
    for (int64_t at = 0; at < count; at += kBlock) {
      const int64_t n = std::min(kBlock, count - at);
      const auto piece = [&](int64_t r) {
        const int64_t rank = communicator_.rank();
        return r == rank ? own + at : received_ + (r < rank ? r : r - 1) * count + at;
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
  const int64_t count_, chunk_, ranks_;
  const float mean_;
  const bool scaled_;
  const Bytes workspace_bytes_;
  std::vector<int64_t> sizes_;
  float* in_ = nullptr;
  float* out_ = nullptr;
  float* received_ = nullptr;
  const float* scale_ = nullptr;
};

class RankDevice final : public Device {
 public:
  RankDevice(std::unique_ptr<Device> device, const LinkInfo& link, std::shared_ptr<Communicator> communicator)
      : device_(std::move(device)), communicator_(std::move(communicator)), info_(device_->info()) {
    info_.link = link;
    if (!device_->host_addressable()) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("several ranks on device '{}' are not supported: train on cpu", info_.name));
    }
  }

  const DeviceInfo& info() const override { return info_; }

  std::vector<KernelSpec> kernels(const Graph& graph, const Op& op, LayoutFamily family) const override {
    if (!op.type->is_collective) return device_->kernels(graph, op, family);
    expect_ranks(op);
    const Tensor& gradient = graph.tensor(op.inputs[1]);
    if (gradient.dtype != DType::f32)
      throw Error(ErrorCode::unsupported, fmt::format("op '{}': gradients of {} are not reduced, only f32", op.name, to_string(gradient.dtype)));
    std::vector<KernelSpec> specs;
    const Bytes bytes = storage_bytes(gradient.shape, gradient.dtype, {});
    for (const Bytes chunk : kChunks) {
      if (!specs.empty() && bytes <= chunk) specs.clear();  // the larger ones are the same
      std::vector<Layout> inputs(op.inputs.size());
      inputs[0] = inputs[1] = kAnyLayout;
      specs.push_back({.name = fmt::format("{}{}", kOrdered, to_string(chunk)),
                       .inputs = std::move(inputs),
                       .outputs = {kAnyLayout},
                       .workspace = workspace_of(gradient, chunk, info_.link.ranks),
                       .estimate = {.ms = all_reduce_ms(info_.link, bytes, chunk)}});
    }
    return specs;
  }

  std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view kernel,
                                      int threads) const override {
    if (!op.type->is_collective) return device_->make_kernel(graph, op, kernel, threads);
    expect_ranks(op);
    if (!communicator_) throw Error(ErrorCode::unsupported, fmt::format("op '{}': this device only plans for ranks", op.name));
    for (const Bytes chunk : kChunks) {
      if (kernel == fmt::format("{}{}", kOrdered, to_string(chunk)))
        return std::make_unique<OrderedAllReduce>(graph, op, chunk, *communicator_);
    }
    throw Error(ErrorCode::unsupported, fmt::format("op '{}': no collective is called '{}'", op.name, kernel));
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
  const int64_t ranks = communicator.size(), small = ranks * 16, large = kChunks[0].count / kFloat;
  const double small_ms = exchange_ms(communicator, small, kRuns), large_ms = exchange_ms(communicator, large, kRuns);
  const double sent = static_cast<double>((large - small) * kFloat * (ranks - 1)) / static_cast<double>(ranks);
  return {.ranks = communicator.size(),
          .latency_us = small_ms * 1000,
          .gb_per_s = sent / 1e6 / std::max(large_ms - small_ms, 1e-3)};
}

double all_reduce_ms(const LinkInfo& link, Bytes bytes, Bytes chunk) {
  if (link.ranks < 2) return 0;
  const double chunks = static_cast<double>(std::max<int64_t>(1, (bytes.count + chunk.count - 1) / chunk.count));
  const double sent = static_cast<double>(bytes.count) * (link.ranks - 1) / link.ranks;
  return 2 * (chunks * link.latency_us / 1000 + (link.gb_per_s > 0 ? sent / (link.gb_per_s * 1e6) : 0));
}

}  // namespace plimsoll
