#include "bench/heaps.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "base/clock.h"
#include "base/statistics.h"
#include "cost/bench.h"
#include "device/divided.h"
#include "device/tensor_heap.h"
#include "plan/placement/heap.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr int kStepsBefore = 2;
constexpr int64_t kHeapBlock = 1024;  // the papers' heap
constexpr size_t kChunk = size_t{4} << 20;

// Stays that share bytes at one time (an output in its input's place, a view) are one block of memory.
struct Block {
  int64_t offset = INT64_MAX, end = 0;
  StepIndex first = INT32_MAX, last = -1;
  bool resident = false;  // there before the step and after it: parameters, states, inputs
  size_t bytes() const { return end - offset; }
};

struct Blocks {
  std::vector<Block> list;
  std::vector<size_t> of_stay;
};

Blocks blocks_of(const Graph& graph, const Plan& plan) {
  const std::vector<Stay>& stays = plan.stays;
  std::vector<size_t> root(stays.size());
  std::iota(root.begin(), root.end(), size_t{0});
  const std::function<size_t(size_t)> find = [&](size_t i) { return root[i] == i ? i : root[i] = find(root[i]); };
  for (size_t i = 0; i < stays.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Stay &a = stays[i], &b = stays[j];
      const bool in_time = a.first <= b.last && b.first <= a.last;
      if (in_time && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes) root[find(i)] = find(j);
    }
  }
  Blocks blocks;
  std::map<size_t, size_t> number;
  const StepIndex last = static_cast<StepIndex>(plan.steps.size()) - 1;
  for (size_t i = 0; i < stays.size(); ++i) {
    const auto [place, fresh] = number.emplace(find(i), blocks.list.size());
    if (fresh) blocks.list.emplace_back();
    Block& block = blocks.list[place->second];
    const Stay& stay = stays[i];
    block.offset = std::min(block.offset, stay.offset.count);
    block.end = std::max(block.end, (stay.offset + stay.bytes).count);
    block.first = std::min(block.first, stay.first);
    block.last = std::max(block.last, stay.last);
    const bool source = !stay.is_workspace() && !graph.tensor(stay.tensor).producer.valid();
    block.resident = block.resident || source || (block.first == 0 && block.last == last);
    blocks.of_stay.push_back(place->second);
  }
  return blocks;
}

// One training step over and over, with every block where somebody says.
class Steps {
 public:
  Steps(const Program& program, const Device& device)
      : graph_(program.network.graph),
        plan_(program.plan),
        device_(device),
        queues_(device.open_queues()),
        blocks_(blocks_of(graph_, plan_)),
        at_(blocks_.list.size()),
        begins_(plan_.steps.size()),
        ends_(plan_.steps.size()) {
    if (!plan_.moves.empty()) throw Error(ErrorCode::invalid_input, "heaps are compared for plans that move nothing");
    for (size_t i = 0; i < plan_.stays.size(); ++i) {
      const Stay& stay = plan_.stays[i];
      if (stay.is_workspace()) {
        workspaces_[stay.first] = i;
      } else {
        stays_of_[stay.tensor.index].push_back(i);
      }
    }
    int64_t resident = 0;
    for (size_t b = 0; b < blocks_.list.size(); ++b) {
      const Block& block = blocks_.list[b];
      if (block.resident) {
        residents_.emplace_back(b, resident);
        resident += align_up(Bytes{static_cast<int64_t>(block.bytes())}, kStayAlignment).count;
      } else {
        begins_[block.first].push_back(b);
        ends_[block.last].push_back(b);
        ++dynamic_;
      }
    }
    resident_bytes_ = {std::max<int64_t>(resident, kStayAlignment)};
    for (const Step& step : plan_.steps) {
      const Op& op = graph_.op(step.op);
      kernels_.push_back(op.type->is_view ? nullptr : make_kernel(device, graph_, op, step.kernel, step.threads));
    }
  }

  Bytes resident_bytes() const { return resident_bytes_; }
  int64_t dynamic() const { return dynamic_; }
  const Block& block(size_t b) const { return blocks_.list[b]; }
  Queues* queues() { return queues_.get(); }
  void place(size_t b, void* at) { at_[b] = static_cast<std::byte*>(at); }
  const std::vector<std::vector<size_t>>& begins() const { return begins_; }

