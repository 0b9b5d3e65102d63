// The device that judges the others: every op runs by its type's reference kernel, on row-major tensors, in one thread.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "plimsoll/device.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

constexpr int64_t kArenaAlignment = 4096;

void expect_plain(const Graph& graph, const Op& op, std::span<const TensorId> tensors) {
  for (TensorId id : tensors) {
    const Tensor& tensor = graph.tensor(id);
    if (tensor.layout.is_plain()) continue;
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}': the reference kernel takes row-major tensors, but '{}' lies as '{}'", op.name,
                            tensor.name, tensor.layout.tag));
  }
}

class ReferenceKernel : public Kernel {
 public:
  ReferenceKernel(const Graph& graph, const Op& op) : op_(op), scratch_(op.outputs.size()) {
    for (TensorId id : op.inputs) inputs_.push_back({graph.tensor(id).shape, graph.tensor(id).dtype});
    for (TensorId id : op.outputs) outputs_.push_back({graph.tensor(id).shape, graph.tensor(id).dtype});
    for (int i : op.type->state_outputs) {
      const size_t at = i;
      if (at >= scratch_.size()) continue;
      scratch_[at].resize(graph.tensor(op.outputs[at]).bytes().count);
      if (!op.type->in_place) continue;
      for (const InPlace& pair : op.type->in_place(graph, op)) {
        if (pair.required && pair.output == i) stands_for_.emplace_back(pair.input, at);
      }
    }
  }

  Bytes workspace() const override { return {}; }

  void bind(std::span<void* const> inputs, std::span<void* const> outputs, void*) override {
    for (size_t i = 0; i < inputs_.size(); ++i) inputs_[i].data = inputs[i];
    for (const auto& [input, output] : stands_for_) {
      if (inputs[input] == nullptr) inputs_[input].data = scratch_[output].data();
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      outputs_[i].data = outputs[i];
      if (outputs[i] != nullptr) continue;
      if (scratch_[i].empty()) {
        throw Error(ErrorCode::internal, fmt::format("op '{}': output {} has no place, and is no state", op_.name, i));
      }
      outputs_[i].data = scratch_[i].data();
    }
  }

  void run() override { op_.type->reference(op_, inputs_, outputs_); }

 private:
  Op op_;
  std::vector<TensorView> inputs_, outputs_;
  std::vector<std::vector<std::byte>> scratch_;        // where a recomputation's state outputs go, to be forgotten
  std::vector<std::pair<size_t, size_t>> stands_for_;  // an old state that a recomputation lacks, and the output for it
};

class HostArena : public Arena {
 public:
  HostArena(Bytes bytes, Bytes most) : bytes_(bytes) {
    if (bytes > most) {
      throw Error(ErrorCode::device_failure,
                  fmt::format("an arena of {} is more than the machine's {}", to_string(bytes), to_string(most)));
    }
    const Bytes whole = align_up({std::max<int64_t>(bytes.count, 1)}, kArenaAlignment);
    base_ = static_cast<std::byte*>(std::aligned_alloc(kArenaAlignment, whole.count));
    if (base_ == nullptr) {
      throw Error(ErrorCode::device_failure, fmt::format("the system refuses an arena of {}", to_string(bytes)));
    }
    std::memset(base_, 0, whole.count);
  }
  ~HostArena() override { std::free(base_); }
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  std::byte* base() override { return base_; }
  Bytes bytes() const override { return bytes_; }

 private:
  Bytes bytes_;
  std::byte* base_ = nullptr;
};

class ReferenceDevice : public Device {
 public:
  ReferenceDevice() {
    const int64_t page = sysconf(_SC_PAGESIZE);
    info_ = {.name = "reference",
             .description = "plain kernels on row-major tensors, 1 thread: slow, the judge in tests",
             .key = "reference",
             .threads = 1,
             .memory_total = {sysconf(_SC_PHYS_PAGES) * page},
             .memory_available = {sysconf(_SC_AVPHYS_PAGES) * page},
             .simulated = false};
  }

  const DeviceInfo& info() const override { return info_; }

  std::vector<KernelSpec> kernels(const Graph&, const Op& op, LayoutFamily) const override {
    expect_reference(op);
    KernelSpec spec{.name = "reference",
                    .inputs = {},
                    .outputs = {},
                    .workspace = {},
                    .estimate = {.efficiency = 0.004, .bandwidth = 0.02}};
    spec.inputs.resize(op.inputs.size());
    spec.outputs.resize(op.outputs.size());
    return {spec};
  }

  std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view kernel, int) const override {
    expect_reference(op);
    if (kernel != "reference") {
      throw Error(ErrorCode::unsupported,
                  fmt::format("op '{}': the reference device has no kernel '{}', only 'reference'", op.name, kernel));
    }
    expect_plain(graph, op, op.inputs);
    expect_plain(graph, op, op.outputs);
    return std::make_unique<ReferenceKernel>(graph, op);
  }

  std::unique_ptr<Arena> take_arena(Bytes bytes) const override {
    return std::make_unique<HostArena>(bytes, info_.memory_total);
  }

  void write(std::byte* to, std::span<const std::byte> from) const override {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  }
  void read(std::span<std::byte> to, const std::byte* from) const override {
    if (!to.empty()) std::memcpy(to.data(), from, to.size());
  }

 private:
  static void expect_reference(const Op& op) {
    if (op.type->reference) return;
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}': its type {} has no reference kernel", op.name, op.type->name));
  }

  DeviceInfo info_;
};

}  // namespace

std::unique_ptr<Device> open_reference_device() { return std::make_unique<ReferenceDevice>(); }

}  // namespace plimsoll
