// Devices by name.
#include <fmt/format.h>

#include <algorithm>

#include "base/names.h"
#include "device/cpu/device.h"
#include "device/cuda/device.h"
#include "device/simulated/simulated.h"
#include "device/tier/tier.h"
#include "plimsoll/device.h"
#include "plimsoll/error.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {
constexpr std::string_view kCpu = "cpu";
}

namespace {

// What all ranks exchange: all that an op has before or after; or the statistics of each, of which all get all; or those of
// the first, which it gives to every other.
Bytes whole_of(const Graph& graph, const Op& op, int ranks) {
  Bytes most;
  if (op.outputs.size() > 1) {
    for (TensorId id : op.outputs) most += graph.tensor(id).bytes();
    return most * ranks;
  }
  for (TensorId id : op.inputs) most = std::max(most, graph.tensor(id).bytes());
  for (TensorId id : op.outputs) most = std::max(most, graph.tensor(id).bytes());
  return op.type->name == "Broadcast" ? most * ranks : most;
}

int passes_of(const Op& op) { return op.type->name == "AllReduce" ? 2 : 1; }

}  // namespace

double collective_ms(const LinkInfo& link, const Graph& graph, std::span<const OpId> ops) {
  if (link.ranks < 2 || ops.empty()) return 0;
  Bytes bytes;
  for (OpId id : ops) bytes += whole_of(graph, graph.op(id), link.ranks);
  const Bytes most = message_bytes(link.ranks);
  const int64_t messages = std::max<int64_t>(1, (bytes.count + most.count - 1) / most.count);
  const double sent = static_cast<double>(bytes.count) * (link.ranks - 1) / link.ranks;
  return passes_of(graph.op(ops[0])) * (static_cast<double>(messages) * link.latency_us / 1000 +
                                        (link.gb_per_s > 0 ? sent / (link.gb_per_s * 1e6) : 0));
}

Bytes collective_traffic(const LinkInfo& link, const Graph& graph, std::span<const OpId> ops) {
  Bytes sent;
  for (OpId id : ops) sent += whole_of(graph, graph.op(id), link.ranks) * passes_of(graph.op(id));
  return link.ranks < 2 ? Bytes{} : Bytes{sent.count / link.ranks * (link.ranks - 1)};
}

std::shared_ptr<Wire> Device::open_wire(const std::shared_ptr<Communicator>&) const { return nullptr; }

std::unique_ptr<Kernel> Device::make_collective(const Graph& graph, std::span<const OpId> ops, std::string_view) const {
  throw Error(ErrorCode::unsupported, fmt::format("op '{}' is run by several ranks together, but device '{}' is alone",
                                                  graph.op(ops[0]).name, info().name));
}

std::shared_ptr<Tier> Device::open_peer(std::string_view name, std::optional<Bytes>) const {
  throw Error(ErrorCode::invalid_input,
              fmt::format("device '{}' has no peers, so --peer {} gives it nothing", info().name, name));
}

std::unique_ptr<Device> open_device(std::string_view name, int threads) {
  if (threads < 0 || threads > 4096) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("{} threads; give a number from 1 to 4096, or 0 for all", threads));
  }
  if (name == kCpu) return cpu::open_cpu(threads);
  if (auto device = cuda::open(name)) return device;
  if (auto device = simulated::open(name)) return device;
  std::vector<std::string> known;
  for (const DeviceListing& device : list_devices()) known.push_back(device.name);
  throw Error(ErrorCode::invalid_input, unknown_name("device", name, known));
}

bool shares_cores(std::string_view device) { return device == kCpu; }

bool is_simulated(std::string_view device) {
  const std::vector<DeviceListing> known = simulated::list();
  return std::any_of(known.begin(), known.end(), [&](const DeviceListing& one) { return one.name == device; });
}

std::vector<DeviceListing> list_devices() {
  std::vector<DeviceListing> devices{
      {.name = std::string(kCpu), .available = true, .description = cpu::open_cpu(0)->info().description}};
  for (DeviceListing& device : cuda::list()) devices.push_back(std::move(device));
  for (DeviceListing& device : simulated::list()) devices.push_back(std::move(device));
  return devices;
}

}  // namespace plimsoll
