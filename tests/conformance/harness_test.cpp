#include "tests/conformance/harness.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "cost/signature.h"
#include "plimsoll/ops.h"

namespace plimsoll::conformance {
namespace {

constexpr size_t kGuard = 4096;
constexpr std::byte kGuardByte{0xA5}, kGarbage{0xFF};  // as floats, 0xFF bytes are NaN

// Bytes with guards on both sides, 64-byte aligned. Where the host cannot address the device's memory they lie in an
// arena of their own too, which upload and download keep equal.
class Buffer {
 public:
  Buffer(const Device& device, size_t size)
      : device_(device),
        size_(size),
        all_(static_cast<std::byte*>(std::aligned_alloc(kGuard, 2 * kGuard + (size + kGuard - 1) / kGuard * kGuard))) {
    std::fill(all_.get(), all_.get() + 2 * kGuard + (size + kGuard - 1) / kGuard * kGuard, kGuardByte);
    fill(kGarbage);
    if (!device.host_addressable()) arena_ = device.take_arena({static_cast<int64_t>(2 * kGuard + size_)});
  }
  // Where the kernel finds them.
  std::byte* place() const { return arena_ ? arena_->base() + kGuard : data(); }
  void upload() const {
    if (arena_) device_.write(arena_->base(), {all_.get(), 2 * kGuard + size_});
  }
  void download() const {
    if (arena_) device_.read({all_.get(), 2 * kGuard + size_}, arena_->base());
  }
  std::byte* data() const { return all_.get() + kGuard; }
  size_t size() const { return size_; }
  void fill(std::byte value) const { std::fill(data(), data() + size_, value); }
  std::vector<std::byte> copy() const { return {data(), data() + size_}; }
  bool guards_hold() const {
    const auto is_guard = [](std::byte b) { return b == kGuardByte; };
    return std::all_of(all_.get(), data(), is_guard) && std::all_of(data() + size_, data() + size_ + kGuard, is_guard);
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  const Device& device_;
  size_t size_;
  std::unique_ptr<std::byte, Free> all_;
  std::unique_ptr<Arena> arena_;
};

int64_t element_bytes(DType dtype) { return dtype == DType::bit ? 0 : storage_bytes({1}, dtype, {}).count; }

// Row-major elements into storage with zero padding, and back.
std::vector<std::byte> to_storage(const Tensor& tensor, const std::vector<std::byte>& elements) {
  std::vector<std::byte> storage(tensor.bytes().count, std::byte{0});
  if (tensor.dtype != DType::bit) {
    scatter_elements(tensor.shape, tensor.layout, element_bytes(tensor.dtype), 0, element_count(tensor.shape),
                     elements.data(), storage.data());
    return storage;
  }
  const auto offsets = storage_offsets(tensor.shape, tensor.layout);
  for (size_t i = 0; i < offsets.size(); ++i) {
    const std::byte bit = (elements[i / 8] >> (i % 8)) & std::byte{1};
    storage[offsets[i] / 8] |= bit << (offsets[i] % 8);
  }
  return storage;
}

std::vector<std::byte> from_storage(const Tensor& tensor, const std::vector<std::byte>& storage) {
  std::vector<std::byte> elements(storage_bytes(tensor.shape, tensor.dtype, {}).count, std::byte{0});
  if (tensor.dtype != DType::bit) {
    gather_elements(tensor.shape, tensor.layout, element_bytes(tensor.dtype), 0, element_count(tensor.shape),
                    storage.data(), elements.data());
    return elements;
  }
  const auto offsets = storage_offsets(tensor.shape, tensor.layout);
  for (size_t i = 0; i < offsets.size(); ++i) {
    const std::byte bit = (storage[offsets[i] / 8] >> (offsets[i] % 8)) & std::byte{1};
    elements[i / 8] |= bit << (i % 8);
  }
  return elements;
}

bool padding_is_zero(const Tensor& tensor, std::vector<std::byte> storage) {
  if (tensor.dtype != DType::f32) return true;
  const std::vector<std::byte> zeros(element_count(tensor.shape) * 4, std::byte{0});
  scatter_elements(tensor.shape, tensor.layout, 4, 0, element_count(tensor.shape), zeros.data(), storage.data());
  return std::all_of(storage.begin(), storage.end(), [](std::byte b) { return b == std::byte{0}; });
}

double tolerance_of_part(const std::string& op_type, std::string_view kernel) {
  const auto has = [&](std::string_view part) { return kernel.find(part) != std::string_view::npos; };
  const bool transforms = has("cudnn:") && has("wino");  // tiles of 6x6, whose transforms amplify rounding
  // Inputs have 10 bits behind the point. Attention's backward pass has log_sums of the reference here: where a query sees few
  // keys, gradients that should cancel out do so less than with those of a forward pass that rounds alike.
  if (has(":tf32")) return op_type == "AttentionBackward" ? 1e-1 : transforms ? 5e-2 : 5e-3;
  if (transforms) return 2e-4;
  if (has("wino") || has("fft")) return 5e-5;
  if (has("cudnn:") || has("cublaslt")) return 2e-5;    // libraries that sum in single precision
  return op_type == "AttentionBackward" ? 2e-5 : 5e-6;  // probabilities again, from scores rounded to single precision
}

// Of a configuration, the least exact part counts.
double tolerance_of(const std::string& op_type, std::string_view kernel) {
  double tolerance = 0;
  for (size_t end = 0; end != std::string_view::npos;) {
    end = kernel.find('+');
    tolerance = std::max(tolerance, tolerance_of_part(op_type, kernel.substr(0, end)));
    if (end != std::string_view::npos) kernel.remove_prefix(end + 1);
  }
  return tolerance;
}

// cuDNN or cuBLASLt refused to run what it had offered: that may be, and is not the kernel's fault.
struct Refused {};
void run_or_refuse(Kernel& kernel, const std::string& name) {
  try {
    kernel.run();
  } catch (const Error& error) {
    const bool of_library = name.find("cudnn:") != std::string::npos || name.find(":algo") != std::string::npos;
    if (error.code() == ErrorCode::unsupported && of_library) throw Refused{};
    throw;
  }
}

// "" when `got` is near `expected`; else where it is not. Distances count in units of the expected values' root mean
// square.
std::string compare(const Tensor& tensor, const std::vector<std::byte>& expected, const std::vector<std::byte>& got,
                    double tolerance) {
  if (tensor.dtype != DType::f32)
    return expected == got ? "" : fmt::format("'{}' is not what the reference gives", tensor.name);
  const auto* a = reinterpret_cast<const float*>(expected.data());
  const auto* b = reinterpret_cast<const float*>(got.data());
  const size_t count = expected.size() / sizeof(float);
  double squares = 0;
  for (size_t i = 0; i < count; ++i) squares += std::isfinite(a[i]) ? static_cast<double>(a[i]) * a[i] : 0;
  const double scale = std::sqrt(squares / static_cast<double>(count)) + 1e-6;
  size_t wrong = 0, worst = 0;
  double worst_error = -1;
  for (size_t i = 0; i < count; ++i) {
    const double error = std::abs(static_cast<double>(a[i]) - b[i]);
    const bool right = a[i] == b[i] || error <= tolerance * (scale + std::abs(static_cast<double>(a[i])));
    wrong += right ? 0 : 1;
    if (!right && !(error <= worst_error)) worst = i, worst_error = error;
  }
  if (wrong == 0) return "";
  return fmt::format("'{}' is wrong at {} of {} elements, element {} is {} instead of {}", tensor.name, wrong, count,
                     worst, b[worst], a[worst]);
}

// The tensors of one op in memory, and a kernel bound to them.
class Bench {
 public:
  Bench(const Device& device, const Subject& subject, const Graph& graph, const std::string& kernel, int threads,
        const InPlace* pair, const std::vector<int>& unused = {})
      : subject_(subject),
        graph_(graph),
        op_(graph.op(subject.op)),
        name_(kernel),
        kernel_(device.make_kernel(graph, op_, kernel, threads)),
        workspace_(device, kernel_->workspace().count),
        queues_(device.open_queues()) {
    std::vector<void*> in, out;
    for (TensorId id : op_.inputs) {
      inputs_.push_back(std::make_unique<Buffer>(device, graph.tensor(id).bytes().count));
      in.push_back(inputs_.back()->place());
    }
    for (size_t i = 0; i < op_.outputs.size(); ++i) {
      outputs_.push_back(std::make_unique<Buffer>(device, graph.tensor(op_.outputs[i]).bytes().count));
      out.push_back(outputs_.back()->place());
    }
    std::vector<InPlace> pairs;
    for (const InPlace& required : op_.type->in_place ? op_.type->in_place(graph, op_) : std::vector<InPlace>{}) {
      if (required.required) pairs.push_back(required);
    }
    if (pair != nullptr) pairs.push_back(*pair);
    for (const InPlace& each : pairs) {
      out[each.output] = in[each.input];
      lies_in_[each.output] = each.input;
    }
    for (int i : unused) {
      out[i] = nullptr;
      lies_in_.erase(i);
      left_out_.insert(i);
    }
    kernel_->bind(in, out, workspace_.size() > 0 ? workspace_.place() : nullptr);
  }

