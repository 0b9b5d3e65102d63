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

namespace plimsoll {
namespace {
constexpr std::string_view kCpu = "cpu";
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