  void place_residents(std::byte* base) {
    for (const auto& [b, offset] : residents_) at_[b] = base + offset;
    resident_ = base;
    fill_residents();
  }
  void bind_all() {
    for (size_t s = 0; s < kernels_.size(); ++s) bind(s);
  }
  void bind(size_t s) {
    if (!kernels_[s]) return;
    const Op& op = graph_.op(plan_.steps[s].op);
    const StepIndex step = static_cast<StepIndex>(s);
    inputs_.clear(), outputs_.clear();
    for (TensorId id : op.inputs) inputs_.push_back(address(id, step));
    for (TensorId id : op.outputs) outputs_.push_back(address(id, step));
    const auto workspace = workspaces_.find(step);
    kernels_[s]->bind(inputs_, outputs_, workspace == workspaces_.end() ? nullptr : address(workspace->second));
  }
  void run(size_t s) {
    if (kernels_[s]) kernels_[s]->run();
  }
  size_t count() const { return kernels_.size(); }
  const std::vector<size_t>& beginning(size_t s) const { return begins_[s]; }
  const std::vector<size_t>& ending(size_t s) const { return ends_[s]; }
  void* at(size_t b) const { return at_[b]; }
  void wait() {
    if (queues_) queues_->synchronize();
  }

  uint64_t digest() const {
    uint64_t digest = 0;
    std::vector<std::byte> chunk(kChunk);
    for (int64_t done = 0; done < resident_bytes_.count; done += static_cast<int64_t>(kChunk)) {
      const size_t part = std::min<size_t>(kChunk, resident_bytes_.count - done);
      device_.read(std::span(chunk).first(part), resident_ + done);
      digest = XXH3_64bits_withSeed(chunk.data(), part, digest);
    }
    return digest;
  }

 private:
  std::byte* address(size_t stay) const {
    const size_t b = blocks_.of_stay[stay];
    return at_[b] + (plan_.stays[stay].offset.count - blocks_.list[b].offset);
  }
  std::byte* address(TensorId id, StepIndex step) const {
    for (size_t stay : stays_of_.at(id.index)) {
      if (plan_.stays[stay].first <= step && step <= plan_.stays[stay].last) return address(stay);
    }
    throw Error(ErrorCode::internal, fmt::format("tensor '{}' is nowhere at step {}", graph_.tensor(id).name, step));
  }

