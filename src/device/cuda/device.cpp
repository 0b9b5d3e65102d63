#include "device/cuda/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <mutex>
#include <optional>

#include "device/cuda/kernels.h"
#include "device/cuda/module.h"
#include "device/cuda/nccl_wire.h"
#include "device/cuda/peer_tier.h"
#include "device/cuda/queues.h"
#include "plimsoll/error.h"
#include "plimsoll/ops.h"

namespace plimsoll::cuda {
namespace {

constexpr size_t kArenaAlignment = 4096;

constexpr std::vector<NamedFactory> (*kFactories[])() = {
    convolution_kernels,
    fully_connected_kernels,
    elementwise_kernels,
    join_kernels,
    update_kernels,
    random_kernels,
    pointwise_kernels,
    pointwise_linear_kernels,
    pool_kernels,
    batch_norm_kernels,
    loss_kernels,
    clip_kernels,
    pad_kernels,
    permute_kernels,
    resize_kernels,
    rotary_kernels,
    take_kernels,
    attention_kernels,
    matmul_kernels,
    norm_kernels,
    softmax_kernels,
    sort_kernels,
    recurrent_kernels,
    sync_batch_norm_kernels,
    linear_cross_entropy_kernels,
};

const KernelFactory& factory_of(const Op& op) {
  static const std::map<std::string_view, KernelFactory> factories = [] {
    std::map<std::string_view, KernelFactory> result;
    for (auto list : kFactories) {
      for (const NamedFactory& factory : list()) result.insert(factory);
    }
    return result;
  }();
  const auto it = factories.find(op.type->name);
  if (it == factories.end()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}': CUDA has no kernel for ops of type {}", op.name, op.type->name));
  }
  return it->second;
}

class CudaArena final : public Arena {
 public:
  CudaArena(std::shared_ptr<Door> door, Bytes bytes) : door_(std::move(door)), bytes_(bytes) {
    try {
      memory_ = door_->allocate(bytes.count + kArenaAlignment);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("the arena of {} was refused: {}; {} of the GPU's memory are free",
                                            to_string(bytes), error.what(), to_string(door_->facts().free)));
    }
    const auto address = reinterpret_cast<uintptr_t>(memory_);
    base_ = reinterpret_cast<std::byte*>((address + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment);
  }
  ~CudaArena() override { door_->release(memory_); }
  CudaArena(const CudaArena&) = delete;
  CudaArena& operator=(const CudaArena&) = delete;
  std::byte* base() override { return base_; }
  Bytes bytes() const override { return bytes_; }

 private:
  std::shared_ptr<Door> door_;
  Bytes bytes_;
  void* memory_ = nullptr;
  std::byte* base_ = nullptr;
};

class MallocHeap final : public TensorHeap {
 public:
  explicit MallocHeap(std::shared_ptr<Door> door) : door_(std::move(door)) {}
  std::string_view name() const override { return "cudaMalloc"; }
  void* take(size_t bytes) override { return door_->allocate(bytes); }
  void give_back(void* memory, size_t) override { door_->release(memory); }

 private:
  std::shared_ptr<Door> door_;
};

class OrderedHeap final : public TensorHeap {
 public:
  explicit OrderedHeap(std::shared_ptr<Door> door) : door_(std::move(door)) {}
  ~OrderedHeap() override { door_->trim(); }
  std::string_view name() const override { return "cudaMallocAsync"; }
  void* take(size_t bytes) override { return door_->allocate_in_order(bytes); }
  void give_back(void* memory, size_t) override { door_->release_in_order(memory); }

