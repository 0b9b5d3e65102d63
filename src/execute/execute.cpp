#include "plimsoll/execute.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>

#include "base/random.h"
#include "plan/recompute_operands.h"
#include "device/divided.h"
#include "plimsoll/ops.h"
#include "plimsoll/verify.h"
#include "execute/concurrent.h"
#include "execute/copy_engines.h"
#include "execute/homes.h"
#include "execute/queued_steps.h"
#include "execute/run_kernel.h"

namespace plimsoll {
namespace {

constexpr uint32_t kInitializeSalt = 0x696e6974;
constexpr int64_t kChunkElements = 1 << 16;  // of host memory, when values are drawn or converted piece by piece
constexpr int64_t kWorthThreads = 1 << 13;   // elements to be drawn: fewer are done before threads are awake

using Clock = CopyEngine::Clock;

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

// A step made ready: a kernel with its pointers, or nothing for a view.
struct ReadyStep {
  std::unique_ptr<Kernel> kernel;
  std::vector<std::pair<std::byte*, size_t>> dying;  // with check_memory: bytes to fill when the step is over
};

// Elements [first, first + chunk.size()) of an initial value.
void draw(std::span<float> chunk, const Initializer& init, const RandomStream& stream, int64_t first) {
  if (init.kind == Initializer::Kind::constant) {
    std::fill(chunk.begin(), chunk.end(), static_cast<float>(init.mean));
    return;
  }
  const int64_t count = static_cast<int64_t>(chunk.size());
#pragma omp parallel for schedule(static) if (count > kWorthThreads)
  for (int64_t i = 0; i < count; ++i) {
    const double unit = init.kind == Initializer::Kind::normal ? stream.normal(first + i) : 2 * stream.uniform(first + i) - 1;
    chunk[static_cast<size_t>(i)] = static_cast<float>(init.mean + init.scale * unit);
  }
}

// Bytes of the arena in use, kept up to date as stays begin and end; where stays share bytes (an output in its input, a view)
// they count once.
class Coverage {
 public:
  void add(const Stay& stay, int change) {
    const int64_t end = (stay.offset + stay.bytes).count;
    split(end);
    for (auto segment = split(stay.offset.count); segment->first < end; ++segment) {
      const bool before = segment->second > 0;
      segment->second += change;
      const bool after = segment->second > 0;
      if (before != after) covered_ += (after ? 1 : -1) * (std::next(segment)->first - segment->first);
    }
  }
  Bytes covered() const { return {covered_}; }

 private:
  // Segments by their start, each up to the next, with the number of stays on it.
  std::map<int64_t, int>::iterator split(int64_t at) {
    auto next = segments_.upper_bound(at);
    auto here = std::prev(next);
    return here->first == at ? here : segments_.emplace_hint(next, at, here->second);
  }
  std::map<int64_t, int> segments_{{0, 0}};
  int64_t covered_ = 0;
};

Bytes peak_in_use(const Plan& plan) {
  const size_t steps = plan.steps.size();
  std::vector<std::vector<const Stay*>> begins(steps), ends(steps);
  for (const Stay& stay : plan.stays) {
    if (stay.bytes.count == 0) continue;
    begins[static_cast<size_t>(stay.first)].push_back(&stay);
    ends[static_cast<size_t>(stay.last)].push_back(&stay);
  }
  Coverage coverage;
  Bytes peak;
  for (size_t s = 0; s < steps; ++s) {
    for (const Stay* begin : begins[s]) coverage.add(*begin, 1);
    peak = std::max(peak, coverage.covered());
    for (const Stay* end : ends[s]) coverage.add(*end, -1);
  }
  return peak;
}

}  // namespace

struct Executor::Impl {
  const Graph& graph;
  const Plan& plan;
  const Device& device;
  ExecuteOptions options;
  Memory memory;
  std::vector<std::shared_ptr<Tier>> tiers;    // in the plan's order
  std::unique_ptr<Homes> homes;
  std::vector<ReadyStep> steps;
  std::vector<StepRecord> records, copy_records;
  std::vector<std::vector<int32_t>> stays_of;  // by tensor, in order of time
  Bytes peak;
  bool ran = false;
  std::exception_ptr failure;                  // what a step ended with: there is none after it
  std::unique_ptr<ConcurrentSteps> concurrent;     // for plans that run steps side by side
  std::unique_ptr<QueuedSteps> queued;             // on a device that computes beside the host
  std::unique_ptr<CopyEngines> engines;            // the first to go: they copy between what stands above

