#include "device/simulated/simulated.h"

#include <fmt/format.h>

#include "device/simulated/analytic.h"
#include "plimsoll/ops.h"

namespace plimsoll::simulated {
namespace {

struct Machine {
  std::string_view name;
  std::string_view description;
  int threads;
  double gflops;  // single precision, at the base clock for the older ones as the papers have it
  double memory_gb_per_s;
  Bytes memory;
  Bytes usable;  // what a driver and a library's context leave
  double launch_us;
  double bus_gb_per_s;  // practical, each way
  CoreShape cores = {};
};

// SuperNeurons: 8 GB/s practical over PCIe 3.0 x16, and 11.2 GiB of a 12 GB card.
constexpr Bytes k12GB{12'025'908'428};  // 11.2 GiB
constexpr Machine kMachines[] = {
    {"k40c", "NVIDIA K40c, 12 GB", 1, 4290, 288, 12_GiB, k12GB, 5, 8},
    {"titan-x", "NVIDIA GTX TITAN X (Maxwell), 12 GB", 1, 6144, 336.5, 12_GiB, k12GB, 5, 8},
    {"titan-xp", "NVIDIA TITAN Xp, 12 GB", 1, 10790, 547.7, 12_GiB, k12GB, 5, 8},
    {"p100", "NVIDIA P100-SXM2, 16 GB", 1, 10609, 732, 16_GiB, 15_GiB, 5, 8},
    {"v100", "NVIDIA V100-SXM2, 16 GB", 1, 15670, 900, 16_GiB, 15_GiB, 4, 8},
    {"h100", "NVIDIA H100-SXM5, 80 GB", 1, 66900, 3350, 80_GiB, 78_GiB, 3, 50},
    {"knl",
     "Intel Xeon Phi 7250: 68 cores of 4 hardware threads, 16 GB of MCDRAM before the host's memory",
     272,
     5222,
     400,
     16_GiB,
     15_GiB,
     10,
     80,
     {.cores = 68, .cores_a_cache = 2, .hardware_threads = 4}},
};
// What the hosts of SuperNeurons' tables give to offloading.
constexpr Bytes kHostMemory = 107_GiB;

const Machine* find(std::string_view name) {
  for (const Machine& machine : kMachines) {
    if (machine.name == name) return &machine;
  }
  return nullptr;
}

class SimulatedDevice : public Device {
 public:
  explicit SimulatedDevice(const Machine& m) {
    info_ = {.name = std::string(m.name),
             .description = fmt::format("simulated: {}; {:.0f} GFLOP/s, {:.1f} GB/s, {} usable", m.description,
                                        m.gflops, m.memory_gb_per_s, to_string(m.usable)),
             .key = fmt::format("simulated {} {} {} {}", m.name, m.gflops, m.memory_gb_per_s, m.launch_us),
             .threads = m.threads,
             .cores = m.cores,
             .memory_total = m.memory,
             .memory_available = m.usable,
             .simulated = true,
             .own_memory = true,
             .tiers = {{.name = "host",
                        .capacity = kHostMemory,
                        .out_gb_per_s = m.bus_gb_per_s,
                        .in_gb_per_s = m.bus_gb_per_s,
                        .latency_us = 10}}};
  }

  const DeviceInfo& info() const override { return info_; }

  std::vector<KernelSpec> kernels(const Graph& graph, const Op& op, LayoutFamily) const override {
    std::vector<KernelSpec> specs;
    for (AnalyticKernel& kernel : analytic_kernels(graph, op)) {
      KernelSpec spec{
          .name = std::move(kernel.name),
          .inputs = {},
          .outputs = {},
          .workspace = kernel.workspace,
          .algorithm = kernel.algorithm,
          .estimate = {.efficiency = kernel.efficiency, .flops = kernel.flops, .extra_bytes = kernel.extra_bytes}};
      spec.inputs.resize(op.inputs.size());
      spec.outputs.resize(op.outputs.size());
      specs.push_back(std::move(spec));
    }
    return specs;
  }

  std::unique_ptr<Kernel> make_kernel(const Graph&, const Op&, std::string_view, int) const override { refuse(); }
  std::unique_ptr<Arena> take_arena(Bytes) const override { refuse(); }
  bool host_addressable() const override { return false; }
  void write(std::byte*, std::span<const std::byte>) const override { refuse(); }
  void read(std::span<std::byte>, const std::byte*) const override { refuse(); }

 private:
  [[noreturn]] void refuse() const {
    throw Error(ErrorCode::unsupported, fmt::format("device '{}' is simulated: it plans, it does not run", info_.name));
  }

  DeviceInfo info_;
};

}  // namespace

std::unique_ptr<Device> open(std::string_view name) {
  const Machine* machine = find(name);
  return machine == nullptr ? nullptr : std::make_unique<SimulatedDevice>(*machine);
}

std::vector<DeviceListing> list() {
  std::vector<DeviceListing> result;
  for (const Machine& machine : kMachines) {
    result.push_back({.name = std::string(machine.name),
                      .available = true,
                      .description = open(machine.name)->info().description,
                      .simulated = true});
  }
  return result;
}

MachineRates rates(std::string_view name) {
  const Machine* machine = find(name);
  if (machine == nullptr) machine = find("k40c");
  return {.gflops = machine->gflops, .memory_gb_per_s = machine->memory_gb_per_s, .launch_us = machine->launch_us};
}

}  // namespace plimsoll::simulated
