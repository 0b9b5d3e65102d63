// A device for random graphs (tests/support/random_graph.h), whose ops have rules but no arithmetic: every output is
// noise drawn from a hash of all bytes that the op reads, so that one wrong byte anywhere changes all that follows. And
// a tier that takes its time, now and then, so that what only goes right when copies are fast goes wrong.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "device/tier/tier.h"
#include "plan/policy.h"
#include "plimsoll/device.h"
#include "plimsoll/error.h"
#include "plimsoll/ops.h"

namespace plimsoll::testing {

class Digest {
 public:
  explicit Digest(uint64_t seed = 0) : state_(seed ^ 0x9e3779b97f4a7c15) {}
  void add(const void* bytes, size_t count) {
    const auto* at = static_cast<const unsigned char*>(bytes);
    for (; count >= 8; count -= 8, at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, at, 8);
      mix(word);
    }
    uint64_t word = count;
    std::memcpy(&word, at, count);
    mix(word);
  }
  uint64_t value() const { return state_; }
  // Noise that follows from what was added.
  static void fill(void* bytes, size_t count, uint64_t seed) {
    auto* at = static_cast<unsigned char*>(bytes);
    for (uint64_t i = 0; count > 0; ++i) {
      Digest word(seed);
      word.mix(i);
      const size_t part = std::min<size_t>(count, 8);
      std::memcpy(at, &word.state_, part);
      at += part;
      count -= part;
    }
  }

 private:
  void mix(uint64_t word) {
    state_ = (state_ ^ word) * 0xff51afd7ed558ccd;
    state_ ^= state_ >> 29;
  }
  uint64_t state_;
};

// What an op writes: by output, a seed. `inputs` are null where a recomputation leaves them out.
inline std::vector<uint64_t> mixed(const Graph& graph, const Op& op, std::span<const void* const> inputs) {
  std::vector<uint64_t> seeds;
  for (size_t o = 0; o < op.outputs.size(); ++o) {
    const auto& states = op.type->state_outputs;
    const bool state = std::find(states.begin(), states.end(), static_cast<int>(o)) != states.end();
    Digest digest(static_cast<uint64_t>(op.outputs[o].index));
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      // What only new states depend on is not there when the op runs again.
      const Tensor& tensor = graph.tensor(op.inputs[i]);
      if (inputs[i] == nullptr || (!state && tensor.role == Role::statistic)) continue;
      digest.add(inputs[i], tensor.bytes().count);
    }
    seeds.push_back(digest.value());
  }
  return seeds;
}

class MixingDevice final : public Device {
 public:
  // Noise is written to the workspaces too. The arena is followed by bytes that must stay as they are.
  MixingDevice(const Graph& graph, const std::vector<KernelChoice>& kernels) {
    info_ = {.name = "mixing", .description = "noise", .key = "mixing", .cores = {.cores = 64, .cores_a_cache = 1}};
    for (int32_t i = 0; i < graph.op_count(); ++i) workspaces_[graph.op({i}).name] = kernels[i].workspace;
  }

  const DeviceInfo& info() const override { return info_; }
  std::vector<KernelSpec> kernels(const Graph&, const Op&, LayoutFamily) const override { return {}; }
  std::unique_ptr<Kernel> make_kernel(const Graph& graph, const Op& op, std::string_view, int) const override {
    return std::make_unique<Mix>(graph, op, workspaces_.at(op.name));
  }
  std::unique_ptr<Arena> take_arena(Bytes bytes) const override { return std::make_unique<Guarded>(bytes, overrun_); }
  void write(std::byte* to, std::span<const std::byte> from) const override { std::copy(from.begin(), from.end(), to); }
  void read(std::span<std::byte> to, const std::byte* from) const override { std::copy_n(from, to.size(), to.begin()); }

  // Whether anything was written beyond an arena that is gone by now.
  bool overrun() const { return overrun_; }