  Bytes workspace() const { return kernel_->workspace(); }

  // Runs once on fresh inputs and returns what the outputs hold.
  std::vector<std::vector<std::byte>> run(std::byte garbage, std::vector<std::string>& failures) {
    std::vector<std::vector<std::byte>> before, after;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const TensorId id = op_.inputs[i];
      before.push_back(to_storage(graph_.tensor(id), subject_.values[id.index]));
      std::copy(before[i].begin(), before[i].end(), inputs_[i]->data());
    }
    for (const auto& output : outputs_) output->fill(garbage);
    workspace_.fill(garbage);
    for (const Buffer* buffer : buffers()) buffer->upload();
    run_or_refuse(*kernel_, name_);
    if (queues_) queues_->synchronize();
    for (const Buffer* buffer : buffers()) buffer->download();
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const bool overwritten =
          std::any_of(lies_in_.begin(), lies_in_.end(), [&](auto pair) { return pair.second == static_cast<int>(i); });
      if (!overwritten && inputs_[i]->copy() != before[i]) failures.push_back(fmt::format("input {} was changed", i));
      if (!inputs_[i]->guards_hold()) failures.push_back(fmt::format("wrote beside input {}", i));
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const auto place = lies_in_.find(static_cast<int>(i));
      after.push_back(place != lies_in_.end() ? inputs_[place->second]->copy() : outputs_[i]->copy());
      if (!outputs_[i]->guards_hold()) failures.push_back(fmt::format("wrote beside output {}", i));
    }
    if (!workspace_.guards_hold()) failures.push_back("wrote beside its workspace");
    return after;
  }

