#include "plimsoll/execute.h"
#include "device/tier/tier.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "device/divided.h"
#include "execute/driver.h"
#include "execute/homes.h"
#include "execute/rows.h"
#include "plimsoll/communicator.h"
#include "plimsoll/ops.h"
#include "plimsoll/verify.h"

namespace plimsoll {
namespace {

constexpr uint32_t kInitializeSalt = 0x696e6974;
constexpr int64_t kChunkElements = 1 << 16;  // of host memory, when values are drawn or converted piece by piece
constexpr int64_t kWorthThreads = 1 << 13;   // elements to be drawn: fewer are done before threads are awake

int64_t element_bytes(const Tensor& tensor) {
  switch (tensor.dtype) {
    case DType::u8: return 1;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f64:
    case DType::i64: return 8;
    case DType::bit: break;
  }
  throw Error(ErrorCode::unsupported, fmt::format("tensor '{}' is a bit mask and cannot be copied out", tensor.name));
}

// Whole rows that lie together, where a part of them would have to be read back.
int64_t chunk_of(const Tensor& tensor) {
  if (tensor.layout.is_plain()) return kChunkElements;
  const int64_t together = window_around(tensor, 0, 1).count;
  return together * std::max<int64_t>(kChunkElements / together, 1);
}

// Elements [first, first + chunk.size()) of an initial value.
void draw(std::span<float> chunk, const Initializer& init, const RandomStream& stream, int64_t first) {
  if (init.kind == Initializer::Kind::constant) {
    std::fill(chunk.begin(), chunk.end(), static_cast<float>(init.mean));
    return;
  }
  const int64_t count = static_cast<int64_t>(chunk.size());
#pragma omp parallel for schedule(static) if (count > kWorthThreads)
  for (int64_t i = 0; i < count; ++i) {
    const double unit =
        init.kind == Initializer::Kind::normal ? stream.normal(first + i) : 2 * stream.uniform(first + i) - 1;
    chunk[i] = static_cast<float>(init.mean + init.scale * unit);
  }
}

// The tier of the executor's memory that has this name; nothing where there is none.
std::shared_ptr<Tier> find_tier(const Memory& memory, std::string_view name) {
  for (const auto& tier : memory.tiers) {
    if (tier->name() == name) return tier;
  }
  return nullptr;
}

std::shared_ptr<Tier> open_tier(const TierUse& use, const Device& device, const ExecuteOptions& options) {
  const Bytes capacity = std::max(use.tier.capacity, use.used);
  if (use.tier.name == "host") return open_host_tier(capacity);
  if (use.tier.name == "disk") {
    if (options.spill.empty()) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("the plan keeps {} on disk; name a folder with --spill", to_string(use.used)));
    }
    return open_disk_tier(options.spill, capacity);
  }
  if (use.tier.name == "peer") {
    if (options.peer.empty()) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("the plan keeps {} on another GPU; name it with --peer", to_string(use.used)));
    }
    return device.open_peer(options.peer, capacity);
  }
  if (use.tier.name == "remote") {
    if (!options.remote) {
      throw Error(
          ErrorCode::invalid_input,
          fmt::format("the plan keeps {} in other processes' memory (--remote-memory), which only `plimsoll train` "
                      "has, beside `plimsoll serve-memory` under mpirun",
                      to_string(use.used)));
    }
    return open_remote_tier(options.remote);
  }
  throw Error(ErrorCode::unsupported,
              fmt::format("there is no tier '{}', only host, disk, peer and remote", use.tier.name));
}

// A plan that shares cores is for a machine that has them.
void check_cores(const Plan& plan, const DeviceInfo& device) {
  const CoreSharing& cores = plan.cores;
  const int threads_here = std::max(device.cores.hardware_threads, 1);
  if (cores.hardware_threads <= threads_here &&
      cores.cores * cores.hardware_threads <= device.cores.cores * threads_here)
    return;
  throw Error(
      ErrorCode::invalid_input,
      fmt::format(
          "the plan was made for {} cores with {} hardware threads each; this machine lets the process use {} with "
          "{}: plan again here",
          cores.cores, cores.hardware_threads, device.cores.cores, threads_here));
}

std::vector<std::unique_ptr<Kernel>> make_kernels(const Graph& graph, const Plan& plan, const Device& device,
                                                  bool messages) {
  std::vector<std::unique_ptr<Kernel>> kernels;
  for (const Step& step : plan.steps) {
    const Op& op = graph.op(step.op);
    const bool in_collective = op.type->is_collective && (!plan.collectives.empty() || !messages);
    kernels.push_back(op.type->is_view || in_collective ? nullptr
                                                        : make_kernel(device, graph, op, step.kernel, step.threads));
  }
  return kernels;
}

