// Devices whose kernels compute nothing. Where they do nothing at all, what is left is what it takes to start them.
#pragma once

#include <memory>

#include "plimsoll/device.h"

namespace plimsoll {

// The reference device but for its kernels, on a machine that has enough cores for any plan of the tests.
class PretendDevice : public Device {
 public:
  const DeviceInfo& info() const override { return info_; }
  std::vector<KernelSpec> kernels(const Graph& g, const Op& op, LayoutFamily family) const override {
    return reference_->kernels(g, op, family);
  }
  std::unique_ptr<Arena> take_arena(Bytes bytes) const override { return reference_->take_arena(bytes); }
  void write(std::byte* to, std::span<const std::byte> from) const override { reference_->write(to, from); }
  void read(std::span<std::byte> to, const std::byte* from) const override { reference_->read(to, from); }

 private:
  static DeviceInfo with_cores(DeviceInfo info) {
    info.cores = {.cores = 64, .cores_a_cache = 64, .hardware_threads = 2};
    return info;
  }
  std::unique_ptr<Device> reference_ = open_reference_device();
  DeviceInfo info_ = with_cores(reference_->info());
};

class IdleDevice final : public PretendDevice {
 public:
  std::unique_ptr<Kernel> make_kernel(const Graph&, const Op&, std::string_view, int) const override {
    return std::make_unique<Idle>();
  }

 private:
  class Idle final : public Kernel {
   public:
    Bytes workspace() const override { return {}; }
    void bind(std::span<void* const>, std::span<void* const>, void*) override {}
    void run() override {}
  };
};

}  // namespace plimsoll