  // Small values for what is f32; zeros are labels and step numbers too.
  void fill_residents() {
    const std::vector<std::byte> zeros(kChunk);
    write_over(resident_, resident_bytes_, zeros);
    std::vector<float> values(kChunk / sizeof(float));
    for (const auto& [id, stays] : stays_of_) {
      const Tensor& tensor = graph_.tensor({id});
      if (tensor.producer.valid() || tensor.dtype != DType::f32) continue;
      uint32_t state = static_cast<uint32_t>(id) + 1;
      for (float& value : values) {
        state = state * 1664525 + 1013904223;
        value = (static_cast<float>(state >> 8) / (1 << 24) - 0.5F) * 0.1F;
      }
      if (tensor.role == Role::hyperparameter) values.assign(values.size(), 1e-3F);
      write_over(address(stays.front()), tensor.bytes(), std::as_bytes(std::span(values)));
    }
  }
  void write_over(std::byte* to, Bytes bytes, std::span<const std::byte> pattern) {
    for (int64_t done = 0; done < bytes.count; done += static_cast<int64_t>(pattern.size())) {
      device_.write(to + done, pattern.first(std::min<size_t>(pattern.size(), bytes.count - done)));
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const Device& device_;
  std::unique_ptr<Queues> queues_;
  Blocks blocks_;
  std::vector<std::byte*> at_;  // by block
  std::vector<std::vector<size_t>> begins_, ends_;
  std::map<StepIndex, size_t> workspaces_;
  std::map<int32_t, std::vector<size_t>> stays_of_;
  std::vector<std::pair<size_t, int64_t>> residents_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::vector<void*> inputs_, outputs_;
  std::byte* resident_ = nullptr;
  Bytes resident_bytes_;
  int64_t dynamic_ = 0;
};

int64_t heap_blocks(size_t bytes) {
  return std::max<int64_t>(align_up(Bytes{static_cast<int64_t>(bytes)}, kHeapBlock).count, kHeapBlock);
}

// A heap over an arena of its own, as SuperNeurons has it.
class PapersHeap final : public TensorHeap {
 public:
  explicit PapersHeap(std::byte* base) : base_(base) {}
  std::string_view name() const override { return "papers' heap"; }
  void* take(size_t bytes) override { return base_ + heap_.take(heap_blocks(bytes), Heap::Fit::first); }
  void give_back(void* memory, size_t bytes) override {
    heap_.give_back(static_cast<std::byte*>(memory) - base_, heap_blocks(bytes));
  }
  int64_t end() const { return heap_.end(); }

 private:
  std::byte* base_;
  Heap heap_;
};

// One step by a heap; returns the most that it held.
int64_t step_by(Steps& steps, TensorHeap& heap) {
  int64_t held = 0, most = 0;
  for (size_t s = 0; s < steps.count(); ++s) {
    for (size_t b : steps.beginning(s)) {
      steps.place(b, heap.take(steps.block(b).bytes()));
      held += static_cast<int64_t>(steps.block(b).bytes());
    }
    most = std::max(most, held);
    steps.bind(s);
    steps.run(s);
    for (size_t b : steps.ending(s)) {
      heap.give_back(steps.at(b), steps.block(b).bytes());
      held -= static_cast<int64_t>(steps.block(b).bytes());
    }
  }
  steps.wait();
  return most;
}

// False where the device cannot keep what is asked for; then nothing has been done.
template <class Ask>
bool capture(Queues& queues, const Ask& ask) {
  bool begun = false;
  try {
    begun = queues.begin_capture();
    if (begun) ask();
  } catch (const Error&) {
    if (begun) queues.end_capture();
    return false;
  }
  return begun && queues.end_capture();
}

template <class Step>
HeapRun time(Steps& steps, std::byte* residents, std::string name, int count, const Step& step) {
  HeapRun run{.heap = std::move(name)};
  steps.place_residents(residents);
  std::vector<double> times;
  for (int i = 0; i < kStepsBefore + count; ++i) {
    const Stopwatch watch;
    step(i);
    const double ms = watch.ms();
    if (i >= kStepsBefore) times.push_back(ms);
  }
  run.spread_ms = half_interquartile_distance(times);
  run.step_time_ms = median(std::move(times));
  run.digest = steps.digest();
  return run;
}

}  // namespace

std::vector<HeapRun> compare_heaps(const Program& program, const Device& device, int count) {
  Steps steps(program, device);
  const std::unique_ptr<Arena> residents = device.take_arena(steps.resident_bytes());
  std::vector<HeapRun> runs;
  for (const auto& heap : tensor_heaps(device)) {
    int64_t most = 0;
    runs.push_back(
        time(steps, residents->base(), std::string(heap->name()), count, [&](int) { most = step_by(steps, *heap); }));
    runs.back().allocations = steps.dynamic();
    runs.back().held = steps.resident_bytes() + Bytes{most};
  }
  {
    // How much it takes is known when it has been gone through once: offsets depend on sizes alone.
    Heap dry;
    std::map<size_t, int64_t> offsets;
    for (size_t s = 0; s < steps.count(); ++s) {
      for (size_t b : steps.beginning(s)) offsets[b] = dry.take(heap_blocks(steps.block(b).bytes()), Heap::Fit::first);
      for (size_t b : steps.ending(s)) dry.give_back(offsets[b], heap_blocks(steps.block(b).bytes()));
    }
    const std::unique_ptr<Arena> arena = device.take_arena({std::max<int64_t>(dry.end(), kHeapBlock)});
    PapersHeap heap(arena->base());
    runs.push_back(time(steps, residents->base(), std::string(heap.name()), count, [&](int) { step_by(steps, heap); }));
    runs.back().allocations = steps.dynamic();
    runs.back().held = steps.resident_bytes() + Bytes{heap.end()};
  }
  const std::unique_ptr<Arena> arena = device.take_arena(program.plan->arena);
  for (size_t s = 0; s < steps.count(); ++s) {
    for (size_t b : steps.beginning(s)) steps.place(b, arena->base() + steps.block(b).offset);
  }
  const auto ask = [&] {
    for (size_t s = 0; s < steps.count(); ++s) steps.run(s);
  };
  steps.place_residents(residents->base());
  steps.bind_all();
  runs.push_back(time(steps, residents->base(), "plan", count, [&](int) { ask(), steps.wait(); }));
  runs.back().held = program.plan->arena;
  if (Queues* queues = steps.queues(); queues != nullptr && capture(*queues, ask)) {
    runs.push_back(
        time(steps, residents->base(), "plan, captured", count, [&](int) { queues->replay(), steps.wait(); }));
    runs.back().held = program.plan->arena;
  }
  return runs;
}

}  // namespace plimsoll