  bool is_left_out(size_t output) const { return left_out_.count(static_cast<int>(output)) > 0; }

 private:
  std::vector<const Buffer*> buffers() const {
    std::vector<const Buffer*> all = {&workspace_};
    for (const auto& buffer : inputs_) all.push_back(buffer.get());
    for (const auto& buffer : outputs_) all.push_back(buffer.get());
    return all;
  }

  const Subject& subject_;
  const Graph& graph_;
  const Op& op_;
  const std::string name_;
  std::unique_ptr<Kernel> kernel_;
  Buffer workspace_;
  std::unique_ptr<Queues> queues_;
  std::vector<std::unique_ptr<Buffer>> inputs_, outputs_;
  std::map<int, int> lies_in_;  // output -> input
  std::set<int> left_out_;
};

bool same_bytes(const Graph& graph, const Op& op, const InPlace& pair) {
  const Tensor &in = graph.tensor(op.inputs.at(pair.input)), &out = graph.tensor(op.outputs.at(pair.output));
  return in.layout == out.layout && in.bytes() == out.bytes();
}

}  // namespace

Subject build_subject(const Case& one, uint64_t seed) {
  CaseBuilder builder(seed);
  one.build(builder);
  Subject subject{std::move(builder.graph), {}, {}};
  subject.op = {subject.graph.op_count() - 1};
  const Graph& graph = subject.graph;
  if (graph.op(subject.op).type->name != one.type)
    throw Error(ErrorCode::internal, "the case tests another op: " + one.type);
  for (const Tensor& tensor : graph.tensors()) subject.values.emplace_back(tensor.bytes().count);
  for (auto& [id, bytes] : builder.sources) subject.values[id.index] = bytes;
  auto views = [&](const std::vector<TensorId>& ids) {
    std::vector<TensorView> result;
    for (TensorId id : ids)
      result.push_back({graph.tensor(id).shape, graph.tensor(id).dtype, subject.values[id.index].data()});
    return result;
  };
  for (const Op& op : graph.ops()) op.type->reference(op, views(op.inputs), views(op.outputs));
  return subject;
}