 private:
  class Mix final : public Kernel {
   public:
    Mix(const Graph& graph, const Op& op, Bytes workspace) : graph_(graph), op_(op), workspace_(workspace) {}
    Bytes workspace() const override { return workspace_; }
    void bind(std::span<void* const> inputs, std::span<void* const> outputs, void* workspace) override {
      inputs_.assign(inputs.begin(), inputs.end());
      outputs_.assign(outputs.begin(), outputs.end());
      scratch_ = workspace;
    }
    void run() override {
      if (scratch_ != nullptr) Digest::fill(scratch_, workspace_.count, 1);
      const std::vector<uint64_t> seeds = mixed(graph_, op_, inputs_);
      for (size_t o = 0; o < seeds.size(); ++o) {
        if (outputs_[o] == nullptr) continue;
        Digest::fill(outputs_[o], graph_.tensor(op_.outputs[o]).bytes().count, seeds[o]);
      }
      if (scratch_ != nullptr) Digest::fill(scratch_, workspace_.count, 2);
    }

   private:
    const Graph& graph_;
    const Op op_;
    const Bytes workspace_;
    std::vector<const void*> inputs_;
    std::vector<void*> outputs_;
    void* scratch_ = nullptr;
  };

  class Guarded final : public Arena {
   public:
    Guarded(Bytes bytes, bool& overrun) : bytes_(bytes), overrun_(overrun) {
      memory_.resize(bytes.count + kAlignment + kGuard, std::byte{0x5a});
      base_ = memory_.data() + (kAlignment - reinterpret_cast<uintptr_t>(memory_.data()) % kAlignment);
    }
    ~Guarded() override {
      for (size_t i = 0; i < kGuard; ++i) overrun_ |= base_[bytes_.count + i] != std::byte{0x5a};
    }
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;
    std::byte* base() override { return base_; }
    Bytes bytes() const override { return bytes_; }

   private:
    static constexpr size_t kAlignment = 4096, kGuard = 4096;
    const Bytes bytes_;
    bool& overrun_;
    std::vector<std::byte> memory_;
    std::byte* base_ = nullptr;
  };

  DeviceInfo info_;
  std::map<std::string, Bytes, std::less<>> workspaces_;
  mutable bool overrun_ = false;
};

class SlowTier final : public Tier {
 public:
  // Of a hundred copies, so many wait for some tens of microseconds.
  SlowTier(std::string name, Bytes capacity, uint64_t seed, int percent)
      : Tier(std::move(name), capacity), seed_(seed), percent_(percent) {}
  std::string where() const override { return "a vector"; }
  std::string how() const override { return "copied"; }
  void reserve(Bytes bytes) override {
    if (bytes > capacity()) throw Error(ErrorCode::device_failure, "too small");
    if (std::ssize(memory_) < bytes.count) memory_.resize(bytes.count);
  }
  std::unique_ptr<Channel> open_channel(int) override {
    return std::make_unique<SlowChannel>(*this, seed_ + static_cast<uint64_t>(++channels_));
  }

 private:
  class SlowChannel final : public Channel {
   public:
    SlowChannel(SlowTier& tier, uint64_t seed) : tier_(tier), random_(seed) {}

   protected:
    void write_pieces(Slot& slot, int64_t first, int64_t count, const std::byte* from) override {
      idle();
      const auto [at, bytes] = place(slot, first, count);
      std::memcpy(at, from, bytes);
      for (int64_t i = first; i < first + count; ++i) slot.known[i] = 1;
    }
    void read_pieces(const Slot& slot, int64_t first, int64_t count, std::byte* to) override {
      idle();
      const auto [at, bytes] = place(slot, first, count);
      std::memcpy(to, at, bytes);
    }

   private:
    std::pair<std::byte*, size_t> place(const Slot& slot, int64_t first, int64_t count) const {
      const int64_t begin = first * kTierPiece;
      return {tier_.memory_.data() + slot.offset + begin,
              static_cast<size_t>(std::min(slot.bytes, (first + count) * kTierPiece) - begin)};
    }
    void idle() {
      if (static_cast<int>(random_() % 100) >= tier_.percent_) return;
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 60));
    }
    SlowTier& tier_;
    std::mt19937_64 random_;
  };

  const uint64_t seed_;
  const int percent_;
  std::atomic<int> channels_{0};
  std::vector<std::byte> memory_;
};

}  // namespace plimsoll::testing