// One kernel for all steps of a collective.
std::unique_ptr<Kernel> make_collective(const Graph& graph, const Plan& plan, const Device& device,
                                        const Collective& collective, const Bindings& bindings) {
  std::vector<OpId> ops;
  std::vector<void*> inputs, outputs;
  const std::string& name = plan.steps[collective.steps[0]].kernel;
  for (const StepIndex s : collective.steps) {
    if (plan.steps[s].kernel != name) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("a collective is of op '{}' by kernel '{}' and of op '{}' by '{}'", graph.op(ops[0]).name,
                              name, graph.op(plan.steps[s].op).name, plan.steps[s].kernel));
    }
    ops.push_back(plan.steps[s].op);
    for (const Region& input : bindings.steps[s].inputs) inputs.push_back(input.at);
    for (const Region& output : bindings.steps[s].outputs) outputs.push_back(output.at);
  }
  std::unique_ptr<Kernel> kernel = device.make_collective(graph, ops, name);
  kernel->bind(inputs, outputs, nullptr);
  return kernel;
}

}  // namespace

struct Executor::Impl {
  Memory memory;
  ReadyPlan ready;
  StaysOfTensors stays;
  std::unique_ptr<Homes> homes;
  bool ran = false;
  // Of the second buffers: nobody wrote there, a step has taken what was there, or the next one will.
  enum class Next : uint8_t { none, taken, here } next = Next::none;
  std::exception_ptr failure;      // what a step ended with: there is none after it
  std::unique_ptr<Driver> driver;  // the first to go: it runs what stands above

  Impl(const Graph& graph, const Plan& plan, const Device& device, const ExecuteOptions& options, Memory m)
      : memory(std::move(m)),
        ready{.graph = graph, .plan = plan, .device = device, .options = options},
        stays(graph, plan) {
    require_valid(graph, plan);
    check_cores(plan, device.info());
    if (!memory.arena) memory.arena = device.take_arena(plan.arena);
    if (memory.arena->bytes() < plan.arena) {
      throw Error(ErrorCode::internal, fmt::format("the arena has {} but the plan needs {}",
                                                   to_string(memory.arena->bytes()), to_string(plan.arena)));
    }
    take_tiers();
    ready.kernels = make_kernels(graph, plan, device, options.messages);
    ready.bindings = make_bindings(graph, plan, *memory.arena, ready.kernels);
    for (StepIndex s = 0; s < static_cast<StepIndex>(ready.steps()); ++s) {
      if (ready.kernels[s]) bind(*ready.kernels[s], ready.bindings.steps[s]);
    }
    for (const Collective& collective : plan.collectives) {
      ready.collectives.push_back(options.messages ? make_collective(graph, plan, device, collective, ready.bindings)
                                                   : nullptr);
    }
    ready.boundaries = make_boundaries(plan);
    if (options.record_times) {
      ready.records.resize(plan.steps.size());
      ready.copy_records.resize(plan.moves.size());
      ready.message_records.resize(plan.collectives.size());
    }
    homes = std::make_unique<Homes>(graph, plan, ready.tiers);
    driver = make_driver(ready);
  }

  void take_tiers() {
    for (const TierUse& use : ready.plan.tiers) {
      std::shared_ptr<Tier> tier = find_tier(memory, use.tier.name);
      if (!tier) memory.tiers.push_back(tier = open_tier(use, ready.device, ready.options));
      tier->reserve(use.used);
      if (ready.device.info().asynchronous) tier->pin(ready.device);
      ready.tiers.push_back(std::move(tier));
    }
  }

  int64_t rank() const {
    const Communicator* const ranks = ready.device.communicator();
    return ranks != nullptr ? ranks->rank() : 0;
  }

  std::byte* storage_of(TensorId tensor) const { return memory.arena->base() + stays.at_rest(tensor).offset.count; }

  const Bindings::Next& next_of(TensorId tensor) const {
    for (const Bindings::Next& next : ready.bindings.next) {
      if (next.buffer.tensor == tensor) return next;
    }
    throw Error(ErrorCode::internal, fmt::format("'{}' has no second buffer", ready.graph.tensor(tensor).name));
  }

  // What a step ends with, it ends with for good.
  template <class Action>
  void attempt(const Action& action) {
    if (failure) std::rethrow_exception(failure);
    try {
      action();
    } catch (...) {
      failure = std::current_exception();
      driver->rest();
      throw;
    }
  }

  void check_range(const Tensor& tensor, int64_t first, size_t bytes) const {
    const int64_t size = element_bytes(tensor);
    const int64_t count = static_cast<int64_t>(bytes) / size;
    if (static_cast<int64_t>(bytes) % size != 0 || first < 0 || first + count > element_count(tensor.shape)) {
      throw Error(ErrorCode::internal, fmt::format("elements {} to {} of tensor '{}' ({}) do not exist", first,
                                                   first + count, tensor.name, to_string(tensor.shape)));
    }
  }
};