 private:
  std::shared_ptr<Door> door_;
};

class NoKernel final : public Kernel {  // of a view, whose output is its input
 public:
  Bytes workspace() const override { return {}; }
  void bind(std::span<void* const>, std::span<void* const>, void*) override {}
  void run() override {}
};

std::string describe(const Facts& facts) {
  return fmt::format("{}, {} multiprocessors, sm_{}{}, {} free of {}; driver {}, CUDA {}, cuDNN {}, cuBLASLt {}",
                     facts.name, facts.processors, facts.major, facts.minor, to_string(facts.free),
                     to_string(facts.total), facts.driver, facts.runtime, facts.cudnn, facts.cublas);
}

struct Name {
  int device = 0;
  bool tf32 = false;
};
std::optional<Name> parse(std::string_view text) {
  if (!text.starts_with("cuda")) return std::nullopt;
  text.remove_prefix(4);
  Name name;
  if (text.ends_with("+tf32")) {
    name.tf32 = true;
    text.remove_suffix(5);
  }
  if (text.empty()) return name;
  if (text.front() != ':') return std::nullopt;
  text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), name.device);
  if (error != std::errc{} || end != text.data() + text.size() || name.device < 0 || text.empty()) return std::nullopt;
  return name;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<Door> door, std::string name, bool tf32, DoorTo peers) : peers_(std::move(peers)) {
    context_.door = std::move(door);
    context_.tf32 = tf32;
    const Facts facts = context_.door->facts();
    context_.shared = facts.shared;
    context_.capability = facts.major;
    info_ = {.name = std::move(name),
             .description = describe(facts),
             .key = fmt::format("{} sm_{}{} {} multiprocessors, driver {}, CUDA {}, cuDNN {}, cuBLASLt {}{}",
                                facts.name, facts.major, facts.minor, facts.processors, facts.driver, facts.runtime,
                                facts.cudnn, facts.cublas, tf32 ? ", TF32" : ""),
             .threads = 1,
             .memory_total = facts.total,
             .memory_available = available(facts),
             .cache = facts.cache,
             .own_memory = true,
             .asynchronous = true,
             .lists_best_first = true};
  }

  const DeviceInfo& info() const override { return info_; }
  const std::shared_ptr<Door>& door() const { return context_.door; }

  std::vector<KernelSpec> kernels(const Graph& graph, const Op& op, LayoutFamily family) const override {
    if (op.type->is_view) {
      KernelSpec spec{.name = "", .inputs = {}, .outputs = {}, .workspace = {}};
      spec.inputs.resize(op.inputs.size());
      spec.outputs.resize(op.outputs.size());
      return {spec};
    }
    const KernelFactory& factory = factory_of(op);
    require_f32(graph, op);
    const std::lock_guard lock(listing_);
    return factory.specs(context_, graph, op, family);
  }

  std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view kernel, int) const override {
    if (op.type->is_view) return std::make_unique<NoKernel>();
    return factory_of(op).make(context_, graph, op, kernel);
  }

  int64_t row_alignment(const Op& op, std::string_view kernel) const override {
    int64_t (*const alignment)(std::string_view) = op.type->is_view ? nullptr : factory_of(op).row_alignment;
    return alignment == nullptr ? 1 : alignment(kernel);
  }

  std::unique_ptr<Arena> take_arena(Bytes bytes) const override {
    return std::make_unique<CudaArena>(context_.door, bytes);
  }

  std::optional<OwnMemory> memory_now() const override {
    const Facts facts = context_.door->facts();
    return OwnMemory{facts.free, available(facts)};
  }
  bool host_addressable() const override { return false; }
  void write(std::byte* to, std::span<const std::byte> from) const override {
    if (from.empty()) return;
    touch(from.data(), from.size(), to);
    transfer(*context_.door, to, from.data(), from.size(), Direction::to_device);
  }
  void read(std::span<std::byte> to, const std::byte* from) const override {
    if (to.empty()) return;
    touch(from, to.size(), to.data());
    transfer(*context_.door, to.data(), from, to.size(), Direction::to_host);
  }

  std::shared_ptr<Tier> open_peer(std::string_view name, std::optional<Bytes> size) const override {
    const std::optional<Name> peer = parse(name);
    if (!peer || peer->tf32 || peer->device == context_.door->device() || !peers_) {
      throw Error(ErrorCode::invalid_input, fmt::format("--peer: '{}' is no other GPU than '{}'", name, info_.name));
    }
    std::shared_ptr<Door> door = peers_(peer->device);
    context_.door->reach(*door);
    return open_peer_tier(std::move(door), size);
  }
  std::shared_ptr<Wire> open_wire(const std::shared_ptr<Communicator>& communicator) const override {
    return open_nccl_wire(context_.door, communicator);
  }
  std::unique_ptr<Queues> open_queues() const override { return std::make_unique<CudaQueues>(context_.door); }
  std::shared_ptr<void> pin(std::span<std::byte> memory) const override {
    if (memory.empty()) return nullptr;
    context_.door->pin(memory.data(), memory.size());
    return {memory.data(), [door = context_.door](void* at) { door->unpin(at); }};
  }

 private:
  void touch(const void* from, size_t bytes, void* to) const {
    if (!context_.door->records()) return;
    const Touch read[] = {{from, bytes}}, written[] = {{to, bytes}};
    context_.door->touches(read, written);
  }

  Context context_;
  DoorTo peers_;
  DeviceInfo info_;
  mutable std::mutex listing_;  // several threads plan, and one alone may ask cuDNN by its handle
};

}  // namespace

std::unique_ptr<Device> open_behind(std::shared_ptr<Door> door, std::string name, bool tf32, DoorTo peers) {
  return std::make_unique<CudaDevice>(std::move(door), std::move(name), tf32, std::move(peers));
}

std::vector<std::unique_ptr<TensorHeap>> tensor_heaps(const Device& device) {
  std::vector<std::unique_ptr<TensorHeap>> heaps;
  if (const auto* cuda = dynamic_cast<const CudaDevice*>(&device)) {
    heaps.push_back(std::make_unique<MallocHeap>(cuda->door()));
    heaps.push_back(std::make_unique<OrderedHeap>(cuda->door()));
  }
  return heaps;
}

std::unique_ptr<Device> open(std::string_view text) {
  const std::optional<Name> name = parse(text);
  if (!name) return nullptr;
  return open_behind(open_door(name->device), fmt::format("cuda:{}{}", name->device, name->tf32 ? "+tf32" : ""),
                     name->tf32, [](int device) { return std::shared_ptr<Door>(open_door(device)); });
}

std::string device_of_rank(std::string_view device, int place) {
  const std::optional<Name> name = parse(device);
  const int there = availability().devices;
  if (!name || device.find(':') != std::string_view::npos || there == 0) return std::string(device);
  return fmt::format("cuda:{}{}", place % there, name->tf32 ? "+tf32" : "");
}

std::vector<DeviceListing> list() {
  const Availability& there = availability();
  if (there.devices == 0) return {{.name = "cuda", .available = false, .description = there.reason}};
  std::vector<DeviceListing> result;
  for (int i = 0; i < there.devices; ++i) {
    DeviceListing listing{.name = fmt::format("cuda:{}", i), .available = true, .description = {}};
    try {
      listing.description = describe(open_there(i)->facts());
    } catch (const Error& error) {
      listing.available = false;
      listing.description = error.what();
    }
    result.push_back(std::move(listing));
  }
  return result;
}

}  // namespace plimsoll::cuda
