// A device whose kernels do nothing: what is left is what it takes to start them.
#pragma once

#include <memory>

#include "plimsoll/device.h"

namespace plimsoll {

class IdleDevice final : public Device {
 public:
  const DeviceInfo& info() const override { return reference_->info(); }
  std::vector<KernelSpec> kernels(const Graph& g, const Op& op, LayoutFamily family) const override { return reference_->kernels(g, op, family); }
  std::unique_ptr<Kernel> make_kernel(const Graph&, const Op&, std::string_view, int) const override { return std::make_unique<Idle>(); }
  std::unique_ptr<Arena> take_arena(Bytes bytes) const override { return reference_->take_arena(bytes); }
  void write(std::byte* to, std::span<const std::byte> from) const override { reference_->write(to, from); }
  void read(std::span<std::byte> to, const std::byte* from) const override { reference_->read(to, from); }

 private:
  class Idle final : public Kernel {
   public:
    Bytes workspace() const override { return {}; }
    void bind(std::span<void* const>, std::span<void* const>, void*) override {}
    void run() override {}
  };
  std::unique_ptr<Device> reference_ = open_reference_device();
};

}  // namespace plimsoll
