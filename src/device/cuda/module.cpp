#include "device/cuda/module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "base/files.h"
#include "plimsoll/error.h"

namespace plimsoll::cuda {
namespace {

constexpr const char* kFile = "libplimsoll_cuda.so";

struct Module {
  ModuleOpen open = nullptr;
  Availability availability;
};

Module load() {
  Module module;
  std::error_code error;
  const char* const given = std::getenv("PLIMSOLL_CUDA_MODULE");
  const std::filesystem::path found = given != nullptr ? std::filesystem::path(given) : find_module(kFile);
  if (given != nullptr && !std::filesystem::exists(found, error)) {
    module.availability.reason = fmt::format("there is no file '{}' ($PLIMSOLL_CUDA_MODULE)", given);
    return module;
  }
  if (found.empty()) {
    module.availability.reason = fmt::format(
        "{} is not beside the program or the Python package's module, nor in ../lib: build where the CUDA toolkit is, "
        "with -DPLIMSOLL_CUDA=ON, and keep that file with them",
        kFile);
    return module;
  }
  void* const handle = dlopen(found.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays loaded: its threads may outlive a device
  if (handle == nullptr) {
    module.availability.reason = fmt::format("the CUDA module does not load: {}", dlerror());
    return module;
  }
  const auto version = reinterpret_cast<ModuleVersion>(dlsym(handle, "plimsoll_cuda_door_version"));
  const auto devices = reinterpret_cast<ModuleDevices>(dlsym(handle, "plimsoll_cuda_devices"));
  const auto open = reinterpret_cast<ModuleOpen>(dlsym(handle, "plimsoll_cuda_open"));
  if (version == nullptr || devices == nullptr || open == nullptr || version() != kDoorVersion) {
    module.availability.reason =
        fmt::format("{} belongs to another version of Plimsoll; build it again", found.string());
    return module;
  }
  std::array<char, 256> reason{};
  module.availability.devices = devices(reason.data(), reason.size());
  module.availability.reason = reason.data();
  module.open = open;
  return module;
}

const Module& module() {
  static const Module loaded = load();
  return loaded;
}

}  // namespace

const Availability& availability() { return module().availability; }

std::unique_ptr<Door> open_there(int device) { return std::unique_ptr<Door>(module().open(device)); }

std::unique_ptr<Door> open_door(int device) {
  const Availability& there = availability();
  if (there.devices == 0)
    throw Error(ErrorCode::unsupported, fmt::format("device 'cuda:{}' is not there: {}", device, there.reason));
  if (device >= there.devices) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("device 'cuda:{}' is not there: there {} only cuda:0{}", device, there.devices == 1 ? "is" : "are",
                    there.devices == 1 ? "" : fmt::format(" to cuda:{}", there.devices - 1)));
  }
  try {
    return open_there(device);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    throw Error(error.code(), fmt::format("device 'cuda:{}' is not there: {}", device, error.what()));
  }
}

}  // namespace plimsoll::cuda
