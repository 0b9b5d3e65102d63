#include "cost/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/clock.h"
#include "cost/signature.h"
#include "device/divided.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr int64_t kAlignment = 4096;
// Of a device's cache, filled before each run: then nothing of the last run is in it, and it takes the device longer
// than the host takes to ask for the kernel (60 us on an H100), so that the kernel does not wait for the host.
constexpr int64_t kFlushes = 4;

// Values that a network could have: floats in [0.25, 1) (no denormals, positive for square roots), rows of a table all over it,
// labels 0, masks half set. `rows`: of the table; 1 where there is none.
std::vector<std::byte> make_pattern(DType dtype, int64_t rows) {
  constexpr size_t kBytes = size_t{256} << 10;
  std::vector<std::byte> pattern(kBytes, std::byte{0});
  uint32_t state = 12345;
  auto next = [&] {
    state = state * 1664525 + 1013904223;
    return static_cast<double>(state >> 8) / (1 << 24);
  };
  auto fill = [&](auto sample, double least, double range) {
    for (size_t at = 0; at < kBytes; at += sizeof(sample)) {
      sample = static_cast<decltype(sample)>(least + range * next());
      std::memcpy(pattern.data() + at, &sample, sizeof(sample));
    }
  };
  const double all = static_cast<double>(rows);
  if (dtype == DType::f32) fill(float{}, 0.25, 0.75);
  if (dtype == DType::f64) fill(double{}, 0.25, 0.75);
  if (dtype == DType::i32) fill(int32_t{}, 0, all);
  if (dtype == DType::i64) fill(int64_t{}, 0, all);
  if (dtype == DType::bit) std::fill(pattern.begin(), pattern.end(), std::byte{0x5a});
  return pattern;
}

const std::vector<std::byte>& pattern_of(DType dtype) {
  static const std::map<DType, std::vector<std::byte>> patterns = [] {
    std::map<DType, std::vector<std::byte>> result;
    for (DType d : {DType::f32, DType::f64, DType::i32, DType::i64, DType::u8, DType::bit})
      result[d] = make_pattern(d, 1);
    return result;
  }();
  return patterns.at(dtype);
}

// Of the table that the op's last input looks up; 1 for other ops.
int64_t rows_looked_up(const Graph& graph, const Op& op) {
  if (!op.type->name.starts_with("Embedding")) return 1;
  return op.attributes.integer("rows", graph.tensor(op.inputs[0]).shape[0]);
}

// A device with queues repeats the pattern by itself.
void fill(const Device& device, Queues* queues, std::byte* to, Bytes bytes, const std::vector<std::byte>& pattern) {
  for (size_t at = 0, size = bytes.count; at < size;) {
    const size_t part = std::min(queues != nullptr && at > 0 ? at : pattern.size(), size - at);
    if (queues != nullptr && at > 0) {
      queues->copy_within(to + at, to, part);
    } else {
      device.write(to + at, std::span(pattern).first(part));
    }
    at += part;
  }
}

}  // namespace

LoneOp isolate(const Graph& graph, const Op& op, const KernelSpec& spec) {
  LoneOp lone;
  lone.kernel = spec.name;
  std::vector<TensorId> inputs;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Tensor& tensor = graph.tensor(op.inputs[i]);
    const TensorId id = lone.graph.add_source(fmt::format("input {}", i), tensor.shape, tensor.dtype, Role::activation);
    const bool open = i >= spec.inputs.size() || layout_is_open(graph, op, spec, i);
    lone.graph.tensor(id).layout = open ? (op.type->changes_state ? Layout{} : tensor.layout) : spec.inputs[i];
    inputs.push_back(id);
  }
  lone.op = lone.graph.add_op(op.type->name, "op", op.layer, inputs, op.attributes, op.phase);
  const Op& copy = lone.graph.op(lone.op);
  for (size_t i = 0; i < copy.outputs.size() && i < op.outputs.size(); ++i) {
    const bool open = i >= spec.outputs.size() || layout_is_open(graph, op, spec, op.inputs.size() + i);
    const Layout& as_is = graph.tensor(op.outputs[i]).layout;
    lone.graph.tensor(copy.outputs[i]).layout = open ? (op.type->changes_state ? Layout{} : as_is) : spec.outputs[i];
  }
  return lone;
}

OpBench::OpBench(const Device& device, const LoneOp& lone, int threads) : device_(device) {
  const Op& op = lone.graph.op(lone.op);
  kernel_ = make_kernel(device, lone.graph, op, lone.kernel, threads);
  workspace_ = align_up(kernel_->workspace(), kAlignment);
  rows_looked_up_ = rows_looked_up(lone.graph, op);
  if ((queues_ = device.open_queues())) {
    begin_ = queues_->make_mark(true);
    end_ = queues_->make_mark(true);
    flush_ = align_up(device.info().cache * kFlushes, kAlignment);
  }
  for (TensorId id : op.inputs) {
    const Tensor& tensor = lone.graph.tensor(id);
    input_at_.push_back(set_bytes_);
    input_bytes_.push_back(tensor.bytes());
    input_dtypes_.push_back(tensor.dtype);
    set_bytes_ += align_up(tensor.bytes(), kAlignment);
  }
  const std::vector<InPlace> pairs = op.type->in_place ? op.type->in_place(lone.graph, op) : std::vector<InPlace>{};
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const auto pair = std::find_if(pairs.begin(), pairs.end(),
                                   [&](const InPlace& p) { return p.required && p.output == static_cast<int>(i); });
    if (pair != pairs.end()) {
      output_at_.push_back(input_at_[pair->input]);
      continue;
    }
    output_at_.push_back(set_bytes_);
    set_bytes_ += align_up(lone.graph.tensor(op.outputs[i]).bytes(), kAlignment);
  }
}

void OpBench::keep_within(Bytes limit) {
  const Bytes left = limit - set_bytes_ - workspace_;
  flush_ = std::clamp(Bytes{left.count / kAlignment * kAlignment}, Bytes{}, flush_);
}

void OpBench::place(std::byte* base, int sets) {
  base_ = base;
  sets_ = sets;
  next_ = 0;
  for (int s = 0; s < sets; ++s) {
    for (size_t i = 0; i < input_at_.size(); ++i) {
      const bool looked_up = rows_looked_up_ > 1 && i + 1 == input_at_.size();
      fill(device_, queues_.get(), base + (set_bytes_ * s + input_at_[i]).count, input_bytes_[i],
           looked_up ? make_pattern(input_dtypes_[i], rows_looked_up_) : pattern_of(input_dtypes_[i]));
    }
  }
  if (!queues_) return;
  queues_->synchronize();
  run();
  next_ = 0;
}

double OpBench::run() {
  std::byte* set = base_ + (set_bytes_ * next_).count;
  next_ = (next_ + 1) % sets_;
  std::vector<void*> inputs, outputs;
  for (Bytes at : input_at_) inputs.push_back(set + at.count);
  for (Bytes at : output_at_) outputs.push_back(set + at.count);
  kernel_->bind(inputs, outputs, base_ + (set_bytes_ * sets_).count);
  if (queues_) {
    std::byte* const behind = base_ + (set_bytes_ * sets_ + workspace_).count;
    queues_->fill(Queues::Queue::compute, behind, 0, flush_.count);
    queues_->mark(Queues::Queue::compute, begin_);
    kernel_->run();
    queues_->mark(Queues::Queue::compute, end_);
    queues_->synchronize(end_);
    return queues_->ms_between(begin_, end_);
  }
  const Stopwatch watch;
  kernel_->run();
  return watch.ms();
}

}  // namespace plimsoll