Executor::Executor(const Graph& graph, const Plan& plan, const Device& device, const ExecuteOptions& options,
                   Memory memory)
    : impl_(std::make_unique<Impl>(graph, plan, device, options, std::move(memory))) {}
Executor::~Executor() = default;

namespace {

// Elements from number `first` on, to storage in the arena that has the tensor's bytes.
void write_to(std::byte* storage, const Device& device, const Tensor& tensor, int64_t first,
              std::span<const std::byte> elements) {
  const int64_t size = element_bytes(tensor);
  const int64_t count = static_cast<int64_t>(elements.size()) / size;
  const bool padded = tensor.bytes().count != element_count(tensor.shape) * size;  // with zeros
  if (device.host_addressable()) {
    if (first == 0 && padded) std::memset(storage, 0, tensor.bytes().count);
    scatter_elements(tensor.shape, tensor.layout, size, first, count, elements.data(), storage);
    return;
  }
  if (tensor.layout.is_plain()) {
    device.write(storage + first * size, elements);
    return;
  }
  if (first == 0 && padded) device.write(storage, std::vector<std::byte>(tensor.bytes().count));
  const RowWindow window = window_around(tensor, first, count);
  const auto rows = std::make_unique_for_overwrite<std::byte[]>(window.bytes);
  const std::span<std::byte> bytes(rows.get(), window.bytes);
  if (padded || count < window.count) device.read(bytes, storage + window.at);
  scatter_elements(window.shape, tensor.layout, size, first - window.first, count, elements.data(), rows.get());
  device.write(storage + window.at, bytes);
}

// Of elements that lie in `layout`.
std::vector<std::byte> row_major_of(const Tensor& tensor, const Layout& layout, std::span<const std::byte> elements) {
  const int64_t count = element_count(tensor.shape), size = element_bytes(tensor);
  std::vector<std::byte> row_major(static_cast<size_t>(count * size));
  gather_elements(tensor.shape, layout, size, 0, count, elements.data(), row_major.data());
  return row_major;
}

void check_whole(const Tensor& tensor, const Layout& layout, std::span<const std::byte> elements) {
  const int64_t bytes = std::ssize(elements);
  if (bytes == storage_bytes(tensor.shape, tensor.dtype, layout).count) return;
  throw Error(ErrorCode::internal, fmt::format("tensor '{}' ({}) as '{}' has not {} bytes", tensor.name,
                                               to_string(tensor.shape), layout.tag, bytes));
}

}  // namespace

void Executor::write(TensorId id, std::span<const std::byte> elements) { write(id, 0, elements); }
void Executor::read(TensorId id, std::span<std::byte> elements) const { read(id, 0, elements); }

void Executor::write(TensorId id, int64_t first, std::span<const std::byte> elements) {
  const Tensor& tensor = impl_->ready.graph.tensor(id);
  impl_->check_range(tensor, first, elements.size());
  if (impl_->homes->has(id)) return impl_->homes->write(id, element_bytes(tensor), first, elements);
  write_to(impl_->storage_of(id), impl_->ready.device, tensor, first, elements);
}

void Executor::write(TensorId id, const Layout& layout, std::span<const std::byte> elements) {
  const Tensor& tensor = impl_->ready.graph.tensor(id);
  check_whole(tensor, layout, elements);
  if (layout == tensor.layout && !impl_->homes->has(id))
    return impl_->ready.device.write(impl_->storage_of(id), elements);
  write(id, row_major_of(tensor, layout, elements));
}

std::byte* Executor::place_of(TensorId input) { return impl_->homes->has(input) ? nullptr : impl_->storage_of(input); }

std::byte* Executor::next_place_of(TensorId input) {
  std::byte* const buffer = impl_->next_of(input).buffer.at;
  if (impl_->next == Impl::Next::taken) impl_->driver->await_taken();
  impl_->next = Impl::Next::here;
  return buffer;
}

void Executor::write_next(TensorId id, const Layout& layout, std::span<const std::byte> elements) {
  const Tensor& tensor = impl_->ready.graph.tensor(id);
  check_whole(tensor, layout, elements);
  std::byte* const buffer = next_place_of(id);
  const bool lies_so = layout == tensor.layout || (layout.is_plain() && tensor.layout.is_plain());
  if (lies_so) return impl_->ready.device.write(buffer, elements);
  write_to(buffer, impl_->ready.device, tensor, 0, row_major_of(tensor, layout, elements));
}

bool Executor::has_next() const { return impl_->next == Impl::Next::here; }