  Impl(const Graph& g, const Plan& p, const Device& d, const ExecuteOptions& o, Memory m)
      : graph(g), plan(p), device(d), options(o), memory(std::move(m)) {
    require_valid(graph, plan);
    if (!memory.arena) memory.arena = device.take_arena(plan.arena);
    if (memory.arena->bytes() < plan.arena) {
      throw Error(ErrorCode::internal, fmt::format("the arena has {} but the plan needs {}", to_string(memory.arena->bytes()),
                                                   to_string(plan.arena)));
    }
    take_tiers();
    stays_of.resize(static_cast<size_t>(graph.tensor_count()));
    for (size_t i = 0; i < plan.stays.size(); ++i) {
      if (!plan.stays[i].is_workspace()) {
        stays_of[static_cast<size_t>(plan.stays[i].tensor.index)].push_back(static_cast<int32_t>(i));
      }
    }
    prepare();
    homes = std::make_unique<Homes>(graph, plan, tiers);
    if (options.record_times) copy_records.resize(plan.moves.size());
    std::function<void(int32_t)> made;
    if (auto queues = device.open_queues()) {
      queued = make_queued(std::move(queues));
      peak = peak_in_use(plan);
      return;
    }
    if (plan.cores.inter_op > 1 || (options.teams && has_thread_counts())) {
      concurrent = make_concurrent();
      made = [this](int32_t move) { concurrent->finish_copy(move); };
    }
    engines = std::make_unique<CopyEngines>(graph, plan, tiers, memory.arena->base(), copy_records, options.check_memory,
                                            device.info().threads, std::move(made));
    if (!concurrent) peak = peak_in_use(plan);
  }

  void take_tiers() {
    for (const TierUse& use : plan.tiers) {
      std::shared_ptr<Tier> found;
      for (const auto& tier : memory.tiers) {
        if (tier->name() == use.tier.name) found = tier;
      }
      if (!found) {
        found = open_tier(use);
        memory.tiers.push_back(found);
      }
      found->reserve(use.used);
      if (!device.host_addressable()) found->pin(device);
      tiers.push_back(std::move(found));
    }
  }

  std::shared_ptr<Tier> open_tier(const TierUse& use) const {
    if (use.tier.name == "host") return open_host_tier(std::max(use.tier.capacity, use.used));
    if (use.tier.name == "disk") {
      if (options.spill.empty()) {
        throw Error(ErrorCode::invalid_input, fmt::format("the plan keeps {} on disk; name a folder with --spill", to_string(use.used)));
      }
      return open_disk_tier(options.spill, std::max(use.tier.capacity, use.used));
    }
    if (use.tier.name == "peer") {
      if (options.peer.empty()) {
        throw Error(ErrorCode::invalid_input,
                    fmt::format("the plan keeps {} on another GPU; name it with --peer", to_string(use.used)));
      }
      return device.open_peer(options.peer, std::max(use.tier.capacity, use.used));
    }
    throw Error(ErrorCode::unsupported, fmt::format("there is no tier '{}', only host, disk and peer", use.tier.name));
  }

  const Stay& stay_at(TensorId tensor, StepIndex step) const {
    for (int32_t i : stays_of[static_cast<size_t>(tensor.index)]) {
      const Stay& stay = plan.stays[static_cast<size_t>(i)];
      if (stay.first <= step && step <= stay.last) return stay;
    }
    throw Error(ErrorCode::internal, fmt::format("tensor '{}' is not in the arena at step {}", graph.tensor(tensor).name, step));
  }
  std::byte* address(const Stay& stay) const { return memory.arena->base() + stay.offset.count; }

