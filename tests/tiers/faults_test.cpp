// Every call to the device and to the tiers behind it is made to fail, one after the other, in runs of random plans
// with homes, recomputations and copies to both tiers: each failure is told, ends the run for good, and leaves no file.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "device/tier/fault.h"
#include "plimsoll/execute.h"
#include "tests/support/error_text.h"
#include "tests/support/mixing_device.h"
#include "tests/support/random_plan.h"
#include "tests/support/temporary_folder.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A device whose nth call fails, of whatever kind.
class FailingDevice final : public Device {
 public:
  FailingDevice(const Device& whole, int nth, bool host_addressable)
      : whole_(whole), left_(nth), host_addressable_(host_addressable) {}
  bool struck() const { return left_ <= 0; }

  const DeviceInfo& info() const override { return whole_.info(); }
  std::vector<KernelSpec> kernels(const Graph& graph, const Op& op, LayoutFamily family) const override {
    return whole_.kernels(graph, op, family);
  }
  std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view kernel,
                                      int threads) const override {
    call("making a kernel");
    return std::make_unique<Failing>(*this, whole_.make_kernel(graph, op, kernel, threads));
  }
  std::unique_ptr<Arena> take_arena(Bytes bytes) const override {
    call("taking the arena");
    return whole_.take_arena(bytes);
  }
  bool host_addressable() const override { return host_addressable_; }
  void write(std::byte* to, std::span<const std::byte> from) const override {
    call("writing");
    whole_.write(to, from);
  }
  void read(std::span<std::byte> to, const std::byte* from) const override {
    call("reading");
    whole_.read(to, from);
  }

 private:
  class Failing final : public Kernel {
   public:
    Failing(const FailingDevice& device, std::unique_ptr<Kernel> whole) : device_(device), whole_(std::move(whole)) {}
    Bytes workspace() const override { return whole_->workspace(); }
    void bind(std::span<void* const> inputs, std::span<void* const> outputs, void* workspace) override {
      device_.call("binding");
      whole_->bind(inputs, outputs, workspace);
    }
    void run() override {
      device_.call("running");
      whole_->run();
    }

   private:
    const FailingDevice& device_;
    std::unique_ptr<Kernel> whole_;
  };
  void call(const char* what) const {
    if (--left_ == 0) throw Error(ErrorCode::device_failure, fmt::format("{} failed", what));
  }

  const Device& whole_;
  mutable int left_;
  const bool host_addressable_;
};

// A random plan that uses both tiers, or none.
class Subject {
 public:
  Subject(uint64_t seed, bool tiers) : graph_(testing::random_graph(seed, {.forward_ops = 3})) {
    if (tiers) {
      plan_ = testing::random_plan(graph_, seed);
      kernels_.resize(graph_.op_count());
      for (const Step& step : plan_.steps) {
        kernels_[step.op.index] = {step.kernel, step.workspace};
      }
    } else {
      kernels_ = testing::random_kernels(graph_, seed);
      const Route route = make_route(graph_);
      const CostTable costs;
      plan_ = std::get<Plan>(find_policy("liveness")
                                 .plan({.graph = graph_,
                                        .route = route,
                                        .kernels = kernels_,
                                        .costs = costs,
                                        .device = {.name = "mixing"}}));
    }
    device_.emplace(graph_, kernels_);
  }
  const Plan& plan() const { return plan_; }
  const testing::MixingDevice& device() const { return *device_; }