std::vector<std::byte> Executor::read_next(TensorId id) const {
  const Region& buffer = impl_->next_of(id).buffer;
  std::vector<std::byte> elements(static_cast<size_t>(buffer.bytes.count));
  impl_->ready.device.read(elements, buffer.at);
  return elements;
}

std::span<std::byte> Executor::bytes_at_rest(TensorId state) {
  const Tensor& tensor = impl_->ready.graph.tensor(state);
  if (impl_->homes->has(state) || !impl_->ready.device.host_addressable() || !tensor.layout.is_plain()) return {};
  return {impl_->storage_of(state), static_cast<size_t>(tensor.bytes().count)};
}

void Executor::read(TensorId id, int64_t first, std::span<std::byte> elements) const {
  const Tensor& tensor = impl_->ready.graph.tensor(id);
  impl_->check_range(tensor, first, elements.size());
  const int64_t size = element_bytes(tensor);
  if (impl_->homes->has(id)) return impl_->homes->read(id, size, first, elements);
  const std::byte* storage = impl_->storage_of(id);
  const int64_t count = static_cast<int64_t>(elements.size()) / size;
  if (impl_->ready.device.host_addressable()) {
    gather_elements(tensor.shape, tensor.layout, size, first, count, storage, elements.data());
    return;
  }
  if (tensor.layout.is_plain()) {
    impl_->ready.device.read(elements, storage + first * size);
    return;
  }
  const RowWindow window = window_around(tensor, first, count);
  const auto rows = std::make_unique_for_overwrite<std::byte[]>(window.bytes);
  impl_->ready.device.read({rows.get(), static_cast<size_t>(window.bytes)}, storage + window.at);
  gather_elements(window.shape, tensor.layout, size, first - window.first, count, rows.get(), elements.data());
}

void Executor::initialize(uint64_t seed) {
  std::vector<float> chunk;
  for (const State& state : impl_->ready.graph.states) {
    const Tensor& tensor = impl_->ready.graph.tensor(state.before);
    if (tensor.dtype != DType::f32) {  // indices and masks, which a file gives: zeros until then
      const std::vector<std::byte> zeros(storage_bytes(tensor.shape, tensor.dtype, {}).count);
      write(state.before, zeros);
      continue;
    }
    // A block of rows draws what these rows of the whole would, a rank's piece what these elements would.
    const std::string& name = whole_name(tensor);
    const RandomStream stream{.seed = seed, .step = XXH3_64bits(name.data(), name.size()), .salt = kInitializeSalt};
    const int64_t whole = element_count(whole_shape(tensor));
    const int64_t count = element_count(tensor.shape);
    int64_t before = tensor.block.is_block() ? tensor.block.first * (whole / whole_shape(tensor)[0]) : 0;
    int64_t drawn = count;  // behind it there are zeros
    if (tensor.shard.is_shard()) {
      const int64_t first = impl_->rank() * count;
      drawn = std::clamp<int64_t>(whole - first, 0, count);
      before += first;
    }
    const int64_t piece = chunk_of(tensor);
    for (int64_t first = 0; first < count; first += piece) {
      chunk.assign(std::min(piece, count - first), 0.0F);
      const int64_t known = std::clamp<int64_t>(drawn - first, 0, std::ssize(chunk));
      if (known > 0) draw(std::span(chunk).first(known), tensor.init, stream, before + first);
      write(state.before, first, std::as_bytes(std::span(chunk)));
    }
  }
}

void Executor::run_step() {
  start_step();
  finish_step();
}

void Executor::start_step() {
  impl_->attempt([&] {
    impl_->homes->flush();
    if (impl_->next == Impl::Next::here) {
      impl_->driver->take_next();
      impl_->next = Impl::Next::taken;
    }
    impl_->driver->start(nullptr);
  });
}

void Executor::finish_step() {
  impl_->attempt([&] {
    impl_->driver->finish();
    impl_->ran = true;
  });
}

std::vector<KernelRefused> Executor::rehearse() {
  std::vector<KernelRefused> refused;
  impl_->attempt([&] {
    impl_->homes->flush();
    impl_->driver->start(&refused);
    impl_->driver->finish();
    impl_->ran = true;
  });
  return refused;
}

Bytes Executor::measured_peak() const { return impl_->ran ? impl_->driver->peak() : Bytes{}; }
std::optional<double> Executor::device_ms() const { return impl_->driver->device_ms(); }
bool Executor::is_captured() const { return impl_->driver->is_captured(); }
Bytes Executor::arena_bytes() const { return impl_->memory.arena->bytes(); }
const Memory& Executor::memory() const { return impl_->memory; }
std::span<const StepRecord> Executor::records() const { return impl_->ready.records; }
std::span<const StepRecord> Executor::copies() const { return impl_->ready.copy_records; }
std::span<const StepRecord> Executor::messages() const { return impl_->ready.message_records; }

}  // namespace plimsoll