  void prepare() {
    const StepIndex count = static_cast<StepIndex>(plan.steps.size());
    std::vector<std::byte*> workspaces(static_cast<size_t>(count), nullptr);
    for (const Stay& stay : plan.stays) {
      if (stay.is_workspace()) workspaces[static_cast<size_t>(stay.first)] = address(stay);
    }
    steps.resize(static_cast<size_t>(count));
    for (StepIndex s = 0; s < count; ++s) {
      const Step& step = plan.steps[static_cast<size_t>(s)];
      const Op& op = graph.op(step.op);
      if (op.type->is_view) continue;
      ReadyStep& ready = steps[static_cast<size_t>(s)];
      ready.kernel = make_kernel(device, graph, op, step.kernel, step.threads);
      if (ready.kernel->workspace() > step.workspace) {
        throw Error(ErrorCode::internal,
                    fmt::format("step {} ({}): kernel '{}' needs {} of workspace but the plan has {}", s, op.name, step.kernel,
                                to_string(ready.kernel->workspace()), to_string(step.workspace)));
      }
      const RecomputeOperands unused(graph, op, step.recompute);
      std::vector<void*> inputs, outputs;
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        inputs.push_back(unused.input(i) ? nullptr : address(stay_at(op.inputs[i], s)));
      }
      for (size_t i = 0; i < op.outputs.size(); ++i) {
        outputs.push_back(unused.output(i) ? nullptr : address(stay_at(op.outputs[i], s)));
      }
      ready.kernel->bind(inputs, outputs, workspaces[static_cast<size_t>(s)]);
    }
    if (options.record_times) records.resize(steps.size());
    if (options.check_memory) note_deaths();
  }

  std::unique_ptr<QueuedSteps> make_queued(std::unique_ptr<Queues> queues) {
    std::vector<Kernel*> kernels;
    std::vector<DyingBytes> dying;
    for (size_t s = 0; s < steps.size(); ++s) {
      kernels.push_back(steps[s].kernel.get());
      for (auto [at, bytes] : steps[s].dying) dying.push_back({static_cast<StepIndex>(s), at, bytes});
    }
    return std::make_unique<QueuedSteps>(graph, plan, device, std::move(queues), tiers, memory.arena->base(), std::move(kernels),
                                         std::move(dying), records, copy_records, options.check_memory, options.capture);
  }

  bool has_thread_counts() const {
    return std::any_of(plan.steps.begin(), plan.steps.end(), [](const Step& step) { return step.threads != 0; });
  }

  std::unique_ptr<ConcurrentSteps> make_concurrent() {
    std::vector<Kernel*> kernels;
    std::vector<int> threads;
    std::vector<Erasure> erasures;
    for (size_t s = 0; s < steps.size(); ++s) {
      kernels.push_back(steps[s].kernel.get());
      threads.push_back(plan.steps[s].threads > 0 ? plan.steps[s].threads : device.info().threads);
      for (auto [at, bytes] : steps[s].dying) {
        erasures.push_back({static_cast<StepIndex>(s), {at - memory.arena->base()}, {static_cast<int64_t>(bytes)}});
      }
    }
    ConcurrentSettings settings{.cores = options.cores > 0 ? options.cores : device.info().threads,
                                .at_once = plan.cores.inter_op,
                                .pin = options.pin,
                                .cores_a_cache = device.info().cores.cores_a_cache,
                                .second_threads = options.hardware_threads > 1,
                                .priority = options.priority,
                                .expected_ms = {},
                                .conflicts = options.conflicts};
    return std::make_unique<ConcurrentSteps>(graph, plan, std::move(kernels), threads, memory.arena->base(), records,
                                             std::move(settings), erasures);
  }