  // A run of two steps; what stops it, or nothing.
  std::optional<std::string> run(const Device& device, const fs::path& spill) const {
    std::optional<Executor> executor;
    std::string first, second;
    try {
      executor.emplace(graph_, plan_, device, ExecuteOptions{.spill = spill});
      executor->initialize(3);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::device_failure) << error.what();
      return error.what();
    }
    for (int step = 0; step < 2; ++step) {
      try {
        for (TensorId id : graph_.inputs) {
          executor->write(id, std::vector<std::byte>(graph_.tensor(id).bytes().count));
        }
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::device_failure) << error.what();
        return error.what();
      }
      try {
        executor->run_step();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::device_failure) << error.what();
        // The states are lost, so every further step fails in the same way.
        EXPECT_EQ(testing::error_text(ErrorCode::device_failure, [&] { executor->run_step(); }), error.what());
        return error.what();
      }
    }
    try {
      for (const State& state : graph_.states) {
        std::vector<std::byte> content(graph_.tensor(state.before).bytes().count);
        executor->read(state.before, content);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::device_failure) << error.what();
      return error.what();
    }
    return std::nullopt;
  }

 private:
  Graph graph_;
  std::vector<KernelChoice> kernels_;
  Plan plan_;
  std::optional<testing::MixingDevice> device_;
};

TEST(Faults, EveryCallToTheDeviceIsToldAndEndsTheRun) {
  const TemporaryFolder folder;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const bool tiers = seed % 2 == 0;
    const Subject subject(seed, tiers);
    std::set<std::string> said;
    for (int nth = 1;; ++nth) {
      SCOPED_TRACE(fmt::format("seed {}, call {}", seed, nth));
      ASSERT_LT(nth, 5000);
      const FailingDevice device(subject.device(), nth, tiers);
      const std::optional<std::string> stopped = subject.run(device, folder.path());
      ASSERT_EQ(device.struck(), stopped.has_value());
      ASSERT_TRUE(fs::is_empty(folder.path()));
      if (!stopped) break;
      said.insert(*stopped);
    }
    EXPECT_EQ(said.size(), tiers ? 4u : 6u) << "calls that were never made";
  }
}

TEST(Faults, EveryCallToATierIsToldAndEndsTheRun) {
  const std::vector<std::pair<TierOperation, std::string>> operations{
      {TierOperation::map, "host memory"},
      {TierOperation::open, "cannot make a file"},
      {TierOperation::allocate, "--spill"},
      {TierOperation::buffers, "for copies to the disk"},
      {TierOperation::thread, "thread"},
      {TierOperation::write, "byte "},
      {TierOperation::read, "byte "},
      {TierOperation::wait, ".spill"},
      {TierOperation::short_read, "ends early"},
      {TierOperation::corrupt, "checksum"}};
  const TemporaryFolder folder;
  std::map<TierOperation, int> struck;
  for (uint64_t seed = 2; seed <= 3; ++seed) {
    const Subject subject(seed, true);
    for (const auto& [operation, says] : operations) {
      for (int nth = 1;; ++nth) {
        SCOPED_TRACE(fmt::format("seed {}, operation {}, call {}", seed, static_cast<int>(operation), nth));
        ASSERT_LT(nth, 5000);
        const TierFault fault(operation, nth, EIO);
        const std::optional<std::string> stopped = subject.run(subject.device(), folder.path());
        ASSERT_EQ(fault.struck(), stopped.has_value());
        ASSERT_TRUE(fs::is_empty(folder.path()));
        if (!stopped) break;
        ASSERT_THAT(*stopped, HasSubstr(says));
        ++struck[operation];
      }
    }
  }
  for (const auto& [operation, says] : operations) EXPECT_GT(struck[operation], 0) << static_cast<int>(operation);
}

// Where the system offers no file without a name, or no io_uring, a run does without.
TEST(Faults, WhatTheSystemNeedNotOfferIsDoneWithout) {
  const TemporaryFolder folder;
  const Subject subject(2, true);
  for (const TierOperation operation : {TierOperation::unnamed, TierOperation::ring}) {
    for (int nth = 1;; ++nth) {
      ASSERT_LT(nth, 100);
      const TierFault fault(operation, nth, EOPNOTSUPP);
      EXPECT_EQ(subject.run(subject.device(), folder.path()), std::nullopt);
      EXPECT_TRUE(fs::is_empty(folder.path()));
      if (!fault.struck()) break;
    }
  }
}

}  // namespace
}  // namespace plimsoll