Outcome judge(const Device& device, const Subject& subject, const KernelSpec& spec) {
  Outcome outcome;
  Graph graph = subject.graph;
  const Op& op = graph.op(subject.op);
  if (spec.inputs.size() != op.inputs.size() || spec.outputs.size() != op.outputs.size()) {
    outcome.failures.push_back("the spec has not one layout for each tensor");
    return outcome;
  }
  for (size_t i = 0; i < op.inputs.size(); ++i) graph.tensor(op.inputs[i]).layout = spec.inputs[i];
  for (size_t i = 0; i < op.outputs.size(); ++i) graph.tensor(op.outputs[i]).layout = spec.outputs[i];
  const double tolerance = tolerance_of(op.type->name, spec.name);

  auto check_values = [&](const std::vector<std::vector<std::byte>>& outputs, const Bench& bench,
                          const std::string& when) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (bench.is_left_out(i)) continue;
      const Tensor& tensor = graph.tensor(op.outputs[i]);
      const auto& expected = subject.values[op.outputs[i].index];
      const std::string wrong = compare(tensor, expected, from_storage(tensor, outputs[i]), tolerance);
      if (!wrong.empty()) outcome.failures.push_back(wrong + when);
      if (!padding_is_zero(tensor, outputs[i]))
        outcome.failures.push_back(fmt::format("padding of '{}' is not zero{}", tensor.name, when));
    }
  };
  try {
    Bench bench(device, subject, graph, spec.name, 0, nullptr);
    if (bench.workspace() > spec.workspace) {
      outcome.failures.push_back(fmt::format("the kernel needs {} of workspace but its spec said {}",
                                             to_string(bench.workspace()), to_string(spec.workspace)));
    }
    const auto first = bench.run(kGarbage, outcome.failures);
    check_values(first, bench, "");
    if (!outcome.failures.empty()) return outcome;
    if (spec.exact && bench.run(std::byte{0x3C}, outcome.failures) != first) {
      // Padding of bytes and bits may hold anything.
      const auto again = bench.run(std::byte{0x3C}, outcome.failures);
      for (size_t i = 0; i < first.size(); ++i) {
        const Tensor& tensor = graph.tensor(op.outputs[i]);
        if (from_storage(tensor, again[i]) != from_storage(tensor, first[i]))
          outcome.failures.push_back(fmt::format("two runs give different bits in '{}'", tensor.name));
      }
    }
    for (const InPlace& pair : op.type->in_place ? op.type->in_place(graph, op) : std::vector<InPlace>{}) {
      if (pair.required || !same_bytes(graph, op, pair)) continue;
      Bench place(device, subject, graph, spec.name, 0, &pair);
      const auto result = place.run(kGarbage, outcome.failures);
      ++outcome.runs;
      for (size_t i = 0; i < first.size(); ++i) {
        const Tensor& tensor = graph.tensor(op.outputs[i]);
        if (!spec.exact || from_storage(tensor, result[i]) == from_storage(tensor, first[i])) continue;
        outcome.failures.push_back(
            fmt::format("output {} in input {}: another result in '{}'", pair.output, pair.input, tensor.name));
      }
    }
    if (!op.type->state_outputs.empty() && op.outputs.size() > 1) {
      std::vector<int> unused;
      for (int i : op.type->state_outputs) {
        if (i < std::ssize(op.outputs)) unused.push_back(i);
      }
      Bench recompute(device, subject, graph, spec.name, 0, nullptr, unused);
      check_values(recompute.run(kGarbage, outcome.failures), recompute, " without its state outputs");
      ++outcome.runs;
    }
    try {
      Bench alone(device, subject, graph, spec.name, 1, nullptr);
      check_values(alone.run(kGarbage, outcome.failures), alone, " in one thread");
      ++outcome.runs;
    } catch (const Error& error) {  // which layouts a kernel takes may depend on the threads
      if (error.code() != ErrorCode::unsupported) throw;
    }
    outcome.runs += 2;
  } catch (const Refused&) {
    outcome.refused = true;
  } catch (const Error& error) {
    outcome.failures.push_back(error.what());
  }
  return outcome;
}

std::vector<KernelSpec> with_real_layouts(const Subject& subject, const KernelSpec& spec, LayoutFamily family) {
  const Op& op = subject.graph.op(subject.op);
  const bool update = op.type->changes_state;
  const Shape shape =
      op.inputs.empty() ? subject.graph.tensor(op.outputs[0]).shape : subject.graph.tensor(op.inputs[0]).shape;
  std::vector<Layout> choices = {{}};
  if (shape.size() == 4) {
    choices = {Layout{family == LayoutFamily::channels_last ? "acdb"
                      : family == LayoutFamily::blocked     ? "aBcd16b"
                                                            : ""}};
    if (update && family == LayoutFamily::blocked) choices.push_back({"ABcd16b16a"});
  }
  std::vector<KernelSpec> result;
  for (const Layout& choice : choices) {
    KernelSpec real = spec;
    bool used = false;
    auto replace = [&](Layout& layout, size_t position) {
      if (!layout_is_open(subject.graph, op, spec, position)) return;
      layout = choice;
      used = true;
    };
    for (size_t i = 0; i < op.inputs.size(); ++i) replace(real.inputs.at(i), i);
    for (size_t i = 0; i < op.outputs.size(); ++i) replace(real.outputs.at(i), op.inputs.size() + i);
    result.push_back(std::move(real));
    if (!used) break;
  }
  return result;
}

}  // namespace plimsoll::conformance