  // For every step, the bytes of stays that end there and that no other stay takes over at that moment.
  void note_deaths() {
    for (const Stay& stay : plan.stays) {
      if (stay.last + 1 >= static_cast<StepIndex>(plan.steps.size())) continue;
      const bool taken = std::any_of(plan.stays.begin(), plan.stays.end(), [&](const Stay& other) {
        return &other != &stay && other.first <= stay.last && other.last > stay.last &&
               other.offset < stay.offset + stay.bytes && stay.offset < other.offset + other.bytes;
      });
      if (!taken) {
        steps[static_cast<size_t>(stay.last)].dying.emplace_back(address(stay), static_cast<size_t>(stay.bytes.count));
      }
    }
  }

  void fill_dying(size_t s) {
    for (auto [at, bytes] : steps[s].dying) std::memset(at, 0xff, bytes);  // 0xffffffff is a NaN
  }

  template <class RunOne>
  void run(RunOne run_one) {
    if (engines->none()) {
      for (size_t s = 0; s < steps.size(); ++s) {
        if (steps[s].kernel) run_one(s);
        fill_dying(s);
      }
    } else {
      for (size_t s = 0; s < steps.size(); ++s) {
        engines->send(s);
        if (s > 0) fill_dying(s - 1);
        engines->fetch(s);
        if (steps[s].kernel) run_one(s);
      }
      engines->send(steps.size());
      engines->fetch(steps.size());
    }
    ran = true;
  }

  void run_step(std::vector<KernelRefused>* refused) {
    if (queued) {
      queued->run(refused);
      ran = true;
      return;
    }
    const Clock::time_point start = Clock::now();
    engines->begin(start);
    if (concurrent) {
      concurrent->run(*engines, start);
      peak = concurrent->peak();
      ran = true;
      return;
    }
    const auto run_one = [&](size_t s) { run_kernel(graph, plan.steps[s], *steps[s].kernel); };
    if (!options.record_times) return run(run_one);
    auto since_start = [&] { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); };
    run([&](size_t s) {
      records[s].start_ms = since_start();
      run_one(s);
      records[s].end_ms = since_start();
    });
  }

  // Where a tensor's elements are between steps: sources where the step finds them, others where it leaves them.
  const Stay& resting_stay(TensorId id) const {
    const Tensor& tensor = graph.tensor(id);
    return stay_at(id, tensor.producer.valid() ? static_cast<StepIndex>(plan.steps.size()) - 1 : 0);
  }

  void check_range(const Tensor& tensor, int64_t first, size_t bytes) const {
    const int64_t size = element_bytes(tensor);
    const int64_t count = static_cast<int64_t>(bytes) / size;
    if (static_cast<int64_t>(bytes) % size != 0 || first < 0 || first + count > element_count(tensor.shape)) {
      throw Error(ErrorCode::internal, fmt::format("elements {} to {} of tensor '{}' ({}) do not exist", first, first + count,
                                                   tensor.name, to_string(tensor.shape)));
    }
  }
};

Executor::Executor(const Graph& graph, const Plan& plan, const Device& device, const ExecuteOptions& options, Memory memory)
    : impl_(std::make_unique<Impl>(graph, plan, device, options, std::move(memory))) {}
Executor::~Executor() = default;

void Executor::write(TensorId id, std::span<const std::byte> elements) { write(id, 0, elements); }
void Executor::read(TensorId id, std::span<std::byte> elements) const { read(id, 0, elements); }

