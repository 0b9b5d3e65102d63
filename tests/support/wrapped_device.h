// Devices like another one, but for something: on a machine with more cores or fewer, or with a kernel that is wrong.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plimsoll/device.h"

namespace plimsoll {

class WrappedDevice : public Device {
 public:
  explicit WrappedDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)), info_(inner_->info()) {}
  WrappedDevice(std::unique_ptr<Device> inner, CoreShape cores) : WrappedDevice(std::move(inner)) {
    info_.cores = cores;
  }

  const DeviceInfo& info() const override { return info_; }
  std::vector<KernelSpec> kernels(const Graph& graph, const Op& op, LayoutFamily family) const override {
    return inner_->kernels(graph, op, family);
  }
  std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view kernel,
                                      int threads) const override {
    return inner_->make_kernel(graph, op, kernel, threads);
  }
  std::unique_ptr<Arena> take_arena(Bytes bytes) const override { return inner_->take_arena(bytes); }
  void write(std::byte* to, std::span<const std::byte> from) const override { inner_->write(to, from); }
  void read(std::span<std::byte> to, const std::byte* from) const override { inner_->read(to, from); }

 private:
  std::unique_ptr<Device> inner_;
  DeviceInfo info_;
};

// Enough cores for any plan of the tests.
inline std::unique_ptr<Device> with_many_cores(std::unique_ptr<Device> device) {
  return std::make_unique<WrappedDevice>(std::move(device),
                                         CoreShape{.cores = 64, .cores_a_cache = 64, .hardware_threads = 2});
}

// Does something wrong before or after the kernel of one op runs, with the pointers that the kernel was given.
class WrongDevice final : public WrappedDevice {
 public:
  struct Given {
    std::vector<void*> inputs, outputs;
    void* workspace = nullptr;
  };
  using Action = std::function<void(const Given&)>;
  WrongDevice(std::string op, Action before, Action after)
      : WrappedDevice(open_reference_device(), {.cores = 64, .cores_a_cache = 64, .hardware_threads = 2}),
        op_(std::move(op)),
        before_(std::move(before)),
        after_(std::move(after)) {}
  std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view kernel,
                                      int threads) const override {
    auto right = WrappedDevice::make_kernel(graph, op, kernel, threads);
    if (op.name != op_) return right;
    return std::make_unique<Wrong>(std::move(right), before_, after_);
  }

 private:
  class Wrong final : public Kernel {
   public:
    Wrong(std::unique_ptr<Kernel> right, Action before, Action after)
        : right_(std::move(right)), before_(std::move(before)), after_(std::move(after)) {}
    Bytes workspace() const override { return right_->workspace(); }
    void bind(std::span<void* const> inputs, std::span<void* const> outputs, void* workspace) override {
      given_ = {{inputs.begin(), inputs.end()}, {outputs.begin(), outputs.end()}, workspace};
      right_->bind(inputs, outputs, workspace);
    }
    void run() override {
      if (before_) before_(given_);
      right_->run();
      if (after_) after_(given_);
    }

   private:
    std::unique_ptr<Kernel> right_;
    Action before_, after_;
    Given given_;
  };
  std::string op_;
  Action before_, after_;
};

}  // namespace plimsoll
