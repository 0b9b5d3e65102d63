// The embedded device: a region of the machine's memory, oneDNN's kernels and our own.
#include "device/cpu/device.h"

#include <fmt/format.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>

#include "device/cpu/dnnl.h"
#include "device/cpu/kernels.h"
#include "device/cpu/machine.h"
#include "device/tier/fault.h"
#include "plimsoll/ops.h"

namespace plimsoll::cpu {
namespace {

constexpr std::string_view kOwn = "own";
constexpr std::vector<NamedFactory> (*kFactories[])() = {
    own_kernels,         dnnl_convolution_kernels, dnnl_fully_connected_kernels,
    dnnl_matmul_kernels, dnnl_pool_kernels,        reorder_kernels};

// Ours before oneDNN's.
std::span<const KernelFactory> find_factories(std::string_view op_type) {
  static const std::map<std::string_view, std::vector<KernelFactory>> factories = [] {
    std::map<std::string_view, std::vector<KernelFactory>> result;
    for (auto list : kFactories) {
      for (const auto& [type, factory] : list()) result[type].push_back(factory);
    }
    return result;
  }();
  const auto it = factories.find(op_type);
  if (it == factories.end()) return {};
  return it->second;
}
// Of those, the one that has a kernel of this name.
const KernelFactory& factory_of(std::span<const KernelFactory> factories, std::string_view kernel) {
  const auto named = std::ranges::find(factories, kernel, &KernelFactory::name);
  if (named != factories.end()) return *named;
  return kernel == kOwn ? factories.front() : factories.back();
}

// The workspace of one of our own kernels, which only the kernel itself knows: the most over the layouts that may stand
// for "any".
Bytes own_workspace(const Graph& graph, const Op& op, const KernelSpec& spec, const KernelFactory& factory,
                    int threads) {
  Graph alone;
  std::vector<TensorId> inputs;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Tensor& tensor = graph.tensor(op.inputs[i]);
    inputs.push_back(alone.add_source(fmt::format("{}", i), tensor.shape, tensor.dtype, Role::input));
  }
  const OpId id = alone.add_op(op.type->name, op.name, op.layer, inputs, op.attributes);
  Bytes most;
  for (LayoutFamily family : {LayoutFamily::plain, LayoutFamily::channels_last, LayoutFamily::blocked}) {
    auto set = [&](TensorId tensor, const Layout& layout) {
      alone.tensor(tensor).layout =
          layout == kAnyLayout ? family_layout(family, alone.tensor(tensor).shape.size()) : layout;
    };
    for (size_t i = 0; i < inputs.size(); ++i) set(inputs[i], spec.inputs[i]);
    for (size_t i = 0; i < op.outputs.size(); ++i) set(alone.output(id, i), spec.outputs[i]);
    most = std::max(most, factory.make(alone, alone.op(id), spec.name, threads)->workspace());
  }
  return most;
}

// An arena in huge pages, each touched once so that no step pays for a page fault.
class MappedArena final : public Arena {
 public:
  MappedArena(Bytes bytes, int threads) : bytes_(bytes) {
    constexpr size_t kHugePage = size_t{2} << 20, kPage = 4096;
    const MachineMemory memory = machine_memory();
    if (bytes > memory.available) {
      throw Error(ErrorCode::device_failure,
                  fmt::format("the arena needs {} but {} {}{}; lower --memory or {}", to_string(bytes),
                              memory.limited_by_process ? "the process's limits (ulimit -v, ulimit -d) leave"
                                                        : "the machine has",
                              to_string(memory.available), memory.limited_by_process ? "" : " left",
                              memory.limited_by_process ? "raise them" : "end other processes"));
    }
    mapped_bytes_ = align_up(bytes, kHugePage).count + kHugePage;
    int error = injected(TierOperation::arena);
    if (error == 0) {
      mapped_ =
          mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (mapped_ == MAP_FAILED) error = errno;
    }
    if (error != 0) {
      throw Error(
          ErrorCode::device_failure,
          fmt::format("the system gives no arena of {}: {}; lower --memory, or raise the process's limit (ulimit -v)",
                      to_string(bytes), std::strerror(error)));
    }
    const auto address = reinterpret_cast<uintptr_t>(mapped_);
    base_ = reinterpret_cast<std::byte*>((address + kHugePage - 1) / kHugePage * kHugePage);
    madvise(base_, align_up(bytes, kPage).count,
            MADV_HUGEPAGE);  // advice: failure costs only time
    const int64_t pages = (bytes.count + static_cast<int64_t>(kPage) - 1) / static_cast<int64_t>(kPage);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t page = 0; page < pages; ++page) base_[page * static_cast<int64_t>(kPage)] = std::byte{0};
  }
  ~MappedArena() override { munmap(mapped_, mapped_bytes_); }
  MappedArena(const MappedArena&) = delete;
  MappedArena& operator=(const MappedArena&) = delete;