void Executor::write(TensorId id, int64_t first, std::span<const std::byte> elements) {
  const Tensor& tensor = impl_->graph.tensor(id);
  impl_->check_range(tensor, first, elements.size());
  const int64_t size = element_bytes(tensor);
  if (impl_->homes->has(id)) return impl_->homes->write(id, size, first, elements);
  std::byte* storage = impl_->address(impl_->resting_stay(id));
  const int64_t count = static_cast<int64_t>(elements.size()) / size;
  if (impl_->device.host_addressable()) {
    if (first == 0 && tensor.bytes().count != element_count(tensor.shape) * size) {
      std::memset(storage, 0, static_cast<size_t>(tensor.bytes().count));  // the padding
    }
    scatter_elements(tensor.shape, tensor.layout, size, first, count, elements.data(), storage);
    return;
  }
  if (tensor.layout.is_plain()) {
    impl_->device.write(storage + first * size, elements);
    return;
  }
  std::vector<std::byte> whole(static_cast<size_t>(tensor.bytes().count));
  if (first != 0) impl_->device.read(whole, storage);
  scatter_elements(tensor.shape, tensor.layout, size, first, count, elements.data(), whole.data());
  impl_->device.write(storage, whole);
}

void Executor::read(TensorId id, int64_t first, std::span<std::byte> elements) const {
  const Tensor& tensor = impl_->graph.tensor(id);
  impl_->check_range(tensor, first, elements.size());
  const int64_t size = element_bytes(tensor);
  if (impl_->homes->has(id)) return impl_->homes->read(id, size, first, elements);
  const std::byte* storage = impl_->address(impl_->resting_stay(id));
  const int64_t count = static_cast<int64_t>(elements.size()) / size;
  if (impl_->device.host_addressable()) {
    gather_elements(tensor.shape, tensor.layout, size, first, count, storage, elements.data());
    return;
  }
  if (tensor.layout.is_plain()) {
    impl_->device.read(elements, storage + first * size);
    return;
  }
  std::vector<std::byte> whole(static_cast<size_t>(tensor.bytes().count));
  impl_->device.read(whole, storage);
  gather_elements(tensor.shape, tensor.layout, size, first, count, whole.data(), elements.data());
}

void Executor::initialize(uint64_t seed) {
  std::vector<float> chunk;
  for (const State& state : impl_->graph.states) {
    const Tensor& tensor = impl_->graph.tensor(state.before);
    if (tensor.dtype != DType::f32) {
      throw Error(ErrorCode::unsupported, fmt::format("state '{}' is not f32", tensor.name));
    }
    // A block of rows draws what these rows of the whole would.
    const std::string& name = tensor.block.is_block() ? tensor.block.whole : tensor.name;
    const RandomStream stream{.seed = seed, .step = XXH3_64bits(name.data(), name.size()), .salt = kInitializeSalt};
    const int64_t count = element_count(tensor.shape);
    const int64_t before = tensor.block.is_block() ? tensor.block.first * (count / tensor.shape[0]) : 0;
    for (int64_t first = 0; first < count; first += kChunkElements) {
      chunk.resize(static_cast<size_t>(std::min(kChunkElements, count - first)));
      draw(chunk, tensor.init, stream, before + first);
      write(state.before, first, std::as_bytes(std::span(chunk)));
    }
  }
}

void Executor::run_step() { run(nullptr); }

std::vector<KernelRefused> Executor::rehearse() {
  std::vector<KernelRefused> refused;
  run(&refused);
  return refused;
}

void Executor::run(std::vector<KernelRefused>* refused) {
  if (impl_->failure) std::rethrow_exception(impl_->failure);
  try {
    impl_->homes->flush();
    impl_->run_step(refused);
  } catch (...) {
    impl_->failure = std::current_exception();
    impl_->queued ? impl_->queued->rest() : impl_->engines->rest();
    throw;
  }
}

Bytes Executor::measured_peak() const { return impl_->ran ? impl_->peak : Bytes{}; }
bool Executor::is_captured() const { return impl_->queued && impl_->queued->is_captured(); }
Bytes Executor::arena_bytes() const { return impl_->memory.arena->bytes(); }
const Memory& Executor::memory() const { return impl_->memory; }
std::span<const StepRecord> Executor::records() const { return impl_->records; }
std::span<const StepRecord> Executor::copies() const { return impl_->copy_records; }

}  // namespace plimsoll