  std::byte* base() override { return base_; }
  Bytes bytes() const override { return bytes_; }

 private:
  Bytes bytes_;
  void* mapped_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::byte* base_ = nullptr;
};

class NoKernel final : public Kernel {  // of a view, whose output is its input
 public:
  Bytes workspace() const override { return {}; }
  void bind(std::span<void* const>, std::span<void* const>, void*) override {}
  void run() override {}
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) {
    info_.name = "cpu";
    info_.threads = threads > 0 ? threads : usable_processors();
    require_threads(info_.threads);
    info_.cores = machine_topology().shape;
    info_.key = fmt::format("oneDNN {} {} {} threads, {}", dnnl_version_text(), dnnl_instruction_set(), info_.threads,
                            processor_name());
    info_.description = fmt::format("{}, {} thread{}, {}, oneDNN {}", processor_name(), info_.threads,
                                    info_.threads == 1 ? "" : "s", dnnl_instruction_set(), dnnl_version_text());
    const MachineMemory memory = machine_memory();
    info_.memory_total = memory.total;
    info_.memory_available = memory.available;
  }

  const DeviceInfo& info() const override { return info_; }

  std::vector<KernelSpec> kernels(const Graph& graph, const Op& op, LayoutFamily family) const override {
    if (op.type->is_view) return {make_spec(op, "", {})};
    const std::span<const KernelFactory> factories = find_factories(op.type->name);
    if (factories.empty()) return reference(op).kernels(graph, op, LayoutFamily::plain);
    std::vector<KernelSpec> specs;
    for (const KernelFactory& factory : factories) {
      for (KernelSpec& spec : factory.specs(graph, op, family, info_.threads)) {
        if (spec.name.starts_with(kOwn)) spec.workspace = own_workspace(graph, op, spec, factory, info_.threads);
        specs.push_back(std::move(spec));
      }
    }
    return specs;
  }

  std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view kernel,
                                      int threads) const override {
    if (op.type->is_view) return std::make_unique<NoKernel>();
    const std::span<const KernelFactory> factories = find_factories(op.type->name);
    if (factories.empty()) return reference(op).make_kernel(graph, op, kernel);
    return factory_of(factories, kernel).make(graph, op, kernel, threads > 0 ? threads : info_.threads);
  }

  std::unique_ptr<Arena> take_arena(Bytes bytes) const override {
    return std::make_unique<MappedArena>(bytes, info_.threads);
  }
  void write(std::byte* to, std::span<const std::byte> from) const override {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  }
  void read(std::span<std::byte> to, const std::byte* from) const override {
    if (!to.empty()) std::memcpy(to.data(), from, to.size());
  }

 private:
  // An op type that nobody wrote a CPU kernel for, such as a user's own, runs its reference kernel.
  const Device& reference(const Op& op) const {
    if (op.type->reference) return *reference_;
    throw Error(ErrorCode::unsupported,
                fmt::format("op '{}': the CPU has no kernel for ops of type {}", op.name, op.type->name));
  }

  DeviceInfo info_;
  std::unique_ptr<Device> reference_ = open_reference_device();
};

}  // namespace

Layout family_layout(LayoutFamily family, size_t rank) {
  if (rank != 4) return {};
  switch (family) {
    case LayoutFamily::channels_last: return {"acdb"};
    case LayoutFamily::blocked: return {"aBcd16b"};
    case LayoutFamily::plain: break;
  }
  return {};
}

std::unique_ptr<Device> open_cpu(int threads) { return std::make_unique<CpuDevice>(threads); }

}  // namespace plimsoll::cpu
